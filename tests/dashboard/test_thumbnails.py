"""Thumbnails of filters: names and order, with one tower or two."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist import NetworkSpec
from rescnet_dist.dashboard.thumbnails import draw_filters, select_filters
from rescnet_dist.model import Bank, FittedHead, ImageScale, Layer
from rescnet_dist.network import Network


def make_network(spec: NetworkSpec, channels: int) -> Network:
    """Return a network of two layers with random filters and empty heads."""
    rng, layers = np.random.default_rng(0), []
    for number in (1, 2):
        inputs = spec.architecture((16, 16, channels), 2).input_channels(number)
        filters = rng.normal(size=(3, 3, inputs, spec.filters))
        bank = Bank(np.zeros(inputs), np.ones(inputs), filters, np.zeros(spec.filters))
        layers.append(Layer(bank, FittedHead({}, 1.0)))
    scale = ImageScale(np.zeros(channels), np.ones(channels))
    return Network(spec, np.arange(2), (16, 16, channels), scale, tuple(layers))


@pytest.mark.parametrize("channels", [1, 3])
def test_filter_names_of_two_towers(channels: int) -> None:
    """Names in the first layer; later, the strongest channel is one of the filter's tower."""
    network = make_network(NetworkSpec(filters=4, local_contrast=True), channels)
    pictures = draw_filters(network, 1)
    assert [picture.kind for picture in pictures] == ["PCA", "LDA"] * 2
    assert [picture.name for picture in pictures] == [
        "PCA 1",
        "LDA 1",
        "contrast PCA 1",
        "contrast LDA 1",
    ]
    for number, picture in enumerate(draw_filters(network, 2)):
        tower = network.architecture.towers(2)[number // 2]
        assert int(picture.name.rsplit(" ", 1)[1]) - 1 in tower.channels


def test_selected_filters_are_of_both_towers() -> None:
    """And of both kinds, PCA and LDA."""
    network = make_network(NetworkSpec(filters=12, local_contrast=True), 3)
    assert select_filters(network, 2, 4) == [0, 6, 3, 9]
    assert select_filters(make_network(NetworkSpec(filters=12), 3), 2, 4) == [0, 1, 6, 7]
