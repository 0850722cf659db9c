"""Test that discriminants of classes are linear functions of regressions of membership."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rescnet_dist.kernels import (
    FeatureMoments,
    one_hot,
    one_vs_rest_lda,
    regression_to_lda,
    ridge_regression,
)

Array = np.ndarray[Any, np.dtype[Any]]


def fold(features: Array, targets: Array) -> FeatureMoments:
    """Return the moments of features (n, D) and targets (n, K) in float64."""
    empty = FeatureMoments.empty(features.shape[1], targets.shape[1], np.float64)
    return empty.fold(features, targets)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_discriminants_equal_those_of_lda(rng: np.random.Generator, ridge: float) -> None:
    """With an absent class, a feature without variance, and further targets."""
    labels = rng.integers(0, 3, 200)
    features = rng.normal(3, 2, size=(200, 7)) + labels[:, None] * rng.normal(size=7)
    features[:, 4] = 1.5
    members = one_hot(labels, 4).astype(np.float64)
    moments = fold(features, np.concatenate([members, rng.normal(size=(200, 5))], axis=1))
    expected, bias, present = one_vs_rest_lda(fold(features, members), ridge)
    weights, intercept = ridge_regression(moments, ridge)
    found = regression_to_lda(moments, weights[:4], intercept[:4])
    assert np.array_equal(found.present, present)
    assert np.array_equal(found.present, [True, True, True, False])
    np.testing.assert_allclose(found.weights, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.intercept, bias, rtol=1e-9, atol=1e-12)
    predicted = (features @ weights[:4].T + intercept[:4])[:, :3]
    scores = (features @ found.weights.T + found.intercept)[:, :3]
    restored = found.slope[:3] * scores + found.offset[:3]
    np.testing.assert_allclose(restored, predicted, rtol=1e-9, atol=1e-12)
    assert (found.slope[3], found.offset[3]) == (1, 0)


def test_single_precision_weights_and_a_class_of_all_samples(rng: np.random.Generator) -> None:
    """Weighted samples count as several; a class with all of them is absent."""
    labels, counts = rng.integers(0, 2, 300), rng.integers(1, 4, 300).astype(np.float64)
    features = (rng.normal(size=(300, 6)) + labels[:, None]).astype(np.float32)
    members = np.concatenate([one_hot(labels, 2), np.ones((300, 1), np.float32)], axis=1)
    moments = FeatureMoments.empty(6, 3).fold(features, members, counts)
    weights, intercept = ridge_regression(moments, 0.1)
    found = regression_to_lda(moments, weights, intercept)
    for array, expected in zip(found[:3], one_vs_rest_lda(moments, 0.1), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)
    assert found.present.tolist() == [True, True, False]
