"""Test LDA filters against a plain computation with all patches."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.kernels import ClassSums
from rescnet_dist.model.filters.lda import LDA, ClassPatchStatistics
from tests.observations import (
    IMAGES,
    LABELS,
    TRAIN,
    fix_signs,
    list_patches,
    make_group,
    make_images,
    observe,
)

RIDGE = 0.05
WEIGHTS = 1 + np.arange(IMAGES) % 4 / 2


def lda_directions(patches: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Return LDANet's directions (p, count) of patches (n, places, p) of weighted images (n,)."""
    labels, p = LABELS[TRAIN], patches.shape[2]
    mean = np.average(patches, axis=0, weights=weights)
    between, within = np.zeros((p, p)), np.zeros((p, p))
    for label in np.unique(labels):
        own = labels == label
        class_mean = np.average(patches[own], axis=0, weights=weights[own])
        between += weights[own].sum() * (class_mean - mean).T @ (class_mean - mean)
        for patch, weight in zip(patches[own], weights[own], strict=True):
            within += weight * (patch - class_mean).T @ (patch - class_mean)
    within += RIDGE * np.trace(within) / p * np.eye(p)
    values, vectors = np.linalg.eig(np.linalg.solve(within, between))
    order = np.argsort(-values.real)[:count]
    vectors = vectors.real[:, order]
    return fix_signs(vectors / np.linalg.norm(vectors, axis=0))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("channels", [(0, 1), (1,)])
@pytest.mark.parametrize("cuts", [(), (5, 16)])
def test_filters_separate_the_class_means_of_each_place(
    channels: tuple[int, ...], cuts: tuple[int, ...], weighted: bool
) -> None:
    """Training images only, in any chunks, of all or some channels, with or without weights."""
    learner, images = LDA(ridge=RIDGE), make_images()
    group = make_group(learner, 5, channels)
    statistics = observe(learner, group, images, cuts, WEIGHTS if weighted else None)
    filters, bias = learner.fit(statistics, group)
    weights = WEIGHTS[TRAIN] if weighted else np.ones(TRAIN.sum())
    expected = lda_directions(list_patches(images, channels), weights, 5)
    np.testing.assert_allclose(filters.reshape(-1, 5), expected, atol=1e-4)
    assert not bias.any()


def test_filters_are_those_of_the_normalized_images() -> None:
    """Statistics are of the raw images, and their normalization is known later."""
    learner, images = LDA(ridge=RIDGE), make_images()
    group = make_group(learner, 5)
    low, scale = np.array([2.0, -1.0]), np.array([0.3, 2.0])
    raw = observe(learner, group, images, [7]).rescale(low, scale)
    normalized = observe(learner, group, ((images - low) * scale).astype(np.float32))
    found, expected = (learner.fit(statistics, group)[0] for statistics in (raw, normalized))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_there_are_more_filters_than_classes() -> None:
    """The class means of all places span all 18 directions of a patch."""
    learner = LDA()
    group = make_group(learner, learner.max_filters(18))
    statistics = observe(learner, group, make_images())
    between, _ = statistics.scatters(group.size)
    assert np.linalg.matrix_rank(between, tol=1e-4 * np.trace(between)) == 18
    assert np.linalg.matrix_rank(learner.fit(statistics, group)[0].reshape(18, 18)) == 18


def test_classes_without_images_change_nothing() -> None:
    """They have no mean."""
    learner = LDA()
    group = make_group(learner, 5)
    statistics = observe(learner, group, make_images())
    counts, sums = statistics.classes.counts, statistics.classes.sums
    more = ClassSums(np.append(counts, 0), np.concatenate([sums, 0 * sums[:1]]))
    found = learner.fit(ClassPatchStatistics(statistics.moments, more), group)[0]
    assert np.array_equal(found, learner.fit(statistics, group)[0])


def test_constant_images_give_finite_filters() -> None:
    """There is nothing to separate."""
    learner = LDA()
    group = make_group(learner, 4)
    statistics = observe(learner, group, np.ones_like(make_images()))
    assert np.isfinite(learner.fit(statistics, group)[0]).all()
