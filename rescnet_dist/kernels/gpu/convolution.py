"""The convolution of a layer on a GPU: on its matrix units, or in single precision."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.kernels.gpu.device import Array, load_module, matmul_precision
from rescnet_dist.kernels.gpu_tiles import (
    LINE_PIXELS,
    MATRIX_UNIT_CHANNELS,
    MATRIX_UNIT_TILE_PIXELS,
    Tile,
    plan_launches,
)
from rescnet_dist.kernels.inputs import LayerInput

MAX_LAUNCH_IMAGES = 2**15  # images of one kernel launch: the third dimension of its grid


def convolve(
    inputs: LayerInput, filters: Array, bias: Array, low: Array, scale: Array, into: Array | None
) -> Array:
    """Convolve (inputs − low)·scale with filters (k, k, c, f), plus bias (f,).

    low and scale (c,). Returns maps (n, H, W, f), written to `into` if given. As inputs are
    normalized and filters have unit norm, half precision can represent their parts.
    """
    maps, images = inputs.select_arrays()
    n, height, width, second = images.shape
    host_filters, host_bias, low, scale = (
        cupy.asnumpy(part) for part in (filters, bias, low, scale)
    )
    size, _, channels, count = host_filters.shape
    new_maps = cupy.empty((n, height, width, count), np.float32) if into is None else into
    for launch in plan_launches(host_filters, matmul_precision(), height, width):
        own, used = launch.filters, launch.channels
        common = {
            "FIRST_CHANNELS": channels - second,
            "SECOND_CHANNELS": second,
            "FILTERS": own.stop - own.start,
            "TOTAL_FILTERS": count,
            "SIZE": size,
            "HEIGHT": height,
            "WIDTH": width,
        }
        prepare = _prepare_matrix_units if launch.matrix_units else _prepare_single_precision
        kernel, grid, threads, weights, padded = prepare(common, host_filters[:, :, used, own])
        constants = (
            cupy.asarray(used.astype(np.int32)),
            np.int32(len(used)),
            cupy.asarray(low[used].astype(np.float32)),
            cupy.asarray(scale[used].astype(np.float32)),
            weights,
            _pad(host_bias[None, own], 1, padded),
        )
        for start in range(0, n, MAX_LAUNCH_IMAGES):
            rows = slice(start, start + MAX_LAUNCH_IMAGES)
            arguments = (maps[rows], images[rows], *constants, new_maps[rows, ..., own])
            kernel((*grid, len(images[rows])), (threads,), arguments)
    return new_maps


# Kernel, grid, threads, weights, and the padded number of filters
LaunchParameters = tuple[Any, tuple[int, int], int, Array, int]


def _prepare_single_precision(common: dict[str, int], filters: Array) -> LaunchParameters:
    """Return the launch in single precision of filters (k, k, c, f)."""
    tile = Tile.of(common["SIZE"], common["FILTERS"], common["HEIGHT"], common["WIDTH"])
    definitions = common | {
        "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": tile.columns,
        "LINE_PIXELS": LINE_PIXELS,
        "DEPTH": tile.depth,
    }
    kernel = load_module("convolution", tuple(definitions.items())).get_function("convolve")
    grid = -(-common["WIDTH"] // tile.columns), -(-common["HEIGHT"] // tile.rows)
    padded = 4 * tile.groups
    return kernel, grid, tile.threads, _pad(filters, filters.shape[2], padded), padded


def _prepare_matrix_units(common: dict[str, int], filters: Array) -> LaunchParameters:
    """Return the launch on matrix units of filters (k, k, c, f)."""
    split = matmul_precision() == "split"
    definitions = (*common.items(), ("SPLIT", int(split)))
    kernel = load_module("matrices", definitions).get_function("convolve")
    tile, depth = MATRIX_UNIT_TILE_PIXELS, MATRIX_UNIT_CHANNELS
    grid = -(-common["WIDTH"] // tile), -(-common["HEIGHT"] // tile)
    size, padded = common["SIZE"], -(-common["FILTERS"] // 8) * 8
    padded_filters = _pad(filters, -(-filters.shape[2] // depth) * depth, padded)
    # rows of filters, groups of `depth` channels, columns of filters, filters, channels
    weights = padded_filters.reshape(size, size, -1, depth, padded).transpose(0, 2, 1, 4, 3)
    high = weights.astype(np.float16)
    parts = [high, (weights - high.astype(np.float32)).astype(np.float16)]
    return kernel, grid, 16 * tile, cupy.stack(parts[: 1 + split]), padded


def _pad(array: Array, rows: int, columns: int) -> Array:
    """Return an array (…, c, f) padded with zeros to (…, rows, columns), in float32 on the GPU."""
    padded = np.zeros((*array.shape[:-2], rows, columns), np.float32)
    padded[..., : array.shape[-2], : array.shape[-1]] = array
    return cupy.asarray(padded)
