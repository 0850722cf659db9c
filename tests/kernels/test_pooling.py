"""Test second-order pooling and the spatial pyramid."""

from __future__ import annotations

from itertools import product

import numpy as np
import oracle
import pytest

from rescnet_dist.kernels import feature_count, second_order_features
from rescnet_dist.kernels.pooling import assign_cells
from rescnet_dist.model.features.second_order import SecondOrder

OPTIONS = [
    {"zscore": zscore, "pool": pool, "cells": cells, "power": power}
    for zscore, pool, cells, power in product(
        ("channel", "block"), ("max", "mean"), ("center", "even"), (False, True)
    )
]
GRIDS = [  # height, width, block, stride, levels
    (12, 12, 4, 4, (4, 2, 1)),  # adjacent blocks
    (11, 14, 4, 3, (4, 2, 1)),  # no axis is a multiple of block or stride
    (13, 8, 3, 5, (2, 1)),  # stride larger than the block
    (7, 10, 7, 2, (4, 2, 1)),  # one row of blocks
    (6, 6, 6, 1, (2, 1)),  # one block
    (9, 12, 4, 2, (3, 1)),  # a level that is not a power of 2
]


def make_maps(
    rng: np.random.Generator, n: int, height: int, width: int, filters: int
) -> np.ndarray:
    """Return maps with correlated channels, about half of the pixels positive."""
    mix = rng.normal(size=(filters, filters)) + np.eye(filters)
    return rng.normal(size=(n, height, width, filters)) @ mix


def make_extractor(grid, **options) -> SecondOrder:
    """Return the extractor of the features on a grid."""
    _, _, block, stride, levels = grid
    return SecondOrder(block=block, stride=stride, levels=levels, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_features_equal_oracle(grid, options, rng):
    """All options on all grids are equal to rounding, in float64 and in float32."""
    maps, extractor = make_maps(rng, 3, *grid[:2], 4), make_extractor(grid, **options)
    expected = oracle.second_order_features(maps, extractor)
    found = extractor(maps, (4,))
    assert found.shape == expected.shape
    # rounding of 1e-15 in a covariance near 0 is 3e-8 after its square root
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 if options["power"] else 1e-12)
    single = extractor(maps.astype(np.float32), (4,))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-3 if options["power"] else 1e-5)


@pytest.mark.parametrize("options", OPTIONS[::4], ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("filters", [2, 5])
def test_feature_count_is_the_number_of_features(grid, options, filters, rng):
    """D is known before any image is read."""
    height, width, block, stride, levels = grid
    extractor = make_extractor(grid, **options)
    features = extractor(make_maps(rng, 1, height, width, filters), (filters,))
    count = feature_count(
        height,
        width,
        filters,
        block=block,
        stride=stride,
        levels=levels,
        cells=options["cells"],
        zscore=options["zscore"],
    )
    assert features.shape == (1, count)
    assert extractor.count(height, width, (filters,)) == count


def test_one_block_gives_the_correlations_of_relu(rng):
    """One block over the whole map gives the upper triangle of NumPy's correlation matrix."""
    maps = make_maps(rng, 2, 9, 9, 4)
    features = second_order_features(maps, 9, 1, (1,))
    for image, row in zip(maps, features, strict=True):
        table = np.maximum(image, 0).reshape(-1, 4)
        np.testing.assert_allclose(row, np.corrcoef(table.T)[np.triu_indices(4, 1)], atol=1e-12)


def test_block_zscore_gives_covariance_over_variance_of_the_block(rng):
    """All channels of a block share one deviation, and the diagonal is included."""
    maps = make_maps(rng, 2, 9, 9, 3) * [1, 10, 0.1]
    features = second_order_features(maps, 9, 1, (1,), zscore="block")
    for image, row in zip(maps, features, strict=True):
        table = np.maximum(image, 0).reshape(-1, 3)
        expected = np.cov(table.T, ddof=0) / table.var()
        np.testing.assert_allclose(row, expected[np.triu_indices(3)], atol=1e-12)


def test_max_and_mean_pooling_over_the_blocks_of_a_cell(rng):
    """Level 1 pools over all blocks, level 2 over those of a quarter."""
    maps = make_maps(rng, 1, 8, 8, 3)
    by_block = second_order_features(maps, 2, 2, (4,)).reshape(4, 4, 3)
    for pool, reduce in (("max", np.max), ("mean", np.mean)):
        found = second_order_features(maps, 2, 2, (2, 1), pool=pool).reshape(5, 3)
        quarters = [
            reduce(by_block[y : y + 2, x : x + 2], axis=(0, 1)) for y, x in product((0, 2), (0, 2))
        ]
        np.testing.assert_allclose(found, [*quarters, reduce(by_block, axis=(0, 1))], atol=1e-12)


def test_power_is_the_signed_square_root_before_pooling(rng):
    """Cells have one block, or the mean of several."""
    maps = make_maps(rng, 3, 8, 8, 4)
    plain = second_order_features(maps, 4, 4, (2,))
    assert (plain < 0).any()
    root = np.sign(plain) * np.sqrt(np.abs(plain))
    found = second_order_features(maps, 4, 4, (2,), power=True)
    np.testing.assert_allclose(found, root, atol=1e-12)
    mean = second_order_features(maps, 4, 4, (1,), pool="mean", power=True)
    np.testing.assert_allclose(mean, root.reshape(3, 4, -1).mean(axis=1), atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, -1.0, 0.1, 1e6])
