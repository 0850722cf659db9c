"""Test block coordinate descent against plain NumPy versions and against the exact solvers."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels import (
    FeatureBlock,
    FeatureMoments,
    Standardizer,
    Whitening,
    descend_block,
    factor_block,
    feature_blocks,
    one_vs_rest_lda,
    record_columns,
    ridge_regression,
)


def correlated_features(rng, n: int = 300, width: int = 23, offset: float = 0.0):
    """Return features (n, D) with common factors, one of them constant, and targets (n, 4)."""
    labels = rng.integers(4, size=n)
    features = rng.normal(size=(n, 6)) @ rng.normal(size=(6, width))
    features += 0.7 * rng.normal(size=(n, width)) + rng.normal(size=(4, width))[labels]
    features = features * np.linspace(0.2, 3, width) + offset
    features[:, 7] = 3.0
    return features.astype(np.float32), np.eye(4)[labels]


def gather_moments(features, targets, weights, chunk: int = 37, **options) -> FeatureMoments:
    """Return the moments, of chunks folded into two accumulators that are merged."""
    make = lambda: FeatureMoments.empty(features.shape[1], targets.shape[1], **options)  # noqa: E731
    parts = [make(), make()]
    for start in range(0, len(features), chunk):
        rows, half = slice(start, start + chunk), int(start >= len(features) // 2)
        own = None if weights is None else weights[rows]
        parts[half] = parts[half].fold(features[rows], targets[rows], own)
    return parts[0].merge(parts[1])


def solve_in_blocks(features, columns, standardizer, mean, width, sweeps, weights=None):
    """Return the solution (D, K) after some sweeps, with the kernels of the package."""
    solution = np.zeros_like(columns)
    predictions = np.zeros((len(features), columns.shape[1]), np.float32)
    blocks = feature_blocks(features.shape[1], width)
    no_targets = np.zeros((len(features), 0))
    factors = [
        factor_block(gather_moments(features[:, block], no_targets, weights), standardizer, block)
        for block in blocks
    ]
    for _ in range(sweeps):
        for block, factor in zip(blocks, factors, strict=True):
            own = FeatureBlock(mean[block], standardizer.scale[block])
            products = own.multiply_transposed(features[:, block], predictions, weights)
            new = descend_block(factor, columns[block], products, solution[block], standardizer)
            predictions += own.multiply(features[:, block], new - solution[block])
            solution[block] = new
    return solution


def fit_in_blocks(fit, features, targets, ridge, width, sweeps, weights=None):
    """Return what a fit of the package gives with the whitening of block coordinate descent."""
    moments = gather_moments(features, targets, weights, scatter=False, squares=True)
    standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, ridge)
    columns = record_columns(lambda w: fit(moments, ridge, w), moments, standardizer)
    solution = solve_in_blocks(
        features, columns, standardizer, moments.mean, width, sweeps, weights
    )
    return fit(moments, ridge, Whitening(moments.mean, standardizer.scale, lambda _: solution))


def oracle_steps(features, targets, ridge, width, sweeps, repeats=None):
    """Return weights (D, K) on raw features and intercepts, from the residual form of the steps."""
    if repeats is not None:
        features, targets = features.repeat(repeats, axis=0), targets.repeat(repeats, axis=0)
    features, n = features.astype(np.float64), len(targets)
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    inverse = np.array([1 / d if d > 1e-9 else 0 for d in deviation])
    standard = (features - mean) * inverse
    penalty = n * ridge * standard.var(axis=0).mean()
    residual, solution = targets - targets.mean(axis=0), np.zeros((features.shape[1], 4))
    for _ in range(sweeps):
        for start in range(0, features.shape[1], width):
            block = slice(start, start + width)
            own = standard[:, block]
            gram = own.T @ own + penalty * np.eye(own.shape[1])
            right = own.T @ (residual + own @ solution[block])
            new = np.linalg.solve(gram + 1e-12 * np.eye(len(gram)), right)
            residual = residual - own @ (new - solution[block])
            solution[block] = new
    weights = solution * inverse[:, None]
    return weights.T, targets.mean(axis=0) - mean @ weights


def assert_close(found, expected, limit: float) -> None:
    """Compare arrays relative to the largest value of each."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=limit * np.abs(other).max())


@pytest.mark.parametrize("width", [1, 5, 23])
@pytest.mark.parametrize("sweeps", [1, 3])
def test_steps_are_those_of_the_residual_form(rng, width: int, sweeps: int) -> None:
    """Also before convergence, with and without a remainder block."""
    features, targets = correlated_features(rng)
    found = fit_in_blocks(ridge_regression, features, targets, 0.3, width, sweeps)
    assert_close(found, oracle_steps(features, targets, 0.3, width, sweeps), 2e-5)
    assert not found[0][:, 7].any()


