"""Products of all patches of images with themselves, without unfolding the patches.

A k×k patch has k⁴ pairs of offsets but only (2k−1)² displacements between them: what is summed for
one pair is what is summed for another of the same displacement, but for the pixels at the border
that one sweeps over and the other does not. Two ways follow from that. Either pays in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array, gpu_kernels, on_gpu
from rescnet_dist.kernels.blas import add_scatter
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.loading import kernel

STRIP_BYTES = 16 * 2**20  # of pixels with their neighbors that are held at a time
MOST_SUMMED = 4096  # pixels, in single precision: sums of more would lose digits
FEW_CHANNELS = 8  # which BLAS sums one by one: in double precision, as they cost little
MOST_PIXELS = 4096  # in all channels, of which all pairs are held


def patch_products(inputs: LayerInput, size: int, shift: Array, extent: Array) -> Array:
    """Σ p pᵀ over all valid size×size patches p of inputs less shift (c,), which they are at
    most extent (c,) from: (k²c, k²c).

    A patch is flattened in the order row, column, channel.
    """
    if on_gpu(inputs.images):
        return gpu_kernels().patch_products(*inputs.chosen(), size, shift, extent)
    height, width, channels = inputs.shape
    if pair_cost(height, width, channels) <= displacement_cost(height, width, channels, size):
        return products_of_pairs(inputs, size, shift)
    return products_of_displacements(inputs, size, shift)


def pair_cost(height: int, width: int, channels: int) -> float:
    """Multiplications of `products_of_pairs` per image."""
    pixels = height * width * channels
    return pixels**2 / 2 if pixels <= MOST_PIXELS else np.inf


def displacement_cost(height: int, width: int, channels: int, size: int) -> float:
    """Multiplications of `products_of_displacements` per image."""
    border = 1 + 2 * (size - 1) * (1 / height + 1 / width)
    per_pixel = size + (size - 1) * (2 * size - 1)
    return border * height * width * channels**2 * per_pixel


# all pairs of pixels: for small images and large patches ------------------------------------------


def products_of_pairs(inputs: LayerInput, size: int, shift: Array) -> Array:
    """`patch_products`, from the products of all pairs of pixels of an image."""
    height, width, channels = inputs.shape
    pixels = height * width * channels
    total = np.zeros((size * size * channels,) * 2)
    found = np.empty_like(total)
    for part in inputs.parts(MOST_SUMMED // 8):
        centered = np.empty((len(part), height, width, channels), np.float32)
        part.patches(1, shift, np.ones_like(shift), centered)
        pairs = np.zeros((pixels, pixels), np.float32, order="F")
        add_scatter(pairs, centered.reshape(-1, pixels))
        kernel("slide")(pairs.T, height, width, channels, size, found)
        total += found
    return total


# all displacements: for any images ----------------------------------------------------------------


def products_of_displacements(inputs: LayerInput, size: int, shift: Array) -> Array:
    """`patch_products`, from one matrix product for all displacements by so many rows down.

    Every pixel is multiplied with the strip of its neighbors size − 1 to the left and right in the
    row `down` below it. What rows and columns at the border have in the sum, which a pair of
    offsets does not sweep over, is taken off.
    """
    height, width, channels = inputs.shape
    kind = np.dtype(np.float64 if channels < FEW_CHANNELS else np.float32)
    reach, across = size - 1, (2 * size - 1) * channels
    sums = [_Sums.zeros(size, down, channels) for down in range(size)]
    each = height * width * across
    step = max(1, min(STRIP_BYTES // (kind.itemsize * each), MOST_SUMMED // width))
    memory = np.empty(min(step, len(inputs)) * each, kind)
    for part in inputs.parts(step):
        strips = memory[: len(part) * each].reshape(height, len(part), width, -1, channels)
        part.strips(shift, reach, strips)
        for down in range(size):
            sums[down].add(strips, down)
    total = np.zeros((size, size, channels, size, size, channels))
    for down in range(size):
        _put(sums[down], down, total)
    return total.reshape(size * size * channels, -1)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Σ pixel·strip, (c, wc), of all pixels and the strips `down` below them, and what is in it of
    single rows (2, k', …) at the top and bottom, k' = k − 1 − down, of columns (2, k − 1, …) at the
    left and right, and of pixels where these meet, (2, k', 2, k − 1, …). Of columns, that which no
    offset leaves out is not there."""

    whole: Array
    rows: Array
    columns: Array
    corners: Array

    @classmethod
    def zeros(cls, size: int, down: int, channels: int) -> _Sums:
        """Sums of nothing."""
        one, reach, few = (channels, (2 * size - 1) * channels), size - 1, size - 1 - down
        return cls(
            np.zeros(one), np.zeros((2, few, *one)), np.zeros((2, reach, *one)),
            np.zeros((2, few, 2, reach, *one)),
        )  # fmt: skip

    def add(self, strips: Array, down: int) -> None:
        """Add what is in strips (H, m, W, 2k − 1, c)."""
        height, m, width, places, channels = strips.shape
        reach, across = places // 2, places * channels
        pixels = strips[: height - down, :, :, reach]  # (H', m, W, c)
        beside = strips[down:].reshape(height - down, m, width, across)
        first = 0 if down else reach * channels  # in the same row, those to the right
        few = self.rows.shape[1]
        whole, *rows = _by_rows(
            pixels.reshape(height - down, m * width, channels),
            beside.reshape(height - down, m * width, across)[:, :, first:],
            few,
        )
        self.whole[:, first:] += whole
        for side in range(2):
            self.rows[side, :, :, first:] += rows[side]
        for column in range(reach):
            places_used = slice((reach - column) * channels, (2 * reach - column) * channels)
            for side, x in enumerate((column, width - reach + column)):
                found, *corners = _by_rows(pixels[:, :, x], beside[:, :, x, places_used], few)
                self.columns[side, column, :, places_used] += found
                for edge in range(2):
                    self.corners[edge, :, side, column, :, places_used] += corners[edge]


