"""Sums of products of pixels over all places of a patch, compiled."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.jit import compiled

SIGNATURE = "void(float32[:,::1], int64, int64, int64, int64, float64[:,::1])"


@compiled
def slide(pairs: Array, height: int, width: int, channels: int, size: int, total: Array) -> None:
    """Sum pairs (HWc, HWc) of pixels that are one displacement apart, which lie right of the
    diagonal, over the rectangles that the offsets of a patch sweep over, to total (k²c, k²c)."""
    rows, columns = height - size + 1, width - size + 1
    line = width * channels
    by_column = np.empty((size, width))
    for down in range(size):
        for right in range(1 - size if down else 0, size):
            begin, end = max(0, -right), width - max(0, right)
            for i in range(channels):
                for j in range(channels):
                    apart = down * line + right * channels + j - i
                    if apart < 0:
                        continue  # the same pixel: seen as (j, i)
                    for x in range(begin, end):
                        first, value = x * channels + i, 0.0
                        for y in range(rows):
                            value += pairs[y * line + first, y * line + first + apart]
                        by_column[0, x] = value
                        for top in range(1, size - down):
                            new, old = (top + rows - 1) * line + first, (top - 1) * line + first
                            value += pairs[new, new + apart]
                            value -= pairs[old, old + apart]
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
