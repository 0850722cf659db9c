"""Test products of matrices whose sums stay in registers."""

from __future__ import annotations

import numpy as np
import pytest

from rescnet_dist.kernels.cpu.loading import tile_shape
from rescnet_dist.kernels.cpu.registers import add_tile, split_vectors
from rescnet_dist.kernels.cpu.vectors import MAX_VECTORS, choose_lanes

ROWS, LANES = tile_shape()


@pytest.mark.parametrize("vectors", range(1, MAX_VECTORS + 1))
@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (3, 5), (2, 40)])
def test_tile_equals_a_sum_of_outer_products(vectors, outer, inner, rng):
    """Rows and columns of both factors are anywhere in their arrays; other sums stay."""
    count, a_steps, b_steps = vectors * LANES, (47, 3), (700, 70)
    a = rng.normal(size=4000).astype(np.float32)
    b = rng.normal(size=5000).astype(np.float32)
    sums = rng.normal(size=ROWS * 80 + 20).astype(np.float32)
    rows = rng.permutation(1000)
    expected = sums.astype(np.float64)
    for row in range(ROWS):
        for i in range(outer):
            for j in range(inner):
                factor = float(a[11 + rows[2 + row] + i * a_steps[0] + j * a_steps[1]])
                start = 5 + i * b_steps[0] + j * b_steps[1]
                place = 9 + row * 80
                expected[place : place + count] += factor * b[start : start + count]
    found = sums.copy()
    add_tile(a, 11, rows, 2, *a_steps, b, 5, *b_steps, found, 9, 80, outer, inner, vectors)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5)
    untouched = np.ones(len(sums), bool)
    for row in range(ROWS):
        untouched[9 + row * 80 : 9 + row * 80 + count] = False
    np.testing.assert_array_equal(found[untouched], sums[untouched])


def test_sums_do_not_depend_on_the_division_into_tiles(rng):
    """A tile of several vectors, and its loops in two halves, give the same bits."""
    count = MAX_VECTORS * LANES
    a, b = rng.normal(size=600).astype(np.float32), rng.normal(size=9000).astype(np.float32)
    rows = np.arange(ROWS) * 50
    whole, parts = np.zeros((2, ROWS * count), np.float32)
    add_tile(a, 0, rows, 0, 0, 1, b, 0, 0, count, whole, 0, count, 1, 50, MAX_VECTORS)
    for x in range(0, count, LANES):
        for begin in (0, 25):
            b_start = begin * count + x
            add_tile(a, begin, rows, 0, 0, 1, b, b_start, 0, count, parts, x, count, 1, 25, 1)
    np.testing.assert_array_equal(parts, whole)


def test_vectors_are_divided_evenly():
    """No part is narrow: a tile of one vector would be slower."""
    for vectors in range(1, 60):
        parts = split_vectors(vectors)
        assert parts.sum() == vectors
        assert parts.max() <= MAX_VECTORS
        assert parts.max() - parts.min() <= 1


@pytest.mark.parametrize(
    ("is_x86", "name", "features", "lanes"),
    [
        (False, None, {"neon"}, 4),
        (True, None, {"avx2", "fma", "avx512f"}, 16),
        (True, None, {"avx2", "fma"}, 8),
        (True, None, {"sse2"}, 4),
        (True, "x86-64-v4", set(), 16),  # kernels compiled ahead
        (True, "x86-64-v3", set(), 8),
    ],
)
def test_vectors_are_those_of_the_processor(is_x86, name, features, lanes):
    """A target that kernels are compiled for ahead is known by its name."""
    assert choose_lanes(is_x86, name, features) == lanes
