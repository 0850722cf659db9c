"""Compiled kernel: histograms of binary codes of maps in blocks of pixels."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel

HASH_BLOCKS_SIGNATURES = tuple(
    f"void(float32[:,:,:,::1], int64, int64, int64, int64[:,:,::1], boolean, {counts}[:,:,:,::1])"
    for counts in ("uint8", "uint16", "uint32")
)


@compile_kernel
def hash_blocks(
    maps: Array,
    bits: int,
    block: int,
    stride: int,
    targets: Array,
    use_max: bool,
    histograms: Array,
) -> None:
    """Count the codes of maps (n, H, W, f) in blocks to histograms (n, cells, f/bits, 2^bits).

    targets (rows, columns, m) are the cells of each block. Histograms are zeros before; the largest
    count of a cell's blocks is kept, or counts are summed.
    """
    n, height, width, filters = maps.shape
    groups = filters // bits
    rows, columns, levels = targets.shape
    codes = np.empty((groups, height, width), np.int64)
    counts = np.zeros(1 << bits, np.int64)
    for image in range(n):
        for y in range(height):
            for x in range(width):
                pixel = maps[image, y, x]
                for group in range(groups):
                    code = 0
                    for bit in range(group * bits, (group + 1) * bits):
                        code = 2 * code + (1 if pixel[bit] > 0 else 0)
                    codes[group, y, x] = code
        for row in range(rows):
            for column in range(columns):
                cells = targets[row, column]
                top, left = row * stride, column * stride
                for group in range(groups):
                    area = codes[group, top : top + block, left : left + block]
                    for y in range(block):
                        for x in range(block):
                            counts[area[y, x]] += 1
                    for y in range(block):
                        for x in range(block):
                            code = area[y, x]
                            count = counts[code]  # 0 if it was seen before
                            counts[code] = 0
                            for level in range(levels):
                                cell = cells[level]
                                before = histograms[image, cell, group, code]
                                if not use_max:
                                    histograms[image, cell, group, code] = before + count
                                elif count > before:
                                    histograms[image, cell, group, code] = count
