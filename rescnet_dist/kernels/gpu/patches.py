"""Products of all patches of images with themselves on a GPU, without unfolding the patches.

A row of pixels is divided into segments of k − 1 pixels, so that a row of a patch lies in one
segment or in two adjacent ones. The products of each segment of each row with itself and its
neighbors, in its own row and in the k − 1 rows below, are summed over all images, as one batch of
matrix products. The sum for a pair of offsets in a patch is then that over a rectangle of these.
"""

from __future__ import annotations

from functools import lru_cache

import cupy
import numpy as np

from rescnet_dist._compat import load_cuda_library
from rescnet_dist.kernels.gpu.device import (
    CUBLAS_COMPUTE_32F,
    CUDA_R_16F,
    CUDA_R_32F,
    PRODUCT_PARTS,
    Array,
    align,
    load_module,
    transpose_pixels,
)
from rescnet_dist.kernels.gpu_tiles import PATCH_SLAB_BYTES, Segments
from rescnet_dist.kernels.inputs import LayerInput

cublas, get_cublas_handle = load_cuda_library("cublas")

# Summed at a time by matrix units, which round towards zero: sums of more would lose digits
MAX_SUMMED_IMAGES = 8192
CHANNEL_THREADS = 64  # threads of a block of `sum_rectangles`, one per channel


def patch_products(inputs: LayerInput, size: int, shift: Array, extent: Array) -> Array:
    """Return Σ p pᵀ (k²c, k²c) over all valid size×size patches p of inputs − shift, in float64.

    shift (c,); extent (c,) bounds |inputs − shift|. A patch is flattened in the order row, column,
    channel. Pixels are multiplied by the root of the weight of their image, if there are weights.
    """
    maps, images = (cupy.ascontiguousarray(part, np.float32) for part in inputs.select_arrays())
    n, height, width, image_channels = images.shape
    used = maps.shape[3] + image_channels
    grid = SegmentGrid.of(size, height, width, used)
    roots = None
    if inputs.weights is not None:
        roots = cupy.sqrt(cupy.asarray(inputs.row_weights)).astype(np.float32)
        extent = extent * roots.max()
    # scaled by a power of 2, which is exact, to the range of half precision
    extent = cupy.where(extent > 0, extent, 1)
    scale = cupy.ldexp(cupy.ones_like(extent), -cupy.ceil(cupy.log2(extent)).astype(np.int32))
    float_shift, float_scale = shift.astype(np.float32), scale.astype(np.float32)
    step = max(1, PATCH_SLAB_BYTES // grid.image_bytes)
    slabs = [slice(start, start + step) for start in range(0, n, step)]

    @lru_cache(maxsize=1)  # usually there is one slab, which is transposed only once
    def transpose_slab(number: int) -> tuple[Array, ...]:
        """Return the transposed pixels of a slab."""
        slab = maps[slabs[number]], images[slabs[number]]
        factors = None if roots is None else roots[slabs[number]]
        return transpose_pixels(
            slab, float_shift, float_scale, factors, grid.length, grid.row_pixels, grid.channels
        )

    total = cupy.empty((size, size, used, size, size, used))
    for down in range(size):
        sums = grid.zero_sums(down)
        for number in range(len(slabs)):
            grid.add_products(sums, transpose_slab(number), down)
        grid.sum_rectangles(sums, down, total)
    total /= scale[:, None, None, None] * scale
    return total.reshape(size * size * used, -1)


class SegmentGrid(Segments):
    """Segments of pixels whose products are summed on a GPU."""

    __slots__ = ()

    def zero_sums(self, down: int) -> Array:
        """Return zeros for the products of all segments, (H − down, S + 1, l, c, g·l, c).

        g is the number of neighbors. The last segment of each row will hold meaningless values.
        """
        neighbor_pixels = len(self.neighbors(down)) * self.length
        return cupy.zeros(
            (
                self.height - down,
                self.segments + 1,
                self.length,
                self.channels,
                neighbor_pixels,
                self.channels,
            ),
            np.float32,
        )

    def add_products(self, sums: Array, parts: tuple[Array, ...], down: int) -> None:
        """Add the products of each segment with its neighbors, summed over images, to sums.

        parts (pixels·c, n) as of `transpose_pixels`.
        """
        n, segment = parts[0].shape[1], self.length * self.channels
        neighbors, batch = self.neighbors(down), (self.height - down) * (self.segments + 1) - 1
        first_neighbor = (down * (self.segments + 1) + 1 + neighbors[0]) * segment
        one = np.array(1, np.float32)
        data_type = CUDA_R_16F if parts[0].dtype == np.float16 else CUDA_R_32F
        for left, right, start, stop in self.plan_products(len(parts), n):
            cublas.gemmStridedBatchedEx(
                get_cublas_handle(),
                cublas.CUBLAS_OP_T,
                cublas.CUBLAS_OP_N,
                len(neighbors) * segment,
                segment,
                stop - start,
                one.ctypes.data,
                parts[right][first_neighbor:, start:].data.ptr,
                data_type,
                n,
                segment * n,
                parts[left][segment:, start:].data.ptr,
                data_type,
                n,
                segment * n,
                one.ctypes.data,
                sums.data.ptr,
                CUDA_R_32F,
                len(neighbors) * segment,
                len(neighbors) * segment * segment,
                batch,
                CUBLAS_COMPUTE_32F,
                -1,
            )

    @staticmethod
    def plan_products(parts: int, n: int) -> list[tuple[int, int, int, int]]:
        """Return the products to compute: left and right part, first and last of n images.

        Products of rounded numbers are summed over a limited number of images. Those with
        remainders are so small that the digits lost in their sums do not matter.
        """
        step = align(-(-n // -(-n // MAX_SUMMED_IMAGES)))
        ranges = [(start, min(start + step, n)) for start in range(0, n, step)]
        return [
            (*p, *s) for p in PRODUCT_PARTS[parts] for s in (ranges if p == (0, 0) else [(0, n)])
        ]

    def sum_rectangles(self, sums: Array, down: int, total: Array) -> None:
        """Write the products of all pairs of offsets, one `down` below the other, to total.

        Each is the sum over the rectangle of `sums` that the pair of offsets visits. total is of
        shape (k, k, c', k, k, c'), where c' are the channels without padding.
        """
        neighbors, used = self.neighbors(down), total.shape[2]
        load_module("rectangles", ()).get_function("sum_rectangles")(
            ((self.size - down) * self.size**2, used),
            (CHANNEL_THREADS,),
            (
                sums,
                total,
                *map(
                    np.int32,
                    (
                        self.size,
                        self.height,
                        self.width,
                        self.channels,
                        used,
                        self.length,
                        self.segments,
                        len(neighbors),
                        neighbors[0],
                        down,
                    ),
                ),
            ),
        )
