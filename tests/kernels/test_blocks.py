"""Test the places that second-order features read and write, for vectors of any width.

Compiled tiles check no bounds. Here the same Python code runs with tiles that do, and with the
vectors of other processors than this one.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from test_direct import VECTORS, add_tile_in_bounds

from rescnet_dist.kernels import second_order_features
from rescnet_dist.kernels.cpu import blocks, deviations, direct, pooling, tiles, windows
from rescnet_dist.kernels.cpu.aligned import aligned_zeros
from rescnet_dist.kernels.cpu.vectors import LANES, TILE_ROWS
from rescnet_dist.kernels.pooling import second_order_bytes
from rescnet_dist.model.features.second_order import SecondOrder

GRIDS = [  # height, width, block, stride, filters
    (2, 2, 2, 1, 2),
    (6, 5, 4, 1, 7),  # products of single pixels
    (9, 7, 4, 2, 17),  # cells of 2×2 pixels
    (7, 8, 3, 2, 5),  # few blocks contain a pixel
    (7, 11, 2, 3, 3),  # pixels between blocks
    (8, 8, 8, 4, 33),  # one block
    (4, 4, 2, 2, 1),
]
MAX_SLACK_BYTES = 8 * 2**10  # of all buffers, for tiles that begin before the end of one


@pytest.fixture(params=VECTORS)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the kernel run as Python code, with the vectors of a processor."""
    lanes, most = VECTORS[request.param]
    floats = TILE_ROWS * lanes
    row, lane = np.arange(TILE_ROWS)[:, None], np.arange(lanes)

    def locate(array: np.ndarray, places: np.ndarray) -> np.ndarray:
        assert 0 <= places.min() <= places.max() < len(array)
        return places

    def load(array, start, step):
        return array[locate(array, start + row * step + lane)]

    def store(array, start, step, tile):
        array[locate(array, start + row * step + lane)] = tile

    replaced = {
        "LANES": lanes,
        "MAX_VECTORS": most,
        "TILE_FLOATS": floats,
        "load_tile": load,
        "store_tile": store,
        "repeat_vector": lambda array, start: load(array, start, 0),
        "spread_floats": lambda array, start: array[locate(array, start + row + 0 * lane)],
        "fill_tile": lambda value: np.full((TILE_ROWS, lanes), value),
        "add": np.add,
        "multiply": np.multiply,
        "multiply_add": lambda a, b, c: a * b + c,
        "subtract_product": lambda c, a, b: c - a * b,
        "maximum": np.maximum,
        "add_tile": add_tile_in_bounds,
        "allocate_zeros": lambda count, like: np.zeros(count + 2 * floats, like.dtype),
    }
    modules = blocks, deviations, windows, direct
    for module, (name, value) in itertools.product(modules, replaced.items()):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(pooling, "kernel", lambda _: blocks.pool_blocks.py_func)
    return request.param


