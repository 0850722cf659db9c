"""The covariance of features factorized on a GPU, and solved with."""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from rescnet_dist.gpu.device import (
    PAIRS,
    Array,
    matmul_precision,
    transpose,
    using_matmul_precision,
)
from rescnet_dist.gpu.scatter import add_panels, in_square, new_square, pitch_of
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
PANEL = 1024  # columns that are factorized at a time
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
    """Mean and scale (D,) that standardize the features, and what solves with their ridged
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
    _cholesky(factor)
    return factor


def _cholesky(square: Array) -> None:
    """Put the lower Cholesky factor of a matrix (D, D) of `new_square` in its place.

    Where products are on matrix units (`using_matmul_precision`), what a panel of columns takes off those
    to its right, which is nearly all of the work, is so too, and always of split numbers: what is
    left has to be positive."""
    side, kind = len(square), square.dtype
    panel = PANEL if kind == np.float32 and matmul_precision() != "float32" else side
    failed = cupy.zeros(-(-side // panel), np.int32)
    for number, start in enumerate(range(0, side, panel)):
        stop = min(start + panel, side)
        _factor_block(square[start:stop, start:stop], failed[number:])
        if stop < side:
            below = square[stop:, start:stop]
            _solve_block(square[start:stop, start:stop], below)
            with using_matmul_precision("split"):
                parts = transpose(below.T)
            for left, right in PAIRS[len(parts)]:
                add_panels(square[stop:, stop:], parts[left], parts[right], -1.0)
    if minors := failed[failed != 0].tolist():
        raise np.linalg.LinAlgError(f"leading minor {minors[0]} of a panel is not positive")


def _factor_block(block: Array, failed: Array) -> None:
    """Put the lower factor of a block on the diagonal in its place; failed[0] is not 0 after that
    where there is none."""
    handle, kind, pitch = cupy.cuda.device.get_cusolver_handle(), block.dtype, pitch_of(block)
    buffer_size, routine = {
        "f": (cusolver.spotrf_bufferSize, cusolver.spotrf),
        "d": (cusolver.dpotrf_bufferSize, cusolver.dpotrf),
    }[kind.char]
    size = buffer_size(handle, LOWER, len(block), block.data.ptr, pitch)
    work = cupy.empty(size, kind)
    routine(handle, LOWER, len(block), block.data.ptr, pitch, work.data.ptr, size, failed.data.ptr)


def _solve_block(factor: Array, below: Array) -> None:
    """below (m, b) ← below · factor⁻ᵀ, in single precision, of a lower factor (b, b)."""
    one = np.array(1, np.float32)
    cublas.strsm(
        cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_SIDE_RIGHT, LOWER, cublas.CUBLAS_OP_T,
        cublas.CUBLAS_DIAG_NON_UNIT, *below.shape, one.ctypes.data, factor.data.ptr,
        pitch_of(factor), below.data.ptr, pitch_of(below),
    )  # fmt: skip


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
    """square (D, D), which is symmetric, · x (D, K) in double precision, some rows at a time."""
    result, by_rows = cupy.empty_like(x), square.T  # whose rows lie side by side
    for start in range(0, len(square), ROWS):
        rows = slice(start, start + ROWS)
        result[rows] = by_rows[rows].astype(np.float64) @ x
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
