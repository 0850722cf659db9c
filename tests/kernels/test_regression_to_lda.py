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
    lda, found, here, slope, offset = regression_to_lda(moments, weights[:4], intercept[:4])
    assert np.array_equal(here, present)
    assert np.array_equal(here, [True, True, True, False])
    np.testing.assert_allclose(lda, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found, bias, rtol=1e-9, atol=1e-12)
    predicted = features @ weights[:3].T + intercept[:3]
    scores = features @ lda[:3].T + found[:3]
    np.testing.assert_allclose(slope[:3] * scores + offset[:3], predicted, rtol=1e-9, atol=1e-12)
    assert (slope[3], offset[3]) == (1, 0)
