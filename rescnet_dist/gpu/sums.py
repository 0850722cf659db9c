"""Sums of the columns of a matrix on a GPU, in one reading, with their least and largest values."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.gpu.device import Array, module, pointer

LANES, ROWS = 256, 512  # columns of a block, and rows that are summed up in one go


def column_means(matrix: Array) -> Array:
    """The mean of each column (m,) in float64, of a matrix (n, m) in single precision, rows of
    which may lie apart."""
    return _gathered(matrix, extremes=False)[2].sum(axis=0) / len(matrix)


def gather_sums(maps: Array, images: Array) -> tuple[Array, Array, Array]:
    """The least and largest value of each channel (c,) of maps (n, H, W, f) and images (n, H, W,
    d), and the sum (H, W, c) over all of them, in float64."""
    if not len(images):
        none = cupy.full(maps.shape[3] + images.shape[3], np.inf)
        return none, -none, cupy.zeros((*images.shape[1:3], len(none)))
    parts = (cupy.ascontiguousarray(part, np.float32) for part in (maps, images))
    found = [_sums_of(part) for part in parts if part.shape[3]]
    low, high, sums = (cupy.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
    return low.astype(np.float64), high.astype(np.float64), sums


def _sums_of(part: Array) -> tuple[Array, Array, Array]:
    """The least and largest value of each channel (c,) of pixels (n, H, W, c), in single precision,
    and their sum (H, W, c)."""
    n, height, width, channels = part.shape
    low, high, sums = _gathered(part.reshape(n, -1), extremes=True)
    return (
        low.min(axis=0).reshape(-1, channels).min(axis=0),
        high.max(axis=0).reshape(-1, channels).max(axis=0),
        sums.sum(axis=0).reshape(height, width, channels),
    )


def _gathered(matrix: Array, *, extremes: bool) -> tuple[Any, Any, Array]:
    """The least and largest value, if these are wanted, and the sum of each column of some rows of
    a matrix (n, m) at a time, (p, m) each."""
    n, columns = matrix.shape
    parts = -(-n // ROWS)
    low, high = (cupy.empty((parts, columns), np.float32) if extremes else None for _ in range(2))
    sums = cupy.empty((parts, columns))
    module("sums", ()).get_function("gather")(
        (-(-columns // LANES), parts), (LANES,),
        (matrix, pointer(low), pointer(high), sums, n, columns, matrix.strides[0] // 4, ROWS),
    )  # fmt: skip
    return low, high, sums
