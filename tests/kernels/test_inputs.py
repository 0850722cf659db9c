"""Test the input of a layer: two arrays that act as their concatenation, and selected rows."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from rescnet_dist.bench.peers import unfold
from rescnet_dist.kernels import LayerInput, convolve, patch_scatter
from tests.patch_statistics import patch_statistics

ROWS = np.array([4, 0, 3])


@pytest.fixture(params=[(2, 1), (7, 3), (0, 2), (12, 1)], ids=str)
def inputs_and_array(request, rng) -> tuple[LayerInput, np.ndarray]:
    """Return some rows of maps and images, and their concatenation (3, 6, 7, c) in float32."""
    f, d = request.param
    maps = rng.normal(2, 3, (5, 6, 7, f)).astype(np.float32)
    images = rng.normal(-1, 1, (5, 6, 7, d)).astype(np.float32)
    concatenated = np.concatenate([maps, images], axis=3)
    return LayerInput.of(images, maps).select(ROWS), concatenated[ROWS]


def test_shape_and_length_are_those_of_the_rows(inputs_and_array):
    """This holds for selections and batches too."""
    inputs, concatenated = inputs_and_array
    assert (len(inputs), *inputs.shape) == concatenated.shape
    assert [len(batch) for batch in inputs.batches(2)] == [2, 1]
    assert inputs.select(np.array([False, True, False])).rows.tolist() == [0]


def test_statistics_are_those_of_the_concatenation(inputs_and_array):
    """Range, mean and scatter are equal."""
    inputs, concatenated = inputs_and_array
    low, high, moments = patch_statistics(inputs, 3)
    np.testing.assert_array_equal(low, concatenated.min(axis=(0, 1, 2)))
    np.testing.assert_array_equal(high, concatenated.max(axis=(0, 1, 2)))
    expected = patch_scatter(concatenated, 3)
    np.testing.assert_array_equal(moments.scatter, expected.scatter)
    np.testing.assert_allclose(moments.mean, expected.mean, atol=1e-12)


def test_maps_are_those_of_the_normalized_concatenation(inputs_and_array, rng):
    """They equal the naive convolution, with 0 outside the normalized image."""
    inputs, concatenated = inputs_and_array
    channels = concatenated.shape[3]
    filters, bias = rng.normal(size=(3, 3, channels, 4)), rng.normal(size=4)
    low, scale = rng.normal(size=channels), rng.uniform(0.5, 2, channels)
    expected = oracle.convolve((concatenated.astype(np.float64) - low) * scale, filters, bias)
    into = np.empty((3, 6, 7, 4), np.float32)
    assert convolve(inputs, filters, bias, low, scale, into) is into
    np.testing.assert_allclose(into, expected, atol=2e-5 * np.abs(expected).max())


def test_extracted_patches_are_at_their_positions(inputs_and_array):
    """Patches are flattened in the order row, column, channel."""
    inputs, concatenated = inputs_and_array
    row, y, x = np.array([2, 0, 0]), np.array([3, 0, 2]), np.array([0, 4, 1])
    expected = unfold(concatenated, 3)[row, y, x].reshape(3, -1)
    np.testing.assert_array_equal(inputs.extract_patches(3, row, y, x), expected)


def test_statistics_of_no_rows(inputs_and_array):
    """They are empty, and no error is raised."""
    inputs, concatenated = inputs_and_array
    low, high, moments = patch_statistics(inputs.select(slice(0)), 3)
    assert np.isinf(low).all()
    assert np.isinf(high).all()
    assert moments.count == 0
    assert moments.scatter.shape == (9 * concatenated.shape[3],) * 2


def test_taken_channels_are_those_of_the_rows(inputs_and_array):
    """Rows and their weights are copied, too."""
    inputs, concatenated = inputs_and_array
    weights = np.array([1.0, 2, 3, 4, 5])
    channels = (0, concatenated.shape[3] - 1)
    taken = LayerInput.of(inputs.images, inputs.maps, weights).select(ROWS).take(channels)
    found = np.concatenate(taken.select_arrays(), axis=3)
    np.testing.assert_array_equal(found, concatenated[..., channels])
    np.testing.assert_array_equal(taken.row_weights, weights[ROWS])
