"""Test leave-one-out errors from random estimates of the leverages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rescnet_dist.kernels import FeatureMoments, leave_one_out, probe_signs, ridge_regression

Array = np.ndarray[Any, np.dtype[Any]]
RIDGE = 0.7


def fit(features: Array, targets: Array, counts: Array | None = None) -> tuple[Array, Array]:
    """Return weights (K, D) and intercept (K,) of the ridge regression of targets (n, K).

    counts (n,) are as how many images each counts.
    """
    moments = FeatureMoments.empty(features.shape[1], targets.shape[1])
    return ridge_regression(moments.fold(features, targets, counts), RIDGE)


def test_signs_depend_on_seed_layer_and_number_only() -> None:
    """Half of them are negative, and those of a part of the images are the same."""
    signs = probe_signs(3, 2, np.arange(1000), 70)
    assert signs.shape == (1000, 70)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 0.02
    assert abs(np.corrcoef(signs.T) - np.eye(70)).max() < 0.2
    assert np.array_equal(probe_signs(3, 2, np.arange(400, 600), 70), signs[400:600])
    assert np.array_equal(probe_signs(3, 2, np.arange(1000), 5), signs[:, :5])
    for other in (probe_signs(4, 2, np.arange(1000), 70), probe_signs(3, 1, np.arange(1000), 70)):
        assert 0.45 < (other == signs).mean() < 0.55


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_equal_those_of_regressions_without_each_image(
    rng: np.random.Generator, weighted: bool
) -> None:
    """With many signs, up to the deviation of the estimate and the fixed standardization.

    An image of a larger weight has a larger leverage.
    """
    n, width, probes = 60, 12, 4000
    counts = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    features = rng.normal(size=(n, width)).astype(np.float32)
    errors = (features[:, :3] + rng.normal(size=(n, 3))).astype(np.float32)
    signs = probe_signs(0, 1, np.arange(n), probes)
    weights, intercept = fit(features, np.concatenate([errors, signs], axis=1), counts)
    outputs = features @ weights.T + intercept
    found = leave_one_out(outputs[:, :3], errors, outputs[:, 3:], signs)
    expected = np.empty_like(found)
    for left_out in range(n):
        others = np.arange(n) != left_out
        one_weights, one_intercept = fit(features[others], errors[others], counts[others])
        expected[left_out] = features[left_out] @ one_weights.T + one_intercept
    scale = np.abs(expected - outputs[:, :3]).mean()
    assert np.abs(found - expected).mean() < 0.2 * scale
    assert np.abs(errors - found).mean() > np.abs(errors - outputs[:, :3]).mean()


def test_leverages_are_limited() -> None:
    """Estimates above 0.9 or below 0 give finite errors of the right sign."""
    ones = np.ones((2, 4), np.float32)
    correction, errors = np.full((2, 1), 0.5, np.float32), np.ones((2, 1), np.float32)
    predicted = np.array([[1.5] * 4, [-0.2] * 4], np.float32)
    found = leave_one_out(correction, errors, predicted, ones)
    np.testing.assert_allclose(found[:, 0], [(0.5 - 0.9) / 0.1, 0.5], rtol=1e-5)


def test_copies_are_left_out_with_their_original(rng: np.random.Generator) -> None:
    """Copies that differ a little, and have the signs of their original."""
    n, width, probes = 40, 10, 4000
    originals = rng.normal(size=(n, width))
    features = np.concatenate([originals, originals + 0.1 * rng.normal(size=(n, width))])
    features = features.astype(np.float32)
    targets = (originals[:, :2] + rng.normal(size=(n, 2))).astype(np.float32)
    errors, numbers = np.concatenate([targets, targets]), np.tile(np.arange(n), 2)
    signs = probe_signs(0, 1, numbers, probes)
    weights, intercept = fit(features, np.concatenate([errors, signs], axis=1))
    outputs = features @ weights.T + intercept
    found = leave_one_out(outputs[:, :2], errors, outputs[:, 2:], signs)
    expected = np.empty_like(found)
    for left_out in range(n):
        others = numbers != left_out
        one_weights, one_intercept = fit(features[others], errors[others])
        expected[~others] = features[~others] @ one_weights.T + one_intercept
    scale = np.abs(expected - outputs[:, :2]).mean()
    assert np.abs(found - expected).mean() < 0.25 * scale


def test_share_of_leverage_lies_between_training_and_leave_one_out_errors(
    rng: np.random.Generator,
) -> None:
    """With 0 nothing is left out, with 1 the image."""
    correction, errors = rng.normal(size=(2, 5, 3)).astype(np.float32)
    signs = probe_signs(0, 1, np.arange(5), 8)
    part = [leave_one_out(correction, errors, 0.5 * signs, signs, share) for share in (0, 0.5, 1)]
    assert np.array_equal(part[0], correction)
    np.testing.assert_allclose(part[1], (correction - 0.25 * errors) / 0.75, rtol=1e-5)
    np.testing.assert_allclose(part[2], (correction - 0.5 * errors) / 0.5, rtol=1e-5)
