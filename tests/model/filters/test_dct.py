"""Test the DCT filters: orthonormal cosines from low to high frequency."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.model import FilterGroup, NoStatistics
from rescnet_dist.model.filters.dct import DCT


def make_group(size: int, channels: int, count: int) -> FilterGroup:
    """Return a group of filters that sees all channels of a layer."""
    return FilterGroup(
        layer=1,
        filters=range(count),
        channels=tuple(range(channels)),
        input_channels=channels,
        size=size,
        image_size=(16, 16),
    )


@pytest.mark.parametrize(("size", "channels"), [(3, 1), (5, 1), (3, 3), (2, 4)])
def test_all_filters_are_an_orthonormal_basis(size: int, channels: int) -> None:
    """There are as many as a patch has elements."""
    count = DCT().max_filters(size * size * channels)
    filters, bias = DCT().fit(NoStatistics(), make_group(size, channels, count))
    assert filters.shape == (size, size, channels, count)
    assert not bias.any()
    matrix = filters.reshape(-1, count)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(count), atol=1e-12)


def test_filters_are_the_cosines_of_the_definition() -> None:
    """cos(π(i + ½)u/k), scaled to unit norm, in zigzag order of the frequencies."""
    filters, _ = DCT().fit(NoStatistics(), make_group(4, 1, 6))
    pixel = np.arange(4)
    for (u, v), found in zip(
        [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0)], filters.transpose(3, 0, 1, 2), strict=True
    ):
        expected = np.outer(*(np.cos(np.pi * (pixel + 0.5) * f / 4) for f in (u, v)))
        np.testing.assert_allclose(
            found[..., 0], expected / np.linalg.norm(expected), atol=1e-12, err_msg=f"{u}, {v}"
        )


def test_first_filters_do_not_depend_on_their_number() -> None:
    """More filters add higher frequencies."""
    few, many = (DCT().fit(NoStatistics(), make_group(3, 3, n))[0] for n in (4, 20))
    assert np.array_equal(few, many[..., :4])
