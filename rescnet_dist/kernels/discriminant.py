"""Linear discriminants and ridge regression from one scatter matrix of the features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve, lapack

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.arrays import Array, get_array_module, gpu_kernels, on_gpu
from rescnet_dist.kernels.blas import add_scatter, cholesky

NEGLIGIBLE = 1e-9  # of the scatter: what it may be wrong by
SINGLE_FROM = 2048  # features: fewer are factorized in double precision in no time
COLUMNS = 256  # of a matrix that are worked on at a time
REFINED, STEPS = 1e-10, 50  # residual that is reached in so many steps at most
SINGULAR = 64  # pivots of so many units of rounding or less mean that there is no inverse
SYR = {"f": blas.ssyr, "d": blas.dsyr}


@dataclass(frozen=True, slots=True)
class FeatureMoments:
    """Moments of features F (n, D) and of their targets T (n, K).

    count n; mean (D,); scatter (D, D) = Σ(x−m)(x−m)ᵀ in the features' dtype, of which only the
    lower triangle is kept up, or None where it is gathered elsewhere; cross (K, D) = TᵀF and
    target_sums (K,) = Σ T in float64. With targets that mark membership of classes, these are class
    sums and class counts. `merge` is associative and `empty` is its identity.
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
        """The moments of no sample, in arrays of NumPy or CuPy."""
        square = None
        if scatter:
            square = _new_square(features, np.dtype(dtype), xp)
        return cls(0, xp.zeros(features), square, xp.zeros((targets, features)), xp.zeros(targets))

    def fold(self, features: Array, targets: Array) -> FeatureMoments:
        """These moments with more samples, features (n, D) and targets (n, K).

        Takes over the memory of `scatter`: `self` must not be used afterwards.
        """
        if len(features) == 0:
            return self
        n, mean = len(features), _means(features)
        if self.scatter is not None:
            mean = self._add_scatter(features.astype(self.scatter.dtype, copy=False), mean)
        more = FeatureMoments(
            n,
            mean,
            None,
            (targets.T.astype(features.dtype) @ features).astype(np.float64),
            targets.sum(axis=0, dtype=np.float64),
        )
        return replace(self._joined(more, None), scatter=self.scatter)

    def _add_scatter(self, features: Array, mean: Array) -> Array:
        """Add features (n, D) of this mean (D,), about, to the scatter; returns the mean.

        They are the rows of one product, and so is the scatter between them and those before.
        """
        n, scatter = len(features), self.scatter
        assert scatter is not None
        rows = _new_rows(n + bool(self.count), scatter)
        rounded = mean.astype(scatter.dtype)
        np.subtract(features, rounded, out=rows[:n])
        offset = _means(rows[:n])  # what rounding the mean left behind
        mean = rounded + offset
        if self.count:
            rows[n] = (mean - self.mean) * np.sqrt(self.count * n / (self.count + n))
        (gpu_kernels().add_scatter if on_gpu(scatter) else add_scatter)(scatter, rows)
        # a GPU would have to be waited for to know
        if on_gpu(scatter) or (n * offset**2 > NEGLIGIBLE * np.diagonal(scatter)).any():
            _rank_one(scatter, offset, -float(n))
        return mean

    def merge(self, other: FeatureMoments) -> FeatureMoments:
        """Moments of both sets of samples: S = S₁ + S₂ + n₁n₂/(n₁+n₂) δδᵀ, δ = m₂ − m₁."""
        if self.scatter is None or other.scatter is None:
            return self._joined(other, None)
        return self._joined(other, _sum_of_lower(self.scatter, other.scatter))

    def _joined(self, other: FeatureMoments, scatter: Array | None) -> FeatureMoments:
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean
        if count:
            mean = mean + delta * (other.count / count)
            if scatter is not None:
                scatter = _rank_one(scatter, delta, self.count * other.count / count)
        return FeatureMoments(
            count,
            mean,
            scatter,
            self.cross + other.cross,
            self.target_sums + other.target_sums,
        )


def _means(rows: Array) -> Array:
    """The mean of each column (m,) of rows (n, m), in float64."""
    if on_gpu(rows) and rows.dtype == np.float32:
        return gpu_kernels().column_means(rows)
    return rows.mean(axis=0, dtype=np.float64)


