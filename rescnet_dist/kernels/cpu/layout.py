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
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], float32[::1], "
    "float64[:,:,::1])"
)


@compile_part
def write_line(first: Array, second: Array, low: Array, scale: Array, line: Array) -> None:
    """Write (pixel − low)·scale of a row, first (W, f) and second (W, d), to line (W·c,)."""
    width, f, d = first.shape[0], first.shape[1], second.shape[1]
    for x in range(width):
        pixel, into = first[x], line[x * (f + d) : x * (f + d) + f]
        for a in range(f):
            into[a] = (pixel[a] - low[a]) * scale[a]
        second_pixel, into = second[x], line[x * (f + d) + f : (x + 1) * (f + d)]
        for a in range(d):
            into[a] = (second_pixel[a] - low[f + a]) * scale[f + a]


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
def gather_sums(
    first: Array, second: Array, rows: Array, low: Array, high: Array, sums: Array
) -> None:
    """Update low and high (c,) by the extremes of the images `rows` (m,), and add them to sums.

    first (n, H, W, f), second (n, H, W, d), sums (H, W, c).
    """
    height, width, f, d = first.shape[1], first.shape[2], first.shape[3], second.shape[3]
    for i in range(len(rows)):
        for y in range(height):
            for x in range(width):
                pixel, total = first[rows[i], y, x], sums[y, x]
                for a in range(f):
                    low[a] = min(low[a], pixel[a])
                    high[a] = max(high[a], pixel[a])
                for a in range(f):
                    total[a] += pixel[a]
                second_pixel, total = second[rows[i], y, x], sums[y, x, f:]
                for a in range(d):
                    low[f + a] = min(low[f + a], second_pixel[a])
                    high[f + a] = max(high[f + a], second_pixel[a])
                    total[a] += second_pixel[a]
