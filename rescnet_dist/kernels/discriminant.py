"""Linear discriminant analysis and ridge regression from one scatter matrix of the features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module, on_gpu
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.solving import PANEL_COLUMNS, Solve
from rescnet_dist.kernels.triangle import LowerTriangle, get_panel, unpack

MIN_CLASS_FRACTION = 1e-12  # of the samples outside a class; sums of weights are rounded
# Of the columns that are converted at a time, in the memory of the host and on a GPU.
CONVERTED_BYTES, GPU_CONVERTED_BYTES = 2 * 2**20, 256 * 2**20


@dataclass(frozen=True, slots=True)
class FeatureMoments:
    """Moments of features F (n, D) and of their targets T (n, K).

    A sample of weight w counts as w samples in all of them.

    `merge` is associative and `empty` is its identity.

    Attributes
    ----------
    count : int or float
        The number n of samples, or the sum of their weights.
    mean : ndarray of float64, shape (D,)
        The mean m of the features.
    scatter : ndarray of shape (D, D), LowerTriangle or None
        Σ(x−m)(x−m)ᵀ in the dtype of the features, of which only the lower triangle is valid. None
        if it is gathered elsewhere. Moments that another process has sent have a `LowerTriangle`.
    cross : ndarray of float64, shape (K, D)
        TᵀF. With targets that mark class membership, these are class sums.
    target_sums : ndarray of float64, shape (K,)
        Σ T. With targets that mark class membership, these are class counts.
    squares : ndarray of float64, shape (D,), or None, default None
        Σ(x−m)², the diagonal of a scatter that is gathered elsewhere. None if it is not gathered.
    """

    count: float
    mean: Array
    scatter: Array | LowerTriangle | None
    cross: Array
    target_sums: Array
    squares: Array | None = None

    @classmethod
    def empty(
        cls,
        features: int,
        targets: int,
        dtype: type = np.float32,
        *,
        scatter: bool = True,
        squares: bool = False,
        xp: Any = np,
    ) -> FeatureMoments:
        """Return the moments of no sample.

        Parameters
        ----------
        features : int
            The number D of features.
        targets : int
            The number K of targets.
        dtype : type, default float32
            The dtype of the scatter.
        scatter : bool, default True
            Whether to gather the scatter.
        squares : bool, default False
            Whether to gather its diagonal alone.
        xp : module, default numpy
            The array module, numpy or cupy.

        Returns
        -------
        FeatureMoments of D features and K targets
            The identity of `merge`.
        """
        mean, square = xp.zeros(features), None
        if scatter:
            square = get_operations(mean).new_square(features, np.dtype(dtype))
        diagonal = xp.zeros(features) if squares else None
        return cls(0, mean, square, xp.zeros((targets, features)), xp.zeros(targets), diagonal)

    def fold(self, features: Array, targets: Array, weights: Array | None = None) -> FeatureMoments:
        """Return these moments with more samples.

        The memory of `scatter` is reused: `self` must not be used afterwards.

        Parameters
        ----------
        features : ndarray of shape (n, D)
            The features of the samples, floats or integers.
        targets : ndarray of shape (n, K)
            Their targets.
        weights : ndarray of float64, shape (n,), optional
            As how many samples each counts, a NumPy array; each counts once by default.

        Returns
        -------
        FeatureMoments of D features and K targets
            The moments including the samples.
        """
        if len(features) == 0:
            return self
        n = len(features) if weights is None else float(weights.sum())
        scatter = None if self.scatter is None else unpack(self.scatter)
        if scatter is not None:
            features = features.astype(scatter.dtype, copy=False)
        mean = get_operations(features).column_means(features, weights)
        if scatter is not None:
            mean = self._add_scatter(scatter, features, mean, n, weights)
        if weights is not None:
            targets = targets * asarray_like(weights, targets)[:, None]
        more = FeatureMoments(
            n,
            mean,
            None,
            _multiply_targets(targets, features),
            targets.sum(axis=0, dtype=np.float64),
            None if self.squares is None else _sum_squares(features, mean, weights),
        )
        return replace(self._combine(more, None), scatter=scatter)

    def _add_scatter(
        self, scatter: Array, features: Array, mean: Array, n: float, weights: Array | None
    ) -> Array:
        """Add features (m, D) with an approximate mean (D,) to the scatter; return the mean.

        The centered features, times the roots of their weights (m,), whose sum is n, and one more
        row for the scatter between them and the samples before, are the rows of a single product.
        """

        def between(mean: Array) -> Array:
            return (mean - self.mean) * np.sqrt(self.count * n / (self.count + n))

        rows = features, mean, weights, between if self.count else None
        return get_operations(scatter).add_centered(scatter, *rows)

    def merge(self, other: FeatureMoments) -> FeatureMoments:
        """Return the moments of both sets: S = S₁ + S₂ + n₁n₂/(n₁+n₂) δδᵀ, δ = m₂ − m₁.

        Parameters
        ----------
        other : FeatureMoments of D features and K targets
            The moments of other samples.

        Returns
        -------
        FeatureMoments of D features and K targets
            The merged moments, without a scatter if either has none.
        """
        if self.scatter is None or other.scatter is None:
            return self._combine(other, None)
        return self._combine(other, _add_lower(self.scatter, other.scatter))

    def __reduce__(self) -> tuple[Any, ...]:
        """Send half of the scatter: on a network it is most of what a reduction waits for."""
        scatter = self.scatter
        if scatter is not None and not isinstance(scatter, LowerTriangle):
            scatter = LowerTriangle.of(scatter) if len(scatter) > PANEL_COLUMNS else scatter
        values = self.count, self.mean, scatter, self.cross, self.target_sums, self.squares
        return FeatureMoments, values

    def _combine(self, other: FeatureMoments, scatter: Array | None) -> FeatureMoments:
        """Return the merged moments, given S₁ + S₂ as `scatter`, which is updated in place."""
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean
        squares = None
        if self.squares is not None and other.squares is not None:
            squares = self.squares + other.squares
        if count:
            mean = mean + delta * (other.count / count)
            factor = self.count * other.count / count
            if scatter is not None:
                get_operations(scatter).add_outer(scatter, delta, factor)
            if squares is not None:
                squares = squares + factor * delta**2
        return FeatureMoments(
            count,
            mean,
            scatter,
            self.cross + other.cross,
            self.target_sums + other.target_sums,
            squares,
        )


def _multiply_targets(targets: Array, features: Array) -> Array:
    """Return targetsᵀ features (K, D) in float64, of targets (n, K) and features (n, D).

    Features in integers or half precision are converted to single precision, a panel of columns at
    a time.
    """
    if not targets.shape[1]:
        return get_array_module(features).zeros((0, features.shape[1]))
    if features.dtype.kind == "f" and features.dtype.itemsize >= np.dtype(np.float32).itemsize:
        return (targets.T.astype(features.dtype) @ features).astype(np.float64)
    product = get_array_module(features).empty((targets.shape[1], features.shape[1]))
    rows = targets.T.astype(np.float32)
    for panel in _panels(features, np.dtype(np.float32)):
        product[:, panel] = rows @ features[:, panel].astype(np.float32)
    return product


def _sum_squares(features: Array, mean: Array, weights: Array | None) -> Array:
    """Return Σ(x−m)² (D,) in float64, of features (n, D) with the mean (D,)."""
    squares = get_array_module(features).empty(features.shape[1])
    for panel in _panels(features, np.dtype(np.float64)):
        centered = features[:, panel] - mean[panel]
        if weights is not None:
            squares[panel] = asarray_like(weights, features) @ centered**2
        else:
            squares[panel] = (centered**2).sum(axis=0)
    return squares


def _panels(features: Array, dtype: np.dtype[Any]) -> Iterator[slice]:
    """Yield the columns of features (n, D) that are converted to a dtype at a time."""
    size = GPU_CONVERTED_BYTES if on_gpu(features) else CONVERTED_BYTES
    step = max(1, size // (len(features) * dtype.itemsize))
    for start in range(0, features.shape[1], step):
        yield slice(start, min(start + step, features.shape[1]))


def _add_lower(first: Array | LowerTriangle, second: Array | LowerTriangle) -> Array:
    """Return the lower triangle of the sum of two matrices (D, D) in Fortran order.

    Most of the memory of the upper triangle is never touched.
    """
    side = len(first)
    total = get_operations(get_panel(first, 0)).new_square(side, first.dtype)
    for start in range(0, side, PANEL_COLUMNS):
        one, other, into = (get_panel(matrix, start) for matrix in (first, second, total))
        np.add(one, other, out=into)
    return total


@dataclass(frozen=True, slots=True)
class Whitening:
    """The factorized covariance S of standardized features, with a ridge γ on its diagonal.

    Attributes
    ----------
    mean : ndarray of shape (D,)
        The mean of the features.
    scale : ndarray of shape (D,)
        1/deviation of the features; 0 for a feature without variance, which never gets a weight.
    solve : callable
        Maps right-hand sides (D, K) to (S + γ·mean(diag S)·I)⁻¹ times them.
    """

    mean: Array
    scale: Array
    solve: Solve

    @classmethod
    def of(cls, moments: FeatureMoments, ridge: float) -> Whitening:
        """Factorize the covariance, once for any number of right-hand sides.

        Parameters
        ----------
        moments : FeatureMoments of D features
            The moments, with their scatter.
        ridge : float
            The ridge γ, relative to the mean of the covariance's diagonal.

        Returns
        -------
        Whitening of D features
            The factorized covariance.

        Raises
        ------
        ValueError
            If the moments have no scatter.
        SingularError
            If the covariance cannot be factorized with this ridge.
        """
        if moments.scatter is None:
            raise ValueError("The moments have no scatter to factorize. Gather them with one.")
        scatter, mean, count = unpack(moments.scatter), moments.mean, moments.count
        is_copy = scatter is not moments.scatter
        operations = get_operations(scatter)
        return cls(mean, *operations.whiten(scatter, mean, count, ridge, overwrite=is_copy))


def one_vs_rest_lda(
    moments: FeatureMoments, ridge: float, whitening: Whitening | None = None
) -> tuple[Array, Array, Array]:
    """Fit a linear discriminant analysis of each class against the rest.

    With S the covariance of all samples, δ = m₁ − m₀, π = n₁/N and u = S⁻¹δ, the weights are
    w = u/(1 − π(1−π)δᵀu) and the intercept is b = −½(m₁+m₀)ᵀw + log(n₁/n₀). One factorization
    serves all classes.

    Parameters
    ----------
    moments : FeatureMoments of D features and K targets
        The targets mark membership of K classes.
    ridge : float
        The ridge, relative to the mean of the covariance's diagonal.
    whitening : Whitening, optional
        The factorized covariance; computed from `moments` by default.

    Returns
    -------
    weights : ndarray of shape (K, D)
        Weights on the raw features, zero for absent classes.
    intercept : ndarray of shape (K,)
        Intercepts.
    present : ndarray of bool, shape (K,)
        Whether a class has samples, but not all of them.

    Raises
    ------
    SingularError
        If the covariance cannot be factorized with this ridge.
    """
    white = whitening or Whitening.of(moments, ridge)
    n, inside = moments.count, moments.target_sums
    n1, n0, present = _count_members(moments, len(inside))
    n1, n0 = n1[:, None], n0[:, None]
    mean1 = (moments.cross - inside[:, None] * moments.mean) * white.scale / n1
    mean0 = -mean1 * n1 / n0  # the standardized features have mean 0 over all samples
    delta = np.where(present[:, None], mean1 - mean0, 0)
    u = white.solve(delta.T).T * (white.scale > 0)
    share = n1 * n0 / n**2
    weights = u / (1 - share * (delta * u).sum(axis=1, keepdims=True))
    intercept = np.log(n1 / n0)[:, 0] - 0.5 * ((mean1 + mean0) * weights).sum(axis=1)
    intercept = np.where(present, intercept, 0)
    weights = weights * white.scale
    return weights, intercept - weights @ white.mean, present


def ridge_regression(
    moments: FeatureMoments, ridge: float, whitening: Whitening | None = None
) -> tuple[Array, Array]:
    """Fit a ridge regression of the targets on the features.

    It solves (S + γ·mean(diag S)·I) V = FᵀT/N with standardized features and centered targets.

    Parameters
    ----------
    moments : FeatureMoments of D features and K targets
        The moments of the training samples.
    ridge : float
        The ridge γ, relative to the mean of the covariance's diagonal.
    whitening : Whitening, optional
        The factorized covariance; computed from `moments` by default.

    Returns
    -------
    weights : ndarray of shape (K, D)
        Weights on the raw features.
    intercept : ndarray of shape (K,)
        Intercepts.

    Raises
    ------
    SingularError
        If the covariance cannot be factorized with this ridge.
    """
    white = whitening or Whitening.of(moments, ridge)
    centered = (moments.cross - moments.target_sums[:, None] * moments.mean) * white.scale
    weights = white.solve(centered.T / moments.count).T * white.scale
    return weights, moments.target_sums / moments.count - weights @ white.mean


class Discriminants(NamedTuple):
    """Discriminants of K classes against the rest, as functions of regressions of membership.

    Attributes
    ----------
    weights : ndarray of shape (K, D)
        Weights on the raw features, zero for absent classes.
    intercept : ndarray of shape (K,)
        Intercepts.
    present : ndarray of bool, shape (K,)
        Whether a class has samples, but not all of them.
    slope, offset : ndarray of shape (K,)
        The regression predicts slope·score + offset; 1 and 0 for absent classes.
    """

    weights: Array
    intercept: Array
    present: Array
    slope: Array
    offset: Array


def regression_to_lda(moments: FeatureMoments, weights: Array, intercept: Array) -> Discriminants:
    """Convert ridge regressions of class membership to discriminants of each class.

    With V the weights of the regression, π = n₁/N and δ = m₁ − m₀, those of `one_vs_rest_lda` are
    V/(π(1−π)(1 − δᵀV)): the score of a discriminant is a linear function of what the regression
    predicts.

    Parameters
    ----------
    moments : FeatureMoments of D features and K targets or more
        The first K targets mark membership of K classes.
    weights : ndarray of shape (K, D)
        The weights V of `ridge_regression` on the raw features.
    intercept : ndarray of shape (K,)
        Its intercepts.

    Returns
    -------
    Discriminants of K classes
        The same as those of `one_vs_rest_lda`, up to rounding.
    """
    total, classes = moments.count, len(weights)
    n1, n0, present = _count_members(moments, classes)
    mean1 = moments.cross[:classes] / n1[:, None]
    mean0 = (total * moments.mean - moments.cross[:classes]) / n0[:, None]
    explained = ((mean1 - mean0) * weights).sum(axis=1)
    slope = np.where(present, n1 * n0 / total**2 * (1 - explained), 1)
    lda = np.where(present[:, None], weights / slope[:, None], 0)
    bias = np.log(n1 / n0) - 0.5 * ((mean1 + mean0) * lda).sum(axis=1)
    bias = np.where(present, bias, 0)
    offset = np.where(present, intercept - slope * bias, 0)
    return Discriminants(lda, bias, present, slope, offset)


def _count_members(moments: FeatureMoments, classes: int) -> tuple[Array, Array, Array]:
    """Return the samples in and outside each of the first classes, and whether both exist.

    Counts of other classes are replaced by 1.
    """
    inside, total = moments.target_sums[:classes], moments.count
    present = (inside > 0) & (total - inside > MIN_CLASS_FRACTION * total)
    return np.where(present, inside, 1), np.where(present, total - inside, 1), present
