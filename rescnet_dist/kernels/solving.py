"""Arithmetic of factorizations and solutions, for arrays of NumPy and of CuPy alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError, SingularError
from rescnet_dist.kernels.arrays import Array

MIN_SINGLE_FEATURES = 2048  # fewer are quick to factorize in double precision
PANEL_COLUMNS = 256  # columns of a matrix that are processed at a time
GPU_PANEL_COLUMNS = 1024  # columns of a triangle that a GPU multiplies or factorizes at a time
SOLVED_ROWS = 256  # side of the blocks on the diagonal that a GPU inverts to solve with them
MAX_RESIDUAL_FRACTION = 1e-10  # of the right-hand side, reached by conjugate gradients
MAX_GRADIENT_STEPS = 50  # of conjugate gradients
# Of a feature's mean, below which it counts as constant. Features are computed in single precision.
MIN_DEVIATION_FRACTION = 1e-5
MIN_PIVOT_ROUNDINGS = 64  # squared pivots below this many units of rounding mean no inverse

Solve = Callable[[Array], Array]  # right-hand sides (D, K) to solutions (D, K)


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    precondition: Solve,
    columns: Array,
    tolerance: float = MAX_RESIDUAL_FRACTION,
) -> Array:
    """Solve S x = columns (D, K) for a symmetric positive definite S.

    `multiply` computes S x, and `precondition` solves approximately, so that a few steps suffice
    for residuals of at most `tolerance` times the norm of the columns. Raises LinAlgError if they
    are not reached.
    """
    x, residual = np.zeros_like(columns, dtype=np.float64), columns.astype(np.float64)
    limit = tolerance * np.linalg.norm(residual, axis=0)
    step, previous = np.zeros_like(x), np.zeros_like(limit)
    for _ in range(MAX_GRADIENT_STEPS + 1):
        if (np.linalg.norm(residual, axis=0) <= limit).all():
            return x
        direction = precondition(residual).astype(np.float64)
        square = (residual * direction).sum(axis=0)
        step = direction + _divide_where(square, previous, previous > 0) * step
        image = multiply(step)
        length = _divide_where(square, (step * image).sum(axis=0), square > 0)
        x += length * step
        residual -= length * image
        previous = square
    raise np.linalg.LinAlgError(
        f"Conjugate gradients did not converge in {MAX_GRADIENT_STEPS} steps."
    )


def _divide_where(numerator: Array, denominator: Array, where: Array) -> Array:
    """Return numerator / denominator where `where` is true, 0 elsewhere."""
    return np.where(where, numerator / np.where(where, denominator, 1), 0)


def inverse_deviations(variance: Array, mean: Array) -> Array:
    """Return 1/√variance (D,), 0 for features without variance.

    A deviation that is tiny relative to the mean (D,) is that of rounding errors: a weight on it
    would multiply those of the images to predict.
    """
    deviation = np.sqrt(np.maximum(variance, 0))
    live = deviation > 1e-7 * (float(deviation.max()) or 1)
    live &= deviation > MIN_DEVIATION_FRACTION * abs(mean)
    return _divide_where(np.ones_like(deviation), deviation, live)


def overflow_error(dtype: np.dtype[Any], option: str) -> DataError:
    """Return the error for features that are too large for the dtype that an option gives them."""
    return DataError(
        f"A feature is larger than {float(np.finfo(dtype).max):g}, the largest number of {dtype}, "
        f'in which features are kept. Use {option}="float32", or images on a smaller scale.'
    )


def singular_error(features: int, samples: float, ridge: float) -> SingularError:
    """Return the error to raise if a covariance has no inverse."""
    return SingularError(
        f"The covariance of the {features} features over {samples:.0f} samples cannot be "
        f"factorized with ridge={ridge}. Use a larger ridge, or more samples."
    )


def check_pivots(
    pivots: Array, rounding: float, features: int, samples: float, ridge: float
) -> None:
    """Raise SingularError if the diagonal (m,) of a Cholesky factor means that there is no inverse.

    `rounding` is the machine epsilon of the scatter.
    """
    if not float((pivots**2).min()) >= MIN_PIVOT_ROUNDINGS * rounding:
        raise singular_error(features, samples, ridge)
