"""What a layer sees: two arrays that are as good as one, and some of their rows."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from rescnet_dist.bench.peers import unfold
from rescnet_dist.kernels import LayerInput, convolve, patch_scatter
from rescnet_dist.kernels.patches import patch_statistics

ROWS = np.array([4, 0, 3])


@pytest.fixture(params=[(2, 1), (7, 3), (0, 2), (12, 1)], ids=str)
def both(request, rng) -> tuple[LayerInput, np.ndarray]:
    """Some rows of maps and images, and the same put together, (3, 6, 7, c) float32."""
    f, d = request.param
    maps = rng.normal(2, 3, (5, 6, 7, f)).astype(np.float32)
    images = rng.normal(-1, 1, (5, 6, 7, d)).astype(np.float32)
    together = np.concatenate([maps, images], axis=3)
    return LayerInput.of(images, maps).only(ROWS), together[ROWS]


def test_shape_and_length_are_those_of_the_rows(both):
    """Of whatever is meant, in parts too."""
    inputs, together = both
    assert (len(inputs), *inputs.shape) == together.shape
    assert [len(part) for part in inputs.parts(2)] == [2, 1]
    assert inputs.only(np.array([False, True, False])).rows.tolist() == [0]


def test_statistics_are_those_of_the_concatenation(both):
    """Range, mean and scatter."""
    inputs, together = both
    low, high, moments = patch_statistics(inputs, 3)
    np.testing.assert_array_equal(low, together.min(axis=(0, 1, 2)))
    np.testing.assert_array_equal(high, together.max(axis=(0, 1, 2)))
    expected = patch_scatter(together, 3)
    np.testing.assert_array_equal(moments.scatter, expected.scatter)
    np.testing.assert_allclose(moments.mean, expected.mean, atol=1e-12)


def test_maps_are_those_of_the_normalized_concatenation(both, rng):
    """To the last digits of the naive convolution, with 0 outside the normalized image."""
    inputs, together = both
    channels = together.shape[3]
    filters, bias = rng.normal(size=(3, 3, channels, 4)), rng.normal(size=4)
    low, scale = rng.normal(size=channels), rng.uniform(0.5, 2, channels)
    expected = oracle.convolve((together.astype(np.float64) - low) * scale, filters, bias)
    into = np.empty((3, 6, 7, 4), np.float32)
    assert convolve(inputs, filters, bias, low, scale, into) is into
    np.testing.assert_allclose(into, expected, atol=2e-5 * np.abs(expected).max())


def test_windows_are_patches_at_their_places(both):
    """Row by row, then column, then channel."""
    inputs, together = both
    row, y, x = np.array([2, 0, 0]), np.array([3, 0, 2]), np.array([0, 4, 1])
    expected = unfold(together, 3)[row, y, x].reshape(3, -1)
    np.testing.assert_array_equal(inputs.windows(3, row, y, x), expected)


def test_no_rows_have_no_statistics(both):
    """And do not fail."""
    inputs, together = both
    low, high, moments = patch_statistics(inputs.only(slice(0)), 3)
    assert np.isinf(low).all()
    assert np.isinf(high).all()
    assert moments.count == 0
    assert moments.scatter.shape == (9 * together.shape[3],) * 2