def _new_square(side: int, dtype: np.dtype[Any], xp: Any) -> Array:
    """Zeros (side, side) in Fortran's order."""
    if xp is np:
        return np.zeros((side, side), dtype, order="F")
    square: Array = gpu_kernels().new_square(side, dtype)
    return square


def _new_rows(n: int, scatter: Array) -> Array:
    """Rows (n, D) to be written to and then added to a scatter (D, D)."""
    if on_gpu(scatter):
        rows: Array = gpu_kernels().new_rows(n, scatter)
        return rows
    return np.empty((n, len(scatter)), scatter.dtype)


def _sum_of_lower(one: Array, other: Array) -> Array:
    """The sum of two matrices (D, D) in Fortran's order in the lower triangle; the memory of most
    of the other half is never touched."""
    total = _new_square(len(one), one.dtype, get_array_module(one))
    for start in range(0, len(one), COLUMNS):
        part = slice(start, None), slice(start, start + COLUMNS)
        np.add(one[part], other[part], out=total[part])
    return total


def _rank_one(scatter: Array, vector: Array, factor: float) -> Array:
    """scatter + factor·v vᵀ in the lower triangle, in place."""
    if on_gpu(scatter):
        gpu_kernels().add_outer(scatter, vector, factor)
        return scatter
    kind = scatter.dtype.char
    return SYR[kind](factor, vector.astype(scatter.dtype), a=scatter, overwrite_a=1, lower=1)


@dataclass(frozen=True, slots=True)
class Whitening:
    """The ridged covariance of standardized features, ready to be inverted.

    mean (D,) and scale (D,) = 1/deviation standardize the features; a feature without variance
    has scale 0 and never gets weight. solve gives (S + γ·mean(diag S)·I)⁻¹ columns for (D, K) ones.
    """

    mean: Array
    scale: Array
    solve: Callable[[Array], Array]

    @classmethod
    def of(cls, moments: FeatureMoments, ridge: float) -> Whitening:
        """Factorize the covariance once for any number of right-hand sides."""
        if moments.scatter is None:
            raise ValueError("these moments have no scatter to factorize")
        if on_gpu(moments.scatter):
            return cls(*gpu_kernels().whitened(moments, ridge))
        if len(moments.mean) >= SINGLE_FROM and moments.scatter.dtype == np.float32:
            try:
                return cls._single(moments, ridge)
            except np.linalg.LinAlgError:
                pass  # too near to singular for it
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
            raise singular(len(scale), moments.count, ridge) from None
        return cls(
            moments.mean, scale, lambda columns: cho_solve(factor, columns, check_finite=False)
        )

    @classmethod
    def _single(cls, moments: FeatureMoments, ridge: float) -> Whitening:
        """Factorize in single precision, at twice the speed and in half the memory; what is solved
        by it is refined to double precision."""
        scatter, count = moments.scatter, moments.count
        assert scatter is not None
        variance = np.diagonal(scatter).astype(np.float64) / count
        scale = inverse_deviations(variance)
        shift = ridge * float((variance * scale**2).mean())
        live = scale > 0
        factor = np.zeros(scatter.shape, scatter.dtype, order="F")
        root = (scale / np.sqrt(count)).astype(np.float32)
        for start in range(0, len(scale), COLUMNS):  # the other half is never touched
            columns = slice(start, start + COLUMNS)
            np.multiply(scatter[start:, columns], root[start:, None], out=factor[start:, columns])
            factor[start:, columns] *= root[columns]
        np.einsum("ii->i", factor)[...] = np.where(live, variance * scale**2 + shift, 1)
        cholesky(factor)
        check_pivots(np.diagonal(factor), float(np.finfo(np.float32).eps), len(scale), count, ridge)

        def product(x: Array) -> Array:
            """The ridged covariance of standardized features times x (D, K)."""
            result = symmetric_product(scatter, scale[:, None] * x)
            result *= scale[:, None] / count
            return result + np.where(live, shift, 1)[:, None] * x

        def nearly(x: Array) -> Array:
            return np.asarray(lapack.spotrs(factor, x.astype(np.float32), lower=1)[0])

        def solve(columns: Array) -> Array:
            try:
                return conjugate_gradients(product, nearly, columns)
            except np.linalg.LinAlgError:  # too near to singular after all
                return cls._double(moments, ridge).solve(columns)

        return cls(moments.mean, scale, solve)


