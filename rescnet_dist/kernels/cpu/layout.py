"""Compiled kernels: patch matrices (im2col) of pixels, and sums of pixels.

The channels of an image come in two arrays, the maps of a layer (n, H, W, f) and the image itself
(n, H, W, d), which are never concatenated in memory: the channels of a pixel are those of the first
and then those of the second, c = f + d.
"""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel, compile_part

WRITE_PATCHES_SIGNATURE = (
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], float32[::1], "
    "int64, float32[:,:,:,::1])"
)
GATHER_SUMS_SIGNATURE = (
    "void(float32[:,:,::1], int64[::1], float32[::1], float32[::1], float64[:,::1])"
)


@compile_part
def write_line(first: Array, second: Array, low: Array, scale: Array, line: Array) -> None:
    """Write (pixel − low)·scale of a row, first (W, f) and second (W, d), to line (W·c,)."""
    width, f, d = first.shape[0], first.shape[1], second.shape[1]
    second_low, second_scale = low[f:], scale[f:]
    for x in range(width):
        pixel, into = first[x], line[x * (f + d) : x * (f + d) + f]
        for a in range(f):
            into[a] = (pixel[a] - low[a]) * scale[a]
        pixel, into = second[x], line[x * (f + d) + f : (x + 1) * (f + d)]
        for a in range(d):
            into[a] = (pixel[a] - second_low[a]) * second_scale[a]


@compile_part
def _copy(source: Array, into: Array) -> None:
    """Copy source (n,) to into (n,)."""
    for a in range(len(into)):
        into[a] = source[a]


@compile_kernel
def write_patches(
    first: Array,
    second: Array,
    rows: Array,
    low: Array,
    scale: Array,
    size: int,
    patches: Array,
) -> None:
    """Write the patch matrix (im2col) of the images `rows` (m,) to patches (m, H, W, size²·c).

    It holds the size×size patch around every pixel, as (pixel − low)·scale, 0 outside the image.
    first (n, H, W, f), second (n, H, W, d), low and scale (c,).
    """
    height, width = first.shape[1:3]
    channels = first.shape[3] + second.shape[3]
    before = (size - 1) // 2
    row = size * channels
    padded = np.zeros((height + size - 1, (width + size - 1) * channels), patches.dtype)
    for i in range(len(rows)):
        for y in range(height):
            line = padded[before + y, before * channels : (before + width) * channels]
            write_line(first[rows[i], y], second[rows[i], y], low, scale, line)
        for y in range(height):
            for x in range(width):
                patch = patches[i, y, x]
                for down in range(size):
                    source = padded[y + down, x * channels : x * channels + row]
                    _copy(source, patch[down * row : (down + 1) * row])


@compile_kernel
def gather_sums(images: Array, rows: Array, low: Array, high: Array, sums: Array) -> None:
    """Update low and high (Wc,) by the extremes of the images `rows` (m,), and add them to sums.

    images (n, H, Wc), sums (H, Wc). Extremes are those of a column and channel, so that the values
    of a whole line are independent of each other.
    """
    height, length = sums.shape
    for y in range(height):
        total = sums[y]
        for i in range(len(rows)):
            line = images[rows[i], y]
            for x in range(length):
                low[x] = min(low[x], line[x])
                high[x] = max(high[x], line[x])
                total[x] += line[x]
