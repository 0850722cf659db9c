"""Sums, minima and maxima of the columns of a matrix on a GPU, in one pass over it."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.kernels.gpu.device import Array, array_or_null, load_module
from rescnet_dist.kernels.inputs import LayerInput

COLUMN_THREADS = 256  # threads of a block, one per column
PARTIAL_SUM_ROWS = 512  # rows that a thread sums


def column_means(rows: Array, weights: Array | None = None) -> Array:
    """Return the mean (m,) of each column of rows (n, m), weighted if weights (n,) are given.

    It is in float64. Rows need not be contiguous with each other; integers and halves are copied in
    single precision.
    """
    if rows.dtype.kind == "u" or rows.dtype == np.float16:
        rows = rows.astype(np.float32)
    if rows.dtype != np.float32:
        if weights is None:
            return rows.mean(axis=0, dtype=np.float64)
        return cupy.asarray(weights) @ rows / weights.sum()
    count = len(rows) if weights is None else float(weights.sum())
    return _gather(rows, weights, extremes=False)[2].sum(axis=0) / count


def gather_sums(inputs: LayerInput) -> tuple[Array, Array, Array]:
    """Return minimum and maximum (c,) of each channel, and the sum (H, W, c) over images."""
    maps, images = inputs.select_arrays()
    if not len(images):
        infinity = cupy.full(maps.shape[3] + images.shape[3], np.inf)
        return infinity, -infinity, cupy.zeros((*images.shape[1:3], len(infinity)))
    parts = (cupy.ascontiguousarray(part, np.float32) for part in (maps, images))
    weights = inputs.row_weights
    gathered = [_gather_pixels(part, weights) for part in parts if part.shape[3]]
    low, high, sums = (cupy.concatenate(parts, axis=-1) for parts in zip(*gathered, strict=True))
    return low.astype(np.float64), high.astype(np.float64), sums


def _gather_pixels(pixels: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """Return minimum and maximum (c,), and the sum (H, W, c), of float32 pixels (n, H, W, c)."""
    n, height, width, channels = pixels.shape
    low, high, sums = _gather(pixels.reshape(n, -1), weights, extremes=True)
    return (
        low.min(axis=0).reshape(-1, channels).min(axis=0),
        high.max(axis=0).reshape(-1, channels).max(axis=0),
        sums.sum(axis=0).reshape(height, width, channels),
    )


def _gather(matrix: Array, weights: Array | None, *, extremes: bool) -> tuple[Any, Any, Array]:
    """Return minimum, maximum and sum of each column, for each of p parts of a matrix's rows.

    They are (p, m) each, for a matrix (n, m). Minimum and maximum are None unless `extremes`. The
    sum is weighted by weights (n,), if there are any.
    """
    n, columns = matrix.shape
    parts = -(-n // PARTIAL_SUM_ROWS)
    low, high = (cupy.empty((parts, columns), np.float32) if extremes else None for _ in range(2))
    sums = cupy.empty((parts, columns))
    load_module("sums", ()).get_function("gather")(
        (-(-columns // COLUMN_THREADS), parts),
        (COLUMN_THREADS,),
        (
            matrix,
            array_or_null(None if weights is None else cupy.asarray(weights, np.float64)),
            array_or_null(low),
            array_or_null(high),
            sums,
            n,
            columns,
            matrix.strides[0] // 4,
            PARTIAL_SUM_ROWS,
        ),
    )
    return low, high, sums
