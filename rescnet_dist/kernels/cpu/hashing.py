"""Binary hashing on the CPU: histograms of the codes of maps in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.loading import kernel


def hash_blocks(
    maps: Array,
    bits: int,
    block: int,
    stride: int,
    targets: Array,
    use_max: bool,
    shape: tuple[int, int, int, int],
    dtype: np.dtype[Any],
) -> Array:
    """Return the histograms (n, cells, f/bits, 2^bits) of maps (n, H, W, f)."""
    histograms = np.zeros(shape, dtype)
    maps = np.ascontiguousarray(maps, np.float32)
    kernel("hash_blocks")(maps, bits, block, stride, targets, use_max, histograms)
    return histograms
