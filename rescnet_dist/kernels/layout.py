"""Pixels laid out beside their neighbors, as matrix products take them, and their sums, compiled.

The channels of an image come in two arrays, the maps of a layer (n, H, W, f) and the image itself
(n, H, W, d), which are never put together in memory: the channels of a pixel are those of the first
and then those of the second, c = f + d.
"""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.jit import compiled

PATCHES = (
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], float32[::1], "
    "int64, float32[:,:,:,::1])"
)
STRIPS = (
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], int64, "
    "float32[:,:,:,:,::1])"
)
DOUBLE_STRIPS = STRIPS.replace("float32[:,:,:,:,::1]", "float64[:,:,:,:,::1]")
SUMS = (
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], float32[::1], "
    "float64[:,:,::1])"
)


@compiled
def _line(first: Array, second: Array, low: Array, scale: Array, line: Array) -> None:
    """Write a row of pixels, first (W, f) and second (W, d), as (pixel − low)·scale to line
    (W·c,)."""
    width, f, d = first.shape[0], first.shape[1], second.shape[1]
    for x in range(width):
        pixel, into = first[x], line[x * (f + d) : x * (f + d) + f]
        for a in range(f):
            into[a] = (pixel[a] - low[a]) * scale[a]
        more, into = second[x], line[x * (f + d) + f : (x + 1) * (f + d)]
        for a in range(d):
            into[a] = (more[a] - low[f + a]) * scale[f + a]


@compiled
def _copy(source: Array, into: Array) -> None:
    """Write source (n,) to into (n,)."""
    for a in range(len(into)):
        into[a] = source[a]


@compiled
def lay_out_patches(
    first: Array,
    second: Array,
    rows: Array,
    low: Array,
    scale: Array,
    size: int,
    patches: Array,
) -> None:
    """Write the size×size patch about every pixel of some images (m,), as (pixel − low)·scale, 0
    outside, to patches (m, H, W, size²·c); low and scale (c,)."""
    height, width = first.shape[1:3]
    channels = first.shape[3] + second.shape[3]
    before = (size - 1) // 2
    row = size * channels
    padded = np.zeros((height + size - 1, (width + size - 1) * channels), patches.dtype)
    for i in range(len(rows)):
        for y in range(height):
            line = padded[before + y, before * channels : (before + width) * channels]
            _line(first[rows[i], y], second[rows[i], y], low, scale, line)
        for y in range(height):
            for x in range(width):
                patch = patches[i, y, x]
                for down in range(size):
                    source = padded[y + down, x * channels : x * channels + row]
                    _copy(source, patch[down * row : (down + 1) * row])


@compiled
def lay_out_strips(
    first: Array, second: Array, rows: Array, shift: Array, reach: int, strips: Array
) -> None:
    """Write every pixel of some images (m,), less shift (c,), with its neighbors up to `reach` to
    the left and right, 0 outside, to strips (H, m, W, 2·reach + 1, c)."""
    height, width = first.shape[1:3]
    channels = first.shape[3] + second.shape[3]
    one = np.ones(channels, shift.dtype)
    across = (2 * reach + 1) * channels
    line = np.zeros((width + 2 * reach) * channels, strips.dtype)
    for y in range(height):
        for i in range(len(rows)):
            inside = line[reach * channels : (reach + width) * channels]
            _line(first[rows[i], y], second[rows[i], y], shift, one, inside)
            flat = strips[y, i].reshape(width * across)
            for x in range(width):
                source = line[x * channels : x * channels + across]
                _copy(source, flat[x * across : (x + 1) * across])


@compiled
def gather_sums(
    first: Array, second: Array, rows: Array, low: Array, high: Array, sums: Array
) -> None:
    """Bring low and high (c,) up to the least and largest value of some images (m,), and add the
    images to sums (H, W, c)."""
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
                more, total = second[rows[i], y, x], sums[y, x, f:]
                for a in range(d):
                    low[f + a] = min(low[f + a], more[a])
                    high[f + a] = max(high[f + a], more[a])
                    total[a] += more[a]
