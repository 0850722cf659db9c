"""Test moments of features, and LDA and ridge regression computed from them."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from rescnet_dist.kernels import (
    FeatureMoments,
    one_hot,
    one_vs_rest_lda,
    ridge_regression,
    solving,
)
from rescnet_dist.kernels.cpu import solve as cpu_solve
from rescnet_dist.kernels.solving import PANEL_COLUMNS
from rescnet_dist.kernels.triangle import LowerTriangle, unpack


def labeled_features(rng: np.random.Generator, n: int = 240, width: int = 7, classes: int = 4):
    """Return correlated features (n, D) of different scales and class means, and labels (n,)."""
    labels = np.arange(n) % classes
    mix = rng.normal(size=(width, width)) + 2 * np.eye(width)
    features = rng.normal(size=(n, width)) @ mix + rng.normal(size=(classes, width))[labels]
    return features * np.linspace(0.2, 3, width) + np.linspace(-2, 5, width), labels


def fold_moments(features, targets, dtype=np.float64) -> FeatureMoments:
    """Return the moments of all samples, folded at once."""
    return FeatureMoments.empty(features.shape[1], targets.shape[1], dtype).fold(features, targets)


def assert_moments(moments: FeatureMoments, features, targets, tol: float = 1e-10) -> None:
    """Compare with the definitions in float64; only the lower triangle of the scatter."""
    features, targets = features.astype(np.float64), targets.astype(np.float64)
    assert moments.count == len(features)
    mean = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    centered = features - mean
    for found, expected in (
        (moments.mean, mean),
        (np.tril(moments.scatter), np.tril(centered.T @ centered)),
        (moments.cross, targets.T @ features),
        (moments.target_sums, targets.sum(axis=0)),
    ):
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= tol * max(1, np.abs(expected).max())


# moments ----------------------------------------------------------------------------------------


@given(
    cuts=st.lists(st.integers(0, 30), max_size=6),
    splits=st.sets(st.integers(0, 6)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_fold_and_merge_over_any_chunks_equal_whole(cuts, splits, seed):
    """Chunks are folded into one or more accumulators, which are merged at the end."""
    rng = np.random.default_rng(seed)
    features, labels = labeled_features(rng, n=30)
    targets = one_hot(labels, 4) + rng.normal(size=(30, 4))
    edges = [0, *sorted(cuts), 30]
    accumulators = [FeatureMoments.empty(7, 4, np.float64)]
    for number, (start, stop) in enumerate(pairwise(edges)):
        if number in splits:
            accumulators.append(FeatureMoments.empty(7, 4, np.float64))
        accumulators[-1] = accumulators[-1].fold(features[start:stop], targets[start:stop])
    merged = accumulators[0]
    for accumulator in accumulators[1:]:
        merged = merged.merge(accumulator)
    assert_moments(merged, features, targets)


@pytest.mark.parametrize("scatter", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_features_in_half_precision_are_multiplied_in_single(scatter, weighted, rng):
    """Their moments are those of the same features in single precision."""
    features = rng.normal(size=(300, 9)).astype(np.float16)
    targets = rng.normal(size=(300, 4)).astype(np.float32)
    weights = rng.uniform(0.5, 2, 300) if weighted else None
    half, single = (
        FeatureMoments.empty(9, 4, np.float32, scatter=scatter, squares=not scatter).fold(
            values, targets, weights
        )
        for values in (features, features.astype(np.float32))
    )
    names = ("count", "mean", "cross", "target_sums", "scatter" if scatter else "squares")
    for name in names:
        found, expected = getattr(half, name), getattr(single, name)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@given(cuts=st.lists(st.integers(0, 30), max_size=4), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_whole_weights_equal_repeated_samples(cuts, seed):
    """Chunks are folded, and the last accumulator is merged."""
    rng = np.random.default_rng(seed)
    features, labels = labeled_features(rng, n=30)
    targets, weights = one_hot(labels, 4), rng.integers(1, 5, 30).astype(np.float64)
    first, second = (FeatureMoments.empty(7, 4, np.float64) for _ in range(2))
    *edges, last = pairwise([0, *sorted(cuts), 30])
    for rows in (slice(*edge) for edge in edges):
        first = first.fold(features[rows], targets[rows], weights[rows])
    rows = slice(*last)
    merged = first.merge(second.fold(features[rows], targets[rows], weights[rows]))
    repeats = weights.astype(int)
    assert_moments(merged, features.repeat(repeats, axis=0), targets.repeat(repeats, axis=0))


def test_weights_in_single_precision_are_accurate(rng):
    """The features are far from 0, and the largest weight is a million times the smallest."""
    features = rng.normal(50, 1, (2000, 6)).astype(np.float32)
    targets, weights = rng.normal(size=(2000, 3)), 10 ** rng.uniform(-3, 3, 2000)
    moments = FeatureMoments.empty(6, 3)
    for start in range(0, 2000, 300):
        rows = slice(start, start + 300)
        moments = moments.fold(features[rows], targets[rows], weights[rows])
    exact = features.astype(np.float64)
    mean = weights @ exact / weights.sum()
    expected = np.tril((weights[:, None] * (exact - mean)).T @ (exact - mean))
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9)
    assert np.abs(np.tril(moments.scatter) - expected).max() <= 1e-5 * expected.max()
    np.testing.assert_allclose(moments.target_sums, weights @ targets, rtol=1e-10)


@pytest.mark.parametrize("fit", [one_vs_rest_lda, ridge_regression])
def test_scaled_weights_give_the_same_fit(fit, rng):
    """The ridge is relative to the variance, so that only relative weights matter."""
    features, labels = labeled_features(rng)
    targets, weights = one_hot(labels, 4), rng.uniform(0.1, 3, len(labels))
    empty = FeatureMoments.empty(7, 4, np.float64)
    expected = fit(empty.fold(features, targets, weights), 0.3)
    empty = FeatureMoments.empty(7, 4, np.float64)
    found = fit(empty.fold(features, targets, 1000 * weights), 0.3)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_class_of_all_samples_is_absent_whatever_the_rounding_of_weights(rng):
    """The sum of its weights may differ from that of all weights in the last digit."""
    features, weights = rng.normal(size=(50, 3)), rng.uniform(0.1, 1, 50)
    moments = FeatureMoments.empty(3, 2, np.float64)
    for rows in (slice(0, 7), slice(7, 50)):
        moments = moments.fold(features[rows], one_hot(np.zeros(50, int), 2)[rows], weights[rows])
    assert not one_vs_rest_lda(moments, 1.0)[2].any()


@given(sizes=st.tuples(*[st.integers(0, 6)] * 3), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_merge_is_associative_with_identity_and_changes_no_argument(sizes, seed):
    """(a + b) + c = a + (b + c), and `empty` is the identity on both sides."""
    rng = np.random.default_rng(seed)
    parts = [(rng.normal(size=(n, 5)) + 10, rng.normal(size=(n, 2))) for n in sizes]
    a, b, c = (fold_moments(*part) for part in parts)
    everything = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    empty = FeatureMoments.empty(5, 2, np.float64)
    assert_moments(a.merge(b).merge(c), *everything)
    assert_moments(a.merge(b.merge(c)), *everything)
    assert_moments(a.merge(empty), *parts[0])
    assert_moments(empty.merge(a), *parts[0])
    for moments, part in zip((a, b, c), parts, strict=True):
        assert_moments(moments, *part)


@pytest.mark.parametrize("width", [PANEL_COLUMNS, PANEL_COLUMNS + 1, 2 * PANEL_COLUMNS + 30])
def test_moments_that_were_sent_give_the_same_bits(width: int, rng: np.random.Generator) -> None:
    """Wherever they are merged and factorized. Half of the scatter is sent if it is large."""
    targets = rng.normal(size=(80, 3))
    parts = [
        fold_moments(rng.normal(size=(80, width)).astype(np.float32), targets, np.float32)
        for _ in range(3)
    ]
    assert parts[0].scatter is not None
    frames = list[pickle.PickleBuffer]()
    stored = pickle.dumps(parts[0], protocol=5, buffer_callback=frames.append)
    size = sum(memoryview(frame).nbytes for frame in frames)
    columns = width if width <= PANEL_COLUMNS else (width + PANEL_COLUMNS) / 2
    assert size <= 4 * width * columns + 8 * 4 * (width + 1)
    assert len(stored) < 4096  # the arrays are sent without a copy
    sent = pickle.loads(stored, buffers=frames)
    expected = parts[0].merge(parts[1]).merge(parts[2])
    for merged in (
        sent.merge(parts[1]).merge(parts[2]),
        parts[0].merge(pickle.loads(pickle.dumps(parts[1]))).merge(parts[2]),
        pickle.loads(pickle.dumps(sent.merge(parts[1]))).merge(parts[2]),
        pickle.loads(pickle.dumps(expected)),
    ):
        assert np.array_equal(np.tril(unpack(merged.scatter)), np.tril(expected.scatter))
        for found, wanted in zip(
            ridge_regression(merged, 1.0), ridge_regression(expected, 1.0), strict=True
        ):
            assert np.array_equal(found, wanted)
    assert isinstance(sent.scatter, LowerTriangle) == (width > PANEL_COLUMNS)
    features = rng.normal(size=(50, width)).astype(np.float32)
    folded = [
        moments.fold(features, targets[:50])
        for moments in (pickle.loads(pickle.dumps(expected)), expected)
    ]
    assert np.array_equal(*(np.tril(moments.scatter) for moments in folded))


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_single_precision_sums_are_close_to_double_precision(offset, rng):
    """Test many chunks in float32, also with features far from 0.

    The scatter is accurate to 1e-5. The mean has more digits than the float32 mean that features
    are centered by.
    """
    features = rng.normal(size=(6000, 12)) * np.linspace(0.5, 2, 12) + offset
    features = (features + 0.5 * features[:, ::-1]).astype(np.float32)
    targets = one_hot(rng.integers(5, size=6000), 5)
    moments = FeatureMoments.empty(12, 5)
    for start in range(0, 6000, 77):
        moments = moments.fold(features[start : start + 77], targets[start : start + 77])
    assert moments.scatter.dtype == np.float32
    assert_moments(moments, features, targets, tol=1e-5)
    np.testing.assert_allclose(
        moments.mean, features.mean(axis=0, dtype=np.float64), rtol=0, atol=1e-7
    )


def test_variance_of_a_few_rounding_units_is_accurate(rng):
    """Near 1000, float32 has steps of 6e-5, so a rounded mean is off by half a deviation."""
    steps = rng.integers(0, 3, size=(400, 3))
    features = (1000 + steps * np.spacing(np.float32(1000))).astype(np.float32)
    targets = one_hot(np.arange(400) % 2, 2)
    moments = FeatureMoments.empty(3, 2)
    for start in range(0, 400, 100):
        moments = moments.fold(features[start : start + 100], targets[start : start + 100])
    centered = features - features.mean(axis=0, dtype=np.float64)
    expected = np.tril(centered.T @ centered)
    assert np.abs(np.tril(moments.scatter) - expected).max() <= 1e-5 * expected.max()


def test_single_precision_is_accurate_over_a_million_samples(rng):
    """There are as many chunks as in a large run, folded one after the other."""
    moments, exact = FeatureMoments.empty(6, 1), FeatureMoments.empty(6, 1, np.float64)
    for _ in range(2000):
        chunk = (rng.normal(size=(500, 6)) * [1, 2, 3, 4, 5, 6] + 10).astype(np.float32)
        chunk[:, 1] += chunk[:, 0]
        targets = np.ones((500, 1))
        moments = moments.fold(chunk, targets)
        exact = exact.fold(chunk.astype(np.float64), targets)
    for name in ("mean", "scatter", "cross"):
        found, expected = getattr(moments, name), getattr(exact, name)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_scatter_between_chunks_with_different_means(rng):
    """In sorted data, chunks have different means, whose scatter must be included."""
    centers = np.repeat(np.arange(10) * 5.0, 50)[:, None]
    features = (rng.normal(size=(500, 4)) + centers).astype(np.float32)
    targets = one_hot(np.arange(500) % 2, 2)
    moments = FeatureMoments.empty(4, 2)
    for start in range(0, 500, 50):
        moments = moments.fold(features[start : start + 50], targets[start : start + 50])
    assert_moments(moments, features, targets, tol=1e-5)


# one-vs-rest LDA -------------------------------------------------------------------------------


def test_lda_without_ridge_equals_scikit_learn(rng):
    """Weights and intercept are those of LinearDiscriminantAnalysis(solver="lsqr")."""
    features, labels = labeled_features(rng)
    weights, intercept, present = one_vs_rest_lda(fold_moments(features, one_hot(labels, 4)), 0.0)
    assert present.all()
    for c in range(4):
        reference = LinearDiscriminantAnalysis(solver="lsqr").fit(features, labels == c)
        np.testing.assert_allclose(weights[c], reference.coef_[0], rtol=1e-6, atol=1e-9)
        assert intercept[c] == pytest.approx(reference.intercept_[0], rel=1e-6)


def test_lda_of_unbalanced_classes_equals_scikit_learn(rng):
    """The intercept includes log(n₁/n₀)."""
    features, _ = labeled_features(rng)
    labels = (np.arange(240) % 24 == 0).astype(int)
    features[labels == 1] += 1
    weights, intercept, _ = one_vs_rest_lda(fold_moments(features, one_hot(labels, 2)), 0.0)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(features, labels)
    np.testing.assert_allclose(weights[1], reference.coef_[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(weights[0], -weights[1], rtol=1e-9)
    assert intercept[1] == pytest.approx(reference.intercept_[0], rel=1e-6)
    assert intercept[0] == pytest.approx(-intercept[1], rel=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1, 1.0, 10.0])
def test_lda_of_residual_classes_equals_oracle(ridge, rng):
    """There are 2C classes, some of them absent, and a feature without variance."""
    features, labels = labeled_features(rng)
    features[:, 3] = 4.2
    signs = np.where(rng.random(240) < 0.3, -1, 1)
    signs[labels == 2] = 1
    targets = one_hot(labels + 4 * (signs < 0), 8)
    weights, intercept, present = one_vs_rest_lda(fold_moments(features, targets), ridge)
    expected = oracle.one_vs_rest(features, labels, signs, 4, ridge)
    np.testing.assert_allclose(weights.reshape(2, 4, 7), expected[0], rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(intercept.reshape(2, 4), expected[1], rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(present.reshape(2, 4), expected[2])
    assert not present[6]


def test_absent_class_and_class_of_all_samples_have_zero_weights(rng):
    """A class of no sample, or of every sample, has zero weights and is not present."""
    features, labels = labeled_features(rng)
    targets = np.concatenate([one_hot(labels, 4), np.zeros((240, 1)), np.ones((240, 1))], axis=1)
    weights, intercept, present = one_vs_rest_lda(fold_moments(features, targets), 0.1)
    assert present.tolist() == [True] * 4 + [False] * 2
    assert not weights[4:].any()
    assert not intercept[4:].any()
    assert weights[:4].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, -300.7])
def test_feature_without_variance_has_zero_weight(value, dtype, rng):
    """This holds in both modes; without a ridge the other weights do not depend on it."""
    features, labels = labeled_features(rng)
    features, targets = features.astype(dtype), one_hot(labels, 4)
    with_constant = features.copy()
    with_constant[:, 2] = value
    moments = FeatureMoments.empty(7, 4, dtype)
    for start in range(0, 240, 50):
        moments = moments.fold(with_constant[start : start + 50], targets[start : start + 50])
    reduced = fold_moments(np.delete(features, 2, axis=1), targets, dtype)
    tol = 1e-3 if dtype is np.float32 else 1e-9
    for solve in (one_vs_rest_lda, ridge_regression):
        weights, intercept, *_ = solve(moments, 0.0)
        assert not weights[:, 2].any()
        expected = solve(reduced, 0.0)
        np.testing.assert_allclose(np.delete(weights, 2, axis=1), expected[0], atol=tol)
        np.testing.assert_allclose(intercept, expected[1], atol=tol)
        assert not solve(moments, 1.0)[0][:, 2].any()


@pytest.mark.parametrize("ridge", [0.0, 0.1, 1.0])
def test_predictions_do_not_depend_on_the_scale_of_features(ridge, rng):
    """Features are standardized first: a·x + b in each feature does not change the scores."""
    features, labels = labeled_features(rng)
    factors, shifts = np.array([1e-3, 2, 50, 1, 0.1, 7, 1e2]), rng.normal(size=7)
    scaled, targets = features * factors + shifts, one_hot(labels, 4)
    for solve in (one_vs_rest_lda, ridge_regression):
        weights, intercept, *_ = solve(fold_moments(features, targets), ridge)
        other_weights, other_intercept, *_ = solve(fold_moments(scaled, targets), ridge)
        np.testing.assert_allclose(
            scaled @ other_weights.T + other_intercept,
            features @ weights.T + intercept,
            rtol=1e-7,
            atol=1e-9,
        )


def make_singular_features(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return features whose covariance has no inverse."""
    features = rng.normal(size=(int(rng.integers(20, 60)), 6))
    if kind == "fewer samples than features":
        return features[:5]
    if kind == "a feature twice":
        return np.concatenate([features, features[:, 2:3]], axis=1)
    return np.concatenate([features, features @ rng.normal(size=(6, 1))], axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "kind", ["fewer samples than features", "a feature twice", "a sum of features"]
)
def test_singular_covariance_without_ridge_raises_with_remedy(kind, dtype, rng):
    """There are no weights of pure rounding error; with a ridge the features can be solved."""
    for _ in range(20):
        features = make_singular_features(kind, rng).astype(dtype)
        moments = fold_moments(features, one_hot(np.arange(len(features)) % 2, 2), dtype)
        for solve in (one_vs_rest_lda, ridge_regression):
            with pytest.raises(np.linalg.LinAlgError, match=r"ridge=0\.0\. Use a larger ridge"):
                solve(moments, 0.0)
            assert np.isfinite(solve(moments, 0.01)[0]).all()


