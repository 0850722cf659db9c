"""Test conjugate gradients against a plain NumPy version and against the exact solvers."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.kernels import (
    CovarianceProduct,
    FeatureMoments,
    Iterate,
    Standardizer,
    Whitening,
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


def multiply(features, directions, mean, standardizer, weights=None, chunk: int = 37):
    """Return FᵀF S, of chunks folded into two products that are added."""
    parts = [
        CovarianceProduct.empty(directions, mean, standardizer, features.dtype) for _ in range(2)
    ]
    for start in range(0, len(features), chunk):
        rows, half = slice(start, start + chunk), int(start >= len(features) // 2)
        parts[half].add(features[rows], None if weights is None else weights[rows])
    return parts[0].value() + parts[1].value()


def iterate(features, columns, mean, standardizer, steps, weights=None) -> Iterate:
    """Return the state after some steps, with the kernels of the package."""
    state = Iterate.first(columns)
    for _ in range(steps):
        products = multiply(features, state.directions, mean, standardizer, weights)
        state = state.step(products, standardizer)
    return state


def fit_iteratively(fit, features, targets, ridge, steps, weights=None):
    """Return what a fit of the package gives with the weights after some steps."""
    moments = gather_moments(features, targets, weights, scatter=False, squares=True)
    standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, ridge)
    columns = record_columns(lambda w: fit(moments, ridge, w), moments, standardizer)
    found = iterate(features, columns, moments.mean, standardizer, steps, weights).solution
    return fit(moments, ridge, Whitening(moments.mean, standardizer.scale, lambda _: found))


def standardize(features):
    """Return standardized features (n, D) in float64, 0 for those without variance."""
    features = features.astype(np.float64)
    deviation = features.std(axis=0)
    inverse = np.array([1 / d if d > 1e-9 else 0 for d in deviation])
    return (features - features.mean(axis=0)) * inverse


def oracle_solution(features, targets, ridge, steps):
    """Return the weights (D, K) that minimize ½tr(VᵀAV) − tr(VᵀB) over the block Krylov space.

    After s steps, that is the span of B, AB, …, A^(s−1)B.
    """
    standard, n = standardize(features), len(features)
    matrix = standard.T @ standard / n
    matrix += ridge * np.diag(matrix).mean() * np.eye(len(matrix))
    columns = standard.T @ (targets - targets.mean(axis=0)) / n
    space = np.zeros((len(matrix), 0))
    block = columns
    for _ in range(steps):
        for _ in range(2):  # the second time removes what rounding has left
            block = block - space @ (space.T @ block)
        left, values, _ = np.linalg.svd(block, full_matrices=False)
        block = left[:, values > 1e-10 * values[0]]
        space, block = np.hstack([space, block]), matrix @ block
    return space @ np.linalg.solve(space.T @ matrix @ space, space.T @ columns)


def assert_close(found, expected, limit: float) -> None:
    """Compare arrays relative to the largest value of each."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=limit * np.abs(other).max())


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_steps_minimize_over_the_krylov_space(rng, steps: int) -> None:
    """Also before convergence, and if columns depend on each other up to rounding."""
    features, targets = correlated_features(rng)
    weights, _ = fit_iteratively(ridge_regression, features, targets, 0.3, steps)
    deviation = np.delete(features.std(axis=0), 7)
    found = np.delete(weights.T, 7, axis=0) * deviation[:, None]
    expected = np.delete(oracle_solution(features, targets, 0.3, steps), 7, axis=0)
    assert_close([found], [expected], 2e-5)
    assert not weights[:, 7].any()


@pytest.mark.parametrize("fit", [ridge_regression, one_vs_rest_lda])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_converges_to_the_exact_fit(rng, fit, offset: float) -> None:
    """Weights, intercepts and predictions, to 1e-4 or the rounding of the features."""
    features, targets = correlated_features(rng, offset=offset)
    found = fit_iteratively(fit, features, targets, 0.1, 9)
    exact = FeatureMoments.empty(23, 4, np.float64).fold(features.astype(float), targets)
    expected = fit(exact, 0.1)
    assert_close(found, expected, 1e-3 if offset else 1e-4)
    scores = [features.astype(float) @ w.T + b for w, b, *_ in (found, expected)]
    assert_close([scores[0]], [scores[1]], 1e-4)