def test_maps_without_variance_give_zeros(options, dtype, value):
    """Features of constant and all-negative maps are 0, not NaN."""
    maps = np.full((2, 7, 9, 3), value, dtype)
    features = second_order_features(maps, 5, 2, (2, 1), **options)
    assert features.shape[0] == 2
    assert not features.any()


@pytest.mark.parametrize("block", [2, 7, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_channel_gives_zeros(block, dtype, rng):
    """This holds for any constant and any number of pixels."""
    upper = list(zip(*np.triu_indices(3, 1), strict=True))
    with_constant = [1 in pair for pair in upper]
    for value in (0.1, 1 / 3, 7.7, 12345.6):
        maps = rng.random((1, block, block, 3)).astype(dtype)
        maps[..., 1] = value
        features = second_order_features(maps, block, 1, (1,))[0]
        assert not features[with_constant].any()
        assert features[np.logical_not(with_constant)].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_channel_has_no_covariance_with_block_zscore(dtype, rng):
    """zscore="block" also subtracts the mean of each channel, so that its covariance is 0."""
    upper = list(zip(*np.triu_indices(3), strict=True))
    with_constant = [1 in pair for pair in upper]
    maps = rng.random((4, 7, 7, 3)).astype(dtype)
    maps[..., 1] = 1 / 3
    features = second_order_features(maps, 7, 1, (1,), zscore="block")
    np.testing.assert_allclose(features[:, with_constant], 0, atol=1e-9)
    assert (np.abs(features[:, np.logical_not(with_constant)]) > 1e-4).all()


def test_channel_constant_in_one_block_is_zero_there(rng):
    """The other blocks of the channel have their correlations."""
    maps = rng.random((1, 4, 8, 2))
    maps[0, :, :4, 0] = 0.5
    features = second_order_features(maps, 4, 4, (2,))
    expected = np.corrcoef(maps[0, :, 4:].reshape(-1, 2).T)[0, 1]
    np.testing.assert_allclose(features, [[0, expected]], atol=1e-12)


def test_correlations_do_not_depend_on_the_scale_of_a_channel(rng):
    """zscore="channel" divides by each channel's own deviation."""
    maps = make_maps(rng, 2, 8, 9, 3)
    one = second_order_features(maps, 4, 2, (2, 1))
    other = second_order_features(maps * [1e-3, 5.0, 1e4], 4, 2, (2, 1))
    np.testing.assert_allclose(one, other, atol=1e-10)


def test_nan_is_propagated(rng):
    """A NaN in an image makes all its features NaN, and no others."""
    maps = make_maps(rng, 2, 9, 8, 3)
    expected = second_order_features(maps[1:], 4, 3, (2, 1))
    maps[0, 2, 2, 1] = np.nan
    found = second_order_features(maps, 4, 3, (2, 1))
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], expected)


def test_block_larger_than_the_image_raises(rng):
    """The error names the block and the image size."""
    with pytest.raises(ValueError, match=r"block=9 does not fit into 9×8 pixels"):
        second_order_features(make_maps(rng, 1, 9, 8, 3), 9, 3, (2, 1))


def test_features_of_an_image_do_not_depend_on_the_others(rng):
    """They are equal bit for bit."""
    maps = make_maps(rng, 7, 9, 8, 3)
    whole = second_order_features(maps, 4, 3, (2, 1))
    single = [second_order_features(maps[n : n + 1], 4, 3, (2, 1)) for n in range(7)]
    np.testing.assert_array_equal(np.concatenate(single), whole)
    assert second_order_features(maps[:0], 4, 3, (2, 1)).shape == (0, whole.shape[1])


def test_center_cells_at_cifar_size():
    """Blocks of 16 at stride 4 on 32 pixels leave 7 of 21 center cells empty, and no even cell."""
    options = {"block": 16, "stride": 4, "levels": (4, 2, 1)}
    assert feature_count(32, 32, 50, **options) == 14 * 50 * 49 // 2
    assert feature_count(32, 32, 50, **options, cells="even") == 21 * 50 * 49 // 2
    assert feature_count(32, 32, 50, **options, zscore="block") == 14 * 50 * 51 // 2


@pytest.mark.parametrize("cells", ["center", "even"])
@pytest.mark.parametrize("level", [1, 2, 4])
@pytest.mark.parametrize("length", [7, 12, 28, 33])
def test_cells_equal_oracle(length, level, cells):
    """This holds for many blocks and strides; cells never decrease along an axis."""
    for block, stride in product((2, 3, 5, 7), (1, 2, 3, 8)):
        starts = oracle.block_starts(length, block, stride)
        expected = oracle.block_cells(starts, length, block, level, cells)
        found = assign_cells(length, block, stride, level, cells)
        assert [cell + 1 for cell in found] == expected
        assert found == sorted(found)
        assert 0 <= found[0] <= found[-1] < level
