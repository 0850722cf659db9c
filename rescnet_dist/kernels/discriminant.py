"""Linear discriminant analysis and ridge regression from one scatter matrix of the features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve, lapack

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.arrays import Array, get_array_module, gpu_kernels, on_gpu
from rescnet_dist.kernels.blas import add_scatter, cholesky

MAX_SCATTER_ERROR_FRACTION = 1e-9  # of the scatter's diagonal; smaller errors are not corrected
MIN_SINGLE_FEATURES = 2048  # fewer are quick to factorize in double precision
PANEL_COLUMNS = 256  # columns of a matrix that are processed at a time
MAX_RESIDUAL_FRACTION = 1e-10  # of the right-hand side, reached by conjugate gradients
MAX_GRADIENT_STEPS = 50  # of conjugate gradients
MIN_PIVOT_ROUNDINGS = 64  # squared pivots below this many units of rounding mean no inverse
SYR = {"f": blas.ssyr, "d": blas.dsyr}


@dataclass(frozen=True, slots=True)
class FeatureMoments:
    """Moments of features F (n, D) and of their targets T (n, K).

    `merge` is associative and `empty` is its identity.

    Attributes
    ----------
    count : int
        The number n of samples.
    mean : ndarray of float64, shape (D,)
        The mean m of the features.
    scatter : ndarray of shape (D, D) or None
        Σ(x−m)(x−m)ᵀ in the dtype of the features, of which only the lower triangle is valid. None
        if it is gathered elsewhere.
    cross : ndarray of float64, shape (K, D)
        TᵀF. With targets that mark class membership, these are class sums.
    target_sums : ndarray of float64, shape (K,)
        Σ T. With targets that mark class membership, these are class counts.
    """

    count: int
    mean: Array
    scatter: Array | None
    cross: Array
    target_sums: Array

    @classmethod
    def empty(
        cls,
        features: int,
        targets: int,
        dtype: type = np.float32,
        *,
        scatter: bool = True,
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
        xp : module, default numpy
            The array module, numpy or cupy.

        Returns
        -------
        FeatureMoments of D features and K targets
            The identity of `merge`.
        """
        square = None
        if scatter:
            square = _new_square(features, np.dtype(dtype), xp)
        return cls(0, xp.zeros(features), square, xp.zeros((targets, features)), xp.zeros(targets))

    def fold(self, features: Array, targets: Array) -> FeatureMoments:
        """Return these moments with more samples.

        The memory of `scatter` is reused: `self` must not be used afterwards.

        Parameters
        ----------
        features : ndarray of shape (n, D)
            The features of the samples.
        targets : ndarray of shape (n, K)
            Their targets.

        Returns
        -------
        FeatureMoments of D features and K targets
            The moments including the samples.
        """
        if len(features) == 0:
            return self
        n, mean = len(features), _column_means(features)
        if self.scatter is not None:
            mean = self._add_scatter(features.astype(self.scatter.dtype, copy=False), mean)
        more = FeatureMoments(
            n,
            mean,
            None,
            (targets.T.astype(features.dtype) @ features).astype(np.float64),
            targets.sum(axis=0, dtype=np.float64),
        )
        return replace(self._combine(more, None), scatter=self.scatter)

    def _add_scatter(self, features: Array, mean: Array) -> Array:
        """Add features (n, D) with an approximate mean (D,) to the scatter; return the mean.

        The centered features, and one more row for the scatter between them and the samples
        before, are the rows of a single product.
        """
        n, scatter = len(features), self.scatter
        assert scatter is not None
        rows = _new_rows(n + bool(self.count), scatter)
        rounded = mean.astype(scatter.dtype)
        np.subtract(features, rounded, out=rows[:n])
        offset = _column_means(rows[:n])  # the rounding error of the mean
        mean = rounded + offset
        if self.count:
            rows[n] = (mean - self.mean) * np.sqrt(self.count * n / (self.count + n))
        (gpu_kernels().add_scatter if on_gpu(scatter) else add_scatter)(scatter, rows)
        # on a GPU, the check would need a synchronization
        if (
            on_gpu(scatter)
            or (n * offset**2 > MAX_SCATTER_ERROR_FRACTION * np.diagonal(scatter)).any()
        ):
            _add_rank_one(scatter, offset, -float(n))
        return mean

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

    def _combine(self, other: FeatureMoments, scatter: Array | None) -> FeatureMoments:
        """Return the merged moments, given S₁ + S₂ as `scatter`, which is updated in place."""
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean
        if count:
            mean = mean + delta * (other.count / count)
            if scatter is not None:
                scatter = _add_rank_one(scatter, delta, self.count * other.count / count)
        return FeatureMoments(
            count,
            mean,
            scatter,
            self.cross + other.cross,
            self.target_sums + other.target_sums,
        )


