"""Test the largest errors of scores, probabilities, and the projection to the simplex."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import oracle
import pytest

from rescnet_dist.kernels import (
    one_hot,
    probabilities,
    residual_labels,
)


def make_scores_and_labels(rng: np.random.Generator, n: int = 40, classes: int = 5):
    """Return running scores around 0 to 1, and labels of all classes."""
    return rng.normal(0.3, 0.4, (n, classes)), np.arange(n) % classes


def test_paper_worked_example():
    """For scores (0.4, 0.6, 0) of class A at λ = 0.8, the largest error is B's and negative."""
    scores = np.array([[0.4, 0.6, 0.0]])
    largest, sign = residual_labels(scores, np.array([0]), 0.8)
    assert largest.tolist() == [1]
    assert sign.tolist() == [-1]


@pytest.mark.parametrize("target", [0.8, 1.0, 0.3])
def test_residual_labels_equal_oracle(target, rng):
    """They are T = argmax |λY − Ŷ| and the sign of that error."""
    scores, labels = make_scores_and_labels(rng)
    largest, sign = residual_labels(scores, labels, target)
    expected = oracle.residual_labels(scores, labels, target)
    np.testing.assert_array_equal(largest, expected[0])
    np.testing.assert_array_equal(sign, expected[1])
    assert set(sign) == {-1, 1}


def test_ties_go_to_the_first_class_and_zero_error_is_positive():
    """Ties are broken by order, so that a layer is deterministic."""
    scores = np.array([[0.25, 0.25, 0.0], [0.5, 0.0, 0.0]])
    largest, sign = residual_labels(scores, np.array([2, 0]), 0.5)
    assert largest.tolist() == [2, 0]
    assert sign.tolist() == [1, 1]
    largest, sign = residual_labels(np.array([[-0.5, 0.0, 0.5]]), np.array([1]), 0.5)
    assert (largest.tolist(), sign.tolist()) == ([0], [1])


def test_one_hot_equals_oracle():
    """It is 1 at the label, also if some class has no image."""
    labels = np.array([2, 0, 4, 2])
    np.testing.assert_array_equal(one_hot(labels, 5), oracle.one_hot(labels, 5))


@pytest.mark.parametrize("probability", ["sigmoid", "softmax"])
@pytest.mark.parametrize(
    "present", [[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
)
def test_probabilities_equal_oracle(probability, present, rng):
    """They are sigmoid(score/σ) or softmax(β·score) over present classes; absent ones get 0."""
    scores, present = rng.normal(0, 30, (20, 5)), np.array(present, bool)
    found = probabilities(scores, present, probability=probability, sigma=4.0, beta=0.05)
    spec = SimpleNamespace(probability=probability, sigma=4.0, beta=0.05)
    np.testing.assert_allclose(found, oracle.probabilities(scores, present, spec), atol=1e-12)
    if probability == "softmax" and present.any():
        np.testing.assert_allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("probability", ["sigmoid", "softmax"])
def test_huge_scores_do_not_overflow(probability, dtype):
    """Scores of ± 1e30 give 0, ½ and 1, without warning (an error here) or NaN."""
    scores = np.array([[1e30, 0, -1e30], [-1e30, -1e30, -1e30]], dtype)
    found = probabilities(scores, np.ones(3, bool), probability=probability, sigma=16.0, beta=1.0)
    middle = [0.5, 0] if probability == "sigmoid" else [0, 0]
    last = [0, 0, 0] if probability == "sigmoid" else [1 / 3] * 3
    np.testing.assert_allclose(found, [[1, *middle], last], rtol=1e-6)
