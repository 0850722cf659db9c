"""Test filters of the residual metric against a plain computation with all patches."""

from __future__ import annotations

import weakref

import numpy as np
import oracle
import pytest

from rescnet_dist import NetworkSpec
from rescnet_dist.kernels import LayerInput
from rescnet_dist.model import Bank, GrowingLayer, ImageScale, Observation
from rescnet_dist.model.filters.residual_metric import ResidualMetric
from tests.observations import (
    CLASSES,
    HEIGHT,
    IMAGES,
    LABELS,
    TRAIN,
    WIDTH,
    fix_signs,
    list_patches,
    make_group,
    make_images,
    observe,
)

RIDGE = 0.05
WEIGHTS = 1 + np.arange(IMAGES) % 4 / 2


def make_scores() -> np.ndarray:
    """Return scores (24, 3) that are partly wrong."""
    return np.random.default_rng(1).normal(size=(IMAGES, CLASSES)).astype(np.float32)


def metric(patches: np.ndarray, errors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean outer product (p, p) of the gradients of quadratic forms.

    Each is fitted to an error (n,) of images with patches (n, places, p) and weights (n,).
    """
    _, places, p = patches.shape
    x, weight = patches.reshape(-1, p), np.repeat(weights, places)
    x = x - np.average(x, axis=0, weights=weight)
    covariance = sum(w * np.outer(v, v) for w, v in zip(weight, x, strict=True)) / weight.sum()
    inverse = np.linalg.inv(covariance + RIDGE * np.trace(covariance) / p * np.eye(p))
    total = np.zeros((p, p))
    for error in errors.T:
        r = np.repeat(error - np.average(error, weights=weights), places)
        covaried = sum(w * e * np.outer(v, v) for w, e, v in zip(weight, r, x, strict=True))
        form = inverse @ covaried @ inverse / weight.sum()
        gradients = 2 * x @ form
        total += (weight[:, None] * gradients).T @ gradients / weight.sum()
    return total


def leading(matrix: np.ndarray, count: int) -> np.ndarray:
    """Return the leading eigenvectors (p, count) of a matrix (p, p), with fixed signs."""
    return fix_signs(np.linalg.eigh(matrix)[1][:, ::-1][:, :count])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("channels", [(0, 1), (1,)])
@pytest.mark.parametrize("cuts", [(), (5, 16)])
def test_filters_are_the_directions_of_the_gradients(
    channels: tuple[int, ...], cuts: tuple[int, ...], weighted: bool
) -> None:
    """Training images only, in any chunks, of all or some channels, with or without weights."""
    learner, images, scores = ResidualMetric(ridge=RIDGE), make_images(), make_scores()
    group, weights = make_group(learner, 3, channels), WEIGHTS if weighted else None
    statistics = observe(learner, group, images, cuts, weights, scores=scores)
    filters, bias = learner.fit(statistics, group)
    errors = (np.eye(CLASSES)[LABELS] - scores)[TRAIN]
    each = WEIGHTS[TRAIN] if weighted else np.ones(len(errors))
    expected = leading(metric(list_patches(images, channels), errors, each), 3)
    np.testing.assert_allclose(filters.reshape(-1, 3), expected, atol=2e-3)
    assert not bias.any()


def test_without_scores_the_errors_are_the_classes() -> None:
    """The first layer has no scores."""
    learner, images = ResidualMetric(ridge=RIDGE), make_images()
    group = make_group(learner, 3)
    found = observe(learner, group, images)
    expected = observe(learner, group, images, scores=np.zeros((IMAGES, CLASSES), np.float32))
    assert np.array_equal(found.products, expected.products)
    metric_of_classes = metric(
        list_patches(images, (0, 1)), np.eye(CLASSES)[LABELS[TRAIN]], np.ones(TRAIN.sum())
    )
    filters, _ = learner.fit(found, group)
    np.testing.assert_allclose(filters.reshape(-1, 3), leading(metric_of_classes, 3), atol=2e-3)


def test_filters_are_those_of_the_normalized_images() -> None:
    """Statistics are of the raw images, and their normalization is known later."""
    learner, images = ResidualMetric(ridge=RIDGE), make_images()
    group = make_group(learner, 3)
    low, scale = np.array([2.0, -1.0]), np.array([0.3, 2.0])
    raw = observe(learner, group, images, [7]).rescale(low, scale)
    normalized = observe(learner, group, ((images - low) * scale).astype(np.float32))
    found, expected = (learner.fit(statistics, group)[0] for statistics in (raw, normalized))
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_many_classes_are_summed_with_random_signs() -> None:
    """The number of products is limited, and the signs are those of the random stream."""
    learner, scores = ResidualMetric(ridge=RIDGE, combinations=2), make_scores()
    images, group = make_images(), make_group(learner, 3)
    statistics = observe(learner, group, images, [9], scores=scores)
    assert statistics.products.shape == (2, 18, 18)
    signs = np.random.default_rng([0, 1, 0]).choice([-1.0, 1.0], size=(CLASSES, 2))
    errors = (np.eye(CLASSES)[LABELS] - scores)[TRAIN] @ signs
    expected = metric(list_patches(images, (0, 1)), errors, np.ones(len(errors)))
    filters, _ = learner.fit(statistics, group)
    np.testing.assert_allclose(filters.reshape(-1, 3), leading(expected, 3), atol=2e-3)


def test_a_layer_gathers_the_errors_of_the_scores_that_entered_it() -> None:
    """λY − Ŷ, of the head's λ; the scores of the layer itself are not known in its pass."""
    spec = NetworkSpec(bank="residual-metric", filters=4, block=4, target=0.7)
    architecture = spec.architecture((HEIGHT, WIDTH, 1), CLASSES)
    rng, scores = np.random.default_rng(2), make_scores()
    bank = Bank(np.zeros(5), np.ones(5), rng.normal(size=(3, 3, 5, 4)), np.zeros(4))
    counts = np.bincount(LABELS[TRAIN], minlength=CLASSES)
    layer = GrowingLayer(architecture, 2, ImageScale(np.zeros(1), np.ones(1)), bank, None, counts)
    maps = rng.normal(size=(IMAGES, HEIGHT, WIDTH, 4)).astype(np.float32)
    grown = layer.step(make_images(1), maps, scores, LABELS, TRAIN, 0 * counts)
    (found,) = grown.gather()[0].groups
    errors = (0.7 * np.eye(CLASSES)[LABELS] - scores)[TRAIN]
    places = (HEIGHT - 2) * (WIDTH - 2)
    np.testing.assert_allclose(found.counts, places * errors.sum(axis=0), atol=1e-4)


def test_constant_images_give_finite_filters() -> None:
    """There are no gradients."""
    learner = ResidualMetric()
    group = make_group(learner, 4)
    statistics = observe(learner, group, np.ones_like(make_images()))
    assert np.isfinite(learner.fit(statistics, group)[0]).all()


@pytest.mark.parametrize("channels", [(0, 1), (1,)])
def test_few_images_are_those_that_are_selected(channels: tuple[int, ...]) -> None:
    """Patches of `filter_images` images of each class, in turns, with their weights."""
    learner, images, scores = ResidualMetric(ridge=RIDGE), make_images(), make_scores()
    group, count = make_group(learner, 3, channels), int(TRAIN.sum()) // 2
    counts, none = np.bincount(LABELS[TRAIN], minlength=CLASSES), np.zeros(CLASSES, np.int64)
    inputs = LayerInput.of(images, None, WEIGHTS)
    chunk = Observation(inputs, LABELS, TRAIN, none, counts, scores=scores, filter_images=count)
    selected = oracle.observed_images(LABELS, TRAIN, count)
    assert 0 < selected.sum() < TRAIN.sum()
    rows = selected[TRAIN]
    errors = (np.eye(CLASSES)[LABELS] - scores)[TRAIN][rows]
    patches = list_patches(images, channels)[rows]
    expected = leading(metric(patches, errors, WEIGHTS[TRAIN][rows]), 3)
    filters, _ = learner.fit(learner.observe(chunk, group), group)
    np.testing.assert_allclose(filters.reshape(-1, 3), expected, atol=2e-3)


def test_pixels_of_one_tower_are_copied_at_a_time() -> None:
    """Copies of all towers would be as large as the maps of the chunk."""
    learner, images = ResidualMetric(ridge=RIDGE), make_images()
    counts, none = np.bincount(LABELS[TRAIN], minlength=CLASSES), np.zeros(CLASSES, np.int64)
    chunk = Observation(LayerInput.of(images), LABELS, TRAIN, none, counts, scores=make_scores())
    copies = []
    for channel in range(2):
        group = make_group(learner, 3, (channel,))
        learner.observe(chunk, group)
        taken = chunk._take_observed(group)
        assert taken is chunk._take_observed(group)
        copies.append(weakref.ref(taken.images))
        del taken
    assert [copy() is None for copy in copies] == [True, False]
