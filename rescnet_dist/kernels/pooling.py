"""Second-order pooling and the spatial pyramid: from maps to the features of a layer."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rescnet_dist.kernels.patches import BATCH_BYTES, Array

NO_VARIANCE = 1e-8  # of the mean square: below it a channel counts as constant in its block


def block_starts(length: int, block: int, stride: int) -> range:
    """First pixels of the blocks along an axis."""
    return range(0, length - block + 1, stride)


def cell_of_block(length: int, block: int, stride: int, level: int, cells: str) -> list[int]:
    """The pyramid cell, from 0, that each block along an axis belongs to at a level.

    "centre": ceil(centre / (length/level)), pixels counted from 1 as PCANet's own code does.

    >>> cell_of_block(32, 16, 4, 4, "centre")
    [0, 1, 1, 2, 2]
    >>> cell_of_block(32, 16, 4, 4, "even")
    [0, 0, 1, 2, 3]
    """
    starts = block_starts(length, block, stride)
    if cells == "even":
        return [j * level // len(starts) for j in range(len(starts))]
    centres = (start + math.ceil(block / 2) for start in starts)
    return [-(-centre * level // length) - 1 for centre in centres]


@lru_cache(maxsize=64)
def pyramid(
    height: int, width: int, block: int, stride: int, levels: tuple[int, ...], cells: str
) -> tuple[int, dict[tuple[int, int], tuple[int, ...]]]:
    """The number of live cells, and for each block (y, x) the live cells it is pooled into.

    Cells are numbered level by level, row by row; those without a block are left out.
    """
    members: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for number, level in enumerate(levels):
        rows = cell_of_block(height, block, stride, level, cells)
        columns = cell_of_block(width, block, stride, level, cells)
        for y, row in zip(block_starts(height, block, stride), rows, strict=True):
            for x, column in zip(block_starts(width, block, stride), columns, strict=True):
                members.setdefault((number, row, column), []).append((y, x))
    targets: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, key in enumerate(sorted(members)):
        for start in members[key]:
            targets[start] = (*targets.get(start, ()), index)
    return len(members), targets


def feature_count(
    height: int,
    width: int,
    filters: int,
    *,
    block: int,
    stride: int,
    levels: tuple[int, ...],
    cells: str = "centre",
    zscore: str = "channel",
) -> int:
    """Number of features D of `second_order_features`.

    >>> feature_count(32, 32, 50, block=16, stride=4, levels=(4, 2, 1))
    17150
    """
    live, _ = pyramid(height, width, block, stride, tuple(levels), cells)
    pairs = filters * (filters - 1) // 2 if zscore == "channel" else filters * (filters + 1) // 2
    return live * pairs


def second_order_features(
    maps: Array,
    block: int,
    stride: int,
    levels: tuple[int, ...],
    *,
    cells: str = "centre",
    pool: str = "max",
    zscore: str = "channel",
    power: bool = False,
) -> Array:
    """Features (n, D) of maps (n, H, W, f): the z-scored covariance of ReLU(maps) in each block,
    its upper triangle pooled over the blocks of each pyramid cell.

    zscore="channel" gives correlations and leaves the constant diagonal out; "block" divides by
    one deviation for the block and keeps it. A channel without variance gives zeros. power takes
    sign(v)·|v|^½ of the entries before pooling.
    """
    n, height, width, filters = maps.shape
    live, targets = pyramid(height, width, block, stride, tuple(levels), cells)
    upper = np.triu_indices(filters, 1 if zscore == "channel" else 0)
    upper_flat = upper[0] * filters + upper[1]
    fill = -np.inf if pool == "max" else 0.0
    pooled = np.full((n, live, len(upper_flat)), fill, maps.dtype)
    blocks_in_cell = np.zeros(live, maps.dtype)
    step = max(1, BATCH_BYTES // (block * block * filters * 16))
    for start, cell_numbers in targets.items():
        blocks_in_cell[list(cell_numbers)] += 1
        rows, columns = slice(start[0], start[0] + block), slice(start[1], start[1] + block)
        for first in range(0, n, step):
            batch = slice(first, first + step)
            pixels = np.maximum(maps[batch, rows, columns], 0)
            pixels = pixels.reshape(len(pixels), block**2, filters)
            covariance = _normalised_covariance(pixels, zscore)
            flat = covariance.reshape(len(pixels), filters**2)
            entries = np.take(flat, upper_flat, axis=1)
            if power:
                entries = np.sign(entries) * np.sqrt(np.abs(entries))
            for cell in cell_numbers:
                into = pooled[batch, cell]
                if pool == "max":
                    np.maximum(into, entries, out=into)
                else:
                    into += entries
    if pool == "mean":
        pooled /= blocks_in_cell[:, None]
    return pooled.reshape(n, live * len(upper_flat))


def _normalised_covariance(pixels: Array, zscore: str) -> Array:
    """Covariance (n, f, f) of z-scored pixels (n, r², f) of one block in each image."""
    area = pixels.shape[1]
    first = pixels[:, :1]
    centred = pixels - first  # a constant channel is 0 from here on, whatever rounding does
    mean = np.full((1, area), 1 / area, pixels.dtype) @ centred
    centred -= mean
    mean += first
    covariance = np.matmul(centred.transpose(0, 2, 1), centred)
    covariance /= area
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    mean_square = variance + mean[:, 0] ** 2
    if zscore == "block":  # one mean and deviation over all pixels and channels
        spread = variance.mean(axis=1) + mean[:, 0].var(axis=1)
        live = spread > NO_VARIANCE * mean_square.mean(axis=1)
        inverse = np.divide(1, spread, out=np.zeros_like(spread), where=live)
        return covariance * inverse[:, None, None]
    live = variance > NO_VARIANCE * mean_square
    inverse = np.divide(1, np.sqrt(variance), out=np.zeros_like(mean_square), where=live)
    covariance *= inverse[:, :, None]
    covariance *= inverse[:, None, :]
    return covariance