def _column_means(rows: Array) -> Array:
    """Return the mean (m,) of each column of rows (n, m), in float64."""
    if on_gpu(rows) and rows.dtype == np.float32:
        return gpu_kernels().column_means(rows)
    return rows.mean(axis=0, dtype=np.float64)


def _new_square(side: int, dtype: np.dtype[Any], xp: Any) -> Array:
    """Return zeros (side, side) in Fortran order."""
    if xp is np:
        return np.zeros((side, side), dtype, order="F")
    square: Array = gpu_kernels().new_square(side, dtype)
    return square


def _new_rows(n: int, scatter: Array) -> Array:
    """Allocate rows (n, D) that will be added to a scatter (D, D)."""
    if on_gpu(scatter):
        rows: Array = gpu_kernels().new_rows(n, scatter)
        return rows
    return np.empty((n, len(scatter)), scatter.dtype)


def _add_lower(first: Array, second: Array) -> Array:
    """Return the lower triangle of the sum of two matrices (D, D) in Fortran order.

    Most of the memory of the upper triangle is never touched.
    """
    total = _new_square(len(first), first.dtype, get_array_module(first))
    for start in range(0, len(first), PANEL_COLUMNS):
        panel = slice(start, None), slice(start, start + PANEL_COLUMNS)
        np.add(first[panel], second[panel], out=total[panel])
    return total


