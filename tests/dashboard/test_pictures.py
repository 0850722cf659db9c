"""Pictures of filters: their names and order, of one tower or two."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist import NetworkSpec
from rescnet_dist.dashboard.thumbnails import draw_filters, select_filters
from rescnet_dist.kernels import Bank, Classifier, ImageScale, Layer
from rescnet_dist.network import Network


def grown(spec: NetworkSpec, channels: int) -> Network:
    """A network of two layers of which only the filters matter."""
    rng, layers = np.random.default_rng(0), []
    for number in (1, 2):
        inputs = spec.input_channels(number, channels)
        bank = Bank(
            np.zeros(inputs), np.ones(inputs), rng.normal(size=(3, 3, inputs, spec.filters)),
            np.zeros(spec.filters),
        )  # fmt: skip
        nothing = np.zeros((1, 2))
        layers.append(Layer(bank, Classifier(np.zeros((1, 2, 1)), nothing, nothing, nothing, 1.0)))
    scale = ImageScale(np.zeros(channels), np.ones(channels))
    return Network(spec, np.arange(2), (16, 16, channels), scale, tuple(layers))


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_of_two_towers_are_told_apart(channels: int) -> None:
    """In the first layer by what they see; in a later one the strongest channel is among those of
    their tower."""
    network = grown(NetworkSpec(filters=4, local_contrast=True), channels)
    names = [name for name, _ in draw_filters(network, 1)]
    assert names == ["PCA 1", "LDA 1", "contrast PCA 1", "contrast LDA 1"]
    for number, (name, _) in enumerate(draw_filters(network, 2)):
        tower = network.spec.layer_towers(2, channels)[number // 2]
        assert int(name.rsplit(" ", 1)[1]) - 1 in tower.channels


def test_a_few_filters_are_of_both_towers() -> None:
    """And of both kinds."""
    network = grown(NetworkSpec(filters=12, local_contrast=True), 3)
    assert select_filters(network, 2, 4) == [0, 6, 3, 9]
    assert select_filters(grown(NetworkSpec(filters=12), 3), 2, 4) == [0, 1, 6, 7]