# ridge regression -------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1, 1.0, 10.0])
def test_regression_equals_oracle(ridge, rng):
    """Features are standardized, targets centered; one feature has no variance."""
    features, labels = labeled_features(rng)
    features[:, 3] = 4.2
    residual = one_hot(labels, 4) - rng.random((240, 4))
    weights, intercept = ridge_regression(fold_moments(features, residual), ridge)
    expected = oracle.regress(features, residual, ridge)
    np.testing.assert_allclose(weights, expected[0][0], rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(intercept, expected[1][0], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_regression_equals_scikit_learn(ridge, rng):
    """It is Ridge(alpha=γN) on standardized features, whose mean(diag S) is 1."""
    features, labels = labeled_features(rng)
    targets = one_hot(labels, 4) - 0.3 * rng.random((240, 4))
    weights, intercept = ridge_regression(fold_moments(features, targets), ridge)
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    reference = Ridge(alpha=ridge * 240).fit(standard, targets)
    np.testing.assert_allclose(weights * features.std(axis=0), reference.coef_, atol=1e-10)
    np.testing.assert_allclose(
        features @ weights.T + intercept, reference.predict(standard), atol=1e-9
    )


def test_regression_without_ridge_equals_least_squares(rng):
    """γ = 0 gives the least-squares fit with an intercept."""
    features, labels = labeled_features(rng)
    targets = one_hot(labels, 4)
    weights, intercept = ridge_regression(fold_moments(features, targets), 0.0)
    table = np.concatenate([features, np.ones((240, 1))], axis=1)
    expected = np.linalg.lstsq(table, targets, rcond=None)[0]
    np.testing.assert_allclose(np.concatenate([weights.T, intercept[None]]), expected, atol=1e-9)


# factorization in single precision ----------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1.0, 1e-3])
@pytest.mark.parametrize("constant", [False, True])
def test_single_precision_factor_is_refined(ridge, constant, rng, monkeypatch):
    """Results equal those in double precision, also with a feature without variance."""
    features, labels = labeled_features(rng, n=900, width=300)
    if constant:
        features[:, 7] = 3
    moments = fold_moments(features.astype(np.float32), one_hot(labels, 4), np.float32)
    expected = one_vs_rest_lda(moments, ridge), ridge_regression(moments, ridge)
    monkeypatch.setattr(cpu_solve, "MIN_SINGLE_FEATURES", 0)
    for name, count in (("PANEL_COLUMNS", 64), ("PART_ROWS", 50), ("PART_COLUMNS", 30)):
        monkeypatch.setattr(cpu_solve, name, count)
    monkeypatch.setattr("scipy.linalg.cho_factor", None)  # fails if it is called
    for found, other in zip(
        (one_vs_rest_lda(moments, ridge), ridge_regression(moments, ridge)), expected, strict=True
    ):
        for one, two in zip(found, other, strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-7 * max(1, np.abs(two).max()))


def test_falls_back_to_double_precision_without_convergence(rng, monkeypatch):
    """The result is that of double precision."""
    features, labels = labeled_features(rng, n=300, width=50)
    moments = fold_moments(features.astype(np.float32), one_hot(labels, 4), np.float32)
    expected = ridge_regression(moments, 0.01)
    monkeypatch.setattr(cpu_solve, "MIN_SINGLE_FEATURES", 0)
    monkeypatch.setattr(solving, "MAX_GRADIENT_STEPS", 0)
    for one, two in zip(ridge_regression(moments, 0.01), expected, strict=True):
        np.testing.assert_array_equal(one, two)


def test_falls_back_to_double_precision_if_single_cannot_factorize(rng, monkeypatch):
    """There are fewer samples than features, and the ridge is very small."""
    features, labels = labeled_features(rng, n=60, width=200)
    moments = fold_moments(features.astype(np.float32), one_hot(labels, 4), np.float32)
    expected = ridge_regression(moments, 2e-5)
    monkeypatch.setattr(cpu_solve, "MIN_SINGLE_FEATURES", 0)
    for one, two in zip(ridge_regression(moments, 2e-5), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6 * max(1, np.abs(two).max()))


@pytest.mark.parametrize("width", [6, 2100], ids=["double", "single"])
def test_feature_constant_up_to_rounding_gets_no_weight(width: int) -> None:
    """Its deviation is that of rounding errors; it would multiply those of other images."""
    rng, n = np.random.default_rng(0), 64
    features = rng.normal(size=(n, width)).astype(np.float32)
    features[:, 1] = 1 + np.float32(1.2e-7) * (np.arange(n) % 3)
    targets = (rng.normal(size=(n, 2)) + 1e6 * (features[:, 1:2] - 1)).astype(np.float32)
    weights, _ = ridge_regression(fold_moments(features, targets, np.float32), 1.0)
    assert not weights[:, 1].any()
    assert np.count_nonzero(weights) == 2 * (width - 1)
