"""Test that replayed layers equal their passes bit for bit, for any number of images."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from rescnet_dist.kernels import (
    Bank,
    Classifier,
    GrowingLayer,
    ImageScale,
    Layer,
    draw_layer_patches,
    features_per_layer,
    replay_layers,
    slabs,
)
from rescnet_dist.spec import NetworkSpec

SPEC = NetworkSpec(filters=24, block=8, stride=8, levels=(1,), residual="regress")
SCALE = ImageScale(np.zeros(3), np.full(3, 1 / 255))


def make_layer(rng: np.random.Generator, channels: int) -> Layer:
    """Return a layer with random filters and weights."""
    filters = rng.normal(size=(3, 3, channels, SPEC.filters)) / 5
    bank = Bank(np.zeros(channels), np.ones(channels), filters, rng.normal(size=SPEC.filters))
    weights = rng.normal(size=(1, 10, features_per_layer(32, 32, SPEC))).astype(np.float32)
    intercept, present = np.zeros((1, 10)), np.ones((1, 10), bool)
    return Layer(bank, Classifier(weights, intercept, present, np.ones(1), 0.3))


@pytest.mark.parametrize("count", [22, 38, 43])
@pytest.mark.parametrize("spec", [SPEC, SPEC.replace(local_contrast=True)], ids=["one", "two"])
def test_replayed_layers_equal_their_passes(
    rng: np.random.Generator, count: int, spec: NetworkSpec
) -> None:
    """Test numbers of images whose last slab has a single image.

    This holds for slabs of this or another number of channels; BLAS sums in another order then.
    """
    first = spec.input_channels(1, 3)
    images = rng.integers(0, 255, (count, 32, 32, 3)).astype(np.uint8)
    layers = [make_layer(rng, channels) for channels in (first, first + 24, first + 24)]
    stages, previous, maps, scores = [], None, None, None
    for number, layer in enumerate(layers, start=1):
        counts = np.full(10, count // 10)
        growing = GrowingLayer(
            spec=spec,
            number=number,
            classes=10,
            image_scale=SCALE,
            bank=layer.bank,
            previous=previous,
            draws=partial(draw_layer_patches, spec, 0, number + 1, counts, (32, 32, 3)),
        )
        labels, train = np.arange(count) % 10, np.ones(count, bool)
        grown = growing.step(images, maps, scores, labels, train, np.zeros(10, np.int64))
        previous, maps, scores = layer.classifier, grown.maps, grown.scores
        stages.append((maps, scores))
    cuts = [tuple(rows.stop for rows in slabs(images, channels, SPEC)) for channels in (3, 24)]
    assert cuts[0] != cuts[1]
    for initial, start in ((None, 0), (stages[1], 1)):
        found = replay_layers(images, layers[start:], SCALE, spec, 10, initial)
        for array, expected in zip(found, stages[-1], strict=True):
            assert np.array_equal(array, expected)
