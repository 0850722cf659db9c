"""The scatter matrix of features on a GPU, in single precision or on its matrix units."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from rescnet_dist._compat import load_cuda_library
from rescnet_dist.kernels.gpu.device import (
    PRODUCT_PARTS,
    Array,
    align,
    gemm,
    matmul_precision,
    split_mean,
    transpose,
)
from rescnet_dist.kernels.solving import GPU_PANEL_COLUMNS

cublas, get_cublas_handle = load_cuda_library("cublas")

add_product = cupy.ElementwiseKernel("T a, T b", "T total", "total += a * b", "rescnet_outer")


def new_square(side: int, dtype: np.dtype[np.floating]) -> Array:
    """Return zeros (side, side) in Fortran order, a view of a matrix with aligned columns."""
    padded = cupy.zeros((align(side), align(side)), dtype).T
    return padded[:side, :side]


def as_square(matrix: Array) -> Array:
    """Return a matrix (D, D) with the memory layout of `new_square`.

    It is copied if it has another layout.
    """
    side = len(matrix)
    pitch = align(side) * matrix.dtype.itemsize
    is_square = matrix.base is not None and matrix.strides == (matrix.dtype.itemsize, pitch)
    if is_square:
        return matrix
    square = new_square(side, matrix.dtype)
    square[...] = matrix
    return square


def new_rows(n: int, scatter: Array) -> Array:
    """Allocate rows (n, D) that will be added to scatter (D, D)."""
    return cupy.empty((n, scatter.strides[1] // scatter.dtype.itemsize), scatter.dtype)[
        :, : len(scatter)
    ]


def add_scatter(total: Array, rows: Array) -> None:
    """Add rowsᵀ rows of rows (n, D) to the lower triangle of total (D, D).

    The product has the current `matmul_precision`; features should be of the order of 1.
    """
    if _on_matrix_units(total):
        _add_products(total, transpose(rows))
    else:
        _syrk(total, rows)


def add_centered(
    total: Array,
    features: Array,
    mean: Array,
    weights: Array | None,
    between: Callable[[Array], Array] | None,
) -> Array:
    """Add the scatter of features (n, D) around their mean (D,) to the lower triangle of total.

    See `Operations.add_centered`. The mean is subtracted as a sum of two numbers in single
    precision, and returned as it is.
    """
    last = None if between is None else between(mean)
    factors = None if weights is None else cupy.asarray(np.sqrt(weights), total.dtype)
    if _on_matrix_units(total):
        _add_products(total, transpose(features, mean, factors, last))
        return mean
    n, (shift, rest) = len(features), split_mean(mean)
    rows = new_rows(n + (last is not None), total)
    np.subtract(features, shift, out=rows[:n])
    rows[:n] -= rest
    if factors is not None:
        rows[:n] *= factors[:, None]
    if last is not None:
        rows[n] = last
    _syrk(total, rows)
    return mean


def _on_matrix_units(total: Array) -> bool:
    """Return whether products that are added to a matrix are computed in half precision."""
    return matmul_precision() != "float32" and total.dtype == np.float32


def _add_products(total: Array, parts: tuple[Array, ...]) -> None:
    """Add rowsᵀ rows to the lower triangle of total (D, D), of transposed rows in parts."""
    for left, right in PRODUCT_PARTS[len(parts)]:
        add_panels(total, parts[left], parts[right])


def multiply_rows(left: Array, right: Array) -> Array:
    """Return left·rightᵀ (n, m) of rows (n, D) and (m, D) in float32.

    With the `matmul_precision` "half", rows are rounded to half precision; they should be of the
    order of 1.
    """
    if matmul_precision() != "half":
        return left @ right.T
    product = cupy.zeros((len(right), len(left)), np.float32)
    left, right = (cupy.ascontiguousarray(rows, np.float16) for rows in (left, right))
    gemm(left, right, product.data.ptr, len(left))
    return product.T


def add_outer(total: Array, vector: Array, factor: float) -> None:
    """Add factor·v vᵀ, v = vector (D,), to total (D, D)."""
    v = vector.astype(total.dtype)
    add_product((factor * v)[:, None], v, total.T)  # whose rows are contiguous


def get_pitch(array: Array) -> int:
    """Return the distance between columns (or rows) of a matrix, in numbers."""
    return int(max(array.strides)) // array.dtype.itemsize


def _syrk(total: Array, rows: Array) -> None:
    """Add rowsᵀ rows of rows (n, D) to the lower triangle of total (D, D), in their dtype."""
    n, width = rows.shape
    one = np.array(1, total.dtype)
    routine = {"f": cublas.ssyrk, "d": cublas.dsyrk}[total.dtype.char]
    routine(
        get_cublas_handle(),
        cublas.CUBLAS_FILL_MODE_LOWER,
        cublas.CUBLAS_OP_N,
        width,
        n,
        one.ctypes.data,
        rows.data.ptr,
        get_pitch(rows),
        one.ctypes.data,
        total.data.ptr,
        get_pitch(total),
    )


def add_panels(total: Array, left: Array, right: Array, factor: float = 1.0) -> None:
    """Add factor·left rightᵀ, (D', n) each, to the lower triangle of total, panel by panel.

    Of the upper triangle it changes blocks (`GPU_PANEL_COLUMNS` a side) on the diagonal, no others.
    """
    pitch = get_pitch(total)
    for start in range(0, len(left), GPU_PANEL_COLUMNS):
        into = total.data.ptr + 4 * (start + start * pitch)
        gemm(left[start:], right[start : start + GPU_PANEL_COLUMNS], into, pitch, factor)
