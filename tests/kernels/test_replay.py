"""Layers that are replayed give what their passes gave, to the bit, however chunks are cut."""

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


def made_up(rng: np.random.Generator, channels: int) -> Layer:
    """A layer with random filters and weights."""
    filters = rng.normal(size=(3, 3, channels, SPEC.filters)) / 5
    bank = Bank(np.zeros(channels), np.ones(channels), filters, rng.normal(size=SPEC.filters))
    weights = rng.normal(size=(1, 10, features_per_layer(32, 32, SPEC))).astype(np.float32)
    nothing, all_there = np.zeros((1, 10)), np.ones((1, 10), bool)
    return Layer(bank, Classifier(weights, nothing, all_there, np.ones(1), 0.3))


@pytest.mark.parametrize("count", [22, 38, 43])
@pytest.mark.parametrize("spec", [SPEC, SPEC.replace(local_contrast=True)], ids=["one", "two"])
def test_replayed_layers_have_the_bits_of_their_passes(
    rng: np.random.Generator, count: int, spec: NetworkSpec
) -> None:
    """Numbers of images of which the last slab, or that of a cut by other channels, has but one,
    where BLAS sums in another order."""
    first = spec.input_channels(1, 3)
    images = rng.integers(0, 255, (count, 32, 32, 3)).astype(np.uint8)
    layers = [made_up(rng, channels) for channels in (first, first + 24, first + 24)]
    stages, previous, maps, scores = [], None, None, None
    for number, layer in enumerate(layers, start=1):
        counts = np.full(10, count // 10)
        growing = GrowingLayer(
            spec=spec, number=number, classes=10, image_scale=SCALE, bank=layer.bank,
            previous=previous,
            draws=partial(draw_layer_patches, spec, 0, number + 1, counts, (32, 32, 3)),
        )  # fmt: skip
        labels, train = np.arange(count) % 10, np.ones(count, bool)
        grown = growing.step(images, maps, scores, labels, train, np.zeros(10, np.int64))
        previous, maps, scores = layer.classifier, grown.maps, grown.scores
        stages.append((maps, scores))
    cuts = [tuple(rows.stop for rows in slabs(images, channels, SPEC)) for channels in (3, 24)]
    assert cuts[0] != cuts[1]
    for begun, start in ((None, 0), (stages[1], 1)):
        found = replay_layers(images, layers[start:], SCALE, spec, 10, begun)
        for array, expected in zip(found, stages[-1], strict=True):
            assert np.array_equal(array, expected)
