"""The contracts that all views, filter learners, feature extractors and heads keep."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from rescnet_dist.kernels import FeatureMoments, LayerInput
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.model import (
    FEATURES,
    FILTERS,
    HEADS,
    VIEWS,
    Architecture,
    BankStatistics,
    Observation,
    fit_bank,
)
from rescnet_dist.spec import NetworkSpec
from tests.export.networks import fit_view

LABELS = np.arange(30) % 3
TRAIN = np.arange(30) % 7 != 0
CUTS = (0, 11, 18, 30)
# Options of extractors whose defaults are for larger images, or for more filters.
SMALL_FEATURES = {
    "binary-hash": {"name": "binary-hash", "bits": 3, "block": 4, "stride": 2},
    "covariance-root": {"name": "covariance-root", "block": 4, "stride": 2},
    "second-order": {"name": "second-order", "block": 4, "stride": 2},
}


def make_architecture(**options: Any) -> Architecture:
    """Return the architecture of a small network."""
    spec = NetworkSpec(**{"filters": 6, "features": SMALL_FEATURES["second-order"]} | options)
    return spec.architecture((10, 9, 2), 3, seed=5)


def observe(name: str, view: str, images: np.ndarray) -> tuple[Any, Any, list[Any]]:
    """Return a learner, its group in layer 1, and the statistics of three chunks."""
    other = "@contrast" if FILTERS.get(name).min_towers > 1 else ""
    architecture = make_architecture(bank=f"pca:0.5,{name}:0.5@{view},gaussian:0.1{other}")
    learner, group = next(
        pair
        for tower in architecture.towers(1)
        if tower.view == view
        for pair in tower.groups
        if pair[0].name == name
    )
    statistics = []
    for start, stop in itertools.pairwise(CUTS):
        rows = slice(start, stop)
        before = np.bincount(LABELS[:start][TRAIN[:start]], minlength=3)
        inputs = LayerInput.of(images[rows, ..., : group.input_channels])
        counts = np.bincount(LABELS[TRAIN])
        chunk = Observation(inputs, LABELS[rows], TRAIN[rows], before, counts)
        statistics.append(learner.observe(chunk, group))
    return learner, group, statistics


def make_images(rng: np.random.Generator) -> np.ndarray:
    """Return the input (30, 10, 9, 4) of layer 1; networks of one tower see two channels of it."""
    return rng.normal(size=(30, 10, 9, 4)).astype(np.float32)


def list_arrays(value: Any) -> list[np.ndarray]:
    """Return all arrays and numbers of an accumulator."""
    if isinstance(value, FeatureMoments):  # its scatter has one triangle
        return [np.asarray(value.count), value.mean, np.tril(value.scatter)]
    if is_dataclass(value):
        return [a for field in fields(value) for a in list_arrays(getattr(value, field.name))]
    return [np.asarray(value)]


def assert_equal(one: Any, other: Any) -> None:
    """Assert that two accumulators are equal to rounding."""
    for a, b in zip(list_arrays(one), list_arrays(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("view", ["image", "contrast"])
@pytest.mark.parametrize("name", FILTERS.names())
def test_statistics_merge_in_any_tree(name: str, view: str, rng: np.random.Generator) -> None:
    """`merge` is associative, `empty` is its identity, and `rescale` commutes with it."""
    learner, group, (a, b, c) = observe(name, view, make_images(rng))
    assert_equal(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert_equal(learner.empty(group).merge(a), a)
    assert_equal(a.merge(learner.empty(group)), a)
    low, scale = rng.normal(size=len(group.channels)), rng.random(len(group.channels)) + 0.5
    assert_equal(a.merge(b).rescale(low, scale), a.rescale(low, scale).merge(b.rescale(low, scale)))


@pytest.mark.parametrize("view", ["image", "contrast"])
@pytest.mark.parametrize("name", FILTERS.names())
def test_filters_fit_their_group(name: str, view: str, rng: np.random.Generator) -> None:
    """Shapes, the same result every time, and planned bytes that cover the statistics."""
    learner, group, (a, b, c) = observe(name, view, make_images(rng))
    total = a.merge(b).merge(c)
    filters, bias = learner.fit(total, group)
    assert filters.shape == (group.size, group.size, len(group.channels), group.count)
    assert bias.shape == (group.count,)
    assert np.isfinite(filters).all()
    assert all(map(np.array_equal, (filters, bias), learner.fit(total, group)))
    held = sum(array.nbytes for array in list_arrays(total) if array.ndim > 1)
    assert learner.statistics_bytes(group) >= held
    assert learner.workspace_bytes(group) >= learner.statistics_bytes(group)


@pytest.mark.parametrize("name", VIEWS.names())
def test_views_are_of_one_image(name: str, rng: np.random.Generator) -> None:
    """Pixels in float32, of one image each, which do not change the images."""
    view = VIEWS.get(name)()
    view.check_images((10, 9, 2))
    for images in (rng.integers(0, 255, (5, 10, 9, 2)).astype(np.uint8), rng.random((5, 10, 9, 2))):
        before, known = images.copy(), fit_view(view, images)
        assert {key: value.ndim for key, value in known.items()} == {
            key: len(dims) for key, dims in view.arrays.items()
        }
        untrained = view.untrained((10, 9, 2))
        assert [(k, v.shape, v.dtype) for k, v in untrained.items()] == [
            (k, v.shape, v.dtype) for k, v in known.items()
        ]
        assert sum(array.nbytes for array in known.values()) <= view.fitted_bytes((10, 9, 2))
        pixels = view(images, known)
        assert pixels.dtype == np.float32
        assert pixels.shape == (5, 10, 9, view.channels(2))
        assert np.isfinite(pixels).all()
        np.testing.assert_allclose(view(images[3:4], known), pixels[3:4], rtol=1e-4, atol=1e-5)
        assert np.array_equal(images, before)


@pytest.mark.parametrize("name", FILTERS.names())
def test_filters_on_each_channel_are_those_of_all_channels(
    name: str, rng: np.random.Generator
) -> None:
    """They are learned once, from the patches of all channels, and have a mean of 0."""
    architecture = make_architecture(
        filters=[6, 4],
        bank=f"{name}+each+center,{name}@contrast+each+center",
        max_layers=2,
        concatenate=False,
    )
    maps = rng.normal(size=(30, 10, 9, 6)).astype(np.float32)
    counts = np.bincount(LABELS[TRAIN])
    chunk = Observation(LayerInput.of(maps), LABELS, TRAIN, np.zeros(3, int), counts)
    bank = fit_bank(BankStatistics.of(chunk, architecture, 2), architecture, 2)
    assert bank.filters.shape == (3, 3, 6, 12)
    for start in (0, 6):  # the maps of a tower
        own = bank.filters[:, :, start // 2 : start // 2 + 3, start : start + 6]
        shared, bias = own[:, :, 0, :2], bank.bias[start : start + 6]
        assert np.array_equal(own, np.kron(np.eye(3), shared[:, :, None]))
        assert np.abs(shared).max() > 0.1
        assert np.abs(shared.mean(axis=(0, 1))).max() < 1e-12
        assert np.array_equal(bias, np.tile(bias[:2], 3))


@pytest.mark.parametrize("name", [name for name in VIEWS.names() if VIEWS.get(name)().passes])
def test_views_learn_in_any_tree(name: str, rng: np.random.Generator) -> None:
    """`merge` is associative, `empty` is its identity, and planned bytes cover the statistics."""
    view, known, shape = VIEWS.get(name)(), {}, (4, 5, 2)
    images = rng.integers(0, 255, (30, *shape)).astype(np.uint8)
    for _ in range(view.passes):

        def observe(start: int, stop: int, known: Any = known) -> Any:
            return view.observe(view.empty(shape, known), images[start:stop], known)

        left, right = (
            [observe(*pair) for pair in itertools.pairwise(CUTS)] for _ in range(2)
        )  # `merge` may reuse memory
        a, b, c = left
        one = a.merge(b).merge(c)
        a, b, c = right
        assert_equal(one, a.merge(b.merge(c)))
        assert_equal(view.empty(shape, known).merge(observe(0, 9)), observe(0, 9))
        assert_equal(observe(0, 9).merge(view.empty(shape, known)), observe(0, 9))
        held = sum(array.nbytes for array in list_arrays(one) if array.ndim > 1)
        assert view.statistics_bytes(shape) >= held
        known = view.fit(one, known)


@pytest.mark.parametrize("local_contrast", [False, True])
@pytest.mark.parametrize("name", FEATURES.names())
def test_features_are_counted_and_of_one_image(
    name: str, local_contrast: bool, rng: np.random.Generator
) -> None:
    """D and dtype are known in advance, and an image's features do not depend on the others."""
    features = SMALL_FEATURES.get(name, name)
    architecture = make_architecture(features=features, local_contrast=local_contrast)
    (extractor,), towers = architecture.extractors, architecture.tower_maps(1)
    maps = rng.normal(size=(5, 10, 9, 6)).astype(np.float32)
    features = extractor(maps, towers)
    assert features.dtype == extractor.dtype == architecture.feature_dtype
    assert features.shape == (5, extractor.count(10, 9, towers))
    assert np.array_equal(extractor(maps[3:4], towers), features[3:4])
    assert extractor.workspace_bytes(5, 10, 9, towers) >= 0


