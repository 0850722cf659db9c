"""Test the head of the paper with leave-one-out errors against heads without each image."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist import SpecError
from rescnet_dist.kernels import FeatureMoments, one_hot, probe_signs
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.heads.classify_leave_one_out import ClassifyLeaveOneOut


def test_corrections_equal_those_of_heads_without_each_image(rng: np.random.Generator) -> None:
    """With many signs, up to the deviation of the estimate, and slopes of all images."""
    n, width, classes = 80, 12, 3
    labels = rng.integers(0, classes, n)
    centers = rng.normal(size=(classes, width))
    features = (centers[labels] + rng.normal(size=(n, width))).astype(np.float32)
    scores = rng.normal(0, 0.3, size=(n, classes)).astype(np.float32)
    head = ClassifyLeaveOneOut(ridge=0.7, sigma=4.0, probes=1024)
    plain = Classify(ridge=0.7, sigma=4.0)
    members = head.targets(scores, labels, first=False)
    signs = probe_signs(0, 2, np.arange(n), head.probes)

    def fold(rows: np.ndarray, targets: np.ndarray) -> FeatureMoments:
        return FeatureMoments.empty(width, targets.shape[1]).fold(features[rows], targets[rows])

    every = np.ones(n, bool)
    arrays = head.fit(fold(every, np.concatenate([members, signs], axis=1)), classes)
    fitted = head.correction(arrays, features)
    np.testing.assert_allclose(
        fitted, plain.correction(plain.fit(fold(every, members), classes), features), atol=1e-4
    )
    found = head.training_correction(arrays, features, fitted, scores, labels, signs)
    expected = np.empty_like(found)
    for image in range(n):
        others = np.arange(n) != image
        without = plain.fit(fold(others, members), classes)
        expected[image] = plain.correction(without, features[image : image + 1])[0]
    scale = np.abs(expected - fitted).mean()
    assert np.abs(found - expected).mean() < 0.3 * scale
    assert np.corrcoef((found - fitted).ravel(), (expected - fitted).ravel())[0, 1] > 0.95


def test_first_layer_is_fitted_to_the_labels() -> None:
    """Residual classes of scores of 0 are the labels, so that they need no case of their own."""
    labels = np.arange(7)
    for target in (0.8, 1e-3):
        head = ClassifyLeaveOneOut(target=target)
        members = head.targets(np.zeros((7, 7), np.float32), labels, first=False)
        assert np.array_equal(members, one_hot(labels, 14))


def test_target_must_be_above_0() -> None:
    """With 0, the residual classes of the first layer would not be the labels."""
    with pytest.raises(SpecError, match=r"target=0\.0 .* greater than 0"):
        ClassifyLeaveOneOut(target=0.0)
