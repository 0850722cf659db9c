"""Ridge regression on many features by block coordinate descent, one block of features at a time.

Used if the scatter matrix of all features is too large. With standardized features F (N, D) and
right-hand sides B (D, K), it solves (FᵀF/N + γI) V = B. A step on block j has the predictions
P = F V so far and adds A⁻¹(B_j − F_jᵀP/N − γV_j) to V_j, with A = F_jᵀF_j/N + γI; the predictions
then change by F_j times that. The gradient is computed from the features in each step, so an
approximate factor of A costs steps, not accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module, on_gpu
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.discriminant import FeatureMoments, Whitening
from rescnet_dist.kernels.solving import check_pivots, singular_error
from rescnet_dist.kernels.tiles import Standardizer

STANDARDIZED_SLAB_BYTES = (
    2 * 2**20
)  # of standardized features: a slab stays in the cache of the processor


@dataclass(frozen=True, slots=True)
class FeatureBlock:
    """The standardization of a block of b features.

    Attributes
    ----------
    mean : ndarray of float64, shape (b,)
        The mean of the features.
    scale : ndarray of float64, shape (b,)
        1/deviation of the features, 0 for those without variance.
    """

    mean: Array
    scale: Array

    def multiply(self, features: Array, step: Array) -> Array:
        """Multiply standardized features with the step of their weights.

        Parameters
        ----------
        features : ndarray of shape (n, b)
            The features, of any dtype, in NumPy or CuPy.
        step : ndarray of shape (b, K)
            The change of the weights.

        Returns
        -------
        ndarray of float32, shape (n, K)
            The change of the predictions.
        """
        xp, step, offset = get_array_module(features), asarray_like(step, features), 0
        if features.dtype.kind == "u":
            step = (asarray_like(self.scale, step)[:, None] * step).astype(np.float32)
            offset = (asarray_like(self.mean, step) @ step.astype(np.float64)).astype(np.float32)
        step = step.astype(np.float32)
        product = xp.empty((len(features), step.shape[1]), np.float32)
        for rows, values in self._slabs(features):
            product[rows] = values @ step - offset
        return product

    def multiply_transposed(
        self, features: Array, predictions: Array, weights: Array | None = None
    ) -> Array:
        """Multiply the transpose of standardized features with predictions.

        Parameters
        ----------
        features : ndarray of shape (n, b)
            The features, of any dtype, in NumPy or CuPy.
        predictions : ndarray of float32, shape (n, K)
            The predictions.
        weights : ndarray of shape (n,), optional
            As how many samples each counts; each counts once by default.

        Returns
        -------
        ndarray of float64, shape (b, K)
            The product.
        """
        if weights is not None:
            factors = asarray_like(weights, predictions).astype(predictions.dtype)
            predictions = predictions * factors[:, None]
        product = get_array_module(features).zeros((features.shape[1], predictions.shape[1]))
        for rows, values in self._slabs(features):
            product += values.T @ predictions[rows]
        if features.dtype.kind == "u":
            mean, scale = (asarray_like(a, product)[:, None] for a in (self.mean, self.scale))
            product = scale * (product - mean * predictions.sum(axis=0, dtype=np.float64))
        return product

    def _slabs(self, features: Array) -> Iterator[tuple[slice, Array]]:
        """Yield the rows of each slab of features (n, b), and their standardized values.

        Integers are not standardized, which would take longer than the products: these are
        corrected instead, without a loss of digits as counts are of the order of their deviation.
        """
        mean, scale = (
            asarray_like(values, features).astype(np.float32) for values in (self.mean, self.scale)
        )
        step = len(features)
        if not on_gpu(features):
            step = max(1, STANDARDIZED_SLAB_BYTES // (4 * features.shape[1]))
        for start in range(0, len(features), step):
            rows = slice(start, min(start + step, len(features)))
            values = features[rows].astype(np.float32)
            if features.dtype.kind != "u":
                values -= mean
                values *= scale
            yield rows, values


def factor_block(moments: FeatureMoments, standardizer: Standardizer, block: slice) -> Array:
    """Factorize the ridged covariance A of a block of standardized features.

    Parameters
    ----------
    moments : FeatureMoments of b features
        The moments of the block, with their scatter.
    standardizer : Standardizer of D features
        The standardization of all features.
    block : slice
        The block.

    Returns
    -------
    ndarray of float32, shape (b, b)
        The lower Cholesky factor of A, in Fortran order. Features without variance have a one on
        the diagonal.

    Raises
    ------
    SingularError
        If A cannot be factorized with this ridge.
    ValueError
        If the moments have no scatter.
    """
    if moments.scatter is None:
        raise ValueError("The moments have no scatter to factorize. Gather them with one.")
    scatter, count = moments.scatter, moments.count
    scale = asarray_like(standardizer.scale[block], scatter)
    variance = get_array_module(scatter).diagonal(scatter).astype(np.float64) / count
    diagonal = np.where(scale > 0, variance * scale**2 + standardizer.shift, 1)
    problem = len(standardizer.scale), standardizer.count, standardizer.ridge
    rounding, operations = float(np.finfo(np.float32).eps), get_operations(scatter)
    try:
        root = scale / np.sqrt(count)
        factor = operations.factor_scaled(scatter, root, diagonal, np.dtype(np.float32))
        check_pivots(get_array_module(factor).diagonal(factor), rounding, *problem)
    except np.linalg.LinAlgError:
        raise singular_error(*problem) from None
    return factor


def descend_block(
    factor: Array, columns: Array, products: Array, weights: Array, standardizer: Standardizer
) -> Array:
    """Take a step on the weights of a block, to the minimum with all other weights fixed.

    Parameters
    ----------
    factor : ndarray of float32, shape (b, b)
        The factor of the block, as of `factor_block`.
    columns : ndarray of float64, shape (b, K)
        The right-hand sides B_j of the block.
    products : ndarray of float64, shape (b, K)
        F_jᵀP over all samples, as of `FeatureBlock.multiply_transposed`.
    weights : ndarray of float64, shape (b, K)
        The weights V_j of the block.
    standardizer : Standardizer of D features
        The standardization of all features.

    Returns
    -------
    ndarray of float64, shape (b, K)
        The new weights of the block.
    """
    gradient = columns - products / standardizer.count - standardizer.shift * weights
    return weights + get_operations(factor).solve_factored(factor, gradient).astype(np.float64)


def record_columns(
    fit: Callable[[Whitening], Any], moments: FeatureMoments, standardizer: Standardizer
) -> Array:
    """Find out which right-hand sides a fit solves for.

    Parameters
    ----------
    fit : callable
        Fits to the moments with a whitening, whose `solve` it calls once. Its result is not used.
    moments : FeatureMoments of D features
        The moments.
    standardizer : Standardizer of D features
        The standardization of all features.

    Returns
    -------
    ndarray of float64, shape (D, K)
        The right-hand sides.

    Raises
    ------
    ValueError
        If the fit does not solve exactly once.
    """
    found: list[Array] = []

    def solve(columns: Array) -> Array:
        found.append(np.array(columns, np.float64))
        return np.zeros_like(columns)

    fit(Whitening(moments.mean, standardizer.scale, solve))
    if len(found) != 1:
        raise ValueError(
            f"The fit has solved {len(found)} times. Block coordinate descent is for fits that "
            "solve once, for all right-hand sides together."
        )
    return found[0]
