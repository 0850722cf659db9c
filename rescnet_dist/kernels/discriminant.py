"""Linear discriminants and ridge regression from one scatter matrix of the features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.patches import Array

SYRK = {"f": blas.ssyrk, "d": blas.dsyrk}
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
        cls, features: int, targets: int, dtype: type = np.float32, *, scatter: bool = True
    ) -> FeatureMoments:
        """The moments of no sample."""
        return cls(
            0,
            np.zeros(features),
            np.zeros((features, features), dtype, order="F") if scatter else None,
            np.zeros((targets, features)),
            np.zeros(targets),
        )

    def fold(self, features: Array, targets: Array) -> FeatureMoments:
        """These moments with more samples, features (n, D) and targets (n, K).

        Takes over the memory of `scatter`: `self` must not be used afterwards.
        """
        if len(features) == 0:
            return self
        mean, scatter = features.mean(axis=0, dtype=np.float64), self.scatter
        if scatter is not None:
            centred = features - mean.astype(features.dtype)
            offset = centred.mean(axis=0, dtype=np.float64)  # what rounding the mean left behind
            mean = mean.astype(features.dtype) + offset
            syrk = SYRK[scatter.dtype.char]
            scatter = syrk(1.0, centred.T, beta=1.0, c=scatter, overwrite_c=1, lower=1)
            scatter = _rank_one(scatter, offset, -float(len(features)))
        more = FeatureMoments(
            len(features),
            mean,
            scatter,
            targets.T.astype(np.float64) @ features,
            targets.sum(axis=0, dtype=np.float64),
        )
        return self._joined(more, scatter)

    def merge(self, other: FeatureMoments) -> FeatureMoments:
        """Moments of both sets of samples: S = S₁ + S₂ + n₁n₂/(n₁+n₂) δδᵀ, δ = m₂ − m₁."""
        if self.scatter is None or other.scatter is None:
            return self._joined(other, None)
        return self._joined(other, np.asfortranarray(self.scatter + other.scatter))

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


def _rank_one(scatter: Array, vector: Array, factor: float) -> Array:
    """scatter + factor·v vᵀ in the lower triangle, in place."""
    kind = scatter.dtype.char
    return SYR[kind](factor, vector.astype(scatter.dtype), a=scatter, overwrite_a=1, lower=1)


@dataclass(frozen=True, slots=True)
class Whitening:
    """The ridged covariance of standardised features, ready to be inverted.

    mean (D,) and scale (D,) = 1/deviation standardise the features; a feature without variance
    has scale 0 and never gets weight. solve gives (S + γ·mean(diag S)·I)⁻¹ columns for (D, K) ones.
    """

    mean: Array
    scale: Array
    solve: Callable[[Array], Array]

    @classmethod
    def of(cls, moments: FeatureMoments, ridge: float) -> Whitening:
        """Factorise the covariance once for any number of right-hand sides."""
        if moments.scatter is None:
            raise ValueError("these moments have no scatter to factorise")
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


def inverse_deviations(variance: Array) -> Array:
    """1/deviation of features of variance (D,), 0 for those without any."""
    deviation = np.sqrt(np.maximum(variance, 0))
    live = deviation > 1e-7 * (deviation.max(initial=0) or 1)
    return np.divide(1, deviation, out=np.zeros_like(deviation), where=live)


def singular(features: int, samples: int, ridge: float) -> SingularError:
    """What to raise where a covariance has no inverse."""
    return SingularError(
        f"the covariance of the {features} features over {samples} samples cannot be factorised "
        f"with ridge={ridge}: use a larger ridge, or more samples"
    )


def check_pivots(pivots: Array, rounding: float, features: int, samples: int, ridge: float) -> None:
    """Refuse a Cholesky factor whose diagonal (m,) says that the covariance has no inverse."""
    if not (pivots**2).min(initial=1) >= SINGULAR * rounding:
        raise singular(features, samples, ridge)


def one_vs_rest_lda(
    moments: FeatureMoments, ridge: float, whitening: Whitening | None = None
) -> tuple[Array, Array, Array]:
    """Weights (K, D), intercepts (K,) and presence (K,) of an LDA of each class against the rest.

    The targets of `moments` mark membership of K classes. With S the covariance of all samples,
    δ = m₁ − m₀, π = n₁/N and u = S⁻¹δ: w = u/(1 − π(1−π)δᵀu), b = −½(m₁+m₀)ᵀw + log(n₁/n₀). One
    factorisation serves all classes; it is made here unless given. A class without samples, or
    without a rest, is absent and has zero weights.
    """
    white = whitening or Whitening.of(moments, ridge)
    n = moments.count
    inside = moments.target_sums
    present = (inside > 0) & (inside < n)
    n1 = np.where(present, inside, 1)[:, None]
    n0 = np.where(present, n - inside, 1)[:, None]
    mean1 = (moments.cross - inside[:, None] * moments.mean) * white.scale / n1
    mean0 = -mean1 * n1 / n0  # the standardised features have mean 0 over all samples
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

    (S + γ·mean(diag S)·I) V = FᵀT/N with standardised features and centred targets. The
    factorisation is made here unless given.
    """
    white = whitening or Whitening.of(moments, ridge)
    centred = (moments.cross - moments.target_sums[:, None] * moments.mean) * white.scale
    weights = white.solve(centred.T / moments.count).T * white.scale
    return weights, moments.target_sums / moments.count - weights @ white.mean
