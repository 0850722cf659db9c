"""Second-order pooling and the spatial pyramid: the features of a layer from its maps."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.backend import get_operations

MAX_VECTOR_FLOATS = 16  # of a processor; `LANES` of `cpu.vectors` has those of this one
MAX_TILE_FLOATS = 6 * MAX_VECTOR_FLOATS  # of as many rows as a tile has
MAX_TILE_VECTORS = 4  # of a group of pairs


def block_starts(length: int, block: int, stride: int) -> range:
    """Return the first pixels of the blocks along an axis of `length` pixels."""
    return range(0, length - block + 1, stride)


def assign_cells(length: int, block: int, stride: int, level: int, cells: str) -> list[int]:
    """Return the pyramid cell, from 0, of each block along an axis at a pyramid level.

    cells="center": ceil(center / (length/level)), pixels counted from 1 as in PCANet's own code.
    cells="even": the blocks are divided evenly between the `level` cells.

    >>> assign_cells(32, 16, 4, 4, "center")
    [0, 1, 1, 2, 2]
    >>> assign_cells(32, 16, 4, 4, "even")
    [0, 0, 1, 2, 3]
    """
    starts = block_starts(length, block, stride)
    if cells == "even":
        return [j * level // len(starts) for j in range(len(starts))]
    centers = (start + math.ceil(block / 2) for start in starts)
    return [-(-center * level // length) - 1 for center in centers]


@lru_cache(maxsize=64)
def pyramid(
    height: int, width: int, block: int, stride: int, levels: tuple[int, ...], cells: str
) -> tuple[int, Array]:
    """Return the number of pyramid cells that have blocks, and the cells of each block.

    The cells of blocks are of shape (rows, columns, levels). Cells are numbered level by level, row
    by row; those without a block are left out.
    """
    if min(height, width) < block:
        raise ValueError(
            f"block={block} does not fit into {height}×{width} pixels. Use a smaller block."
        )
    cells_by_level, live = [], 0
    for level in levels:
        rows = np.array(assign_cells(height, block, stride, level, cells))
        columns = np.array(assign_cells(width, block, stride, level, cells))
        _, numbers = np.unique(rows[:, None] * level + columns, return_inverse=True)
        cells_by_level.append(live + numbers.reshape(len(rows), len(columns)))
        live += int(numbers.max()) + 1
    return live, np.stack(cells_by_level, axis=2)


@lru_cache(maxsize=64)
def nest_levels(
    height: int, width: int, block: int, stride: int, levels: tuple[int, ...], cells: str
) -> tuple[Array, Array]:
    """Return the cells that blocks are pooled into directly, and the cells pooled from others.

    Direct cells (rows, columns, m) are those of m levels. A level each of whose cells is a union of
    cells of the finest level is pooled from these afterwards: parents (p, 2) are pairs of a
    cell and the cell that it is pooled into.
    """
    _, targets = pyramid(height, width, block, stride, levels, cells)
    finest = int(np.argmax([len(np.unique(targets[..., n])) for n in range(len(levels))]))
    direct, parents = [targets[..., finest]], [np.zeros((0, 2), np.int64)]
    for level in range(len(levels)):
        if level != finest:
            inside = np.stack([targets[..., finest], targets[..., level]], axis=2).reshape(-1, 2)
            pairs = np.unique(inside, axis=0)
            if len(np.unique(pairs[:, 0])) == len(pairs):
                parents.append(pairs)
            else:
                direct.append(targets[..., level])
    return np.stack(direct, axis=2), np.concatenate(parents)


def feature_count(
    height: int,
    width: int,
    filters: int,
    *,
    block: int,
    stride: int,
    levels: tuple[int, ...],
    cells: str = "center",
    zscore: str = "channel",
) -> int:
    """Compute the number of features D of `second_order_features`.

    Parameters
    ----------
    height, width : int
        The size of the maps, in pixels.
    filters : int
        The number of maps f.
    block, stride : int
        Side of the blocks, and their distance, in pixels.
    levels : tuple of int
        Cells along a side of each level of the spatial pyramid.
    cells : {"center", "even"}
        How blocks are assigned to cells.
    zscore : {"channel", "block"}
        How blocks are normalized; "block" keeps the diagonal of the covariance.

    Returns
    -------
    int
        The number of features.

    Raises
    ------
    ValueError
        If a block is larger than the maps.

    Examples
    --------
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
    cells: str = "center",
    pool: str = "max",
    zscore: str = "channel",
    power: bool = False,
) -> Array:
    """Compute features by second-order pooling over a spatial pyramid.

    They are the z-scored covariances of ReLU(maps) in each block, the upper triangle of which is
    pooled over the blocks of each pyramid cell.

    Parameters
    ----------
    maps : ndarray of shape (n, H, W, f)
        The maps of a layer.
    block, stride : int
        Side of the blocks, and their distance, in pixels.
    levels : tuple of int
        Cells along a side of each level of the spatial pyramid.
    cells : {"center", "even"}
        How blocks are assigned to cells.
    pool : {"max", "mean"}
        How the blocks of a cell are pooled.
    zscore : {"channel", "block"}
        "channel" gives correlations and leaves out the constant diagonal. "block" divides by one
        standard deviation for the block and keeps the diagonal. A channel without variance gives
        zeros.
    power : bool
        Whether to take sign(v)·|v|^½ of the entries before pooling.

    Returns
    -------
    ndarray of shape (n, D)
        The features, cell by cell; D as of `feature_count`.

    Raises
    ------
    ValueError
        If a block is larger than the maps.
    """
    _, height, width, filters = maps.shape
    grid = height, width, block, stride, tuple(levels), cells
    (live, targets), (direct, parents) = pyramid(*grid), nest_levels(*grid)
    pairs = filters * (filters - 1) // 2 if zscore == "channel" else filters * (filters + 1) // 2
    counts = None if pool == "max" else np.bincount(targets.reshape(-1), minlength=live)
    return get_operations(maps).pool_blocks(
        maps, block, stride, direct, parents, zscore == "channel", power, counts, live, pairs
    )


