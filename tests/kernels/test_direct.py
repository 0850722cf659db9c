"""Test the places that convolution and patch scatter read and write, for vectors of any width.

Compiled tiles check no bounds. Here the same Python code runs with tiles that do, and with the
vectors of other processors than this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest

from rescnet_dist.bench.peers import unfold
from rescnet_dist.kernels import LayerInput
from rescnet_dist.kernels.cpu import convolution, direct, products

ROWS = direct.TILE_ROWS
VECTORS = {"neon": (4, 4), "sse": (4, 2), "avx2": (8, 2), "avx512": (16, 4)}  # floats, of a tile
SHAPES = [  # height, width, channels of maps and of images, patch size, filters
    (1, 1, 0, 1, 1, 1),
    (2, 2, 0, 1, 2, 17),
    (3, 5, 6, 1, 1, 50),
    (3, 3, 2, 3, 3, 4),
    (5, 7, 0, 1, 5, 3),
    (7, 9, 0, 2, 7, 1),
    (4, 13, 15, 3, 2, 33),
]


def add_tile_in_bounds(
    a, a_start, rows, rows_start, a_outer, a_inner, b, b_start, b_outer, b_inner,
    c, c_start, c_row, outer, inner, vectors,
):  # fmt: skip
    """Compute `add_tile` with NumPy, whose indices are checked."""
    assert outer >= 1
    assert inner >= 1
    assert 1 <= vectors <= direct.MAX_VECTORS
    i, j = np.arange(outer)[:, None], np.arange(inner)
    x = np.arange(vectors * direct.LANES)
    starts = rows[np.arange(rows_start, rows_start + ROWS)]
    a_places = a_start + starts[:, None, None] + i * a_outer + j * a_inner
    b_places = b_start + (i * b_outer + j * b_inner)[:, :, None] + x
    c_places = c_start + np.arange(ROWS)[:, None] * c_row + x
    for places in (a_places, b_places, c_places):
        assert places.min() >= 0
    factors = a[a_places].astype(np.float64), b[b_places].astype(np.float64)
    c[c_places] += np.einsum("rij,ijx->rx", *factors)


@pytest.fixture(params=VECTORS)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let kernels run as Python code, with the vectors of a processor."""
    lanes, most = VECTORS[request.param]

    def split_vectors(count: int) -> np.ndarray:
        return np.array([len(part) for part in np.array_split(np.arange(count), -(-count // most))])

    kernels: Any = direct
    for name, value in {
        "LANES": lanes,
        "MAX_VECTORS": most,
        "split_vectors": split_vectors,
        "add_tile": add_tile_in_bounds,
    }.items():
        monkeypatch.setattr(direct, name, value)
    for module in (convolution, products):
        monkeypatch.setattr(module, "kernel", lambda name: getattr(kernels, name).py_func)
    monkeypatch.setattr(products, "tile_shape", lambda: (ROWS, lanes))
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_convolution_stays_in_its_arrays(shape, vectors, rng):
    """And equals the oracle: images smaller than a tile, filters of all sizes, no image at all."""
    height, width, first, second, size, count = shape
    maps, images = (
        rng.normal(size=(3, height, width, c)).astype(np.float32) for c in (first, second)
    )
    inputs = LayerInput.of(images, maps).select(np.array([2, 0]))
    filters = rng.normal(size=(size, size, first + second, count))
    bias, low = rng.normal(size=count), rng.normal(size=first + second)
    found = convolution.convolve(inputs, filters, bias, low, np.ones_like(low), None)
    together = np.concatenate([maps, images], axis=3)[[2, 0]].astype(np.float64) - low
    np.testing.assert_allclose(found, oracle.convolve(together, filters, bias), atol=1e-4)
    none = inputs.select(slice(0))
    maps = convolution.convolve(none, filters, bias, low, np.ones_like(low), None)
    assert maps.shape == (0, height, width, count)


@pytest.mark.parametrize("shape", SHAPES)
def test_patch_scatter_stays_in_its_arrays(shape, vectors, rng, monkeypatch):
    """And equals unfolded patches, also with several batches of images and sums that are full."""
    height, width, first, second, size, _ = shape
    if size > min(height, width):
        pytest.skip("has no patch")
    monkeypatch.setattr(products, "MAX_SUMMED_PIXELS", 8)
    monkeypatch.setattr(
        products, "BATCH_BYTES", 2 * products.padded_bytes(height, width, first + second, size)
    )
    maps, images = (
        rng.normal(size=(5, height, width, c)).astype(np.float32) for c in (first, second)
    )
    inputs = LayerInput.of(images, maps, rng.uniform(0.5, 2, 5)).select(np.array([4, 0, 1]))
    shift = rng.normal(size=first + second).astype(np.float32)
    found = products.sum_displacement_products(inputs, size, shift)
    together = np.concatenate([maps, images], axis=3)[[4, 0, 1]].astype(np.float64) - shift
    together *= np.sqrt(inputs.row_weights)[:, None, None, None]
    flat = unfold(together, size).reshape(-1, size**2 * (first + second))
    expected = flat.T @ flat
    assert np.abs(found - expected).max() <= 1e-5 * expected.max()
