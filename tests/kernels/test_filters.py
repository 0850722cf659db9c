"""Test the filters: leading eigenvectors of patches, and stacked two-class LDA."""

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
    """Return images of classes with different patterns, labels, and the training mask."""
    labels = rng.integers(classes, size=n)
    labels[: 2 * classes] = np.tile(np.arange(classes), 2)
    train = rng.random(n) < 0.7
    train[:classes] = True
    patterns = rng.normal(size=(classes, *shape))
    images = patterns[labels] + 0.4 * rng.normal(size=(n, *shape))
    return images.astype(np.float32), labels, train


def make_rngs(seed: int, layer: int, count: int) -> list[np.random.Generator]:
    """Return the generators of the draws of a layer."""
    return [np.random.default_rng([seed, layer, t]) for t in range(count)]


def make_draws(
    images, labels, train, size: int, count: int, seed: int = 3, layer: int = 2
) -> Draws:
    """Return the draws of a layer on these images."""
    _, height, width, _ = images.shape
    return stacked_lda_draws(
        make_rngs(seed, layer, count),
        np.bincount(labels[train]).tolist(),
        positives=POSITIVES,
        negatives=NEGATIVES,
        rows=height - size + 1,
        columns=width - size + 1,
    )


# PCA --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "channels", "count"), [(3, 2, 7), (2, 3, 12), (5, 1, 4)])
def test_pca_filters_are_leading_orthonormal_eigenvectors(size, channels, count, rng):
    """VᵀV = I and ΣV = VΛ with the largest Λ, in descending order."""
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
    """The sign of each filter is fixed, whatever the solver returns."""
    images = (rng.normal(size=(8, 9, 8, 2)).cumsum(axis=2) * [1.0, 0.6]).astype(np.float32)
    moments = patch_scatter(images, 3)
    filters = pca_filters(moments, 3, 6)
    expected = oracle.pca_filters(oracle.patch_covariance(images, 3)[2], 3, 6)
    np.testing.assert_allclose(filters, expected, rtol=0, atol=1e-5)
    vectors = filters.reshape(-1, 6)
    assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(6)] > 0).all()


def test_filters_with_negative_largest_entry_are_negated():
    """Of ± v, the one with a positive largest entry is chosen."""
    vectors = np.array([[0.6, -0.8], [0.8, 0.6]])  # eigenvectors in columns
    scatter = vectors @ np.diag([3.0, 1.0]) @ vectors.T
    filters = pca_filters(PatchMoments(9, np.zeros(2), scatter), 1, 2)
    np.testing.assert_allclose(filters[0, 0], [[0.6, 0.8], [0.8, -0.6]], atol=1e-12)


def test_zero_pca_filters():
    """Layers with stacked-LDA filters only have no PCA filter."""
    assert pca_filters(PatchMoments.empty(8), 2, 0).shape == (2, 2, 2, 0)


# draws ------------------------------------------------------------------------------------------


def test_draws_equal_oracle(rng):
    """Classes, images and positions are equal; ranks count training images."""
    images, labels, train = labeled_images(rng)
    draws = make_draws(images, labels, train, 3, 25)
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
    count=st.integers(0, 5),
    extra=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_draw_depends_on_seed_layer_and_number_only(seed, layer, count, extra):
    """Asking for more draws does not change the first ones."""
    counts = [5, 3, 9]
    options = {"positives": 2, "negatives": 4, "rows": 6, "columns": 9}
    short = stacked_lda_draws(make_rngs(seed, layer, count), counts, **options)
    long = stacked_lda_draws(make_rngs(seed, layer, count + extra), counts, **options)
    for one, other in zip(astuple(short)[1:], astuple(long)[1:], strict=True):
        np.testing.assert_array_equal(one, other[:count])
    assert long.slots == (count + extra) * 6


