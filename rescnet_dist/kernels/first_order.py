"""First-order pooling: means and maxima of the maps in the cells of a spatial pyramid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, get_array_module, signed_root

POOLS = {"both": ("mean", "max"), "mean": ("mean",), "max": ("max",)}
COMBINE: dict[str, Callable[..., Any]] = {"mean": np.add, "max": np.maximum}


def first_order_count(filters: int, levels: tuple[int, ...], activation: str, pools: str) -> int:
    """Return the number of features D of `first_order_features` of so many maps."""
    cells = sum(level**2 for level in levels)
    return cells * len(POOLS[pools]) * _count_halves(activation) * filters


def first_order_features(
    maps: Array,
    levels: tuple[int, ...],
    *,
    activation: str = "relu",
    threshold: float = 0.0,
    pools: str = "both",
    power: bool = False,
) -> Array:
    """Compute features by pooling maps over the pixels of the cells of a spatial pyramid.

    Cell i of g along an axis of `length` pixels has those from ⌊length·i/g⌋ to ⌊length·(i+1)/g⌋.
    Sums are in single precision, in an order that depends on the size of the maps alone: row after
    row, then column after column, in NumPy and CuPy alike.

    Parameters
    ----------
    maps : ndarray of float32, shape (n, H, W, f)
        The maps of a layer, in NumPy or CuPy.
    levels : tuple of int
        Cells along a side of each level of the spatial pyramid, at most H and W.
    activation : {"relu", "absolute", "soft-threshold", "none"}
        What is pooled of a pixel z: max(0, z), abs(z), both halves max(0, z − t) and
        max(0, −z − t), or z.
    threshold : float
        The threshold t of "soft-threshold".
    pools : {"both", "mean", "max"}
        How the pixels of a cell are pooled.
    power : bool
        Whether to take sign(v)·|v|^½ of each feature v.

    Returns
    -------
    ndarray of float32, shape (n, D)
        The features: by level, cell (row by row), mean and maximum, half, and map.
    """
    n, height, width, filters = maps.shape
    cells = list(_list_cells(height, width, levels))
    halves, names = _count_halves(activation), POOLS[pools]
    shape = (n, len(cells), len(names), halves, filters)
    features = get_array_module(maps).empty(shape, np.float32)
    rows, columns = _list_edges(height, levels), _list_edges(width, levels)
    for half in range(halves):
        activate = partial(_activate, activation=activation, threshold=threshold, half=half)
        pooled = _pool_rectangles(maps, activate, rows, columns, names)
        for number, (top, bottom, left, right) in enumerate(cells):
            inside = slice(rows.index(top), rows.index(bottom))
            across = slice(columns.index(left), columns.index(right))
            for index, name in enumerate(names):
                parts = [part for line in pooled[name][inside] for part in line[across]]
                value = _combine(parts, name)
                if name == "mean":
                    value /= (bottom - top) * (right - left)
                features[:, number, index, half] = value
    if power:
        features = signed_root(features)
    return features.reshape(n, math.prod(shape[1:]))


def _count_halves(activation: str) -> int:
    """Return the number of values that are pooled of a pixel of a map."""
    return 2 if activation == "soft-threshold" else 1


def cell_edges(length: int, level: int) -> list[int]:
    """Return the first pixels of the cells along an axis, and its length.

    >>> cell_edges(8, 3)
    [0, 2, 5, 8]
    """
    return [length * cell // level for cell in range(level + 1)]


def _list_edges(length: int, levels: tuple[int, ...]) -> list[int]:
    """Return the edges of the cells of all levels along an axis, in order."""
    return sorted({edge for level in levels for edge in cell_edges(length, level)})


def _list_cells(
    height: int, width: int, levels: tuple[int, ...]
) -> Iterable[tuple[int, int, int, int]]:
    """Yield top, bottom, left and right edge of the cells, level by level, row by row."""
    for level in levels:
        for top, bottom in itertools.pairwise(cell_edges(height, level)):
            for left, right in itertools.pairwise(cell_edges(width, level)):
                yield top, bottom, left, right


def _activate(
    row: Array, out: Array, zeros: Array, *, activation: str, threshold: float, half: int
) -> Array:
    """Return what is pooled of pixels (n, W, f), which may be written to `out`.

    `zeros` are of the same shape: NumPy's maximum of an array and a number is slow.
    """
    if activation == "none":
        return row
    if activation == "absolute":
        return np.abs(row, out=out)
    if activation == "soft-threshold" and half:
        row = np.subtract(-threshold, row, out=out)
    elif activation == "soft-threshold":
        row = np.subtract(row, threshold, out=out)
    return np.maximum(row, zeros, out=out)


def _pool_rectangles(
    maps: Array,
    activate: Callable[..., Array],
    rows: list[int],
    columns: list[int],
    pools: Iterable[str],
) -> dict[str, list[list[Array]]]:
    """Return sum and maximum (n, f) of the rectangles of pixels between edges, line by line."""
    pooled: dict[str, list[list[Array]]] = {pool: [] for pool in pools}
    xp = get_array_module(maps)
    active, zeros = xp.empty_like(maps[:, 0]), xp.zeros_like(maps[:, 0])
    for start, stop in itertools.pairwise(rows):
        strips: dict[str, Array] = {}
        for y in range(start, stop):
            row = activate(maps[:, y], active, zeros)
            for pool in pooled:
                if y == start:
                    strips[pool] = row.copy()
                else:
                    COMBINE[pool](strips[pool], row, out=strips[pool])
        for pool, strip in strips.items():
            spans = itertools.pairwise(columns)
            line = [_combine([strip[:, x] for x in range(*span)], pool) for span in spans]
            pooled[pool].append(line)
    return pooled


def _combine(parts: list[Array], pool: str) -> Array:
    """Return the sum or the maximum of arrays of one shape, from the first to the last."""
    total = parts[0].copy()
    for part in parts[1:]:
        COMBINE[pool](total, part, out=total)
    return total