def _add_rank_one(scatter: Array, vector: Array, factor: float) -> Array:
    """Add factor·v vᵀ, v = vector (D,), to the lower triangle of scatter (D, D), in place."""
    if on_gpu(scatter):
        gpu_kernels().add_outer(scatter, vector, factor)
        return scatter
    char = scatter.dtype.char
    return SYR[char](factor, vector.astype(scatter.dtype), a=scatter, overwrite_a=1, lower=1)


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
    solve: Callable[[Array], Array]

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
        if on_gpu(moments.scatter):
            return cls(*gpu_kernels().whiten(moments, ridge))
        if len(moments.mean) >= MIN_SINGLE_FEATURES and moments.scatter.dtype == np.float32:
            try:
                return cls._single(moments, ridge)
            except np.linalg.LinAlgError:
                pass  # too close to singular for single precision
        return cls._double(moments, ridge)

    @classmethod
    def _double(cls, moments: FeatureMoments, ridge: float) -> Whitening:
        """Factorize in double precision."""
        assert moments.scatter is not None
        covariance = moments.scatter.astype(np.float64)
        covariance /= moments.count
        scale = inverse_deviations(np.diagonal(covariance))
        covariance *= scale[:, None]
        covariance *= scale
        diagonal = np.einsum("ii->i", covariance)
        diagonal += ridge * diagonal.mean()
        diagonal[scale == 0] = 1
        try:
            factor = cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
            rounding = np.finfo(moments.scatter.dtype).eps
            check_pivots(np.diagonal(factor[0]), rounding, len(scale), moments.count, ridge)
        except np.linalg.LinAlgError:
            raise singular_error(len(scale), moments.count, ridge) from None
        return cls(
            moments.mean, scale, lambda columns: cho_solve(factor, columns, check_finite=False)
        )

    @classmethod
    def _single(cls, moments: FeatureMoments, ridge: float) -> Whitening:
        """Factorize in single precision, at twice the speed and in half the memory.

        Solutions are refined to double precision.
        """
        scatter, count = moments.scatter, moments.count
        assert scatter is not None
        variance = np.diagonal(scatter).astype(np.float64) / count
        scale = inverse_deviations(variance)
        shift = ridge * float((variance * scale**2).mean())
        live = scale > 0
        factor = np.zeros(scatter.shape, scatter.dtype, order="F")
        root = (scale / np.sqrt(count)).astype(np.float32)
        for start in range(0, len(scale), PANEL_COLUMNS):  # the upper triangle is never touched
            columns = slice(start, start + PANEL_COLUMNS)
            np.multiply(scatter[start:, columns], root[start:, None], out=factor[start:, columns])
            factor[start:, columns] *= root[columns]
        np.einsum("ii->i", factor)[...] = np.where(live, variance * scale**2 + shift, 1)
        cholesky(factor)
        check_pivots(np.diagonal(factor), float(np.finfo(np.float32).eps), len(scale), count, ridge)

        def multiply(x: Array) -> Array:
            """Multiply the ridged covariance of standardized features with x (D, K)."""
            result = multiply_symmetric(scatter, scale[:, None] * x)
            result *= scale[:, None] / count
            return result + np.where(live, shift, 1)[:, None] * x

        def solve_single(x: Array) -> Array:
            """Solve for x (D, K) in single precision."""
            return np.asarray(lapack.spotrs(factor, x.astype(np.float32), lower=1)[0])

        def solve(columns: Array) -> Array:
            try:
                return conjugate_gradients(multiply, solve_single, columns)
            except np.linalg.LinAlgError:  # too close to singular after all
                return cls._double(moments, ridge).solve(columns)

        return cls(moments.mean, scale, solve)


def multiply_symmetric(lower: Array, x: Array) -> Array:
    """Return S x (D, K) in float64, for a symmetric S given by its lower triangle (D, D)."""
    result = np.zeros_like(x)
    for start in range(0, len(lower), PANEL_COLUMNS):
        stop = min(start + PANEL_COLUMNS, len(lower))
        corner = np.tril(lower[start:stop, start:stop].astype(np.float64))
        result[start:stop] += corner @ x[start:stop] + np.tril(corner, -1).T @ x[start:stop]
        below = lower[stop:, start:stop].astype(np.float64)
        result[stop:] += below @ x[start:stop]
        result[start:stop] += below.T @ x[stop:]
    return result


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
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


def inverse_deviations(variance: Array) -> Array:
    """Return 1/√variance (D,), 0 for features without variance."""
    deviation = np.sqrt(np.maximum(variance, 0))
    live = deviation > 1e-7 * (float(deviation.max()) or 1)
    return _divide_where(np.ones_like(deviation), deviation, live)


def singular_error(features: int, samples: int, ridge: float) -> SingularError:
    """Return the error to raise if a covariance has no inverse."""
    return SingularError(
        f"The covariance of the {features} features over {samples} samples cannot be factorized "
        f"with ridge={ridge}. Use a larger ridge, or more samples."
    )


def check_pivots(pivots: Array, rounding: float, features: int, samples: int, ridge: float) -> None:
    """Raise SingularError if the diagonal (m,) of a Cholesky factor means that there is no inverse.

    `rounding` is the machine epsilon of the scatter.
    """
    if not float((pivots**2).min()) >= MIN_PIVOT_ROUNDINGS * rounding:
        raise singular_error(features, samples, ridge)


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
    n = moments.count
    inside = moments.target_sums
    present = (inside > 0) & (inside < n)
    n1 = np.where(present, inside, 1)[:, None]
    n0 = np.where(present, n - inside, 1)[:, None]
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