@pytest.mark.parametrize("zscore", ["channel", "block"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_features_stay_in_their_arrays(grid, zscore, vectors, rng):
    """And equal the oracle: images of one block, few and many filters, a constant channel."""
    height, width, block, stride, filters = grid
    maps = rng.normal(size=(2, height, width, filters)).astype(np.float32)
    maps[0, :, :, 0] = 3
    extractor = SecondOrder(block=block, stride=stride, levels=(2, 1), zscore=zscore)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = second_order_features(maps, block, stride, (2, 1), zscore=zscore)
    expected = oracle.second_order_features(maps.astype(np.float64), extractor)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def compare_almost_constant(rng: np.random.Generator, filters: int, zscore: str) -> None:
    """Compare features of channels that hardly vary in the halves of an image with the oracle."""
    image = 1e-2 * rng.normal(size=(8, 10, filters)) + np.linspace(0.5, 3, filters)
    image[:, 5:] += 2
    maps = image[None].astype(np.float32)
    extractor = SecondOrder(block=5, stride=5, levels=(1,), zscore=zscore)
    found = second_order_features(maps, 5, 5, (1,), zscore=zscore)
    expected = oracle.second_order_features(maps.astype(np.float64), extractor)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("zscore", ["channel", "block"])
@pytest.mark.parametrize("filters", [5, 7, 12, 17])
def test_channels_computed_again_stay_in_their_arrays(filters, zscore, vectors, rng):
    """And equal the oracle: fewer than the rows of a tile, a whole one, and some more."""
    compare_almost_constant(rng, filters, zscore)


@pytest.mark.parametrize("zscore", ["channel", "block"])
@pytest.mark.parametrize("filters", [1, 6, 7, 33, 100])
def test_compiled_channels_computed_again_equal_oracle(filters, zscore, rng):
    """With the vectors of this processor, in tiles of one and of two columns."""
    compare_almost_constant(rng, filters, zscore)


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize(("block", "stride"), [(5, 1), (6, 2), (7, 4), (4, 4), (3, 5)])
@pytest.mark.parametrize("filters", [2, 3, 6, 7, 15, 16, 17, 18, 33, 50, 67])
def test_features_of_any_number_of_filters_equal_oracle(filters, block, stride, pool, rng):
    """Pairs of channels are divided into groups of vectors, which the last ones do not fill."""
    mix = np.eye(filters) + rng.normal(size=(filters, filters)) / filters
    maps = rng.normal(size=(2, 11, 12, filters)) @ mix
    maps[1, :6, :, -1] = -1  # no variance in some blocks
    extractor = SecondOrder(block=block, stride=stride, levels=(2, 1), pool=pool)
    expected = oracle.second_order_features(maps, extractor)
    found = second_order_features(maps.astype(np.float32), block, stride, (2, 1), pool=pool)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("count", [1, 100, 12345])
def test_vectors_begin_where_lines_of_the_cache_do(count):
    """Vectors that are parts of two lines take twice as long."""
    like = np.zeros(1, np.float32)
    arrays = [(count, lanes, aligned_zeros(count, lanes, like)) for lanes in (4, 8, 16)]
    arrays.append((count + tiles.TILE_SLACK, LANES, tiles.allocate_zeros(count, like)))
    for length, lanes, found in arrays:
        assert len(found) == length
        assert not found.any()
        assert found.ctypes.data % (found.itemsize * lanes) == 0


@pytest.mark.parametrize("grid", [(20, 16, 3, 1, 3), (16, 12, 4, 2, 20)], ids=str)
def test_bytes_of_buffers_are_at_least_those_allocated(grid, vectors, monkeypatch):
    """And few more with the widest vectors, if all channels are constant in all blocks."""
    height, width, block, stride, filters = grid
    allocated = []

    def record(allocate):
        def allocate_and_record(*args):
            allocated.append((array := allocate(*args)).nbytes)
            return array

        return allocate_and_record

    monkeypatch.setattr(blocks, "allocate_zeros", record(blocks.allocate_zeros))
    monkeypatch.setattr(blocks, "np", SimpleNamespace(**vars(np) | {"empty": record(np.empty)}))
    options = {"block": block, "stride": stride, "levels": (2, 1)}
    second_order_features(np.ones((1, height, width, filters), np.float32), **options)
    expected = second_order_bytes(height, width, filters, **options)
    assert sum(allocated) < expected + MAX_SLACK_BYTES
    if vectors == "avx512":
        assert sum(allocated) > 0.95 * expected


@pytest.mark.parametrize("channelwise", [True, False])
def test_channels_without_variance_are_not_computed_again(
    rng: np.random.Generator, vectors: str, *, channelwise: bool
) -> None:
    """They are multiplied by 0 if each channel has its own deviation.

    Of two blocks, the first has a constant channel, the second one that hardly varies.
    """
    values = rng.normal(size=(4, 8, 3)).astype(np.float32)
    values[:, :4, 1] = 2
    values[:, 4:, 2] = 5 + 1e-3 * values[:, 4:, 2]
    by_block = values.reshape(4, 2, 4, 3).transpose(1, 0, 2, 3).reshape(2, 16, 3)
    means, variance, inverse = np.empty((3, 2, 3), np.float32)
    starts, channels = np.empty(3, np.int64), np.empty(6, np.int32)
    found = deviations.find_recomputed(
        by_block.sum(axis=1), (by_block**2).sum(axis=1), 16, means, variance, starts, channels
    )
    assert (found, starts.tolist(), channels[:2].tolist()) == (2, [0, 1, 2], [1, 2])
    covariances, overall = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
    floats, rows = deviations.TILE_FLOATS, np.zeros(TILE_ROWS, np.int64)
    flat = np.concatenate([values.reshape(-1), np.zeros(2 * floats, np.float32)])
    centered, products = np.zeros(20 * floats, np.float32), np.zeros(8 * floats, np.float32)
    deviations.normalize(
        flat, 8, overall, 2, 4, 4, channelwise, starts, channels, centered, rows, products,
        means, variance, inverse, covariances,
    )  # fmt: skip
    kept = [2] if channelwise else [1, 2]
    assert starts.tolist() == ([0, 0, 1] if channelwise else [0, 1, 2])
    assert channels[: len(kept)].tolist() == kept
    centered = by_block[1].astype(float) - by_block[1].mean(axis=0, dtype=float)
    expected = centered.T @ centered[:, 2] / 16 * inverse[1] * inverse[1, 2]
    np.testing.assert_allclose(covariances[len(kept) - 1], expected, rtol=1e-3, atol=1e-6)
