"""Test the head of the paper with leave-one-out errors against heads without each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import hadamard
from scipy.special import expit, softmax

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


@pytest.mark.parametrize("probability", ["sigmoid", "softmax"])
@pytest.mark.parametrize("rows", ["images", "weighted images", "images and copies"])
def test_corrections_equal_those_of_regressions_without_each_image(
    rng: np.random.Generator, rows: str, probability: str
) -> None:
    """With signs that are orthogonal, leverages are exact, and so are regressions without an image.

    Copies are equal, as only then it is exact to leave them out together. The last class is absent.
    """
    images, width, classes = 64, 10, 4
    numbers = np.repeat(np.arange(images), 2 if rows == "images and copies" else 1)
    counts = rng.integers(1, 4, images) if rows == "weighted images" else np.ones(len(numbers))
    labels = rng.integers(0, classes - 1, images)
    centers = rng.normal(size=(classes, width))
    features = (centers[labels] + rng.normal(size=(images, width))).astype(np.float32)[numbers]
    scores = rng.normal(0, 0.3, size=(images, classes)).astype(np.float32)[numbers]
    scores[:, -1] = 0  # no error
    labels = labels[numbers]
    options: dict[str, Any] = {"probability": probability, "sigma": 4.0, "beta": 0.5}
    head = ClassifyLeaveOneOut(ridge=0.7, probes=images, **options)
    signs = hadamard(images).astype(np.float32)[numbers]
    members = head.targets(scores, labels, first=False)
    targets = np.concatenate([members, signs], axis=1)
    moments = FeatureMoments.empty(width, targets.shape[1]).fold(features, targets, counts)
    arrays = head.fit(moments, classes)
    assert not arrays["present"][:, -1].any()
    assert arrays["present"][:, :-1].all()
    fitted = head.correction(arrays, features)
    found = head.training_correction(arrays, features, fitted, scores, labels, signs)
    assert np.isfinite(found).all()

    outputs = np.empty((len(numbers), 2, classes))
    for image in range(images):
        own = numbers == image
        predicted = predict_without(own, features, members, counts, head.ridge)
        outputs[own] = predicted.reshape(-1, 2, classes)
    outputs = (outputs - arrays["offset"]) / arrays["slope"]
    if probability == "sigmoid":
        shares = np.where(arrays["present"], expit(outputs / head.sigma), 0)
    else:
        shares = softmax(np.where(arrays["present"], head.beta * outputs, -np.inf), axis=2)
    expected = arrays["share"][0] * shares[:, 0] - arrays["share"][1] * shares[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(expected - fitted).max() > 0.01  # else this test could not fail


def predict_without(
    left_out: np.ndarray,
    features: np.ndarray,
    targets: np.ndarray,
    counts: np.ndarray,
    ridge: float,
) -> np.ndarray:
    """Predict targets (n, K) of rows by a ridge regression of the others.

    Features (n, D) are standardized by all rows, and the penalty is that of all of them.
    """
    mean = np.average(features, axis=0, weights=counts)
    deviation = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=counts))
    rows = np.c_[(features - mean) / deviation, np.ones(len(features))]
    penalty = np.diag(np.append(np.full(features.shape[1], ridge * counts.sum()), 0))
    weighted = rows * np.where(left_out, 0, counts)[:, None]
    solution = np.linalg.solve(weighted.T @ rows + penalty, weighted.T @ targets)
    return rows[left_out] @ solution


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
