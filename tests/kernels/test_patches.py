"""Test moments of image patches: count, mean and scatter, in batches and merged."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist.bench.peers import unfold
from rescnet_dist.kernels import LayerInput, PatchMoments, patch_scatter
from rescnet_dist.kernels.cpu import pixels, products
from tests.patch_statistics import patch_statistics

SHAPES = [  # n, height, width, channels, patch size
    (3, 6, 7, 2, 1),
    (1, 3, 3, 1, 3),
    (4, 7, 5, 3, 2),
    (2, 5, 12, 1, 3),
    (2, 13, 4, 2, 4),
    (3, 8, 9, 2, 4),
    (2, 5, 4, 3, 4),
]


def make_images(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return pixels in float32 with a different mean and deviation in each channel."""
    channels = shape[3]
    pixels = rng.normal(size=shape) * np.linspace(0.5, 2, channels) + np.linspace(-1, 3, channels)
    return pixels.astype(np.float32)


def assert_moments(moments: PatchMoments, images: np.ndarray, size: int, tol: float = 2e-6) -> None:
    """Compare with count, mean and scatter of naive patches, relative to the largest entry.

    For the scatter that is at least the variance of the pixels, as the scatter of one patch is 0.
    """
    count, mean, covariance = oracle.patch_covariance(images, size)
    assert moments.count == count
    assert np.abs(moments.mean - mean).max() <= tol * np.abs(mean).max()
    variance = images.astype(np.float64).var(axis=(0, 1, 2)).max()
    largest = max(np.abs(covariance).max(), variance) * count
    assert np.abs(moments.scatter - covariance * count).max() <= tol * largest


