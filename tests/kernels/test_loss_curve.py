"""Test the softmax and the log loss at many temperatures against scikit-learn and SciPy."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from rescnet_dist.kernels import LossCurve, softmax
from rescnet_dist.kernels.calibration import INVERSE_TEMPERATURES, interpolate


def make_scores(rng: np.random.Generator, n: int, classes: int = 5, scale: float = 1.0):
    """Return scores whose largest is mostly that of the label, and the labels."""
    labels = rng.integers(0, classes, n)
    scores = rng.normal(0, 0.3, (n, classes)) + np.eye(classes)[labels]
    return (scale * scores).astype(np.float32), labels


def curve_of(scores: np.ndarray, labels: np.ndarray) -> LossCurve:
    """Return the curve of validation images."""
    return LossCurve.of(scores, labels, np.stack([np.zeros(len(labels)), np.ones(len(labels))]))


def mean_loss(inverse: float, scores: np.ndarray, labels: np.ndarray, smooth: float = 0) -> float:
    """Return the log loss of softmax(β·scores), plainly, with smoothed labels."""
    log_p = special.log_softmax(inverse * scores.astype(np.float64), axis=1)
    target = (1 - smooth) * np.eye(scores.shape[1])[labels] + smooth / scores.shape[1]
    return float(-(target * log_p).sum(axis=1).mean())


def test_softmax_equals_the_one_of_scipy(rng):
    """In float64 for scores in float32."""
    scores = rng.normal(size=(20, 4)).astype(np.float32)
    found = softmax(scores, 0.25)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, special.softmax(scores.astype(np.float64) / 0.25, axis=1))


@pytest.mark.parametrize("size", [1.0, 1e6, 1e30])
def test_softmax_has_no_zeros(size):
    """Rows sum to 1 and keep the order of the scores."""
    found = softmax(np.array([[0.0, size, -size], [size, size, 0.0]], np.float32), 1e-3)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_array_equal(found.argmax(axis=1), [1, 0])


def test_curve_has_the_losses_of_both_roles(rng):
    """At every inverse temperature, as scikit-learn computes them."""
    scores, labels = make_scores(rng, 60)
    train = rng.random(60) < 0.7
    curve = LossCurve.of(scores, labels, np.stack([train, ~train]))
    for role, mask in enumerate((train, ~train)):
        found = INVERSE_TEMPERATURES * curve.label_gap[role] + curve.log_partition[role]
        for loss, inverse in zip(found[:16], INVERSE_TEMPERATURES, strict=False):
            probabilities = softmax(scores[mask], 1 / inverse)
            expected = log_loss(labels[mask], probabilities, labels=range(5), normalize=False)
            assert loss == pytest.approx(expected, rel=1e-5)


@given(cuts=st.lists(st.integers(0, 30), min_size=2, max_size=4), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_merge_is_associative_with_an_identity(cuts, seed):
    """The curve of all images is that of any parts, merged in any grouping."""
    scores, labels = make_scores(np.random.default_rng(seed), 30)
    roles = np.stack([labels > 1, labels <= 1])
    edges = [0, *sorted(cuts), 30]
    parts = [LossCurve.of(scores[a:b], labels[a:b], roles[:, a:b]) for a, b in pairwise(edges)]
    left = right = LossCurve.empty()
    for part in parts:
        left = left.merge(part)
    for part in reversed(parts):
        right = part.merge(right)
    whole = LossCurve.of(scores, labels, roles)
    for one, two, three in zip(*map(astuple, (left, right, whole)), strict=True):
        np.testing.assert_allclose(one, three, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(two, three, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [4, 5, 33])
def test_spline_is_that_of_scipy(count, rng):
    """At the values, it is the values."""
    values = rng.normal(size=count)
    found = interpolate(values, 8)
    expected = CubicSpline(np.arange(count), values)(np.linspace(0, count - 1, len(found)))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found[::8], values)
    np.testing.assert_array_equal(interpolate(np.full(count, 0.3), 8), np.full(len(found), 0.3))
    with pytest.raises(ValueError, match="not finite"):
        interpolate(np.append(values, np.nan), 8)


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("n", [40, 400])
def test_minimum_is_that_of_a_search(n, scale, rng):
    """The smoothed loss is within 0.1 % of the smallest one, and so is the reported loss."""
    scores, labels = make_scores(rng, n, scale=scale)
    temperature, loss = curve_of(scores, labels).minimum(1, n)
    smooth = 0.5 / (n + 0.5)
    best = minimize_scalar(
        lambda x: mean_loss(np.exp(x), scores, labels, smooth), bounds=(-3, 10), method="bounded"
    )
    assert mean_loss(1 / temperature, scores, labels, smooth) <= 1.001 * best.fun
    assert loss == pytest.approx(mean_loss(1 / temperature, scores, labels), rel=1e-3)


def test_temperature_is_finite_without_errors():
    """Images that are all classified correctly do not make the network certain."""
    scores, labels = np.eye(4, dtype=np.float32), np.arange(4)
    few, _ = curve_of(scores, labels).minimum(1, 4)
    many, _ = curve_of(np.tile(scores, (100, 1)), np.tile(labels, 100)).minimum(1, 400)
    assert 1 / INVERSE_TEMPERATURES[-1] < many < few < 1 / INVERSE_TEMPERATURES[0]


def test_equal_scores_have_a_temperature():
    """All temperatures are equally good; the loss is that of a guess."""
    temperature, loss = curve_of(np.zeros((9, 3), np.float32), np.zeros(9, int)).minimum(1, 9)
    assert np.isfinite(temperature)
    assert loss == pytest.approx(np.log(3))


def test_diverging_scores_have_a_temperature() -> None:
    """The highest one: training continues, and warns of its accuracy."""
    scores = np.array([[0, 1e6], [1e12, 0]], np.float32)
    curve = LossCurve.of(scores, np.array([0, 1]), np.array([[1, 1], [0, 0]]))
    temperature, log_loss = curve.minimum(0, 2)
    assert temperature == 1 / INVERSE_TEMPERATURES[0]
    assert np.isfinite(log_loss)
