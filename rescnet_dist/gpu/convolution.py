"""The convolution of a layer on a GPU: on its matrix units, or in single precision throughout."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.gpu.device import Array, matmul_precision, module
from rescnet_dist.kernels.gpu_tiles import DEPTH, LINE, TILE, Tile, launches

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

    Inputs are normalized, and filters of unit norm, so that half precision can hold their parts.
    """
    maps, images = inputs
    n, height, width, second = images.shape
    host, added, low, scale = (cupy.asnumpy(part) for part in (filters, bias, low, scale))
    size, _, channels, count = host.shape
    made = cupy.empty((n, height, width, count), np.float32) if into is None else into
    for launch in launches(host, matmul_precision(), height, width):
        own, seen = launch.filters, launch.channels
        common = {
            "FIRST": channels - second, "SECOND": second, "FILTERS": own.stop - own.start,
            "OF": count, "SIZE": size, "HEIGHT": height, "WIDTH": width,
        }  # fmt: skip
        cut = _on_matrix_units if launch.matrix_units else _in_single_precision
        kernel, grid, threads, weights, wide = cut(common, host[:, :, seen, own])
        constants = (
            cupy.asarray(seen.astype(np.int32)),
            np.int32(len(seen)),
            cupy.asarray(low[seen].astype(np.float32)),
            cupy.asarray(scale[seen].astype(np.float32)),
            weights,
            _filled(added[None, own], 1, wide),
        )
        for start in range(0, n, AT_ONCE):
            some = slice(start, start + AT_ONCE)
            arguments = (maps[some], images[some], *constants, made[some, ..., own])
            kernel((*grid, len(images[some])), (threads,), arguments)
    return made


# Kernel, grid, threads, weights, and what the number of filters is filled up to
Cut = tuple[Any, tuple[int, int], int, Array, int]


def _in_single_precision(common: dict[str, int], filters: Array) -> Cut:
    tile = Tile.of(common["SIZE"], common["FILTERS"], common["HEIGHT"], common["WIDTH"])
    definitions = common | {
        "TILE_ROWS": tile.rows, "TILE_COLUMNS": tile.columns, "LINE": LINE, "DEPTH": tile.depth,
    }  # fmt: skip
    kernel = module("convolution", tuple(definitions.items())).get_function("convolve")
    grid = -(-common["WIDTH"] // tile.columns), -(-common["HEIGHT"] // tile.rows)
    wide = 4 * tile.groups
    return kernel, grid, tile.threads, _filled(filters, filters.shape[2], wide), wide


def _on_matrix_units(common: dict[str, int], filters: Array) -> Cut:
    split = matmul_precision() == "split"
    kernel = module("matrices", (*common.items(), ("SPLIT", int(split)))).get_function("convolve")
    grid = -(-common["WIDTH"] // TILE), -(-common["HEIGHT"] // TILE)
    size, wide = common["SIZE"], -(-common["FILTERS"] // 8) * 8
    whole = _filled(filters, -(-filters.shape[2] // DEPTH) * DEPTH, wide)
    # rows of filters, 16 channels at a time, their columns, filters, channels
    weights = whole.reshape(size, size, -1, DEPTH, wide).transpose(0, 2, 1, 4, 3)
    high = weights.astype(np.float16)
    parts = [high, (weights - high.astype(np.float32)).astype(np.float16)]
    return kernel, grid, 16 * TILE, cupy.stack(parts[: 1 + split]), wide


def _filled(array: Array, rows: int, columns: int) -> Array:
    """An array (…, c, f), filled up with zeros to (…, rows, columns), in single precision on the
    GPU."""
    whole = np.zeros((*array.shape[:-2], rows, columns), np.float32)
    whole[..., : array.shape[-2], : array.shape[-1]] = array
    return cupy.asarray(whole)
