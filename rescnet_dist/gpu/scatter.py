"""Products of features with themselves on a GPU, in single precision or on its matrix units."""

from __future__ import annotations

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas

from rescnet_dist.gpu.device import PAIRS, Array, aligned, gemm, matmul_precision, transpose

PANEL = 1024  # columns of the lower triangle that are made at a time

add_product = cupy.ElementwiseKernel("T a, T b", "T total", "total += a * b", "rescnet_outer")


def new_square(side: int, dtype: np.dtype[np.floating]) -> Array:
    """Zeros (side, side) in Fortran's order, in columns of a length that is quick to work with."""
    whole = cupy.zeros((aligned(side), aligned(side)), dtype).T
    return whole[:side, :side]


def in_square(matrix: Array) -> Array:
    """A matrix (D, D) as it is in memory of `new_square`; one from another worker is not."""
    side = len(matrix)
    pitch = aligned(side) * matrix.dtype.itemsize
    if matrix.base is not None and matrix.strides == (matrix.dtype.itemsize, pitch):
        return matrix
    square = new_square(side, matrix.dtype)
    square[...] = matrix
    return square


def new_rows(n: int, scatter: Array) -> Array:
    """Rows (n, D), to be written to and added to scatter (D, D)."""
    return cupy.empty((n, scatter.strides[1] // scatter.dtype.itemsize), scatter.dtype)[
        :, : len(scatter)
    ]


def add_scatter(total: Array, rows: Array) -> None:
    """total (D, D) += rowsᵀ rows of rows (n, D); the lower triangle only.

    Products are those chosen (`using_matmul_precision`). Features are of the order of 1.
    """
    how = matmul_precision()
    if how == "float32" or total.dtype == np.float64:
        _syrk(total, rows)
        return
    parts = transpose(rows)
    for left, right in PAIRS[len(parts)]:
        add_panels(total, parts[left], parts[right])


def add_outer(total: Array, vector: Array, factor: float) -> None:
    """total (D, D) += factor·v vᵀ, v = vector (D,)."""
    v = vector.astype(total.dtype)
    add_product((factor * v)[:, None], v, total.T)  # whose rows lie side by side


def pitch_of(array: Array) -> int:
    """From one column, or row, to the next, in numbers."""
    return int(max(array.strides)) // array.dtype.itemsize


def _syrk(total: Array, rows: Array) -> None:
    n, width = rows.shape
    one = np.array(1, total.dtype)
    routine = {"f": cublas.ssyrk, "d": cublas.dsyrk}[total.dtype.char]
    routine(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_FILL_MODE_LOWER, cublas.CUBLAS_OP_N,
        width, n, one.ctypes.data, rows.data.ptr, pitch_of(rows), one.ctypes.data, total.data.ptr,
        pitch_of(total),
    )  # fmt: skip


def add_panels(total: Array, left: Array, right: Array, factor: float = 1.0) -> None:
    """total += factor·left rightᵀ of (D', n) each, panels of columns from the diagonal down."""
    pitch = pitch_of(total)
    for start in range(0, len(left), PANEL):
        into = total.data.ptr + 4 * (start + start * pitch)
        gemm(left[start:], right[start : start + PANEL], into, pitch, factor)