@pytest.mark.parametrize("fit", [ridge_regression, one_vs_rest_lda])
def test_weights_give_the_fit_of_repeated_samples(rng, fit) -> None:
    features, targets = correlated_features(rng)
    repeats = rng.integers(1, 5, len(features))
    found = fit_iteratively(fit, features, targets, 0.3, 9, repeats.astype(np.float64))
    repeated = features.astype(float).repeat(repeats, axis=0), targets.repeat(repeats, axis=0)
    assert_close(found, fit(FeatureMoments.empty(23, 4, np.float64).fold(*repeated), 0.3), 1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("weighted", [False, True])
def test_product_is_that_of_standardized_features(rng, dtype, weighted: bool) -> None:
    """In several slabs, with a feature without variance."""
    features = rng.poisson(2, size=(200, 23)).astype(dtype)
    features[:, 3] = 5
    weights = rng.integers(0, 4, 200).astype(float) if weighted else None
    moments = gather_moments(features, np.zeros((200, 0)), None, scatter=False, squares=True)
    standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, 0.1)
    directions = rng.normal(size=(23, 3))
    found = multiply(features, directions, moments.mean, standardizer, weights, chunk=90)
    standard = standardize(features)
    counts = np.ones(200) if weights is None else weights
    expected = standard.T @ (counts[:, None] * (standard @ directions))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("zeros", [1, 4])
def test_columns_that_depend_on_others_get_no_direction(rng, zeros: int) -> None:
    """Columns of zeros have weights of zero."""
    columns = rng.normal(size=(30, 4))
    columns[:, 3] = columns[:, 2] - columns[:, 1]
    columns[:, :zeros] = 0
    state = Iterate.first(columns)
    assert state.basis.shape == (30, 0 if zeros == 4 else 2)
    np.testing.assert_allclose(state.basis @ state.factor, columns, rtol=0, atol=1e-14)
    scale = np.ones(30)
    after = state.step(np.zeros_like(state.basis), Standardizer(scale, 0.5, 0.5, 10))
    np.testing.assert_allclose(after.solution, 2 * columns, rtol=0, atol=1e-13)
    assert not after.solution[:, :zeros].any()


def test_more_columns_than_features(rng) -> None:
    """Two features have two directions, and need one step."""
    features = rng.normal(size=(50, 2)).astype(np.float32)
    targets = np.eye(4)[rng.integers(4, size=50)]
    found = fit_iteratively(ridge_regression, features, targets, 0.1, 1)
    exact = FeatureMoments.empty(2, 4, np.float64).fold(features.astype(float), targets)
    assert_close(found, ridge_regression(exact, 0.1), 1e-5)


@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_error_is_below_its_bound(rng, ridge: float) -> None:
    """By less than a factor of ten, and 1 before the first step."""
    features, targets = correlated_features(rng, width=60)
    standard, n = standardize(features), len(features)
    moments = gather_moments(features, targets, None, scatter=False, squares=True)
    standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, ridge)
    columns = standard.T @ targets / n
    matrix = standard.T @ standard / n + standardizer.shift * np.eye(60)
    exact = np.linalg.solve(matrix, columns)
    assert Iterate.first(columns).error_bound(standardizer) == 1.0
    for steps in (2, 4):
        state = iterate(features, columns, moments.mean, standardizer, steps)
        error = np.linalg.norm(state.solution - exact, axis=0) / np.linalg.norm(exact, axis=0)
        assert error.max() < state.error_bound(standardizer) < 10 * error.max()
    assert Iterate.first(0 * columns).error_bound(standardizer) == 0.0


def test_squares_are_the_diagonal_of_the_scatter(rng) -> None:
    features, targets = correlated_features(rng, offset=50.0)
    weights = rng.uniform(0.5, 2, len(features))
    for own in (None, weights):
        found = gather_moments(features, targets, own, scatter=False, squares=True)
        w = np.ones(len(features)) if own is None else own
        mean = w @ features.astype(float) / w.sum()
        expected = w @ (features.astype(float) - mean) ** 2
        np.testing.assert_allclose(found.squares, expected, rtol=1e-10, atol=1e-10)


def test_fit_that_solves_twice_is_rejected(rng) -> None:
    features, targets = correlated_features(rng)
    moments = gather_moments(features, targets, None, scatter=False, squares=True)
    standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, 0.1)

    def fit(whitening: Whitening) -> None:
        whitening.solve(np.zeros((23, 1)))
        whitening.solve(np.zeros((23, 1)))

    with pytest.raises(ValueError, match="solved 2 times"):
        record_columns(fit, moments, standardizer)
