"""Binary hashing on a GPU: histograms of the codes of maps in blocks."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from rescnet_dist.kernels.gpu.device import Array
from rescnet_dist.kernels.gpu_tiles import HASH_SLAB_BYTES, hash_image_bytes

count_codes = cupy.ElementwiseKernel(
    "int32 code", "raw int32 counts", "atomicAdd(&counts[code], 1)", "rescnet_count_codes"
)


def hash_blocks(
    maps: Array,
    bits: int,
    block: int,
    stride: int,
    targets: np.ndarray[Any, Any],
    use_max: bool,
    shape: tuple[int, int, int, int],
    dtype: np.dtype[Any],
) -> Array:
    """Return the histograms (n, cells, f/bits, 2^bits) of maps (n, H, W, f)."""
    histograms = cupy.zeros(shape, dtype)
    (n, _, groups, bins), (_, height, width, _) = shape, maps.shape
    step = max(1, HASH_SLAB_BYTES // hash_image_bytes(height, width, groups, bits))
    for start in range(0, n, step):
        slab, into = maps[start : start + step], histograms[start : start + step]
        codes = _hash_maps(slab, bits)
        for row, column in np.ndindex(*targets.shape[:2]):
            top, left = row * stride, column * stride
            counts = cupy.zeros((len(slab), groups, bins), np.int32)
            count_codes(codes[:, top : top + block, left : left + block], counts.reshape(-1))
            counts = counts.astype(dtype)
            for cell in targets[row, column].tolist():
                if use_max:
                    cupy.maximum(into[:, cell], counts, out=into[:, cell])
                else:
                    into[:, cell] += counts
    return histograms


def _hash_maps(maps: Array, bits: int) -> Array:
    """Return where each code (n, H, W, f/bits) is counted, in counts (n, f/bits, 2^bits)."""
    n, height, width, filters = maps.shape
    groups = filters // bits
    codes = cupy.zeros((n, height, width, groups), np.int32)
    for bit in range(bits):
        codes <<= 1
        codes += maps[..., bit::bits] > 0
    histogram = cupy.arange(n * groups, dtype=np.int32).reshape(n, 1, 1, groups)
    codes += histogram << bits
    return codes
