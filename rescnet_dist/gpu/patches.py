"""Products of all patches of images with themselves on a GPU, without unfolding the patches.

A row of pixels is cut into segments of k − 1 pixels, so that all pixels of a patch are in one
segment or in neighbours. The products of each segment of each row with itself, its neighbours, and
those in the k − 1 rows below are summed over all images, as one batch of matrix products; what a
pair of offsets sweeps over is then a rectangle of these sums.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas

from rescnet_dist.gpu.device import FLOAT32, HALF, PAIRS, REAL, Array, turned

ALIGNED = 4  # channels
SLAB_BYTES = 2 * 2**30  # of pixels that are worked on at a time


scaled_difference = cupy.ElementwiseKernel(
    "T x, T by, T times", "T y", "y = (x - by) * times", "rescnet_scaled_difference"
)


def gather_sums(maps: Array, images: Array) -> tuple[Any, Any, Any]:
    """The least and largest value of each channel (c,) of maps (n, H, W, f) and images (n, H, W,
    d), and the sum (H, W, c) over all of them in float64; not on the GPU any more."""
    found = []
    for part in (maps, images):
        n, height, width, channels = part.shape
        if channels:
            flat = part.reshape(n, -1)  # whose columns are many, as reductions like them
            low, high = (reduced(axis=0).reshape(-1, channels) for reduced in (flat.min, flat.max))
            sums = flat.sum(axis=0, dtype=np.float64).reshape(height, width, channels)
            found.append((low.min(axis=0), high.max(axis=0), sums))
    low, high, sums = (cupy.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
    return low.astype(np.float64).get(), high.astype(np.float64).get(), sums.get()


def patch_products(maps: Array, images: Array, size: int, shift: Any, extent: Any) -> Any:
    """Σ p pᵀ over all valid size×size patches p of maps (n, H, W, f) and images (n, H, W, d) less
    shift (c,), which they are at most extent (c,) from: (k²c, k²c) in float64, not on the GPU any
    more.

    A patch is flattened in the order row, column, channel.
    """
    n, height, width, images_channels = images.shape
    used, size_of_row = maps.shape[3] + images_channels, max(1, size - 1)
    channels = -(-used // ALIGNED) * ALIGNED  # as matrix units take them
    length, segments = size_of_row, -(-width // size_of_row)
    total = np.zeros((size, size, used, size, size, used))
    # by a power of 2, which loses nothing, to what half precision can hold
    scale = 2.0 ** -np.ceil(np.log2(np.where(extent > 0, extent, 1)))
    step = max(1, SLAB_BYTES // (4 * height * segments * length * channels))
    for start in range(0, n, step):
        some = slice(start, start + step)
        pixels = cupy.zeros((len(images[some]), height, segments * length, channels), np.float32)
        for part, first in ((maps, 0), (images, maps.shape[3])):
            if part.shape[3]:
                last = first + part.shape[3]
                by, times = (cupy.asarray(a[first:last], np.float32) for a in (shift, scale))
                scaled_difference(part[some], by, times, pixels[:, :, :width, first:last])
        found = _products(pixels, size, width, length).get()
        total += found[:, :, :used, :, :, :used]
    total /= scale[:, None, None, None] * scale
    return total.reshape(size * size * used, -1)


def _products(pixels: Array, size: int, width: int, length: int) -> Array:
    """(k, k, c, k, k, c) of pixels (n, H, W', c), of which the first W columns count."""
    _, height, across, channels = pixels.shape
    segments = across // length
    parts = turned(pixels.reshape(len(pixels), -1))
    total = cupy.zeros((size, size, channels, size, size, channels))
    for down in range(size):
        found: dict[int, Array] = {}  # by displacement: sums (H − down, W, c, c) of each place
        for aside in (-1, 0, 1) if size > 1 else (0,):
            if down == 0 and aside < 0:
                continue  # the same pairs the other way round
            batch = (height - down) * segments
            sums = _segment_products(
                parts, length * channels, down * segments + aside, batch, batch - max(0, aside)
            )
            sums = sums.reshape(height - down, segments, length, channels, length, channels)
            for one in range(length):
                for other in range(length):
                    right = aside * length + other - one
                    if abs(right) >= size or (down == 0 and right < 0):
                        continue
                    if right not in found:
                        shape = (height - down, width, channels, channels)
                        found[right] = cupy.zeros(shape, np.float32)
                    at = np.arange(segments) * length + one
                    here = np.flatnonzero((at < width) & (at + right >= 0) & (at + right < width))
                    if len(here):
                        run = slice(here[0], here[-1] + 1)
                        places = slice(at[here[0]], at[here[-1]] + 1, length)
                        found[right][:, places] = sums[:, run, one, :, other, :]
        for right, value in found.items():
            _add_rectangles(value, down, right, size, total)
    return total


def _segment_products(
    parts: tuple[Array, ...], across: int, apart: int, batch: int, useful: int
) -> Array:
    """Σ over images of each segment ⊗ that so many segments on, (batch, a, a), of parts (H·W'·c,
    n); where a row ends there is none aside, and it is of no use."""
    n = parts[0].shape[1]
    out = cupy.empty((batch, across, across), np.float32)
    one, zero = np.array(1, np.float32), np.array(0, np.float32)
    kind = HALF if parts[0].dtype == np.float16 else REAL
    for number, (left, right) in enumerate(PAIRS[len(parts)]):
        cublas.gemmStridedBatchedEx(
            cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N,
            across, across, n, one.ctypes.data,
            parts[right][apart * across :].data.ptr, kind, n, across * n,
            parts[left].data.ptr, kind, n, across * n,
            (one if number else zero).ctypes.data, out.data.ptr, REAL, across, across * across,
            useful, FLOAT32, -1,
        )  # fmt: skip
    return out


def _add_rectangles(found: Array, down: int, right: int, size: int, total: Array) -> None:
    """Add to total (k, k, c, k, k, c) what each pair of offsets, one `down` below and `right` of
    the other, sweeps over of found (H − down, W, c, c)."""
    height, width = found.shape[0] + down, found.shape[1]
    rows, columns = height - size + 1, width - size + 1
    for top in range(size - down):
        lines = found[top : top + rows].sum(axis=0, dtype=np.float64)  # (W, c, c)
        for left in range(max(0, -right), size - max(0, right)):
            value = lines[left : left + columns].sum(axis=0)
            total[top, left, :, top + down, left + right, :] = value
            if down or right:
                total[top + down, left + right, :, top, left, :] = value.T
