"""Test the heads: their targets and corrections against the oracle."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import oracle
import pytest

from rescnet_dist.model import HEADS
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.heads.regress import Regress


def make_scores_and_labels(rng: np.random.Generator, n: int = 40, classes: int = 5):
    """Return running scores around 0 to 1, and labels of all classes."""
    return rng.normal(0.3, 0.4, (n, classes)), np.arange(n) % classes


def make_arrays(rng: np.random.Generator, signs: int, classes: int, features: int):
    """Return arrays of a linear head, as stored."""
    return {
        "weights": rng.normal(size=(signs, classes, features)).astype(np.float32),
        "intercept": rng.normal(size=(signs, classes)),
        "present": rng.random((signs, classes)) < 0.8,
        "share": rng.random(signs),
    }


def test_paper_worked_example():
    """For scores (0.4, 0.6, 0) of class A at λ = 0.8, the target is (−, B)."""
    scores = np.array([[0.4, 0.6, 0.0]])
    targets = Classify(target=0.8).targets(scores, np.array([0]), first=False)
    assert targets.tolist() == [[0, 0, 0, 0, 1, 0]]


@pytest.mark.parametrize("first", [True, False])
def test_classify_targets_mark_residual_class_and_sign(first, rng):
    """One of the 2C columns is 1: (s=+1, T), or C columns later (s=−1, T)."""
    scores, labels = make_scores_and_labels(rng)
    targets = Classify().targets(scores, labels, first=first)
    largest, sign = labels, np.ones(len(labels))
    if not first:
        largest, sign = oracle.residual_labels(scores, labels, 0.8)
    expected = np.zeros((len(labels), Classify().target_count(5)))
    for n in range(len(labels)):
        expected[n, largest[n] + (5 if sign[n] < 0 else 0)] = 1
    np.testing.assert_array_equal(targets, expected)


@pytest.mark.parametrize("first", [True, False])
def test_without_compensation_all_layers_are_fitted_to_the_labels(first, rng):
    """Whatever the scores are, with positive sign."""
    scores, labels = make_scores_and_labels(rng)
    targets = Classify(compensate=False).targets(scores, labels, first=first)
    expected = np.hstack([oracle.one_hot(labels, 5), np.zeros((len(labels), 5))])
    np.testing.assert_array_equal(targets, expected)


@pytest.mark.parametrize("first", [True, False])
def test_regress_targets_are_the_whole_residual(first, rng):
    """They are Y − Ŷ, without λ."""
    scores, labels = make_scores_and_labels(rng)
    targets = Regress().targets(scores, labels, first=first)
    assert targets.shape[1] == Regress().target_count(5)
    np.testing.assert_allclose(targets, oracle.one_hot(labels, 5) - scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize("probability", ["sigmoid", "softmax"])
def test_classify_correction_is_positive_minus_negative_probability(probability, rng):
    """Each sign has the weight of its share."""
    arrays, features = make_arrays(rng, 2, 5, 7), rng.normal(size=(9, 7))
    head = Classify(probability=probability, sigma=4.0, beta=0.05)
    expected = 0
    for sign, factor in ((0, 1), (1, -1)):
        outputs = features @ arrays["weights"][sign].T + arrays["intercept"][sign]
        options = SimpleNamespace(probability=probability, sigma=4.0, beta=0.05)
        values = oracle.probabilities(outputs, arrays["present"][sign], options)
        expected = expected + factor * arrays["share"][sign] * values
    np.testing.assert_allclose(head.correction(arrays, features), expected, atol=1e-12)


def test_regress_correction_is_linear_in_the_features(rng):
    """It is F·Wᵀ + b."""
    arrays, features = make_arrays(rng, 1, 5, 7), rng.normal(size=(9, 7))
    expected = features @ arrays["weights"][0].T + arrays["intercept"][0]
    np.testing.assert_allclose(Regress().correction(arrays, features), expected, atol=1e-12)


@pytest.mark.parametrize("name", HEADS.names())
def test_heads_name_the_arrays_that_they_store(name):
    """Each array has as many dimension names as dimensions, and no name of a filter bank."""
    arrays = HEADS.get(name).arrays
    assert arrays
    assert not {"input_low", "input_scale", "filters", "bias", "rate"} & arrays.keys()
