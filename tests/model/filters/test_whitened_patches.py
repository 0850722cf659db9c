"""Test filters of whitened random patches against a plain computation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist.kernels import LayerInput
from rescnet_dist.model import FilterGroup, Observation
from rescnet_dist.model.filters.whitened_patches import WhitenedPatches

LABELS = np.arange(24) % 3
TRAIN = np.arange(24) % 5 != 0
COUNTS = np.bincount(LABELS[TRAIN], minlength=3)


def make_group(count: int = 6, channels: tuple[int, ...] = (0, 1), seed: int = 0) -> FilterGroup:
    """Return a group of 3×3 filters on images of 9×8 pixels with two channels."""
    return FilterGroup(
        layer=1,
        filters=range(count),
        channels=channels,
        input_channels=2,
        size=3,
        image_size=(9, 8),
        streams=range(WhitenedPatches().streams(count)),
        seed=seed,
    )


def make_images(seed: int = 0) -> np.ndarray:
    """Return smooth images (24, 9, 8, 2)."""
    noise = np.random.default_rng(seed).normal(size=(24, 9, 8, 2)).cumsum(axis=1).cumsum(axis=2)
    return noise.astype(np.float32)


def observe(images: np.ndarray, cuts: list[int], group: FilterGroup):
    """Return the merged statistics of images (24, 9, 8, 2) that are divided into chunks."""
    learner, edges = WhitenedPatches(), sorted({0, 24, *cuts})
    total = learner.empty(group)
    for start, stop in itertools.pairwise(edges):
        rows = slice(start, stop)
        before = np.bincount(LABELS[:start][TRAIN[:start]], minlength=3)
        chunk = Observation(LayerInput.of(images[rows]), LABELS[rows], TRAIN[rows], before, COUNTS)
        total = total.merge(learner.observe(chunk, group))
    return total


def all_patches(images: np.ndarray, channels: tuple[int, ...]) -> np.ndarray:
    """Return all 3×3 patches of the training images, flattened."""
    return np.array(
        [
            image[row : row + 3, column : column + 3, list(channels)].ravel()
            for image in images[TRAIN].astype(np.float64)
            for row in range(7)
            for column in range(6)
        ]
    )


@pytest.mark.parametrize("channels", [(0, 1), (1,)])
def test_filters_are_whitened_training_patches(channels: tuple[int, ...]) -> None:
    """Each is Σ⁻¹(x − μ) of a patch x, scaled to unit norm; its bias centers the output."""
    images, group = make_images(), make_group(channels=channels)
    learner = WhitenedPatches(ridge=0.2)
    filters, bias = learner.fit(observe(images, [], group), group)
    patches = all_patches(images, channels)
    mean, covariance = patches.mean(axis=0), np.cov(patches.T, bias=True)
    covariance += 0.2 * np.trace(covariance) / len(mean) * np.eye(len(mean))
    candidates = np.linalg.solve(covariance, (patches - mean).T)
    candidates /= np.linalg.norm(candidates, axis=0)
    cosines = filters.reshape(-1, group.count).T @ candidates
    np.testing.assert_allclose(cosines.max(axis=1), 1, atol=1e-4)
    outputs = patches @ filters.reshape(-1, group.count) + bias
    np.testing.assert_allclose(outputs.mean(axis=0), 0, atol=1e-4)


@given(cuts=st.lists(st.integers(0, 24), max_size=5), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_filters_do_not_depend_on_chunks(cuts: list[int], seed: int) -> None:
    """Drawn patches are the same ones, and moments merge to rounding."""
    images, group = make_images(seed), make_group(seed=seed)
    whole, parts = observe(images, [], group), observe(images, cuts, group)
    assert np.array_equal(whole.sample.slots, np.arange(12))
    assert np.array_equal(whole.sample.patches, parts.sample.patches)
    scatter = whole.moments.scatter
    np.testing.assert_allclose(parts.moments.scatter, scatter, rtol=0, atol=5e-6 * scatter.max())


def test_constant_images_give_finite_filters() -> None:
    """Patches without variance have no direction."""
    group = make_group()
    filters, bias = WhitenedPatches().fit(
        observe(np.ones((24, 9, 8, 2), np.float32), [], group), group
    )
    assert np.isfinite(filters).all()
    assert np.isfinite(bias).all()


def test_workspace_covers_the_statistics() -> None:
    """What is planned is at least what one accumulator has."""
    group = make_group()
    statistics = observe(make_images(), [], group)
    held = statistics.moments.scatter.nbytes + statistics.sample.patches.nbytes
    assert WhitenedPatches().statistics_bytes(group) >= held
    assert WhitenedPatches().workspace_bytes(group) > held
