"""Second-order pooling and the spatial pyramid: from maps to the features of a layer."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, gpu_kernels, on_gpu
from rescnet_dist.kernels.loading import kernel


def block_starts(length: int, block: int, stride: int) -> range:
    """First pixels of the blocks along an axis."""
    return range(0, length - block + 1, stride)


def cell_of_block(length: int, block: int, stride: int, level: int, cells: str) -> list[int]:
    """The pyramid cell, from 0, that each block along an axis belongs to at a level.

    "center": ceil(center / (length/level)), pixels counted from 1 as PCANet's own code does.

    >>> cell_of_block(32, 16, 4, 4, "center")
    [0, 1, 1, 2, 2]
    >>> cell_of_block(32, 16, 4, 4, "even")
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
    """The number of live cells, and those that each block is pooled into, (rows, columns, levels).

    Cells are numbered level by level, row by row; those without a block are left out.
    """
    if min(height, width) < block:
        raise ValueError(f"blocks of {block} do not fit into {height}×{width} pixels")
    found, live = [], 0
    for level in levels:
        rows = np.array(cell_of_block(height, block, stride, level, cells))
        columns = np.array(cell_of_block(width, block, stride, level, cells))
        _, numbers = np.unique(rows[:, None] * level + columns, return_inverse=True)
        found.append(live + numbers.reshape(len(rows), len(columns)))
        live += int(numbers.max()) + 1
    return live, np.stack(found, axis=2)


@lru_cache(maxsize=64)
def nested(
    height: int, width: int, block: int, stride: int, levels: tuple[int, ...], cells: str
) -> tuple[Array, Array]:
    """Which levels of a pyramid blocks are pooled into directly, (rows, columns, m), and which
    cells (p, 2) are pooled into which afterwards: all of a level that lie each in one of another.
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
    cells: str = "center",
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
    grid = height, width, block, stride, tuple(levels), cells
    (live, targets), (direct, parents) = pyramid(*grid), nested(*grid)
    pairs = filters * (filters - 1) // 2 if zscore == "channel" else filters * (filters + 1) // 2
    how = (block, stride, direct, parents, zscore == "channel", power, pool == "max")
    if on_gpu(maps):
        pooled = gpu_kernels().pool_blocks(maps, *how, live, pairs)
        if pool == "mean":
            shares = 1 / np.bincount(targets.reshape(-1), minlength=live)
            pooled *= asarray_like(np.repeat(shares, pairs).astype(np.float32), maps)
        return pooled
    pooled = np.empty((n, live, pairs), maps.dtype)
    if not maps.flags.c_contiguous:
        maps = np.ascontiguousarray(maps)
    kernel("pool_blocks")(maps, *how, pooled)
    if pool == "mean":
        pooled /= np.bincount(targets.reshape(-1), minlength=live).astype(maps.dtype)[:, None]
    return pooled.reshape(n, live * pairs)
