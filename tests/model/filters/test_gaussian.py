"""Test random Gaussian filters: unit norm, one random stream each."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.model import FilterGroup, NoStatistics
from rescnet_dist.model.filters.gaussian import Gaussian


def fit(count: int = 300, *, seed: int = 0, layer: int = 2, first_stream: int = 0) -> np.ndarray:
    """Return the filters (3, 3, 2, count) of a group."""
    learner = Gaussian()
    group = FilterGroup(
        layer=layer,
        filters=range(count),
        channels=(0, 1),
        input_channels=2,
        size=3,
        image_size=(8, 8),
        streams=range(first_stream, first_stream + learner.streams(count)),
        seed=seed,
    )
    filters, bias = learner.fit(NoStatistics(), group)
    assert bias.shape == (count,)
    assert not bias.any()
    return filters


def test_filters_have_unit_norm_and_no_preferred_direction() -> None:
    """Their mean is near 0, and their covariance near I/p."""
    matrix = fit(4000).reshape(18, -1)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1)
    np.testing.assert_allclose(matrix.mean(axis=1), 0, atol=0.02)
    np.testing.assert_allclose(matrix @ matrix.T / 4000, np.eye(18) / 18, atol=0.01)


@pytest.mark.parametrize("change", [{"seed": 1}, {"layer": 3}, {"first_stream": 300}])
def test_filters_depend_on_seed_layer_and_stream(change: dict[str, int]) -> None:
    """Each seed, layer and group has filters of its own, and always the same."""
    assert np.array_equal(fit(), fit())
    correlation = np.einsum("abci,abci->i", fit(), fit(**change))
    assert np.abs(correlation).mean() < 0.3


def test_more_filters_leave_the_first_ones() -> None:
    """A filter depends on its stream only."""
    assert np.array_equal(fit(5), fit(300)[..., :5])
