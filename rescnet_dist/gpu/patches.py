"""Products of all patches of images with themselves on a GPU, without unfolding the patches.

A row of pixels is cut into segments of k − 1 pixels, so that all pixels of a patch are in one
segment or in neighbors. The products of each segment of each row with itself and its neighbors,
in its own row and in the k − 1 rows below, are summed over all images, as one batch of matrix
products; what a pair of offsets sweeps over is then a rectangle of these sums.
"""

from __future__ import annotations

from functools import lru_cache

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas

from rescnet_dist.gpu.device import (
    FLOAT32,
    HALF,
    PAIRS,
    REAL,
    Array,
    aligned,
    module,
    transpose_pixels,
)
from rescnet_dist.kernels.gpu_tiles import PATCH_SLAB_BYTES, Segments

MOST_SUMMED = 8192  # images, by matrix units, which round towards zero: sums of more lose digits
CHANNELS = 64  # that are worked on side by side


def patch_products(maps: Array, images: Array, size: int, shift: Array, extent: Array) -> Array:
    """Σ p pᵀ over all valid size×size patches p of maps (n, H, W, f) and images (n, H, W, d) less
    shift (c,), which they are at most extent (c,) from: (k²c, k²c) in float64.

    A patch is flattened in the order row, column, channel.
    """
    maps, images = (cupy.ascontiguousarray(part, np.float32) for part in (maps, images))
    n, height, width, images_channels = images.shape
    used = maps.shape[3] + images_channels
    cut = Cut.of(size, height, width, used)
    # by a power of 2, which loses nothing, to what half precision can hold
    extent = cupy.where(extent > 0, extent, 1)
    scale = cupy.ldexp(cupy.ones_like(extent), -cupy.ceil(cupy.log2(extent)).astype(np.int32))
    by, times = shift.astype(np.float32), scale.astype(np.float32)
    step = max(1, PATCH_SLAB_BYTES // cut.image_bytes)
    slabs = [slice(start, start + step) for start in range(0, n, step)]

    @lru_cache(maxsize=1)  # one slab, as it mostly is, is turned round once
    def parts_of(number: int) -> tuple[Array, ...]:
        some = maps[slabs[number]], images[slabs[number]]
        return transpose_pixels(some, by, times, cut.length, cut.across, cut.channels)

    total = cupy.empty((size, size, used, size, size, used))
    for down in range(size):
        sums = cut.empty_sums(down)
        for number in range(len(slabs)):
            cut.add_products(sums, parts_of(number), down)
        cut.sweep(sums, down, total)
    total /= scale[:, None, None, None] * scale
    return total.reshape(size * size * used, -1)


class Cut(Segments):
    """Segments of pixels whose products are summed on a GPU."""

    __slots__ = ()

    def empty_sums(self, down: int) -> Array:
        """Room for the products of all segments, (H − down, S + 1, l, c, g·l, c), g being the
        neighbors; what is in the last segment of each row is of no use."""
        beside = len(self.neighbors(down)) * self.length
        return cupy.zeros(
            (
                self.height - down, self.segments + 1, self.length, self.channels, beside,
                self.channels,
            ),
            np.float32,
        )  # fmt: skip

    def add_products(self, sums: Array, parts: tuple[Array, ...], down: int) -> None:
        """Add the sum over images of parts (pixels·c, n), each segment ⊗ its neighbors."""
        n, each = parts[0].shape[1], self.length * self.channels
        around, batch = self.neighbors(down), (self.height - down) * (self.segments + 1) - 1
        beside = (down * (self.segments + 1) + 1 + around[0]) * each
        one = np.array(1, np.float32)
        kind = HALF if parts[0].dtype == np.float16 else REAL
        for left, right, start, stop in self.products_of(len(parts), n):
            cublas.gemmStridedBatchedEx(
                cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N,
                len(around) * each, each, stop - start, one.ctypes.data,
                parts[right][beside:, start:].data.ptr, kind, n, each * n,
                parts[left][each:, start:].data.ptr, kind, n, each * n,
                one.ctypes.data, sums.data.ptr, REAL, len(around) * each, len(around) * each * each,
                batch, FLOAT32, -1,
            )  # fmt: skip

    @staticmethod
    def products_of(parts: int, n: int) -> list[tuple[int, int, int, int]]:
        """Which of so many parts are multiplied, over which of n images, each start to stop: what
        half precision leaves is so small that digits lost of it are none of the sum."""
        step = aligned(-(-n // -(-n // MOST_SUMMED)))
        few = [(start, min(start + step, n)) for start in range(0, n, step)]
        return [(*p, *s) for p in PAIRS[parts] for s in (few if p == (0, 0) else [(0, n)])]

    def sweep(self, sums: Array, down: int, total: Array) -> None:
        """Put into total (k, k, c', k, k, c'), of the channels that are used, what each pair of
        offsets, one `down` below the other, sweeps over: a rectangle of the sums."""
        around, used = self.neighbors(down), total.shape[2]
        module("rectangles", ()).get_function("sweep")(
            ((self.size - down) * self.size**2, used), (CHANNELS,),
            (sums, total, *map(np.int32, (
                self.size, self.height, self.width, self.channels, used, self.length,
                self.segments, len(around), around[0], down,
            ))),
        )  # fmt: skip
