"""The convolution of a layer on a GPU: on its matrix units, or in single precision throughout."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.gpu.device import Array, module, products

SHARED = 44 * 1024  # bytes that a block of threads holds
MOST_HELD = 48 * 1024  # that it may
LINE = 8  # neighbours in a row that a thread works on
MOST_THREADS = 512
FEW_CHANNELS, DEPTH = 8, 16  # matrix units take 16 at a time, so that fewer would be wasted on them
TILE = 16  # pixels along the side of what a block of threads works on there
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
    fits = channels >= FEW_CHANNELS and _held(size, count) <= MOST_HELD
    cut = _on_matrix_units if fits and products() != "float32" else _in_single_precision
    kernel, grid, threads, weights, added = cut(common, filters, bias)
    made = cupy.empty((n, height, width, count), np.float32) if into is None else into
    low, scale = cupy.asarray(low, np.float32), cupy.asarray(scale, np.float32)
    for start in range(0, n, AT_ONCE):
        some = slice(start, start + AT_ONCE)
        arguments = (maps[some], images[some], low, scale, weights, added, made[some])
        kernel((*grid, len(images[some])), (threads,), arguments)
    return made


def _held(size: int, count: int) -> int:
    """Bytes that a block of threads holds on matrix units."""
    side, wide = TILE + size - 1, -(-count // 8) * 8
    return 2 * 2 * (DEPTH + 8) * (side**2 + size * wide)


Cut = tuple[Any, tuple[int, int], int, Array, Array]  # kernel, grid, threads, weights, bias


def _in_single_precision(common: dict[str, int], filters: Array, bias: Array) -> Cut:
    size, count = common["SIZE"], common["FILTERS"]
    groups = -(-count // 4)
    columns = -(-min(common["WIDTH"], 32) // LINE) * LINE
    rows = max(1, min(MOST_THREADS // (groups * (columns // LINE)), 8, common["HEIGHT"]))
    each = 4 * ((rows + size - 1) * (columns + size) + 4 * size * size * groups)
    definitions = common | {
        "TILE_ROWS": rows, "TILE_COLUMNS": columns, "LINE": LINE,
        "DEPTH": max(1, min(8, SHARED // each)),
    }  # fmt: skip
    kernel = module("convolution", tuple(definitions.items())).get_function("convolve")
    grid = -(-common["WIDTH"] // columns), -(-common["HEIGHT"] // rows)
    weights = _filled(filters, filters.shape[2], 4 * groups)
    added = _filled(bias[None], 1, 4 * groups)
    return kernel, grid, groups * rows * (columns // LINE), weights, added


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