def assert_same_moments(one: PatchMoments, other: PatchMoments, tol: float = 1e-10) -> None:
    """Compare two sets of moments, relative to the largest entry."""
    assert one.count == other.count
    np.testing.assert_allclose(one.mean, other.mean, rtol=tol, atol=tol)
    atol = tol * np.abs(other.scatter).max(initial=1)
    np.testing.assert_allclose(one.scatter, other.scatter, rtol=0, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
def test_patch_scatter_equals_naive_moments(shape, rng):
    """Count, mean and scatter are those of the patches listed one by one."""
    images = make_images(shape[:4], rng)
    assert_moments(patch_scatter(images, shape[4]), images, shape[4])


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_patch_scatter_is_exact_for_all_border_sizes(size, rng):
    """Test images from a single row or column of patches to ones with interior pixels.

    The sums of interior pixels are shared between offsets.
    """
    for extra in range(2 * size + 1):
        for height, width in ((size + extra, size + 1), (size + 1, size + extra)):
            images = make_images((2, height, width, 2), rng)
            assert_moments(patch_scatter(images, size), images, size)


def test_patch_scatter_of_a_whole_chunk(rng):
    """The scatter of many pixels and channels equals that of the patches."""
    images = make_images((32, 40, 36, 16), rng)
    moments = patch_scatter(images, 3)
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
    table = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 144).astype(np.float64)
    assert moments.count == len(table)
    np.testing.assert_allclose(moments.mean, table.mean(axis=0), rtol=0, atol=1e-6)
    expected = np.cov(table.T, ddof=0) * len(table)
    assert np.abs(moments.scatter - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("side", [3, 4, 5, 33])
@pytest.mark.parametrize("channels", [1, 8, 53])
def test_displacements_of_many_channels_equal_unfolded_patches(channels, side, rng, monkeypatch):
    """Whole tiles of registers, and their remainders; also more pixels than single sums have."""
    maps, images = (
        rng.normal(size=(5, side, side + 2, c)).astype(np.float32) for c in (channels - 1, 1)
    )
    shift = rng.normal(size=channels).astype(np.float32)
    inputs = LayerInput.of(images, maps).select(np.array([4, 1, 0]))
    together = np.concatenate([maps, images], axis=3)[[4, 1, 0]].astype(np.float64)
    flat = unfold(together - shift, 3).reshape(-1, 9 * channels)
    expected = flat.T @ flat
    found = products.sum_displacement_products(inputs, 3, shift)
    assert np.abs(found - expected).max() <= 1e-6 * expected.max()
    monkeypatch.setattr(products, "MAX_SUMS_BYTES", 0)  # few channels at a time
    parts = products.sum_displacement_products(inputs, 3, shift)
    np.testing.assert_array_equal(parts, found)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.parametrize(
    ("side", "channels", "size"), [(20, 16, 3), (9, 20, 5), (12, 5, 7), (4, 3, 3), (8, 16, 5)]
)
def test_products_bytes_bound_what_is_allocated(side, channels, size, rng):
    """And are not much more where sums, or products of pairs, are most of it."""
    inputs = LayerInput.of(rng.normal(size=(3, side, side, channels)).astype(np.float32))
    shift = np.zeros(channels)
    products.patch_products(inputs, size, shift, shift)  # compiled before memory is measured
    tracemalloc.start()
    try:
        products.patch_products(inputs, size, shift, shift)
        used = tracemalloc.get_traced_memory()[1] - 8 * (size**2 * channels) ** 2
    finally:
        tracemalloc.stop()
    if not products.uses_pairs(side, side, channels, size):
        used *= (8 + 4) / 8  # those in single precision are allocated by Numba
    bound = products.products_bytes(side, side, channels, size)
    assert used <= bound
    fixed = products.BATCH_BYTES + 4 * products.PAIR_BATCH_IMAGES * side**2 * channels
    assert bound - fixed <= 2 * used
    assert products.products_bytes(side, side, channels, side + 1) == 0
    assert products.products_bytes(32, 32, 323, 5) <= 1.05 * products.MAX_SUMS_BYTES


@pytest.mark.parametrize(("height", "width"), [(2, 5000), (5000, 2), (3, 2049)])
def test_sums_of_wide_images_keep_their_digits(height, width, rng):
    """No more than MAX_SUMMED_PIXELS are summed in single precision, however long a row is."""
    images = rng.uniform(0.5, 1, (2, height, width, 2)).astype(np.float32)
    shift = np.zeros(2)
    flat = unfold(images.astype(np.float64), 2).reshape(-1, 8)
    expected = flat.T @ flat
    found = products.sum_displacement_products(LayerInput.of(images), 2, shift)
    assert np.abs(found / expected - 1).max() <= 3e-6
    for down in range(2):
        for edges in products._divide_pixels(height, width, 2, down):
            assert max(b - a for a, b in pairwise(edges)) <= products.MAX_SUMMED_PIXELS


@pytest.mark.parametrize("size", [1, 2, 3])
def test_nan_reaches_its_patches_alone(size, rng):
    """Not the sums of other channels, which tiles of registers compute next to them."""
    images = rng.normal(size=(3, 5, 6, 4)).astype(np.float32)
    images[1, 2, 3, 1] = np.nan
    found = products.sum_displacement_products(LayerInput.of(images), size, np.zeros(4))
    is_hit = np.arange(size**2 * 4) % 4 == 1
    np.testing.assert_array_equal(np.isfinite(found), ~(is_hit | is_hit[:, None]))


def test_large_mean_does_not_lose_precision(rng):
    """The covariance of 1000 ± 1 is as precise as that of ± 1."""
    wiggle = rng.choice([-1.0, 1.0], size=(6, 9, 8, 2)) * np.linspace(0.5, 1, 8)[:, None]
    images = (wiggle + np.array([1000, -3000])).astype(np.float32)
    assert_moments(patch_scatter(images, 3), images, 3, tol=5e-6)  # about 0.1 without centering


def test_uint8_and_float64_pixels(rng):
    """uint8 pixels do not wrap around, and float64 pixels need not be cast first."""
    images = rng.integers(0, 256, (3, 7, 6, 2), dtype=np.uint8)
    assert_moments(patch_scatter(images, 3), images.astype(np.float64), 3)
    assert_moments(patch_scatter(images.astype(np.float64), 3), images.astype(np.float64), 3)


@pytest.mark.parametrize("batch_bytes", [1, 3000])
def test_moments_do_not_depend_on_batch_size(batch_bytes, rng, monkeypatch):
    """Any number of images may be processed at a time."""
    monkeypatch.setattr(products, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(products, "MAX_PAIR_PIXELS", 0)
    images = make_images((7, 6, 7, 2), rng)
    assert_moments(patch_scatter(images, 3), images, 3)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 5, 5, 2, 5), (2, 8, 7, 1, 7)], ids=str)
@pytest.mark.parametrize(
    "algorithm", [products.sum_pair_products, products.sum_displacement_products]
)
def test_both_algorithms_equal_products_of_unfolded_patches(algorithm, shape, rng):
    """This holds for all border sizes, down to one patch per image."""
    *images_shape, size = shape
    images = rng.normal(size=images_shape).astype(np.float32)
    flat = unfold(images, size).reshape(-1, size * size * shape[3]).astype(np.float64)
    expected = flat.T @ flat
    np.testing.assert_allclose(
        algorithm(LayerInput.of(images), size, np.zeros(shape[3], np.float32)),
        expected,
        atol=3e-6 * max(1, expected.max()),
    )


