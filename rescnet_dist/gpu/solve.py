"""The covariance of features factorised on a GPU, and solved with."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from rescnet_dist.gpu.device import Array
from rescnet_dist.gpu.scatter import in_square, new_square
from rescnet_dist.kernels.discriminant import (
    SINGLE_FROM,
    FeatureMoments,
    check_pivots,
    conjugate_gradients,
    inverse_deviations,
    singular,
)

REFINED = 1e-7  # residual that is reached: weights are stored in single precision
ROWS = 2048  # of a matrix that are worked on at a time in double precision
LOWER = cublas.CUBLAS_FILL_MODE_LOWER
Solve = Callable[[Array], Array]

scaled = cupy.ElementwiseKernel(
    "T value, raw U root, raw U diagonal, int64 side, int64 pitch",
    "U result",
    """
    long row = i % pitch, column = i / pitch;
    bool inside = row < side && column < side;
    result = !inside ? U(0) : row == column ? diagonal[row] : U(value) * root[row] * root[column];
    """,
    "rescnet_scaled",
)


def whitened(moments: FeatureMoments, ridge: float) -> tuple[Array, Array, Solve]:
    """Mean and scale (D,) that standardise the features, and what solves with their ridged
    covariance, as in `rescnet_dist.kernels.discriminant.Whitening`."""
    scatter, count = in_square(moments.scatter), moments.count
    variance = cupy.diagonal(scatter).astype(np.float64) / count
    scale = inverse_deviations(variance)
    live = scale > 0
    shift = ridge * float((variance * scale**2).mean())
    diagonal = cupy.where(live, variance * scale**2 + shift, 1)
    _mirror(scatter)
    facts = (len(scale), count, ridge)
    if len(scale) >= SINGLE_FROM and scatter.dtype == np.float32:
        try:
            factor = _factor(scatter, scale / np.sqrt(count), diagonal, np.dtype(np.float32))
            check_pivots(cupy.diagonal(factor), float(np.finfo(np.float32).eps), *facts)
        except np.linalg.LinAlgError:
            pass  # too near to singular for it
        else:

            def product(x: Array) -> Array:
                result = _product(scatter, scale[:, None] * x) * (scale[:, None] / count)
                return result + cupy.where(live, shift, 1)[:, None] * x

            def solve(columns: Array) -> Array:
                try:
                    return conjugate_gradients(
                        product, lambda x: _nearly(factor, x), columns, REFINED
                    )
                except np.linalg.LinAlgError:  # too near to singular after all
                    return _double(scatter, scale, diagonal, facts)(columns)

            return moments.mean, scale, solve
    return moments.mean, scale, _double(scatter, scale, diagonal, facts)


def _double(scatter: Array, scale: Array, diagonal: Array, facts: tuple[int, int, float]) -> Solve:
    """What solves in double precision."""
    try:
        factor = _factor(scatter, scale / np.sqrt(facts[1]), diagonal, np.dtype(np.float64))
        check_pivots(cupy.diagonal(factor), float(np.finfo(scatter.dtype).eps), *facts)
    except np.linalg.LinAlgError:
        raise singular(*facts) from None
    return lambda columns: _nearly(factor, columns)


def _factor(scatter: Array, root: Array, diagonal: Array, kind: np.dtype[np.floating]) -> Array:
    """The lower Cholesky factor of scatter·root·rootᵀ with another diagonal, in Fortran's order."""
    factor = new_square(len(scatter), kind)
    scaled(
        _whole(scatter), root.astype(kind), diagonal.astype(kind), len(scatter),
        len(_whole(scatter)), _whole(factor),
    )  # fmt: skip
    handle, width = cupy.cuda.device.get_cusolver_handle(), factor.strides[1] // kind.itemsize
    buffer_size, routine = {
        "f": (cusolver.spotrf_bufferSize, cusolver.spotrf),
        "d": (cusolver.dpotrf_bufferSize, cusolver.dpotrf),
    }[kind.char]
    size = buffer_size(handle, LOWER, len(factor), factor.data.ptr, width)
    work, failed = cupy.empty(size, kind), cupy.zeros(1, np.int32)
    routine(
        handle, LOWER, len(factor), factor.data.ptr, width, work.data.ptr, size, failed.data.ptr
    )
    if minor := int(failed[0]):
        raise np.linalg.LinAlgError(f"leading minor {minor} is not positive")
    return factor


def _nearly(factor: Array, columns: Array) -> Array:
    """Solve for columns (D, K) in the precision of the factor."""
    kind = factor.dtype
    x, failed = cupy.array(columns, kind, order="F"), cupy.zeros(1, np.int32)
    routine = {"f": cusolver.spotrs, "d": cusolver.dpotrs}[kind.char]
    routine(
        cupy.cuda.device.get_cusolver_handle(), LOWER, len(factor), x.shape[1], factor.data.ptr,
        factor.strides[1] // kind.itemsize, x.data.ptr, len(x), failed.data.ptr,
    )  # fmt: skip
    return x


def _product(square: Array, x: Array) -> Array:
    """square (D, D) · x (D, K) in double precision, some rows at a time."""
    result = cupy.empty_like(x)
    for start in range(0, len(square), ROWS):
        rows = slice(start, start + ROWS)
        result[rows] = square[rows].astype(np.float64) @ x
    return result


mirror = cupy.ElementwiseKernel(
    "int64 width, int64 pitch",
    "raw T square",
    """
    long row = i / width, column = i % width;
    if (row < column) square[row + column * pitch] = square[column + row * pitch];
    """,
    "rescnet_mirror",
)


def _mirror(square: Array) -> None:
    """Copy the lower triangle to the upper one."""
    mirror(len(square), len(_whole(square)), _whole(square), size=len(square) ** 2)


def _whole(square: Array) -> Array:
    """The memory that a matrix of `new_square` is a part of, column by column."""
    return square.base.reshape(square.strides[1] // square.dtype.itemsize, -1)
