"""Binary hashing of maps and histograms of the codes in blocks: the output stage of PCANet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.pooling import block_starts, pyramid


def count_dtype(block: int, pool: str) -> np.dtype[Any]:
    """Return the smallest dtype that holds the counts of a block, or of several if summed.

    >>> count_dtype(15, "max"), count_dtype(16, "max")
    (dtype('uint8'), dtype('uint16'))
    """
    if pool == "sum":
        return np.dtype(np.uint32)
    return np.dtype(np.uint8 if block**2 <= np.iinfo(np.uint8).max else np.uint16)


def histogram_cells(
    height: int, width: int, block: int, stride: int, levels: tuple[int, ...], cells: str
) -> tuple[int, Array]:
    """Return the number of histograms of a group of maps, and those (R, Q, m) of each block.

    Without levels, each block has its own; else they are the cells of `pyramid`.
    """
    if levels:
        return pyramid(height, width, block, stride, levels, cells)
    rows, columns = (len(block_starts(length, block, stride)) for length in (height, width))
    return rows * columns, np.arange(rows * columns).reshape(rows, columns, 1)


def binary_hash_features(
    maps: Array,
    block: int,
    stride: int,
    levels: tuple[int, ...] = (),
    *,
    bits: int = 8,
    cells: str = "center",
    pool: str = "max",
) -> Array:
    """Compute histograms of binary codes of maps, as PCANet does.

    The signs of `bits` maps are the digits of an integer for each pixel, 1 where a map is positive;
    the first map has the highest digit. Features count each integer in blocks of pixels.

    Parameters
    ----------
    maps : ndarray of float32, shape (n, H, W, f)
        The maps of a layer, in NumPy or CuPy; f is a multiple of `bits`.
    block, stride : int
        Side of the blocks, and their distance, in pixels.
    levels : tuple of int
        Cells along a side of each level of the spatial pyramid; () gives the histograms of all
        blocks.
    bits : int
        The number of maps that make a code.
    cells : {"center", "even"}
        How blocks are assigned to cells.
    pool : {"max", "sum"}
        How the histograms of the blocks of a cell are pooled.

    Returns
    -------
    ndarray of shape (n, D)
        The counts: by cell (or block, row by row), group of maps, and code. They are unsigned
        integers of 1, 2 or 4 bytes, whichever hold all counts of blocks of this size.

    Raises
    ------
    ValueError
        If the number of maps is no multiple of `bits`, or a block is larger than the maps.
    """
    n, height, width, filters = maps.shape
    if filters % bits or min(height, width) < block:
        raise ValueError(
            f"{filters} maps of {height}×{width} pixels do not make codes of bits={bits} in blocks "
            f"of block={block}. Use a multiple of {bits} maps, and blocks that fit into the maps."
        )
    count, targets = histogram_cells(height, width, block, stride, tuple(levels), cells)
    shape = n, count, filters // bits, 2**bits
    histograms = get_operations(maps).hash_blocks(
        maps, bits, block, stride, targets, pool == "max", shape, count_dtype(block, pool)
    )
    return histograms.reshape(n, math.prod(shape[1:]))
