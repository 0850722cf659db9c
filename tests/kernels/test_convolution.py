"""Test min-max normalization and the zero-padded convolution of a layer."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from rescnet_dist.kernels import (
    LayerInput,
    convolve,
    convolve_each,
    min_max_scale,
    normalize,
)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize(("height", "width"), [(6, 9), (7, 5)])
def test_convolve_equals_oracle(size, channels, height, width, rng):
    """Stride 1, zero padding, even and odd sizes, also filters larger than the image."""
    images = rng.normal(size=(3, height, width, channels)).astype(np.float32)
    filters = rng.normal(size=(size, size, channels, 4))
    bias = rng.normal(size=4)
    expected = oracle.convolve(images.astype(np.float64), filters, bias)
    maps = convolve(LayerInput.of(images), filters, bias)
    assert maps.dtype == np.float32
    assert maps.shape == (3, height, width, 4)
    assert np.abs(maps - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("count", [1, 7, 50, 64])
def test_convolve_many_filters_equals_oracle(count, rng):
    """Whole tiles of registers, and their remainders, of images that are not in order."""
    maps, images = (rng.normal(size=(4, 9, 11, c)).astype(np.float32) for c in (20, 3))
    filters, bias = rng.normal(size=(3, 3, 23, count)), rng.normal(size=count)
    low, scale = rng.normal(size=23), rng.uniform(0.5, 2, 23)
    inputs = LayerInput.of(images, maps).select(np.array([3, 0, 1]))
    together = np.concatenate([maps, images], axis=3)[[3, 0, 1]].astype(np.float64)
    expected = oracle.convolve((together - low) * scale, filters, bias)
    found = convolve(inputs, filters, bias, low, scale)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_maps_of_a_filter_do_not_depend_on_the_others(rng):
    """They are equal bit for bit, wherever the filter is in a tile."""
    inputs = LayerInput.of(rng.normal(size=(2, 6, 5, 9)).astype(np.float32))
    filters, bias = rng.normal(size=(3, 3, 9, 50)), rng.normal(size=50)
    whole = convolve(inputs, filters, bias)
    for own in (slice(0, 1), slice(13, 50), slice(49, 50)):
        alone = convolve(inputs, filters[..., own], bias[own])
        np.testing.assert_array_equal(alone, whole[..., own])


@pytest.mark.parametrize("first", [0, 2])
def test_convolve_each_is_the_oracle_on_one_channel_at_a_time(first, rng):
    """The maps of one channel are consecutive; maps of the layer before come first."""
    images = rng.normal(size=(3, 6, 7, 4)).astype(np.float32)
    filters, bias = rng.normal(size=(2, 2, 5)), rng.normal(size=5)
    low, scale = rng.normal(size=4), rng.uniform(0.5, 2, 4)
    maps = np.ascontiguousarray(images[..., :first]) if first else None
    inputs = LayerInput.of(np.ascontiguousarray(images[..., first:]), maps).select(np.array([2, 0]))
    found = convolve_each(inputs, (1, 3), filters, bias, low, scale)
    normalized = (images[[2, 0]].astype(np.float64) - low) * scale
    expected = np.concatenate(
        [oracle.convolve(normalized[..., [c]], filters[:, :, None], bias) for c in (1, 3)], axis=3
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_convolve_in_float64_keeps_float64(rng):
    """The precision of the maps is that of the images."""
    images, filters = rng.normal(size=(2, 5, 6, 2)), rng.normal(size=(3, 3, 2, 3))
    maps = convolve(LayerInput.of(images), filters, np.zeros(3))
    assert maps.dtype == np.float64
    np.testing.assert_allclose(maps, oracle.convolve(images, filters, np.zeros(3)), atol=1e-12)


def test_impulse_response_is_the_flipped_filter(rng):
    """Cross-correlation of a single pixel is the flipped filter.

    A filter starts (k−1)//2 pixels before its pixel, so even sizes reach further down and right.
    """
    image = np.zeros((1, 9, 9, 1), np.float32)
    image[0, 4, 4, 0] = 1
    for size in (3, 4):
        kernel = rng.normal(size=(size, size)).astype(np.float32)
        maps = convolve(LayerInput.of(image), kernel[:, :, None, None], np.zeros(1))[0, :, :, 0]
        start = 4 - size // 2
        spread = maps[start : start + size, start : start + size]
        np.testing.assert_array_equal(spread, kernel[::-1, ::-1])
        assert np.count_nonzero(maps) == size * size


def test_filters_may_have_any_memory_layout(rng):
    """Stacked-LDA filters are not contiguous before they are stored."""
    images = rng.normal(size=(2, 5, 5, 1)).astype(np.float32)
    flat = rng.normal(size=(4, 9))
    filters = flat.T.reshape(3, 3, 1, 4)
    expected = convolve(LayerInput.of(images), np.ascontiguousarray(filters), np.zeros(4))
    np.testing.assert_array_equal(convolve(LayerInput.of(images), filters, np.zeros(4)), expected)


def test_maps_of_an_image_do_not_depend_on_the_others(rng):
    """They are equal bit for bit."""
    images = rng.normal(size=(7, 6, 5, 2)).astype(np.float32)
    filters, bias = rng.normal(size=(3, 3, 2, 3)), rng.normal(size=3)
    whole = convolve(LayerInput.of(images), filters, bias)
    single = [convolve(LayerInput.of(image[np.newaxis]), filters, bias) for image in images]
    np.testing.assert_array_equal(np.concatenate(single), whole)
    assert convolve(LayerInput.of(images[:0]), filters, bias).shape == (0, 6, 5, 3)


@pytest.mark.parametrize("mode", ["global", "channel"])
def test_min_max_equals_oracle_and_maps_to_unit_interval(mode, rng):
    """The training images fill [0, 1], over all channels or in each channel."""
    images = (rng.normal(size=(4, 5, 6, 3)) * [1, 5, 0.1] + [0, 7, -2]).astype(np.float32)
    low, high = (f(axis=(0, 1, 2)).astype(np.float64) for f in (images.min, images.max))
    offset, scale = min_max_scale(low, high, mode)
    expected = oracle.min_max(images.astype(np.float64), mode)
    np.testing.assert_allclose(offset, expected[0], rtol=1e-12)
    np.testing.assert_allclose(scale, expected[1], rtol=1e-12)
    scaled = normalize(images, offset, scale)
    assert scaled.dtype == np.float32
    axes = (0, 1, 2) if mode == "channel" else None
    np.testing.assert_allclose(scaled.min(axis=axes), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.max(axis=axes), 1, atol=1e-6)


def test_constant_channel_maps_to_zero(rng):
    """A constant channel becomes 0, and the others fill [0, 1]."""
    images = rng.random((3, 4, 5, 2)).astype(np.float32)
    images[..., 1] = 0.3
    low, high = (f(axis=(0, 1, 2)).astype(np.float64) for f in (images.min, images.max))
    scaled = normalize(images, *min_max_scale(low, high, "channel"))
    assert not scaled[..., 1].any()
    assert scaled[..., 0].max() == pytest.approx(1)


@pytest.mark.parametrize("mode", ["global", "channel"])
def test_constant_tensor_maps_to_zero(mode):
    """The zero range of a constant tensor is not divided by."""
    low = np.array([2.5, 2.5])
    offset, scale = min_max_scale(low, low, mode)
    assert not scale.any()
    assert not normalize(np.full((2, 3, 3, 2), 2.5, np.float32), offset, scale).any()


def test_normalize_does_not_wrap_bytes():
    """uint8 pixels below the minimum of the training set become negative."""
    images = np.array([0, 10, 110], np.uint8).reshape(1, 1, 3, 1)
    scaled = normalize(images, np.array([10.0]), np.array([0.01]))
    np.testing.assert_allclose(scaled.ravel(), [-0.1, 0, 1], atol=1e-6)
