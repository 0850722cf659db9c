"""Compiled kernel: sums of products of pixels over all positions of a patch."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel

SUM_OVER_PATCHES_SIGNATURE = "void(float32[:,::1], int64, int64, int64, int64, float64[:,::1])"


@compile_kernel
def sum_over_patches(
    pairs: Array, height: int, width: int, channels: int, size: int, total: Array
) -> None:
    """Sum products of pixels over all patch positions, for every pair of patch elements.

    pairs (HWc, HWc) are the products of all pairs of pixels, of which the upper triangle is read.
    For each displacement between two pixels, products are summed over the rectangle of pixels that
    an offset of the patch visits, with sliding window sums, to total (k²c, k²c).
    """
    rows, columns = height - size + 1, width - size + 1
    line = width * channels
    by_column = np.empty((size, width))
    for down in range(size):
        for right in range(1 - size if down else 0, size):
            begin, end = max(0, -right), width - max(0, right)
            for i in range(channels):
                for j in range(channels):
                    displacement = down * line + right * channels + j - i
                    if displacement < 0:
                        continue  # the same pixel: counted as (j, i)
                    for x in range(begin, end):
                        first, value = x * channels + i, 0.0
                        for y in range(rows):
                            value += pairs[y * line + first, y * line + first + displacement]
                        by_column[0, x] = value
                        for top in range(1, size - down):
                            new, old = (top + rows - 1) * line + first, (top - 1) * line + first
                            value += pairs[new, new + displacement]
                            value -= pairs[old, old + displacement]
                            by_column[top, x] = value
                    for top in range(size - down):
                        value = 0.0
                        for x in range(begin, begin + columns):
                            value += by_column[top, x]
                        for left in range(begin, size - max(0, right)):
                            if left > begin:
                                value += by_column[top, left + columns - 1]
                                value -= by_column[top, left - 1]
                            a = (top * size + left) * channels + i
                            b = ((top + down) * size + left + right) * channels + j
                            total[a, b] = total[b, a] = value