@pytest.mark.parametrize("fit", [ridge_regression, one_vs_rest_lda])
@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("width", [6, 23])
def test_converges_to_the_exact_fit(rng, fit, offset: float, width: int) -> None:
    """Weights, intercepts and predictions, to 1e-4 or the rounding of the features."""
    features, targets = correlated_features(rng, offset=offset)
    found = fit_in_blocks(fit, features, targets, 0.1, width, 150)
    exact = FeatureMoments.empty(23, 4, np.float64).fold(features.astype(float), targets)
    expected = fit(exact, 0.1)
    assert_close(found, expected, 1e-3 if offset else 1e-4)
    scores = [features.astype(float) @ w.T + b for w, b, *_ in (found, expected)]
    assert_close([scores[0]], [scores[1]], 1e-4)


@pytest.mark.parametrize("fit", [ridge_regression, one_vs_rest_lda])
def test_weights_give_the_fit_of_repeated_samples(rng, fit) -> None:
    features, targets = correlated_features(rng)
    repeats = rng.integers(1, 5, len(features))
    found = fit_in_blocks(fit, features, targets, 0.3, 6, 80, repeats.astype(np.float64))
    repeated = features.astype(float).repeat(repeats, axis=0), targets.repeat(repeats, axis=0)
    assert_close(found, fit(FeatureMoments.empty(23, 4, np.float64).fold(*repeated), 0.3), 1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_integer_features_give_the_fit_of_floats(rng, dtype) -> None:
    features = rng.poisson(2, size=(200, 23)).astype(dtype)
    targets = np.eye(4)[features[:, :4].argmax(axis=1)]
    found = fit_in_blocks(ridge_regression, features, targets, 0.1, 8, 2)
    expected = fit_in_blocks(ridge_regression, features.astype(np.float32), targets, 0.1, 8, 2)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_every_step_lowers_the_objective(rng) -> None:
    features, targets = correlated_features(rng)
    centered = targets - targets.mean(axis=0)
    standard = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-9)
    standard[:, 7] = 0
    values = []
    for sweeps in (1, 2, 4, 8):
        weights, _ = fit_in_blocks(ridge_regression, features, targets, 0.1, 4, sweeps)
        solution = (weights * np.maximum(features.std(axis=0), 1e-9)).T
        penalty = len(features) * 0.1 * 22 / 23 * (solution**2).sum()
        values.append(((centered - standard @ solution) ** 2).sum() + penalty)
    assert values == sorted(values, reverse=True)
    assert values[0] - values[-1] > 1e-3 * values[0]


def test_squares_are_the_diagonal_of_the_scatter(rng) -> None:
    features, targets = correlated_features(rng, offset=50.0)
    weights = rng.uniform(0.5, 2, len(features))
    for own in (None, weights):
        found = gather_moments(features, targets, own, scatter=False, squares=True)
        w = np.ones(len(features)) if own is None else own
        mean = w @ features.astype(float) / w.sum()
        expected = w @ (features.astype(float) - mean) ** 2
        np.testing.assert_allclose(found.squares, expected, rtol=1e-10, atol=1e-10)


def test_factor_is_that_of_the_ridged_covariance(rng) -> None:
    """Of equal features, which a tiny ridge alone makes regular."""
    features = rng.normal(size=(500, 300)).astype(np.float32)
    features[:, 150:] = features[:, :150]
    moments = FeatureMoments.empty(300, 0, np.float32, squares=True)
    moments = moments.fold(features, np.zeros((500, 0)))
    standardizer = Standardizer.of(moments.squares, moments.mean, 500, 2e-5)
    factor = factor_block(moments, standardizer, slice(0, 300)).astype(float)
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    ridged = standard.T.astype(float) @ standard / 500 + 2e-5 * np.eye(300)
    np.testing.assert_allclose(np.tril(factor) @ np.tril(factor).T, ridged, atol=1e-5)


def test_singular_block_raises(rng) -> None:
    features = rng.normal(size=(10, 30)).astype(np.float32)
    with pytest.raises(SingularError, match=r"30 features over 10 samples .* ridge=0.0"):
        fit_in_blocks(ridge_regression, features, np.eye(4)[np.arange(10) % 4], 0.0, 20, 1)


def test_fit_that_solves_twice_is_rejected(rng) -> None:
    features, targets = correlated_features(rng)
    moments = gather_moments(features, targets, None, scatter=False, squares=True)
    standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, 0.1)

    def fit(whitening: Whitening) -> None:
        whitening.solve(np.zeros((23, 1)))
        whitening.solve(np.zeros((23, 1)))

    with pytest.raises(ValueError, match="solved 2 times"):
        record_columns(fit, moments, standardizer)