@pytest.mark.parametrize(("seed", "layer"), [(4, 2), (3, 3), (2, 3)])
def test_other_seed_or_layer_gives_other_draws(seed, layer):
    """Each seed and each layer has its own draws."""
    options = {"positives": 2, "negatives": 4, "rows": 6, "columns": 9}
    counts = [50, 30, 90]
    one = stacked_lda_draws(make_rngs(3, 2, 8), counts, **options)
    other = stacked_lda_draws(make_rngs(seed, layer, 8), counts, **options)
    assert (one.rank != other.rank).mean() > 0.8
    assert (one.row != other.row).mean() > 0.5


@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    rows=st.integers(1, 4),
    columns=st.integers(1, 7),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_draws_are_within_images_and_positions(counts, rows, columns, seed):
    """Ranks are below the number of images; rows and columns fit the image."""
    draws = stacked_lda_draws(
        make_rngs(seed, 1, 12), counts, positives=3, negatives=5, rows=rows, columns=columns
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
def test_sample_over_any_chunks_equals_whole(cuts, seed, size, order):
    """Chunks of any length, also empty ones, merged in any order, fill the same slots."""
    images, labels, train = labeled_images(np.random.default_rng(seed), n=20)
    draws = make_draws(images, labels, train, size, 7, seed=seed)
    no_offsets = np.zeros(3, np.int64)
    whole = sample_patches(LayerInput.of(images), labels, train, no_offsets, draws, size)
    np.testing.assert_array_equal(whole.slots, np.arange(draws.slots))
    parts = []
    edges = [0, *sorted(cuts), 20]
    for start, stop in pairwise(edges):
        rows = slice(start, stop)
        class_offsets = np.bincount(labels[:start][train[:start]], minlength=3)
        parts.append(
            sample_patches(
                LayerInput.of(images[rows]), labels[rows], train[rows], class_offsets, draws, size
            )
        )
    order.shuffle(parts)
    merged = PatchSample.empty(size * size * 2)
    for part in parts:
        merged = merged.merge(part)
    np.testing.assert_array_equal(merged.slots, whole.slots)
    np.testing.assert_array_equal(merged.patches, whole.patches)


def test_sampled_patches_equal_oracle_and_are_from_training_images(rng):
    """Each slot holds the patch at the drawn position of the drawn image."""
    images, labels, train = labeled_images(rng)
    draws = make_draws(images, labels, train, 3, 10)
    sample = sample_patches(LayerInput.of(images), labels, train, np.zeros(3, np.int64), draws, 3)
    expected = []
    drawn = oracle.draws(labels, train, 3, (7, 6), 3, POSITIVES, NEGATIVES, 3, 2, 10)
    for c, sources, rows, columns in drawn:
        assert train[sources].all()
        assert (labels[sources] == c).tolist() == [True] * POSITIVES + [False] * NEGATIVES
        for image, row, column in zip(sources, rows, columns, strict=True):
            expected.append(images[image, row : row + 3, column : column + 3].reshape(-1))
    np.testing.assert_array_equal(sample.patches, np.array(expected))


@pytest.mark.parametrize("cut", [0, 3, 17])
def test_draws_of_repeated_images_equal_those_of_copies(cut, rng):
    """The patches are those of np.repeat, also in two chunks."""
    images, labels, train = labeled_images(rng)
    repeats = rng.integers(1, 5, len(labels))
    many = [array.repeat(repeats, axis=0) for array in (images, labels, train)]
    draws, none = make_draws(*many, 3, 10), np.zeros(3, np.int64)
    expected = sample_patches(LayerInput.of(many[0]), many[1], many[2], none, draws, 3)
    trained = labels[:cut][train[:cut]].repeat(repeats[:cut][train[:cut]])
    found = PatchSample.empty(18)
    for rows, offsets in ((slice(cut), none), (slice(cut, None), np.bincount(trained, None, 3))):
        chunk = LayerInput.of(images[rows]), labels[rows], train[rows]
        found = found.merge(sample_patches(*chunk, offsets, draws, 3, repeats[rows]))
    np.testing.assert_array_equal(found.slots, expected.slots)
    np.testing.assert_array_equal(found.patches, expected.patches)


def test_zero_draws_sample_no_patches(rng):
    """Layers with PCA filters only have an empty sample, which can be merged."""
    images, labels, train = labeled_images(rng)
    draws = make_draws(images, labels, train, 3, 0)
    sample = sample_patches(LayerInput.of(images), labels, train, np.zeros(3, np.int64), draws, 3)
    assert sample.slots.shape == (0,)
    assert sample.patches.shape == (0, 18)
    assert sample.merge(PatchSample.empty(18)).patches.shape == (0, 18)


# stacked LDA ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ridge", [1e-2, 1.0])
def test_each_filter_equals_two_class_lda_of_its_draw(size, ridge, rng):
    """Weights have unit norm; patches may have fewer or more elements than the draw."""
    patches = rng.normal(size=(5, 8, size * size * 2))
    filters, bias = stacked_lda_filters(patches, 2, size, 5, ridge=ridge, tolerance=1.0)
    for t in range(5):
        weights, intercept, _ = oracle.two_class_lda(patches[t, :2], patches[t, 2:], ridge)
        np.testing.assert_allclose(filters[..., t].ravel(), weights, atol=1e-9)
        assert bias[t] == pytest.approx(intercept, abs=1e-9)
        assert np.linalg.norm(filters[..., t]) == pytest.approx(1)


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
@pytest.mark.parametrize(("size", "channels"), [(1, 1), (2, 1), (3, 2)])
def test_stacked_lda_filters_equal_oracle(size, channels, tolerance, rng):
    """The first draws that separate come in order, then the others by error."""
    images, labels, train = labeled_images(rng, shape=(7, 6, channels))
    draws = make_draws(images, labels, train, size, 24)
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


def make_draw(gap: float, wrong: int = 0) -> np.ndarray:
    """Return a draw (8, 1): 2 positives near `gap`, 6 negatives near 0 or (`wrong`) at `gap`."""
    values = np.array([gap, gap + 0.01, 0.0, 0.01, -0.01, 0.02, 0.0, 0.01])
    values[2 : 2 + wrong] = gap
    return values[:, None]


def test_separating_draws_come_first_then_by_error():
    """Draws 1 and 3 are selected in their order, then 4 (1 wrong), then 0 and 2.

    The bias identifies a draw, as all weights of one pixel are ± 1.
    """
    draws = np.stack(
        [make_draw(1, 3), make_draw(2), make_draw(3, 5), make_draw(4), make_draw(5, 1)]
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
    """Without variance, weights and bias are 0, not NaN or noise."""
    patches = np.full((3, 34, 9), value, dtype)
    filters, bias = stacked_lda_filters(patches, 2, 3, 3, ridge=1e-2, tolerance=0.0)
    np.testing.assert_array_equal(filters, np.zeros((3, 3, 1, 3)))
    np.testing.assert_array_equal(bias, np.zeros(3))


def test_equal_patches_are_selected_last(rng):
    """A draw without variance comes after all others, whatever their errors."""
    patches = rng.normal(size=(4, 34, 4))
    patches[0] = 1 / 3
    filters, _ = stacked_lda_filters(patches, 2, 2, 4, ridge=1e-2, tolerance=0.0)
    assert not filters[..., 3].any()
    np.testing.assert_allclose(np.linalg.norm(filters.reshape(4, 4), axis=0)[:3], 1)


def test_zero_within_class_variance_gives_zero_filters():
    """Two points, one per class, have zero within-class covariance, hence no direction."""
    patches = np.zeros((1, 8, 4))
    patches[0, :2] = 1
    filters, bias = stacked_lda_filters(patches, 2, 2, 1, ridge=1e-2, tolerance=0.0)
    assert not filters.any()
    assert not bias.any()
