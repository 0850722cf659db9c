"""Test the largest errors of scores, probabilities, and the projection to the simplex."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rescnet_dist.kernels import (
    one_hot,
    probabilities,
    project_to_simplex,
    residual_labels,
)


def make_scores_and_labels(rng: np.random.Generator, n: int = 40, classes: int = 5):
    """Return running scores around 0 to 1, and labels of all classes."""
    return rng.normal(0.3, 0.4, (n, classes)), np.arange(n) % classes


def score_matrices(low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    """Generate matrices (n, C) of scores between two bounds."""
    shapes = st.tuples(st.integers(1, 6), st.integers(1, 7))
    return shapes.flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.floats(low, high, width=32))
    )


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


@given(scores=score_matrices(-1000, 1000))
@settings(max_examples=100, deadline=None)
def test_simplex_rows_are_probabilities_in_the_order_of_scores(scores):
    """Rows sum to 1, no entry is negative, and the order of scores is unchanged."""
    found = project_to_simplex(scores)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-9)
    assert (found >= 0).all()
    largest = np.take_along_axis(found, scores.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(largest, found.max(axis=1))
    order = np.argsort(scores, axis=1)
    assert (np.diff(np.take_along_axis(found, order, axis=1), axis=1) >= 0).all()


@given(scores=score_matrices(-3, 3), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_simplex_projection_is_the_nearest_point(scores, seed):
    """(x − P(x))·(q − P(x)) ≤ 0 for every point q of the simplex."""
    found = project_to_simplex(scores)
    corners = np.eye(scores.shape[1])
    other = np.random.default_rng(seed).dirichlet(corners[0] + 0.5, 20)
    for point in np.concatenate([corners, other]):
        assert (((scores - found) * (point - found)).sum(axis=1) <= 1e-9).all()


def test_simplex_projection_does_not_change_the_prediction(rng):
    """Only the class of the largest score has the largest probability."""
    scores = rng.normal(size=(200, 6)).astype(np.float32)
    found = project_to_simplex(scores)
    np.testing.assert_array_equal(found.argmax(axis=1), scores.argmax(axis=1))
    assert (np.sort(found, axis=1)[:, -2] < found.max(axis=1)).all()


def test_simplex_projection_does_not_change_probabilities(rng):
    """The projection is idempotent."""
    rows = rng.dirichlet(np.ones(4), 10)
    np.testing.assert_allclose(project_to_simplex(rows), rows, atol=1e-12)


@pytest.mark.parametrize("size", [1e6, 1e17, 1e30])
def test_simplex_projection_of_huge_scores_is_a_corner(size):
    """Scores that are far from each other give certainty, at any distance."""
    found = project_to_simplex(np.array([[0.0, size, -size], [size, 0.0, size]]))
    np.testing.assert_allclose(found, [[0, 1, 0], [0.5, 0, 0.5]], atol=1e-9)
