"""Factorization of the covariance of features on the CPU, and solving with it."""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.cholesky import cholesky, solve_factored
from rescnet_dist.kernels.cpu.threads import (
    count_blas_threads,
    one_blas_thread,
    parts_in_threads,
)
from rescnet_dist.kernels.solving import (
    MIN_SINGLE_FEATURES,
    PANEL_COLUMNS,
    Solve,
    check_pivots,
    conjugate_gradients,
    inverse_deviations,
    singular_error,
)

# Of parts that are converted to double precision at a time: 512 KiB, for the cache
PART_ROWS, PART_COLUMNS = 512, 128
SUMS = 4  # of products with parts, which threads compute; it fixes the order of all sums


def whiten(
    scatter: Array, mean: Array, count: float, ridge: float, *, overwrite: bool = False
) -> tuple[Array, Solve]:
    """Return the scale (D,) and the solve function of a `Whitening`.

    scatter (D, D) and mean (D,) of the features. The scatter stays as it is, even with `overwrite`:
    much of its upper triangle may have no memory yet.
    """
    if len(scatter) >= MIN_SINGLE_FEATURES and scatter.dtype == np.float32:
        try:
            return _factor_single(scatter, mean, count, ridge)
        except np.linalg.LinAlgError:
            pass  # too close to singular for single precision
    return _factor_double(scatter, mean, count, ridge)


def _factor_double(scatter: Array, mean: Array, count: float, ridge: float) -> tuple[Array, Solve]:
    """Factorize in double precision."""
    covariance = scatter.astype(np.float64)
    covariance /= count
    scale = inverse_deviations(np.diagonal(covariance), mean)
    covariance *= scale[:, None]
    covariance *= scale
    diagonal = np.einsum("ii->i", covariance)
    diagonal += ridge * diagonal.mean()
    diagonal[scale == 0] = 1
    try:
        factor = scipy.linalg.cho_factor(
            covariance, lower=True, overwrite_a=True, check_finite=False
        )
        rounding = float(np.finfo(scatter.dtype).eps)
        check_pivots(np.diagonal(factor[0]), rounding, len(scale), count, ridge)
    except np.linalg.LinAlgError:
        raise singular_error(len(scale), count, ridge) from None
    return scale, lambda columns: scipy.linalg.cho_solve(factor, columns, check_finite=False)


def _factor_single(scatter: Array, mean: Array, count: float, ridge: float) -> tuple[Array, Solve]:
    """Factorize in single precision, at twice the speed and in half the memory.

    Solutions are refined to double precision.
    """
    variance = np.diagonal(scatter).astype(np.float64) / count
    scale = inverse_deviations(variance, mean)
    shift = ridge * float((variance * scale**2).mean())
    live = scale > 0
    diagonal = np.where(live, variance * scale**2 + shift, 1)
    root, threads = scale / np.sqrt(count), count_blas_threads()
    factor = factor_scaled(scatter, root, diagonal, np.dtype(np.float32), threads)
    check_pivots(np.diagonal(factor), float(np.finfo(np.float32).eps), len(scale), count, ridge)

    def multiply(x: Array, threads: int) -> Array:
        """Multiply the ridged covariance of standardized features with x (D, K)."""
        result = multiply_symmetric(scatter, scale[:, None] * x, threads)
        result *= scale[:, None] / count
        return result + np.where(live, shift, 1)[:, None] * x

    def solve(columns: Array) -> Array:
        """Solve for columns (D, K), refined to double precision."""
        try:
            with one_blas_thread() as threads:
                return conjugate_gradients(
                    partial(multiply, threads=threads),
                    partial(solve_factored, factor, threads=threads),
                    columns,
                )
        except np.linalg.LinAlgError:  # too close to singular after all
            return _factor_double(scatter, mean, count, ridge)[1](columns)

    return scale, solve


def factor_scaled(
    scatter: Array, root: Array, diagonal: Array, dtype: np.dtype[np.floating], threads: int = 1
) -> Array:
    """Return the lower Cholesky factor of scatter·root·rootᵀ with the given diagonal (D,).

    The factor (D, D) is in Fortran order; the upper triangles are never touched. So many threads
    scale the scatter.
    """
    factor = np.zeros(scatter.shape, dtype, order="F")
    root = root.astype(dtype)

    def scale(start: int) -> None:
        columns = slice(start, start + PANEL_COLUMNS)
        np.multiply(scatter[start:, columns], root[start:, None], out=factor[start:, columns])
        factor[start:, columns] *= root[columns]

    with parts_in_threads(threads) as map_parts:
        list(map_parts(scale, range(0, len(root), PANEL_COLUMNS)))
    np.einsum("ii->i", factor)[...] = diagonal
    cholesky(factor)
    return factor


def multiply_symmetric(lower: Array, x: Array, threads: int = 1) -> Array:
    """Return S x (D, K) in float64, for a symmetric S given by its lower triangle (D, D).

    Parts of S that fit into the cache are converted, and multiplied from both sides, in so many
    threads, to the same bits for any number.
    """
    side = len(lower)
    starts = range(0, side, PART_COLUMNS)

    def multiply(first: int) -> Array:
        """Return the sum of the products with every `SUMS`th panel, from one of the first on."""
        result, memory = np.zeros_like(x), np.empty(PART_ROWS * PART_COLUMNS)
        for start in starts[first::SUMS]:
            stop = min(start + PART_COLUMNS, side)
            corner = np.tril(lower[start:stop, start:stop].astype(np.float64))
            result[start:stop] += corner @ x[start:stop] + np.tril(corner, -1).T @ x[start:stop]
            for top in range(stop, side, PART_ROWS):
                rows = slice(top, min(top + PART_ROWS, side))
                shape = rows.stop - top, stop - start
                part = memory[: shape[0] * shape[1]].reshape(shape, order="F")
                part[...] = lower[rows, start:stop]
                result[rows] += part @ x[start:stop]
                result[start:stop] += part.T @ x[rows]
        return result

    with parts_in_threads(threads) as map_parts:
        return np.asarray(sum(map_parts(multiply, range(SUMS)), np.zeros_like(x)))
