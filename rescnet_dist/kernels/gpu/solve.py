"""Factorization of the covariance of features on a GPU, and solving with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import cupy
import numpy as np

from rescnet_dist._compat import load_cuda_library
from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.gpu.device import (
    PRODUCT_PARTS,
    Array,
    matmul_precision,
    transpose,
    using_matmul_precision,
)
from rescnet_dist.kernels.gpu.scatter import add_panels, as_square, get_pitch, new_square
from rescnet_dist.kernels.solving import (
    MIN_SINGLE_FEATURES,
    Solve,
    check_pivots,
    conjugate_gradients,
    inverse_deviations,
    singular_error,
)

cublas, get_cublas_handle = load_cuda_library("cublas")
cusolver, get_cusolver_handle = load_cuda_library("cusolver")

MAX_GPU_RESIDUAL_FRACTION = 1e-7  # of the right-hand side: weights are stored in single precision
DOUBLE_PRODUCT_ROWS = 2048  # rows of a matrix that are converted to double precision at a time
CHOLESKY_PANEL_COLUMNS = 1024  # columns that are factorized at a time
# Precisions of the matrix products of factorizations that are tried in turn, by that of products
FACTOR_PRECISIONS = {"half": ("half", "split"), "split": ("split",), "float32": ("float32",)}
LOWER = cublas.CUBLAS_FILL_MODE_LOWER

scale_covariance = cupy.ElementwiseKernel(
    "T value, raw U root, raw U diagonal, int64 side, int64 pitch",
    "U result",
    """
    long row = i % pitch, column = i / pitch;
    bool inside = row < side && column < side;
    result = !inside ? U(0) : row == column ? diagonal[row] : U(value) * root[row] * root[column];
    """,
    "rescnet_scale_covariance",
)


def whiten(scatter: Array, mean: Array, count: float, ridge: float) -> tuple[Array, Solve]:
    """Return the scale (D,) and the solve function of a `Whitening`.

    scatter (D, D) and mean (D,) of the features. The upper triangle of the scatter is overwritten
    by the lower one.
    """
    scatter = as_square(scatter)
    variance = cupy.diagonal(scatter).astype(np.float64) / count
    scale = inverse_deviations(variance, mean)
    live = scale > 0
    shift = ridge * float((variance * scale**2).mean())
    diagonal = cupy.where(live, variance * scale**2 + shift, 1)
    _mirror_lower(scatter)
    factors = _factorize(scatter, scale, diagonal, (len(scale), count, ridge), matmul_precision())
    factor = next(factors)

    def multiply(x: Array) -> Array:
        """Multiply the ridged covariance of standardized features with x (D, K)."""
        result = _multiply(scatter, scale[:, None] * x) * (scale[:, None] / count)
        return result + cupy.where(live, shift, 1)[:, None] * x

    def solve(columns: Array) -> Array:
        """Solve for columns (D, K), refined to double precision."""
        nonlocal factor
        while factor.dtype == np.float32:
            try:
                return conjugate_gradients(
                    multiply,
                    partial(solve_factored, factor),
                    columns,
                    MAX_GPU_RESIDUAL_FRACTION,
                )
            except np.linalg.LinAlgError:  # the factor is too far from the covariance
                factor = None  # its memory is free for the next one
                factor = next(factors)
        return solve_factored(factor, columns)

    return scale, solve


def _factorize(
    scatter: Array,
    scale: Array,
    diagonal: Array,
    problem: tuple[int, float, float],
    precision: str,
) -> Iterator[Array]:
    """Yield Cholesky factors of the ridged covariance, each more precise than the one before.

    problem: the number of features, the number of samples and the ridge. `precision` is that of
    products. Those in single precision that have no factor are left out; the last one is in double
    precision. For many features, plans have no room for it.
    """
    features, count, ridge = problem
    root = scale / np.sqrt(count)
    single = features >= MIN_SINGLE_FEATURES and scatter.dtype == np.float32
    for updates in FACTOR_PRECISIONS[precision] if single else ():
        with suppress(np.linalg.LinAlgError):  # too close to singular for this precision
            factor = factor_with(scatter, root, diagonal, np.dtype(np.float32), updates)
            check_pivots(cupy.diagonal(factor), float(np.finfo(np.float32).eps), *problem)
            yield factor
        factor = None
    try:
        factor = factor_scaled(scatter, root, diagonal, np.dtype(np.float64))
        check_pivots(cupy.diagonal(factor), float(np.finfo(scatter.dtype).eps), *problem)
    except np.linalg.LinAlgError:
        raise singular_error(*problem) from None
    except cupy.cuda.memory.OutOfMemoryError:
        raise SingularError(
            f"The covariance of the {features} features over {count:.0f} samples needs a factor "
            f"in double precision with ridge={ridge}, and the GPU has no room for its "
            f"{8 * features**2 / 2**30:.1f} GiB. Use a larger ridge, or fewer features."
        ) from None
    yield factor


def factor_scaled(
    scatter: Array, root: Array, diagonal: Array, dtype: np.dtype[np.floating]
) -> Array:
    """Return the lower Cholesky factor of scatter·root·rootᵀ with the given diagonal (D,).

    The factor (D, D) is in Fortran order.
    """
    return factor_with(scatter, root, diagonal, dtype, "split")


def factor_with(
    scatter: Array,
    root: Array,
    diagonal: Array,
    dtype: np.dtype[np.floating],
    updates: str,
) -> Array:
    """Return what `factor_scaled` does, with `updates` as the precision of matrix products."""
    scatter = as_square(scatter)
    factor = new_square(len(scatter), dtype)
    scale_covariance(
        _padded_memory(scatter),
        root.astype(dtype),
        diagonal.astype(dtype),
        len(scatter),
        len(_padded_memory(scatter)),
        _padded_memory(factor),
    )
    _cholesky(factor, updates)
    return factor


def _cholesky(square: Array, updates: str) -> None:
    """Replace a matrix (D, D) of `new_square` by its lower Cholesky factor.

    In single precision and with `updates` that are not "float32", matrix units update the columns
    to the right of each panel, which is nearly all of the work. Split numbers keep nearly all
    digits; half precision suffices for a preconditioner if the ridge is not tiny.
    """
    side = len(square)
    by_panels = square.dtype == np.float32 and updates != "float32"
    panel = CHOLESKY_PANEL_COLUMNS if by_panels else side
    failed = cupy.zeros(-(-side // panel), np.int32)
    for number, start in enumerate(range(0, side, panel)):
        stop = min(start + panel, side)
        _factor_block(square[start:stop, start:stop], failed[number:])
        if stop < side:
            below = square[stop:, start:stop]
            _solve_block(square[start:stop, start:stop], below)
            with using_matmul_precision(updates):
                parts = transpose(below.T)
            left, right = parts[0], parts[0]
            if len(parts) > 1:  # one product, which sums those of the parts
                left, right = (
                    cupy.concatenate([parts[pair[place]] for pair in PRODUCT_PARTS[2]], axis=1)
                    for place in (0, 1)
                )
            add_panels(square[stop:, stop:], left, right, -1.0)
    if minors := failed[failed != 0].tolist():
        raise np.linalg.LinAlgError(
            f"The leading minor of order {minors[0]} of a panel is not positive."
        )


def _factor_block(block: Array, failed: Array) -> None:
    """Replace a block on the diagonal by its lower factor; sets failed[0] if it has none."""
    handle, dtype, pitch = get_cusolver_handle(), block.dtype, get_pitch(block)
    buffer_size, routine = {
        "f": (cusolver.spotrf_bufferSize, cusolver.spotrf),
        "d": (cusolver.dpotrf_bufferSize, cusolver.dpotrf),
    }[dtype.char]
    size = buffer_size(handle, LOWER, len(block), block.data.ptr, pitch)
    work = cupy.empty(size, dtype)
    routine(handle, LOWER, len(block), block.data.ptr, pitch, work.data.ptr, size, failed.data.ptr)


def _solve_block(factor: Array, below: Array) -> None:
    """Replace below (m, b) by below · factor⁻ᵀ, of a lower factor (b, b), in single precision."""
    one = np.array(1, np.float32)
    cublas.strsm(
        get_cublas_handle(),
        cublas.CUBLAS_SIDE_RIGHT,
        LOWER,
        cublas.CUBLAS_OP_T,
        cublas.CUBLAS_DIAG_NON_UNIT,
        *below.shape,
        one.ctypes.data,
        factor.data.ptr,
        get_pitch(factor),
        below.data.ptr,
        get_pitch(below),
    )


def solve_factored(factor: Array, columns: Array) -> Array:
    """Solve for columns (D, K) in the precision of the factor (D, D)."""
    dtype = factor.dtype
    x, failed = cupy.array(columns, dtype, order="F"), cupy.zeros(1, np.int32)
    routine = {"f": cusolver.spotrs, "d": cusolver.dpotrs}[dtype.char]
    routine(
        get_cusolver_handle(),
        LOWER,
        len(factor),
        x.shape[1],
        factor.data.ptr,
        factor.strides[1] // dtype.itemsize,
        x.data.ptr,
        len(x),
        failed.data.ptr,
    )
    return x


def _multiply(square: Array, x: Array) -> Array:
    """Return square · x (D, K) of a symmetric square (D, D), in double precision, by rows."""
    result, by_rows = cupy.empty_like(x), square.T  # whose rows are contiguous
    for start in range(0, len(square), DOUBLE_PRODUCT_ROWS):
        rows = slice(start, start + DOUBLE_PRODUCT_ROWS)
        result[rows] = by_rows[rows].astype(np.float64) @ x
    return result


mirror_lower = cupy.ElementwiseKernel(
    "int64 width, int64 pitch",
    "raw T square",
    """
    long row = i / width, column = i % width;
    if (row < column) square[row + column * pitch] = square[column + row * pitch];
    """,
    "rescnet_mirror_lower",
)


def _mirror_lower(square: Array) -> None:
    """Copy the lower triangle to the upper one."""
    mirror_lower(
        len(square), len(_padded_memory(square)), _padded_memory(square), size=len(square) ** 2
    )


def _padded_memory(square: Array) -> Array:
    """Return the padded matrix that a matrix of `new_square` is a view of, column by column."""
    return square.base.reshape(square.strides[1] // square.dtype.itemsize, -1)
