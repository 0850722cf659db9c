"""The convolution of a layer on a GPU: on its matrix units, or in single precision throughout."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.gpu.device import Array, module, products
from rescnet_dist.kernels.gpu_tiles import DEPTH, LINE, TILE, Tile, on_matrix_units

AT_ONCE = 2**15  # images


def convolve(
    inputs: tuple[Array, Array],
    filters: Array,
    bias: Array,
    low: Array,
    scale: Array,
    into: Array | None = None,
) -> Array:
    """Maps (n, H, W, f) of (inputs − low)·scale, inputs being maps (n, H, W, a), a may be 0, and
    images (n, H, W, d): stride 1, zero padding, filters (k, k, a + d, f), bias (f,). Written to
    `into` where it is given.

    Inputs are normalised, and filters of unit norm, so that half precision can hold their parts.
    """
    maps, images = inputs
    n, height, width, second = images.shape
    size, _, channels, count = filters.shape
    common = {
        "FIRST": channels - second, "SECOND": second, "FILTERS": count, "SIZE": size,
        "HEIGHT": height, "WIDTH": width,
    }  # fmt: skip
    matrices = on_matrix_units(size, channels, count, products())
    cut = _on_matrix_units if matrices else _in_single_precision
    kernel, grid, threads, weights, added = cut(common, filters, bias)
    made = cupy.empty((n, height, width, count), np.float32) if into is None else into
    low, scale = cupy.asarray(low, np.float32), cupy.asarray(scale, np.float32)
    for start in range(0, n, AT_ONCE):
        some = slice(start, start + AT_ONCE)
        arguments = (maps[some], images[some], low, scale, weights, added, made[some])
        kernel((*grid, len(images[some])), (threads,), arguments)
    return made


Cut = tuple[Any, tuple[int, int], int, Array, Array]  # kernel, grid, threads, weights, bias


def _in_single_precision(common: dict[str, int], filters: Array, bias: Array) -> Cut:
    size, count = common["SIZE"], common["FILTERS"]
    tile = Tile.of(size, count, common["HEIGHT"], common["WIDTH"])
    definitions = common | {
        "TILE_ROWS": tile.rows, "TILE_COLUMNS": tile.columns, "LINE": LINE, "DEPTH": tile.depth,
    }  # fmt: skip
    kernel = module("convolution", tuple(definitions.items())).get_function("convolve")
    grid = -(-common["WIDTH"] // tile.columns), -(-common["HEIGHT"] // tile.rows)
    weights = _filled(filters, filters.shape[2], 4 * tile.groups)
    added = _filled(bias[None], 1, 4 * tile.groups)
    return kernel, grid, tile.threads, weights, added


def _on_matrix_units(common: dict[str, int], filters: Array, bias: Array) -> Cut:
    split = products() == "split"
    kernel = module("matrices", (*common.items(), ("SPLIT", int(split)))).get_function("convolve")
    grid = -(-common["WIDTH"] // TILE), -(-common["HEIGHT"] // TILE)
    size, wide = common["SIZE"], -(-common["FILTERS"] // 8) * 8
    whole = _filled(filters, -(-filters.shape[2] // DEPTH) * DEPTH, wide)
    # rows of filters, 16 channels at a time, their columns, filters, channels
    weights = whole.reshape(size, size, -1, DEPTH, wide).transpose(0, 2, 1, 4, 3)
    high = weights.astype(np.float16)
    parts = [high, (weights - high.astype(np.float32)).astype(np.float16)]
    return kernel, grid, 16 * TILE, cupy.stack(parts[: 1 + split]), _filled(bias[None], 1, wide)


def _filled(array: Array, rows: int, columns: int) -> Array:
    """An array (…, c, f) in single precision, filled up with zeros to (…, rows, columns)."""
    whole = cupy.zeros((*array.shape[:-2], rows, columns), np.float32)
    whole[..., : array.shape[-2], : array.shape[-1]] = cupy.asarray(array, np.float32)
    return whole
