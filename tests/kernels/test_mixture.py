"""Weights of a mean of scores: a plain search, and the mixture that has made the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from rescnet_dist.kernels import mixture, mixture_weights

Array = np.ndarray[Any, Any]


def draw(rng: np.random.Generator, weights: Array, images: int, classes: int = 4) -> Any:
    """Return scores of different scales, and labels drawn from softmax(weighted mean / 0.2)."""
    scales = 1 + np.arange(len(weights))
    scores = [s * rng.normal(size=(images, classes)).astype(np.float32) for s in scales]
    mean = sum(w * s for w, s in zip(weights, scores, strict=True))
    probabilities = np.exp(log_softmax(mean / 0.2, axis=1))
    labels = (probabilities.cumsum(axis=1) > rng.random((images, 1))).argmax(axis=1)
    return scores, labels


def plain_loss(coefficients: Array, scores: list[Array], labels: Array) -> float:
    """Return the log loss with labels smoothed by half an image, written out."""
    n, classes = scores[0].shape
    target = (n * np.eye(classes)[labels] + 0.5 / classes) / (n + 0.5)
    mean = sum(c * s.astype(np.float64) for c, s in zip(coefficients, scores, strict=True))
    return float(-(target * log_softmax(mean, axis=1)).sum(axis=1).mean())


def test_weights_of_a_known_mixture_are_recovered(rng: np.random.Generator) -> None:
    """From many labels, whatever the scales of the scores; a network that says nothing gets 0."""
    weights = np.array([0.6, 0.4, 0.0])
    found = mixture_weights(*draw(rng, weights, 6000))
    np.testing.assert_allclose(found, weights, atol=0.02)
    assert found.sum() == pytest.approx(1)


def test_no_other_weights_have_a_smaller_loss(rng: np.random.Generator) -> None:
    """On a grid of weights, each with its best temperature."""
    scores, labels = draw(rng, np.array([0.7, 0.3]), 80)
    temperatures = np.geomspace(0.02, 2, 60)

    def best_loss(weights: Array) -> float:
        return min(plain_loss(weights / t, scores, labels) for t in temperatures)

    found = best_loss(mixture_weights(scores, labels))
    grid = [best_loss(np.array([w, 1 - w])) for w in np.linspace(0, 1, 41)]
    assert found <= min(grid) + 1e-4


def test_blocks_of_images_do_not_change_the_weights(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over blocks are sums over all images."""
    scores, labels = draw(rng, np.array([0.5, 0.5]), 70)
    whole = mixture_weights(scores, labels)
    monkeypatch.setattr(mixture, "MIXTURE_BLOCK_ROWS", 16)
    np.testing.assert_allclose(mixture_weights(scores, labels), whole, atol=1e-6)


def test_special_cases(rng: np.random.Generator) -> None:
    """One network, equal ones, all images correct, and networks that are worse than chance."""
    scores, labels = rng.normal(size=(9, 3)), np.arange(9) % 3
    good, poor = np.eye(3)[labels], np.eye(3)[(labels + 1) % 3]
    assert mixture_weights([scores], labels).tolist() == [1.0]
    np.testing.assert_allclose(mixture_weights([good, good], labels), [0.5, 0.5])
    np.testing.assert_allclose(mixture_weights([good, poor], labels), [1, 0])
    np.testing.assert_allclose(mixture_weights([poor, poor], labels), [0.5, 0.5])
