"""Test that growing, replaying and predicting give the same bits, for any number of images."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.errors import DataError
from rescnet_dist.kernels import FeatureMoments
from rescnet_dist.model import (
    Architecture,
    Bank,
    FittedHead,
    GrowingLayer,
    ImageScale,
    Layer,
    State,
    advance,
    fit_head,
    forward,
    initial_state,
    replay,
)
from rescnet_dist.spec import NetworkSpec

SPEC = NetworkSpec(filters=24, block=8, stride=8, levels=(1,), head="regress")
SCALE = ImageScale(np.zeros(3), np.full(3, 1 / 255))
SPECS = {
    "one tower": SPEC,
    "two towers": SPEC.replace(local_contrast=True),
    "classify": SPEC.replace(head="classify", sigma=2.0),
    "half": SPEC.replace(store_dtype="float16", rectify=True),
    "half features": SPEC.replace(feature_dtype="float16"),
}


def make_layer(rng: np.random.Generator, architecture: Architecture, number: int) -> Layer:
    """Return a layer with random filters and weights."""
    channels, filters = architecture.input_channels(number), architecture.map_count(number)
    weights = rng.normal(size=(3, 3, channels, filters)) / 5
    bank = Bank(np.zeros(channels), np.ones(channels), weights, rng.normal(size=filters))
    signs = architecture.targets // 10
    head = {
        "weights": rng.normal(size=(signs, 10, architecture.features)).astype(np.float32),
        "intercept": np.zeros((signs, 10)),
        "present": np.ones((signs, 10), bool),
        "share": np.ones(signs),
    }
    return Layer(bank, FittedHead(head, 0.3))


def grow(
    images: np.ndarray, layers: list[Layer], architecture: Architecture, *, keep_features: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the maps of each layer, and the scores that enter it, as the passes make them."""
    stages: list[tuple[np.ndarray, np.ndarray]] = []
    previous, maps, scores, features = None, None, None, None
    count = len(images)
    for number, layer in enumerate(layers, start=1):
        growing = GrowingLayer(
            architecture=architecture,
            number=number,
            image_scale=SCALE,
            bank=layer.bank,
            previous=previous,
            class_counts=np.full(10, count // 10),
        )
        labels, train = np.arange(count) % 10, np.ones(count, bool)
        grown = growing.step(
            images, maps, scores, labels, train, np.zeros(10, int), old_features=features
        )
        previous, maps, scores = layer.head, grown.maps, grown.scores
        features = grown.features if keep_features else None
        stages.append((maps, scores))
    return stages


@pytest.mark.parametrize("count", [22, 38, 43])
@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_all_paths_give_the_same_bits(
    rng: np.random.Generator, count: int, spec: NetworkSpec
) -> None:
    """Replayed and predicted states equal those of the passes, whatever the last slab has.

    Passes that keep the features of the layer before equal passes that compute them again.
    """
    architecture = spec.architecture((32, 32, 3), 10)
    images = rng.integers(0, 255, (count, 32, 32, 3)).astype(np.uint8)
    layers = [make_layer(rng, architecture, number) for number in (1, 2, 3)]
    stages = grow(images, layers, architecture, keep_features=True)
    for kept, computed in zip(
        stages, grow(images, layers, architecture, keep_features=False), strict=True
    ):
        assert all(map(np.array_equal, kept, computed))
    before = initial_state(images, SCALE, architecture)
    for state, first in ((before, 0), (State(before.pixels, *stages[1]), 1)):
        found = replay(architecture, state, layers[first:])
        assert np.array_equal(found.maps, stages[-1][0])
        assert np.array_equal(found.scores, stages[-1][1])
    predicted = list(forward(architecture, before, layers))
    for number in (0, 1):
        assert np.array_equal(predicted[number].maps, stages[number][0])
        assert np.array_equal(predicted[number].scores, stages[number + 1][1])


def test_slabs_depend_on_the_shape_of_a_chunk_only() -> None:
    """The numbers of images above divide into slabs of several and of a single image."""
    architecture = SPEC.architecture((32, 32, 3), 10)
    ends = [[rows.stop for rows in architecture.slabs(np.zeros((n, 1)))] for n in (22, 38, 43)]
    assert ends == [[22], [37, 38], [37, 43]]


def test_advance_changes_what_it_is_asked_for(rng: np.random.Generator) -> None:
    """A head alone leaves the maps, a bank alone the scores; the state before is unchanged."""
    architecture = SPEC.architecture((32, 32, 3), 10)
    images = rng.integers(0, 255, (5, 32, 32, 3)).astype(np.uint8)
    layer = make_layer(rng, architecture, 1)
    before = initial_state(images, SCALE, architecture)
    with_maps = advance(architecture, before, bank=layer.bank, features=True)
    assert before.maps is None
    assert with_maps.scores is before.scores
    assert with_maps.features.shape == (5, architecture.features)
    after = advance(architecture, with_maps, head=layer.head)
    assert after.maps is with_maps.maps
    assert np.abs(after.scores).min() > 0
    assert not with_maps.scores.any()


@pytest.mark.parametrize("features", ["second-order", "second-order,first-order"])
def test_features_are_rounded_to_half_precision(rng: np.random.Generator, features: str) -> None:
    """They are those in single precision, to the nearest half."""
    specs = [SPEC.replace(features=features, feature_dtype=f"float{bits}") for bits in (32, 16)]
    single, half = (spec.architecture((32, 32, 3), 10) for spec in specs)
    maps = rng.normal(size=(5, 32, 32, 24)).astype(np.float32)
    found = half.extract(maps, 1)
    assert found.dtype == half.feature_dtype == np.float16
    assert np.array_equal(found, single.extract(maps, 1).astype(np.float16))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_features_too_large_for_half_precision_are_refused(rng: np.random.Generator) -> None:
    """The message names the limit and the remedy."""
    features = rng.normal(size=(20, 3)).astype(np.float32)
    features[7, 1] = np.inf
    targets = rng.normal(size=(20, 10)).astype(np.float32)
    moments = FeatureMoments.empty(3, 10).fold(features, targets)
    architecture = SPEC.replace(feature_dtype="float16").architecture((32, 32, 3), 10)
    with pytest.raises(DataError, match=r'larger than 65504, .* Use feature_dtype="float32"'):
        fit_head(moments, architecture, 1.0)


def test_forward_without_heads_makes_the_same_maps(rng: np.random.Generator) -> None:
    """Heads change the scores only, unless they are left out."""
    architecture = SPEC.architecture((32, 32, 3), 10)
    images = rng.integers(0, 255, (5, 32, 32, 3)).astype(np.uint8)
    layers = [make_layer(rng, architecture, number) for number in (1, 2)]
    before = initial_state(images, SCALE, architecture)
    with_heads = list(forward(architecture, before, layers))
    without_heads = list(forward(architecture, before, layers, heads=False))
    for scored, state in zip(with_heads, without_heads, strict=True):
        assert np.array_equal(state.maps, scored.maps)
        assert scored.scores.any()
        assert not state.scores.any()
