"""The filter bank: leading eigenvectors of patches, and stacked two-class discriminants."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist.kernels import (
    Draws,
    LayerInput,
    PatchMoments,
    PatchSample,
    patch_scatter,
    pca_filters,
    sample_patches,
    stacked_lda_draws,
    stacked_lda_filters,
)

POSITIVES, NEGATIVES = 2, 6


def labeled_images(rng: np.random.Generator, n: int = 30, shape=(7, 6, 2), classes: int = 3):
    """Images of classes with unlike patterns, their labels, and which of them to train on."""
    labels = rng.integers(classes, size=n)
    labels[: 2 * classes] = np.tile(np.arange(classes), 2)
    train = rng.random(n) < 0.7
    train[:classes] = True
    patterns = rng.normal(size=(classes, *shape))
    images = patterns[labels] + 0.4 * rng.normal(size=(n, *shape))
    return images.astype(np.float32), labels, train


def draws_for(images, labels, train, size: int, count: int, seed: int = 3, layer: int = 2) -> Draws:
    """The draws of a layer on these images."""
    _, height, width, _ = images.shape
    return stacked_lda_draws(
        seed,
        layer,
        count,
        np.bincount(labels[train]),
        positives=POSITIVES,
        negatives=NEGATIVES,
        rows=height - size + 1,
        columns=width - size + 1,
    )


# PCA --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "channels", "count"), [(3, 2, 7), (2, 3, 12), (5, 1, 4)])
def test_pca_filters_are_leading_orthonormal_eigenvectors(size, channels, count, rng):
    """VᵀV = I and ΣV = VΛ with the largest Λ, in falling order."""
    images = rng.normal(size=(6, 9, 8, channels)).cumsum(axis=1).astype(np.float32)
    moments = patch_scatter(images, size)
    filters = pca_filters(moments, size, count)
    assert filters.shape == (size, size, channels, count)
    vectors = filters.reshape(-1, count)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-12)
    products = vectors.T @ moments.scatter @ vectors
    largest = np.sort(np.linalg.eigvalsh(moments.scatter))[::-1][:count]
    np.testing.assert_allclose(products, np.diag(largest), atol=1e-9 * largest[0])


def test_pca_filters_equal_oracle_and_have_their_largest_entry_positive(rng):
    """The sign rule settles each filter, whatever the solver returns."""
    images = (rng.normal(size=(8, 9, 8, 2)).cumsum(axis=2) * [1.0, 0.6]).astype(np.float32)
    moments = patch_scatter(images, 3)
    filters = pca_filters(moments, 3, 6)
    expected = oracle.pca_filters(oracle.patch_covariance(images, 3)[2], 3, 6)
    np.testing.assert_allclose(filters, expected, rtol=0, atol=1e-5)
    vectors = filters.reshape(-1, 6)
    assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(6)] > 0).all()


def test_sign_rule_turns_filters_whose_largest_entry_is_negative():
    """Of ± v, the one with a positive largest entry is taken."""
    vectors = np.array([[0.6, -0.8], [0.8, 0.6]])  # eigenvectors in columns
    scatter = vectors @ np.diag([3.0, 1.0]) @ vectors.T
    filters = pca_filters(PatchMoments(9, np.zeros(2), scatter), 1, 2)
    np.testing.assert_allclose(filters[0, 0], [[0.6, 0.8], [0.8, -0.6]], atol=1e-12)


def test_no_pca_filters_is_an_empty_bank():
    """A bank of stacked-LDA filters alone has no PCA filter."""
    assert pca_filters(PatchMoments.empty(8), 2, 0).shape == (2, 2, 2, 0)


# draws ------------------------------------------------------------------------------------------


def test_draws_equal_oracle(rng):
    """Classes, images and places of every draw, the ranks taken among the training images."""
    images, labels, train = labeled_images(rng)
    draws = draws_for(images, labels, train, 3, 25)
    expected = oracle.draws(labels, train, 3, (7, 6), 3, POSITIVES, NEGATIVES, 3, 2, 25)
    for t, (c, sources, rows, columns) in enumerate(expected):
        members = np.flatnonzero(train & (labels == c))
        others = np.flatnonzero(train & (labels != c))
        assert draws.classes[t] == c
        np.testing.assert_array_equal(members[draws.rank[t, :POSITIVES]], sources[:POSITIVES])
        np.testing.assert_array_equal(others[draws.rank[t, POSITIVES:]], sources[POSITIVES:])
        np.testing.assert_array_equal(draws.row[t], rows)
        np.testing.assert_array_equal(draws.column[t], columns)
    assert set(draws.classes) == {0, 1, 2}


@given(
    seed=st.integers(0, 2**31),
    layer=st.integers(1, 1000),
    few=st.integers(0, 5),
    more=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_draw_depends_on_seed_layer_and_its_number_alone(seed, layer, few, more):
    """Asking for more draws leaves the first ones as they are."""
    counts = np.array([5, 3, 9])
    options = {"positives": 2, "negatives": 4, "rows": 6, "columns": 9}
    short = stacked_lda_draws(seed, layer, few, counts, **options)
    long = stacked_lda_draws(seed, layer, few + more, counts, **options)
    for one, other in zip(astuple(short)[1:], astuple(long)[1:], strict=True):
        np.testing.assert_array_equal(one, other[:few])
    assert long.slots == (few + more) * 6


@pytest.mark.parametrize(("seed", "layer"), [(4, 2), (3, 3), (2, 3)])
def test_other_seed_or_layer_draws_anew(seed, layer):
    """Each seed and each layer has draws of its own."""
    options = {"positives": 2, "negatives": 4, "rows": 6, "columns": 9}
    counts = np.array([50, 30, 90])
    one = stacked_lda_draws(3, 2, 8, counts, **options)
    other = stacked_lda_draws(seed, layer, 8, counts, **options)
    assert (one.rank != other.rank).mean() > 0.8
    assert (one.row != other.row).mean() > 0.5


@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    rows=st.integers(1, 4),
    columns=st.integers(1, 7),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_draws_stay_within_images_and_places(counts, rows, columns, seed):
    """Ranks count images of the class, or of the rest; rows and columns fit the image."""
    draws = stacked_lda_draws(
        seed, 1, 12, np.array(counts), positives=3, negatives=5, rows=rows, columns=columns
    )
    inside = np.array(counts)[draws.classes][:, None]
    assert (draws.rank >= 0).all()
    assert (draws.rank[:, :3] < inside).all()
    assert (draws.rank[:, 3:] < sum(counts) - inside).all()
    assert draws.row.min() >= 0
    assert draws.row.max() < rows
    assert draws.column.min() >= 0
    assert draws.column.max() < columns


# sampling patches -------------------------------------------------------------------------------


@given(
    cuts=st.lists(st.integers(0, 20), max_size=6),
    seed=st.integers(0, 2**16),
    size=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_sample_over_any_chunks_equals_the_whole(cuts, seed, size, order):
    """Chunks of any length, empty ones too, merged in any order, fill every slot alike."""
    images, labels, train = labeled_images(np.random.default_rng(seed), n=20)
    draws = draws_for(images, labels, train, size, 7, seed=seed)
    nothing = np.zeros(3, np.int64)
    whole = sample_patches(LayerInput.of(images), labels, train, nothing, draws, size)
    np.testing.assert_array_equal(whole.slots, np.arange(draws.slots))
    parts = []
    edges = [0, *sorted(cuts), 20]
    for start, stop in pairwise(edges):
        here = slice(start, stop)
        before = np.bincount(labels[:start][train[:start]], minlength=3)
        parts.append(
            sample_patches(
                LayerInput.of(images[here]), labels[here], train[here], before, draws, size
            )
        )
    order.shuffle(parts)
    merged = PatchSample.empty(size * size * 2)
    for part in parts:
        merged = merged.merge(part)
    np.testing.assert_array_equal(merged.slots, whole.slots)
    np.testing.assert_array_equal(merged.patches, whole.patches)


def test_sampled_patches_are_those_of_the_oracle_from_training_images_alone(rng):
    """Each slot holds the patch at the drawn place of the drawn image."""
    images, labels, train = labeled_images(rng)
    draws = draws_for(images, labels, train, 3, 10)
    sample = sample_patches(LayerInput.of(images), labels, train, np.zeros(3, np.int64), draws, 3)
    expected = []
    drawn = oracle.draws(labels, train, 3, (7, 6), 3, POSITIVES, NEGATIVES, 3, 2, 10)
    for c, sources, rows, columns in drawn:
        assert train[sources].all()
        assert (labels[sources] == c).tolist() == [True] * POSITIVES + [False] * NEGATIVES
        for image, row, column in zip(sources, rows, columns, strict=True):
            expected.append(images[image, row : row + 3, column : column + 3].reshape(-1))
    np.testing.assert_array_equal(sample.patches, np.array(expected))


def test_no_draws_take_no_patches(rng):
    """A bank of PCA filters alone samples nothing, and its sample merges like any other."""
    images, labels, train = labeled_images(rng)
    draws = draws_for(images, labels, train, 3, 0)
    sample = sample_patches(LayerInput.of(images), labels, train, np.zeros(3, np.int64), draws, 3)
    assert sample.slots.shape == (0,)
    assert sample.patches.shape == (0, 18)
    assert sample.merge(PatchSample.empty(18)).patches.shape == (0, 18)


# stacked LDA ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ridge", [1e-2, 1.0])
def test_each_filter_equals_the_two_class_lda_of_its_draw(size, ridge, rng):
    """Unit-norm weights and bias, also where a patch has fewer or more pixels than the draw."""
    patches = rng.normal(size=(5, 8, size * size * 2))
    filters, bias = stacked_lda_filters(patches, 2, size, 5, ridge=ridge, tolerance=1.0)
    for t in range(5):
        weights, intercept, _ = oracle.two_class_lda(patches[t, :2], patches[t, 2:], ridge)
        np.testing.assert_allclose(filters[..., t].ravel(), weights, atol=1e-9)
        assert bias[t] == pytest.approx(intercept, abs=1e-9)
        assert np.linalg.norm(filters[..., t]) == pytest.approx(1)


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
@pytest.mark.parametrize(("size", "channels"), [(1, 1), (2, 1), (3, 2)])
def test_bank_equals_oracle(size, channels, tolerance, rng):
    """The first draws that separate, in order, then the others by error."""
    images, labels, train = labeled_images(rng, shape=(7, 6, channels))
    draws = draws_for(images, labels, train, size, 24)
    sample = sample_patches(
        LayerInput.of(images), labels, train, np.zeros(3, np.int64), draws, size
    )
    filters, bias = stacked_lda_filters(
        sample.patches.reshape(24, 8, -1), POSITIVES, size, 6, ridge=1e-2, tolerance=tolerance
    )
    spec = SimpleNamespace(
        lda_positives=POSITIVES,
        lda_negatives=NEGATIVES,
        lda_draws=4,
        lda_ridge=1e-2,
        lda_tolerance=tolerance,
    )
    expected = oracle.stacked_lda(images.astype(np.float64), labels, train, 3, size, 6, spec, 3, 2)
    np.testing.assert_allclose(filters, expected[0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(bias, expected[1], rtol=0, atol=1e-8)


def separable(gap: float, wrong: int = 0) -> np.ndarray:
    """A draw (8, 1): 2 positives near `gap`, 6 negatives near 0, `wrong` of them at `gap`."""
    values = np.array([gap, gap + 0.01, 0.0, 0.01, -0.01, 0.02, 0.0, 0.01])
    values[2 : 2 + wrong] = gap
    return values[:, None]


def test_draws_that_separate_come_first_then_those_of_least_error():
    """Kept: draws 1 and 3 in their order; they are filled up with 4 (1 wrong) before 0 and 2.

    The bias tells them apart, as of one pixel all weights are ± 1.
    """
    draws = np.stack(
        [separable(1, 3), separable(2), separable(3, 5), separable(4), separable(5, 1)]
    )
    errors = [oracle.two_class_lda(d[:2], d[2:], 0.01)[2] for d in draws]
    assert errors[1] == errors[3] == 0 < errors[4] < errors[0] == errors[2]
    biases = [oracle.two_class_lda(d[:2], d[2:], 0.01)[1] for d in draws]
    for count in range(1, 6):
        filters, bias = stacked_lda_filters(draws, 2, 1, count, ridge=0.01, tolerance=0.0)
        assert filters.shape == (1, 1, 1, count)
        np.testing.assert_allclose(bias, [biases[t] for t in (1, 3, 4, 0, 2)[:count]], atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 1 / 3, 255.0])
def test_equal_patches_give_zero_filters(value, dtype):
    """Without variance there is nothing to separate: weight and bias 0, never NaN or noise."""
    patches = np.full((3, 34, 9), value, dtype)
    filters, bias = stacked_lda_filters(patches, 2, 3, 3, ridge=1e-2, tolerance=0.0)
    np.testing.assert_array_equal(filters, np.zeros((3, 3, 1, 3)))
    np.testing.assert_array_equal(bias, np.zeros(3))


def test_equal_patches_are_taken_last(rng):
    """A draw without variance fills up only behind all others, however these err."""
    patches = rng.normal(size=(4, 34, 4))
    patches[0] = 1 / 3
    filters, _ = stacked_lda_filters(patches, 2, 2, 4, ridge=1e-2, tolerance=0.0)
    assert not filters[..., 3].any()
    np.testing.assert_allclose(np.linalg.norm(filters.reshape(4, 4), axis=0)[:3], 1)


def test_classes_without_variance_within_give_zero_filters():
    """Two points, one per class, leave the within-class covariance 0: no direction, as decided."""
    patches = np.zeros((1, 8, 4))
    patches[0, :2] = 1
    filters, bias = stacked_lda_filters(patches, 2, 2, 1, ridge=1e-2, tolerance=0.0)
    assert not filters.any()
    assert not bias.any()
