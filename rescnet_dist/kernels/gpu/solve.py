"""Factorization of the covariance of features on a GPU, and solving with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import cupy
import numpy as np

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.gpu.cholesky import (
    BlockSolver,
    InPlaceFactor,
    factorize_double,
    mirror_lower,
    solve_double,
)
from rescnet_dist.kernels.gpu.device import Array, matmul_precision
from rescnet_dist.kernels.gpu.scatter import as_square
from rescnet_dist.kernels.solving import (
    MIN_SINGLE_FEATURES,
    Solve,
    check_pivots,
    conjugate_gradients,
    inverse_deviations,
    singular_error,
)

MAX_GPU_RESIDUAL_FRACTION = 1e-7  # of the right-hand side: weights are stored in single precision
# Precisions of the matrix products of factorizations that are tried in turn, by that of products
FACTOR_PRECISIONS = {"half": ("half", "split"), "split": ("split",), "float32": ("float32",)}
SINGLE_EPSILON = float(np.finfo(np.float32).eps)


def whiten(
    scatter: Array, mean: Array, count: float, ridge: float, *, overwrite: bool = False
) -> tuple[Array, Solve]:
    """Return the scale (D,) and the solve function of a `Whitening`.

    scatter (D, D) and mean (D,) of the features. Factors of many features are in single precision,
    in the memory of the scatter with `overwrite`, in that of a copy without it. Of few features,
    only the upper triangle of the scatter is overwritten.
    """
    single = len(scatter) >= MIN_SINGLE_FEATURES and scatter.dtype == np.float32
    variance = cupy.diagonal(scatter).astype(np.float64) / count
    scale = inverse_deviations(variance, mean)
    live = scale > 0
    shift = ridge * float((variance * scale**2).mean())
    diagonal = cupy.where(live, variance * scale**2 + shift, 1)
    root, problem = scale / np.sqrt(count), (len(scale), count, ridge)
    if not single:
        square = as_square(scatter)
        mirror_lower(square)
        factor = _factorize_double(square, root, diagonal, problem)
        return scale, partial(solve_double, factor)
    matrix = InPlaceFactor.of(scatter, overwrite=overwrite)
    factors = _factorize(matrix, root, diagonal, problem, matmul_precision())
    factor = next(factors)

    def multiply(x: Array) -> Array:
        """Multiply the ridged covariance of standardized features with x (D, K)."""
        result = matrix.multiply(scale[:, None] * x)
        result *= scale[:, None] / count
        result += cupy.where(live, shift, 1)[:, None] * x
        return result

    def solve(columns: Array) -> Array:
        """Solve for columns (D, K), refined to double precision."""
        nonlocal factor
        while factor.dtype == np.float32:
            with suppress(np.linalg.LinAlgError):  # the factor is too far from the covariance
                return conjugate_gradients(
                    multiply, BlockSolver.of(factor), columns, MAX_GPU_RESIDUAL_FRACTION
                )
            factor = next(factors)
        return solve_double(factor, columns)

    return scale, solve


def _factorize(
    matrix: InPlaceFactor,
    root: Array,
    diagonal: Array,
    problem: tuple[int, float, float],
    precision: str,
) -> Iterator[Array]:
    """Yield Cholesky factors of the ridged covariance, each more precise than the one before.

    problem: the number of features, the number of samples and the ridge. `precision` is that of
    products. Those in single precision that have no factor are left out; each replaces the one
    before. The last one is in double precision. Plans have no room for it.
    """
    for updates in FACTOR_PRECISIONS[precision]:
        with suppress(np.linalg.LinAlgError):  # too close to singular for this precision
            factor = matrix.factorize(root, diagonal, updates)
            check_pivots(cupy.diagonal(factor), SINGLE_EPSILON, *problem)
            yield factor
    matrix.restore_upper()
    yield _factorize_double(matrix.square, root, diagonal, problem)


def _factorize_double(
    square: Array, root: Array, diagonal: Array, problem: tuple[int, float, float]
) -> Array:
    """Return the Cholesky factor of the ridged covariance in double precision.

    The upper triangle of the square (D, D) is read; `problem` is that of `_factorize`.
    """
    features, count, ridge = problem
    try:
        factor = factorize_double(square, root, diagonal)
        check_pivots(cupy.diagonal(factor), float(np.finfo(square.dtype).eps), *problem)
    except np.linalg.LinAlgError:
        raise singular_error(*problem) from None
    except cupy.cuda.memory.OutOfMemoryError:
        raise SingularError(
            f"The covariance of the {features} features over {count:.0f} samples needs a factor "
            f"in double precision with ridge={ridge}, and the GPU has no room for its "
            f"{8 * features**2 / 2**30:.1f} GiB. Use a larger ridge, or fewer features."
        ) from None
    return factor
