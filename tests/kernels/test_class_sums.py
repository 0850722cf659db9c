"""Test the sums of the images of each class."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.kernels import ClassSums, LayerInput

LABELS = np.array([2, 0, 2, 2, 0, 3, 2])  # no image of class 1


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_each_class(weighted: bool, rng: np.random.Generator) -> None:
    """Of the selected images, in any chunks, with their weights."""
    images = rng.normal(5, 1, size=(7, 4, 5, 2)).astype(np.float32)
    maps = rng.normal(size=(7, 4, 5, 3)).astype(np.float32)
    weights = rng.random(7) if weighted else None
    train = np.array([True, True, False, True, True, True, True])
    whole = LayerInput.of(images, maps, weights)
    total = ClassSums.empty(4, (4, 5, 5))
    for rows in (np.arange(3), np.arange(3, 7)):
        own = rows[train[rows]]
        total = total.merge(ClassSums.of(whole.select(own), LABELS[own], 4))
    channels = np.array([1, 4])
    low, scale = np.array([1.0, -2.0]), np.array([3.0, 0.5])
    found = total.select(channels).rescale(low, scale)
    inputs = np.concatenate([maps, images], axis=3)[..., channels].astype(np.float64)
    for label in range(4):
        members = np.flatnonzero(train & (label == LABELS))
        each = np.ones(7) if weights is None else weights
        assert found.counts[label] == pytest.approx(each[members].sum())
        expected = sum((each[i] * (inputs[i] - low) * scale for i in members), np.zeros((4, 5, 2)))
        np.testing.assert_allclose(found.sums[label], expected, atol=1e-5)
