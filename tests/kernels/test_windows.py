"""Test sums of windows of tiles."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from rescnet_dist.kernels.cpu.tiles import TILE_FLOATS
from rescnet_dist.kernels.cpu.vectors import LANES, TILE_ROWS
from rescnet_dist.kernels.cpu.windows import sum_product_windows, sum_windows

WINDOWS = [
    (1, 1, 1),
    (1, 2, 3),
    (4, 1, 9),
    (16, 1, 17),
    (5, 1, 30),
    (7, 2, 9),
    (7, 4, 3),
    (8, 3, 1),
]


@numba.njit
def _sum(parts, place, other, step, length, every, run_sums, sums, count):
    sum_windows(parts, place, other, step, length, every, run_sums, sums, 0, TILE_FLOATS, count)


@numba.njit
def _sum_products(parts, place, other, step, length, every, run_sums, sums, count):
    sum_product_windows(
        parts, place, other, step, length, every, run_sums, sums, 0, TILE_FLOATS, count
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_windows_equal_their_sums(dtype, rng):
    """Of tiles, and of products of values, for all lengths, steps and counts."""
    values = rng.normal(size=9000).astype(dtype)
    row, lane = np.arange(TILE_ROWS)[:, None], np.arange(LANES)
    for length, every, count in WINDOWS:
        for compute, part_step, first, second in (
            (_sum, TILE_FLOATS + 3, 5, 5),
            (_sum_products, 60, 2, 31),
        ):
            starts = np.arange((count - 1) * every + length)[:, None, None] * part_step
            parts = values[first + starts + row * LANES + lane].astype(np.float64)
            if compute is _sum_products:
                parts = values[first + starts + row].astype(np.float64)
                parts = parts * values[second + starts + lane]
            expected = [parts[i * every :][:length].sum(axis=0) for i in range(count)]
            sums = np.zeros(count * TILE_FLOATS, dtype)
            run_sums = np.full((length + 1) * TILE_FLOATS, np.nan, dtype)
            compute(values, first, second, part_step, length, every, run_sums, sums, count)
            found = sums.reshape(count, TILE_ROWS, LANES)
            np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5)