@pytest.mark.parametrize("name", HEADS.names())
def test_heads_fit_what_they_declare(name: str, rng: np.random.Generator) -> None:
    """Targets (n, K), the declared arrays, and corrections (n, C) that reduce the error."""
    head = HEADS.get(name)()
    features = rng.normal(size=(60, 8)).astype(np.float32)
    labels = features[:, :3].argmax(axis=1)
    scores = np.zeros((60, 3), np.float32)
    targets = head.targets(scores, labels, first=True)
    assert targets.shape == (60, head.target_count(3))
    if head.fits_samples:
        signs = rng.choice([-1, 1], (60, head.probe_count)).astype(np.float32)
        both, train = np.concatenate([targets, signs], axis=1), np.arange(60) < 50
        moments = FeatureSamples.empty(8, "float32").fold(0, features, both, train)
    else:
        moments = FeatureMoments.empty(8, head.target_count(3)).fold(features, targets)
    arrays = (head.fit_samples if head.fits_samples else head.fit)(moments, 3)
    assert {key: np.ndim(value) for key, value in arrays.items()} == {
        key: len(dims) for key, dims in head.arrays.items()
    }
    if head.fits_samples:
        assert head.sample_count(arrays) == 50
        blocks = [(slice(0, 20), features[:20]), (slice(20, 50), features[20:50])]
        correction = sum(head.compare(arrays, features, blocks))
        assert abs(correction).max() <= head.bound(arrays)
        known = head.known_correction(arrays, np.arange(50, 60))  # of validation images
        np.testing.assert_allclose(known, correction[50:], rtol=1e-5, atol=1e-6)
    else:
        correction = head.correction(arrays, features)
    assert correction.shape == (60, 3)
    assert (correction.argmax(axis=1) == labels).mean() > 0.7
    assert head.workspace_bytes(8, 3) >= 0


@pytest.mark.parametrize(
    ("registry", "name"),
    [(r, name) for r in (VIEWS, FILTERS, FEATURES, HEADS) for name in r.names()],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_components_round_trip(registry: Any, name: str) -> None:
    """Through a dict and a pickle; all have a description and help texts."""
    component = registry.get(name)()
    assert type(component).from_dict(component.to_dict()) == component
    assert pickle.loads(pickle.dumps(component)) == component
    assert hash(component) == hash(registry.get(name)())
    assert all(option.help for option in component.__options__.values())
    assert type(component).__doc__
