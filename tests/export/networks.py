"""Small networks with random layers, of any spec, without training."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist import Network, NetworkSpec
from rescnet_dist.kernels import min_max_scale
from rescnet_dist.model import (
    Architecture,
    Bank,
    FittedHead,
    ImageScale,
    Layer,
    State,
    View,
    advance,
    initial_state,
)

Array = np.ndarray[Any, np.dtype[Any]]

IMAGE_SHAPE = (14, 13, 2)
SMALL = NetworkSpec(filters=6, block=6, stride=2, levels=(2, 1), head="regress")


def make_images(count: int = 6, shape: tuple[int, int, int] = IMAGE_SHAPE) -> Array:
    """Return random images (n, H, W, d) of uint8; the first is constant, the next partly."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (count, *shape)).astype(np.uint8)
    images[0] = 7
    images[1, : shape[0] // 2] = 0
    return images


def make_network(
    spec: NetworkSpec,
    *,
    depth: int = 3,
    classes: Any = (0, 1, 2),
    shape: tuple[int, int, int] = IMAGE_SHAPE,
) -> Network:
    """Return a network with random layers, whose inputs are normalized as in training."""
    rng, labels = np.random.default_rng(3), np.asarray(classes)
    images = make_images(shape=shape)
    architecture = spec.architecture(shape, len(labels))
    low, high = images.min(axis=(0, 1, 2)), images.max(axis=(0, 1, 2))
    pair = min_max_scale(low.astype(float), high.astype(float), "channel")
    scale = ImageScale(*pair, {view.name: fit_view(view, images) for view in spec.views})
    state, layers = initial_state(images, scale, architecture), []
    for number in range(1, depth + 1):
        bank = _make_bank(rng, architecture, state, number)
        head = FittedHead(_make_head(rng, architecture, number), 0.7)
        state = advance(architecture, state, bank=bank)
        layers.append(Layer(bank, head))
    return Network(spec, labels, shape, scale, tuple(layers))


def fit_view(view: View, images: Array, weights: Array | None = None) -> dict[str, Array]:
    """Return what a view learns from images (n, H, W, d), in two chunks."""
    known: dict[str, Array] = {}
    half = len(images) // 2
    for _ in range(view.passes):
        parts = [
            view.observe(
                view.empty(images.shape[1:], known),
                images[rows],
                known,
                None if weights is None else weights[rows],
            )
            for rows in (slice(half), slice(half, None))
        ]
        known = view.fit(parts[0].merge(parts[1]), known)
    return known


def _make_bank(
    rng: np.random.Generator, architecture: Architecture, state: State, number: int
) -> Bank:
    """Return random filters of unit norm that see the channels of their tower."""
    size, channels = architecture.filter_size(number), architecture.input_channels(number)
    filters = np.zeros((size, size, channels, architecture.map_count(number)))
    for tower in architecture.towers(number):
        shape = size, size, len(tower.channels), len(tower.filters)
        columns = np.ix_(range(size), range(size), tower.channels, tower.filters)
        filters[columns] = rng.normal(size=shape)
        if tower.is_each:
            count = len(tower.filters) // len(tower.channels)
            shared = rng.normal(size=(size, size, 1, count))
            filters[columns] = np.kron(np.eye(len(tower.channels)), shared)
    filters /= np.sqrt((filters**2).sum(axis=(0, 1, 2)))
    assert state.pixels is not None
    parts = [state.pixels] if state.maps is None else [state.maps, state.pixels]
    if number > 1 and not architecture.concatenate:
        parts = parts[:1]
    inputs = np.concatenate(parts, axis=3).astype(np.float64).reshape(-1, channels)
    low, scale = min_max_scale(inputs.min(axis=0), inputs.max(axis=0), architecture.minmax)
    bias = rng.normal(size=filters.shape[3]) / 10
    for tower in architecture.towers(number):
        if tower.is_each:
            own = bias[tower.filters].reshape(len(tower.channels), -1)
            own[...] = own[0]
            bias[tower.filters] = own.ravel()
    return Bank(low, scale, filters, bias)


def _make_head(
    rng: np.random.Generator, architecture: Architecture, number: int
) -> dict[str, Array]:
    """Return the arrays of a linear head; the last class has no classifier of negative errors."""
    signs, classes = architecture.targets // architecture.classes, architecture.classes
    features = architecture.feature_count(number)
    weights = rng.normal(size=(signs, classes, features)).astype(np.float32)
    present = np.ones((signs, classes), bool)
    intercept = rng.normal(size=(signs, classes))
    if signs == 2:
        present[1, -1] = False
        weights[1, -1], intercept[1, -1] = 0, 0
    return {
        "weights": weights / np.float32(np.sqrt(features)),
        "intercept": intercept,
        "present": present,
        "share": np.array([0.8, 0.3])[:signs],
    }