@pytest.mark.parametrize("pair_pixels", [0, products.MAX_PAIR_PIXELS], ids=["shifts", "pairs"])
@pytest.mark.parametrize("channels", [2, 9])  # less than a tile of registers, and more
def test_whole_weights_equal_repeated_images(channels, pair_pixels, rng, monkeypatch):
    """Extremes are equal, and sums, mean and scatter agree; some images are not selected."""
    monkeypatch.setattr(products, "MAX_PAIR_PIXELS", pair_pixels)
    monkeypatch.setattr(pixels, "WEIGHTED_SUM_BYTES", 3000)  # several batches
    images, repeats = make_images((9, 7, 6, channels), rng), rng.integers(1, 5, 9)
    train = np.array([True] * 5 + [False, True, True, False])
    maps, own = images[..., 1:], images[..., :1]
    inputs = LayerInput.of(own, maps, repeats.astype(np.float64)).select(train)
    repeated = images[train].repeat(repeats[train], axis=0)
    low, high, moments = patch_statistics(inputs, 3)
    repeated_inputs = LayerInput.of(repeated[..., :1], repeated[..., 1:])
    expected = patch_statistics(repeated_inputs, 3)
    np.testing.assert_array_equal(low, expected[0])
    np.testing.assert_array_equal(high, expected[1])
    together = np.concatenate([repeated[..., 1:], repeated[..., :1]], axis=3)
    assert_moments(moments, together, 3)
    assert moments.count == expected[2].count


def test_the_algorithm_with_fewer_products_is_chosen(monkeypatch):
    """All pairs are used for few pixels and large patches, else displacements."""
    called = []
    for name in ("sum_pair_products", "sum_displacement_products"):
        monkeypatch.setattr(products, name, lambda *args, name=name: called.append(name))
    products.patch_products(LayerInput.of(np.zeros((1, 28, 28, 1))), 13, np.zeros(1), np.ones(1))
    products.patch_products(LayerInput.of(np.zeros((1, 32, 32, 53))), 3, np.zeros(53), np.ones(53))
    assert called == ["sum_pair_products", "sum_displacement_products"]
    assert products.displacement_cost(28, 28, 1, 13) > products.pair_cost(28, 28, 1)


def test_single_precision_is_accurate_over_a_million_patches(rng):
    """Sums are compared with double precision: only few pixels are summed in float32."""
    images = rng.normal((3, -8), 1, (1200, 32, 32, 2)).astype(np.float32)
    moments = PatchMoments.empty(18)
    for start in range(0, 1200, 300):
        moments = moments.merge(patch_scatter(images[start : start + 300], 3))
    assert moments.count > 1e6
    flat = unfold(images.astype(np.float64), 3).reshape(-1, 18)
    centered = flat - flat.mean(axis=0)
    expected = centered.T @ centered
    assert np.abs(moments.scatter - expected).max() <= 1e-5 * expected.max()
    np.testing.assert_allclose(moments.mean, flat.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 5, 5, 2), (3, 2, 5, 2), (3, 5, 2, 2)])
def test_images_without_patches_have_empty_moments(shape):
    """There may be no image, or images smaller than a patch."""
    moments = patch_scatter(np.ones(shape, np.float32), 3)
    assert moments.count == 0
    assert moments.mean.shape == (18,)
    assert not moments.mean.any()
    assert moments.scatter.shape == (18, 18)
    assert not moments.scatter.any()


@given(cuts=st.lists(st.integers(0, 8), max_size=5), seed=st.integers(0, 2**16), data=st.data())
@settings(max_examples=50, deadline=None)
def test_merge_over_any_split_equals_whole(cuts, seed, data):
    """Images may be split anywhere, and parts merged in any tree."""
    images = make_images((8, 6, 5, 2), np.random.default_rng(seed)) + np.float32(100)
    edges = [0, *sorted(cuts), 8]
    parts = [patch_scatter(images[a:b], 2) for a, b in pairwise(edges)]
    while len(parts) > 1:
        i = data.draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [parts[i].merge(parts[i + 1])]
    assert_moments(parts[0], images, 2)


@given(sizes=st.tuples(*[st.integers(0, 3)] * 3), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_merge_is_associative_with_identity(sizes, seed):
    """(a + b) + c = a + (b + c), and `empty` is the identity on both sides."""
    rng = np.random.default_rng(seed)
    a, b, c = (patch_scatter(make_images((n, 5, 4, 2), rng), 2) for n in sizes)
    assert_same_moments(a.merge(b).merge(c), a.merge(b.merge(c)))
    empty = PatchMoments.empty(8)
    assert_same_moments(a.merge(empty), a, tol=0)
    assert_same_moments(empty.merge(a), a, tol=0)


def test_rescaled_moments_equal_moments_of_rescaled_images(rng):
    """The moments are those of (image − low)·scale, also for a channel of scale 0."""
    images = make_images((4, 7, 6, 3), rng)
    low, scale = np.array([-1.0, 0.5, 2.0]), np.array([0.25, 3.0, 0.0])
    rescaled = patch_scatter(images, 3).rescale(low, scale)
    assert_moments(rescaled, (images - low) * scale, 3)
    assert not rescaled.scatter[2::3].any()