def _by_rows(pixels: Array, beside: Array, few: int) -> tuple[Array, Array, Array]:
    """Σ pixelsᵀ·beside of all rows of pixels (H', m, c) and beside (H', m, w), (c, w), and the same
    of each of the first and the last few rows, (few, c, w); few pixels at a time, so that sums in
    single precision keep their digits."""
    height, m, channels = pixels.shape
    top, bottom = (
        pixels[rows].transpose(0, 2, 1) @ beside[rows]
        for rows in (slice(few), slice(height - few, height))
    )
    total = np.zeros((channels, beside.shape[2]))
    first, last = 0, height
    if height >= 2 * few:
        first, last = few, height - few
        total += top.sum(axis=0, dtype=np.float64) + bottom.sum(axis=0, dtype=np.float64)
    step = max(1, MOST_SUMMED // m)
    for start in range(first, last, step):
        rows = slice(start, min(start + step, last))
        total += pixels[rows].reshape(-1, channels).T @ beside[rows].reshape(-1, beside.shape[2])
    return total, top, bottom


def _put(sums: _Sums, down: int, total: Array) -> None:
    """Put the sums for all pairs of offsets of which one is `down` below the other into total
    (k, k, c, k, k, c): that of all pixels, less the border that they do not sweep over."""
    size, channels = total.shape[1:3]
    outside = [  # of the rows that an offset in row `top` of the patch sweeps over
        ((0, slice(top)), (1, slice(top, None))) for top in range(size)
    ]
    for top in range(size - down):
        swept = sums.whole - sum(sums.rows[part].sum(axis=0) for part in outside[top])
        sides = sums.columns - sum(sums.corners[part].sum(axis=0) for part in outside[top])
        for left in range(size):
            value = swept - sum(sides[part].sum(axis=0) for part in outside[left])
            first = 0 if down else left  # the place of the leftmost pixel beside it in the patch
            beside = value.reshape(channels, 2 * size - 1, channels)
            beside = beside[:, size - 1 + first - left :][:, : size - first]
            total[top, left, :, top + down, first:] = beside
            total[top + down, first:, :, top, left] = beside.transpose(1, 2, 0)
