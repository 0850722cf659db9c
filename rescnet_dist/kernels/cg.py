"""Ridge regression on many features by conjugate gradients, one pass over the features a step.

Used if the scatter matrix of all features is too large. With standardized features F (N, D),
A = FᵀF/N + γI and right-hand sides B (D, K), it solves A V = B for all columns together, by the
block form of the method with orthonormal residuals (BCGrQ; Dubrulle, 2001). Each step needs one
product FᵀF S of the features with K directions S, and adds to V the best combination of all
directions so far, so that K columns converge faster together than each alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, on_gpu
from rescnet_dist.kernels.discriminant import FeatureMoments, Whitening
from rescnet_dist.kernels.tiles import Standardizer

FEATURE_SLAB_BYTES = 2 * 2**20  # of features in float32: they stay in the cache of the processor
MIN_SLAB_ROWS = 64  # fewer would take longer to add than to multiply
# Of singular values of right-hand sides, relative to the largest. Those of all classes together
# depend on each other up to the rounding of sums in float32, which must not become a direction.
RANK_TOLERANCE = 1e-5


@dataclass(slots=True)
class CovarianceProduct:
    """The product FᵀF S of standardized features and directions, accumulated chunk by chunk.

    Integer features are not standardized, which would take longer than the products: these are
    corrected instead, without a loss of digits as counts are of the order of their deviation.

    Attributes
    ----------
    mean : ndarray of float64, shape (D,)
        The mean of the features.
    scale : ndarray of float64, shape (D,)
        1/deviation of the features, 0 for those without variance.
    directions : ndarray of float32, shape (D, K)
        The directions, for features as they are stored.
    offset : ndarray of float32, shape (K,)
        What is subtracted from the product of features and directions.
    products : ndarray of float64, shape (D, K)
        The product so far, for features as they are stored.
    sums : ndarray of float64, shape (K,)
        The sum over the samples of F S.
    is_integer : bool
        Whether features are integers.
    """

    mean: Array
    scale: Array
    directions: Array
    offset: Array
    products: Array
    sums: Array
    is_integer: bool

    @classmethod
    def empty(
        cls, directions: Array, mean: Array, standardizer: Standardizer, dtype: Any, xp: Any = np
    ) -> CovarianceProduct:
        """Return the product of no samples.

        Parameters
        ----------
        directions : ndarray of float64, shape (D, K)
            The directions S.
        mean : ndarray of float64, shape (D,)
            The mean of the features.
        standardizer : Standardizer of D features
            The standardization of the features.
        dtype : data-type
            The dtype of the features.
        xp : module, default numpy
            The library of the arrays, numpy or cupy.

        Returns
        -------
        CovarianceProduct of shape (D, K)
            The product, to which samples can be added.
        """
        is_integer, columns = np.dtype(dtype).kind == "u", directions.shape[1]
        scale, offset = standardizer.scale, np.zeros(columns, np.float32)
        if is_integer:
            directions = (scale[:, None] * directions).astype(np.float32)
            offset = (mean @ directions.astype(np.float64)).astype(np.float32)
        return cls(
            xp.asarray(mean),
            xp.asarray(scale),
            xp.asarray(directions.astype(np.float32)),
            xp.asarray(offset),
            xp.zeros(directions.shape),
            xp.zeros(columns),
            is_integer,
        )

    def add(self, features: Array, weights: Array | None = None) -> None:
        """Add samples.

        Parameters
        ----------
        features : ndarray of shape (n, D)
            Their features, in the memory of the product.
        weights : ndarray of shape (n,), optional
            As how many samples each counts; each counts once by default.
        """
        if weights is not None:
            weights = asarray_like(weights, features).astype(np.float32)[:, None]
        for rows, values in self._slabs(features):
            projected = values @ self.directions - self.offset
            if weights is not None:
                projected *= weights[rows]
            self.products += values.T @ projected
            self.sums += projected.sum(axis=0, dtype=np.float64)

    def value(self) -> Array:
        """Return the product.

        Returns
        -------
        ndarray of float64, shape (D, K)
            FᵀF S over all samples that were added.
        """
        if not self.is_integer:
            return self.products
        return self.scale[:, None] * (self.products - self.mean[:, None] * self.sums)

    def _slabs(self, features: Array) -> Iterator[tuple[slice, Array]]:
        """Yield the rows of each slab of features (n, D), and its values in float32."""
        step, (n, width) = len(features), features.shape
        if not on_gpu(features):
            step = max(MIN_SLAB_ROWS, FEATURE_SLAB_BYTES // (4 * max(width, 1)))
        mean, scale = (values.astype(np.float32) for values in (self.mean, self.scale))
        for start in range(0, n, max(step, 1)):
            rows = slice(start, min(start + step, n))
            values = features[rows].astype(np.float32)
            if not self.is_integer:
                values -= mean
                values *= scale
            yield rows, values


@dataclass(frozen=True, slots=True)
class Iterate:
    """The state between two steps, of D features, K right-hand sides and r directions.

    The residual B − A V is `basis` times `factor`.

    Attributes
    ----------
    solution : ndarray of float64, shape (D, K)
        The weights V so far.
    basis : ndarray of float64, shape (D, r)
        Orthonormal columns.
    directions : ndarray of float64, shape (D, r)
        The directions S of the next step.
    factor : ndarray of float64, shape (r, K)
        The residual in terms of the basis.
    """

    solution: Array
    basis: Array
    directions: Array
    factor: Array

    @classmethod
    def first(cls, columns: Array) -> Iterate:
        """Return the state before the first step, with weights of zero.

        Parameters
        ----------
        columns : ndarray of float64, shape (D, K)
            The right-hand sides B. There are r directions, as many as columns of it that do not
            depend on others.

        Returns
        -------
        Iterate of D features, K right-hand sides and r directions
            The state.
        """
        norms = np.linalg.norm(columns, axis=0)
        basis, triangle = np.linalg.qr(columns / np.where(norms > 0, norms, 1))
        left, values, right = np.linalg.svd(triangle, full_matrices=False)
        kept = values > RANK_TOLERANCE * values.max(initial=0)
        basis = basis @ left[:, kept]
        factor = values[kept, None] * right[kept] * norms
        return cls(np.zeros_like(columns), basis, basis, factor)

    def step(self, products: Array, standardizer: Standardizer) -> Iterate:
        """Return the state after one more step.

        Parameters
        ----------
        products : ndarray of float64, shape (D, r)
            FᵀF S of all samples, as of `CovarianceProduct.value`.
        standardizer : Standardizer of D features
            The standardization of all features.

        Returns
        -------
        Iterate of D features, K right-hand sides and r directions
            The state after the step.
        """
        images = products / standardizer.count + standardizer.shift * self.directions
        curvature = self.directions.T @ images
        inverse = np.linalg.pinv((curvature + curvature.T) / 2, hermitian=True)
        solution = self.solution + self.directions @ (inverse @ self.factor)
        basis, change = np.linalg.qr(self.basis - images @ inverse)
        directions = basis + self.directions @ change.T
        return Iterate(solution, basis, directions, change @ self.factor)

    def error_bound(self, standardizer: Standardizer) -> float:
        """Return a bound of the error of the weights, relative to their norm.

        A has no eigenvalue below γ, so that the error of a column is at most 1/γ times the norm of
        its residual.

        Parameters
        ----------
        standardizer : Standardizer of D features
            The standardization of all features.

        Returns
        -------
        float
            The largest bound of any column, at most 1; 0 if all columns are exact, 1 if γ is 0.
        """
        residual, norm = (np.linalg.norm(values, axis=0) for values in (self.factor, self.solution))
        is_inexact = residual > 0
        residual, limit = residual[is_inexact], standardizer.shift * norm[is_inexact]
        return float((residual / np.maximum(limit, residual)).max(initial=0.0))


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
            f"The fit has solved {len(found)} times. Conjugate gradients are for fits that solve "
            "once, for all right-hand sides together."
        )
    return found[0]
