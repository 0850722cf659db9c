"""Test the statistics of a pass over all images."""

from __future__ import annotations

import numpy as np

from rescnet_dist.model import Tally


def test_weights_repeat_training_images_in_losses_and_nothing_else(rng):
    """Counts and the losses of validation images stay unweighted."""
    scores, labels = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(3, size=40)
    train, repeats = rng.random(40) < 0.6, rng.integers(1, 5, 40)
    plain = Tally.of(scores, labels, train, 0.8)
    found = Tally.of(scores, labels, train, 0.8, repeats.astype(np.float64))
    many = np.where(train, repeats, 1)
    repeated = Tally.of(scores.repeat(many, axis=0), labels.repeat(many), train.repeat(many), 0.8)
    for name in ("seen", "correct", "positive", "nonfinite"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    for name in ("label_gap", "mean_gap", "log_partition"):
        loss, expected = getattr(found.loss, name), getattr(repeated.loss, name)
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