def symmetric_product(lower: Array, x: Array) -> Array:
    """S x (D, K) in float64, of a symmetric matrix S of which the lower triangle is given."""
    result = np.zeros_like(x)
    for start in range(0, len(lower), COLUMNS):
        stop = min(start + COLUMNS, len(lower))
        corner = np.tril(lower[start:stop, start:stop].astype(np.float64))
        result[start:stop] += corner @ x[start:stop] + np.tril(corner, -1).T @ x[start:stop]
        below = lower[stop:, start:stop].astype(np.float64)
        result[stop:] += below @ x[start:stop]
        result[start:stop] += below.T @ x[stop:]
    return result


def conjugate_gradients(
    product: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    columns: Array,
    refined: float = REFINED,
) -> Array:
    """Solve S x = columns (D, K) for a symmetric positive S by its products, with what solves it
    nearly; a few steps then suffice for a residual of `refined` of the columns."""
    x, residual = np.zeros_like(columns, dtype=np.float64), columns.astype(np.float64)
    wanted = refined * np.linalg.norm(residual, axis=0)
    step, previous = np.zeros_like(x), np.zeros_like(wanted)
    for _ in range(STEPS + 1):
        if (np.linalg.norm(residual, axis=0) <= wanted).all():
            return x
        towards = precondition(residual).astype(np.float64)
        square = (residual * towards).sum(axis=0)
        step = towards + _quotient(square, previous, previous > 0) * step
        image = product(step)
        length = _quotient(square, (step * image).sum(axis=0), square > 0)
        x += length * step
        residual -= length * image
        previous = square
    raise np.linalg.LinAlgError("conjugate gradients did not converge")


def _quotient(one: Array, other: Array, where: Array) -> Array:
    """one / other where that is wanted, 0 elsewhere."""
    return np.where(where, one / np.where(where, other, 1), 0)


def inverse_deviations(variance: Array) -> Array:
    """1/deviation of features of variance (D,), 0 for those without any."""
    deviation = np.sqrt(np.maximum(variance, 0))
    live = deviation > 1e-7 * (float(deviation.max()) or 1)
    return _quotient(np.ones_like(deviation), deviation, live)


def singular(features: int, samples: int, ridge: float) -> SingularError:
    """What to raise where a covariance has no inverse."""
    return SingularError(
        f"the covariance of the {features} features over {samples} samples cannot be factorized "
        f"with ridge={ridge}: use a larger ridge, or more samples"
    )


def check_pivots(pivots: Array, rounding: float, features: int, samples: int, ridge: float) -> None:
    """Refuse a Cholesky factor whose diagonal (m,) says that the covariance has no inverse."""
    if not float((pivots**2).min()) >= SINGULAR * rounding:
        raise singular(features, samples, ridge)


def one_vs_rest_lda(
    moments: FeatureMoments, ridge: float, whitening: Whitening | None = None
) -> tuple[Array, Array, Array]:
    """Weights (K, D), intercepts (K,) and presence (K,) of an LDA of each class against the rest.

    The targets of `moments` mark membership of K classes. With S the covariance of all samples,
    δ = m₁ − m₀, π = n₁/N and u = S⁻¹δ: w = u/(1 − π(1−π)δᵀu), b = −½(m₁+m₀)ᵀw + log(n₁/n₀). One
    factorization serves all classes; it is made here unless given. A class without samples, or
    without a rest, is absent and has zero weights.
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
    """Weights (K, D) and intercepts (K,) that regress the targets of `moments` on the features.

    (S + γ·mean(diag S)·I) V = FᵀT/N with standardized features and centered targets. The
    factorization is made here unless given.
    """
    white = whitening or Whitening.of(moments, ridge)
    centered = (moments.cross - moments.target_sums[:, None] * moments.mean) * white.scale
    weights = white.solve(centered.T / moments.count).T * white.scale
    return weights, moments.target_sums / moments.count - weights @ white.mean