def second_order_bytes(
    height: int,
    width: int,
    filters: int,
    *,
    block: int,
    stride: int,
    levels: tuple[int, ...],
    cells: str = "center",
) -> int:
    """Return the most memory that `second_order_features` takes on the CPU, of a thread.

    These are the buffers of `cpu.blocks.pool_blocks` in single precision, which computes one image
    after the other. Maps and features are not included. Covariances that are computed again, those
    of channels that are almost constant in a block, are included as if these were all channels.

    Parameters
    ----------
    height, width : int
        The size of the maps, in pixels.
    filters : int
        The number of maps f.
    block, stride, levels, cells
        As of `feature_count`.

    Returns
    -------
    int
        Bytes, for the processor with the widest vectors.
    """
    live, targets = pyramid(height, width, block, stride, tuple(levels), cells)
    rows, columns, _ = targets.shape
    blocks, side = rows * columns, math.gcd(block, stride)
    vectors = 1 if side == 1 else min(MAX_TILE_VECTORS, -(-filters // MAX_VECTOR_FLOATS))
    group = vectors * MAX_TILE_FLOATS
    cell_rows, cell_columns = (((n - 1) * stride + block) // side for n in (rows, columns))
    pitch, padded = _fill_tiles(cell_columns * filters), _fill_tiles(filters)
    cell_group = 0 if side == 1 else cell_columns * group
    # In floats, with the names of the buffers
    pixels = (cell_rows * side + 1) * cell_columns * side * filters  # flat, line
    cells = cell_rows * (max(pitch, cell_group) + pitch)  # cells, squares
    windows = rows * max(pitch, cell_columns * group) + columns * group  # column_sums, block_sums
    windows += (block // side + 1) * MAX_TILE_FLOATS  # run_sums
    moments = 2 * blocks * padded + filters  # sums, overall
    moments += 4 * blocks * filters + 2 * (blocks + 1)  # means, inverse, variance, channels; starts
    centered = (2 + block**2 + MAX_TILE_FLOATS // MAX_VECTOR_FLOATS) * padded  # and products
    covariances = blocks * filters**2 + centered
    pooled = (live + 1) * group  # by_cell, entries
    return 4 * (pixels + cells + windows + moments + covariances + pooled)


def _fill_tiles(count: int) -> int:
    """Return a number of floats, rounded up to whole tiles."""
    return -(-count // MAX_TILE_FLOATS) * MAX_TILE_FLOATS
