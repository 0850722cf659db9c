"""Products of all patches of images with themselves on the CPU, without unfolding the patches.

A k×k patch has k⁴ pairs of offsets but only (2k−1)² displacements between them: the sums of two
pairs of offsets with the same displacement differ only in the pixels at the border that one of them
visits and the other does not. Two algorithms follow from that; the cheaper one is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.blas import add_scatter
from rescnet_dist.kernels.cpu.loading import kernel
from rescnet_dist.kernels.cpu.pixels import write_patches, write_row_windows
from rescnet_dist.kernels.inputs import LayerInput

ROW_WINDOW_BYTES = 16 * 2**20  # size of the row windows of pixels that are held at a time
MAX_SUMMED_PIXELS = 4096  # in single precision: sums of more would lose digits
# With fewer channels BLAS sums one by one; double precision is used then, as it costs little
MIN_FLOAT32_CHANNELS = 8
MAX_PAIR_PIXELS = 4096  # times channels, up to which products of all pairs of pixels are held


def patch_products(inputs: LayerInput, size: int, shift: Array, extent: Array) -> Array:
    """Return Σ p pᵀ (k²c, k²c) over all valid size×size patches p of inputs − shift.

    shift (c,); extent (c,) bounds |inputs − shift|. A patch is flattened in the order row, column,
    channel. Pixels are multiplied by the root of the weight of their image, if there are weights.
    """
    height, width, channels = inputs.shape
    if pair_cost(height, width, channels) <= displacement_cost(height, width, channels, size):
        return sum_pair_products(inputs, size, shift)
    return sum_displacement_products(inputs, size, shift)


def pair_cost(height: int, width: int, channels: int) -> float:
    """Return the multiplications of `sum_pair_products` per image, infinite if not possible."""
    pixels = height * width * channels
    return pixels**2 / 2 if pixels <= MAX_PAIR_PIXELS else np.inf


def displacement_cost(height: int, width: int, channels: int, size: int) -> float:
    """Return the multiplications of `sum_displacement_products` per image."""
    border = 1 + 2 * (size - 1) * (1 / height + 1 / width)
    per_pixel = size + (size - 1) * (2 * size - 1)
    return border * height * width * channels**2 * per_pixel


# all pairs of pixels: for small images and large patches ------------------------------------------


def sum_pair_products(inputs: LayerInput, size: int, shift: Array) -> Array:
    """Compute `patch_products` from the products of all pairs of pixels of an image."""
    height, width, channels = inputs.shape
    pixels = height * width * channels
    total = np.zeros((size * size * channels,) * 2)
    batch_total = np.empty_like(total)
    for batch in inputs.batches(MAX_SUMMED_PIXELS // 8):
        centered = np.empty((len(batch), height, width, channels), np.float32)
        write_patches(batch, 1, shift, np.ones_like(shift), centered)
        if batch.row_weights is not None:
            centered *= np.sqrt(batch.row_weights)[:, None, None, None].astype(np.float32)
        pairs = np.zeros((pixels, pixels), np.float32, order="F")
        add_scatter(pairs, centered.reshape(-1, pixels))
        kernel("sum_over_patches")(pairs.T, height, width, channels, size, batch_total)
        total += batch_total
    return total


# all displacements: for any images ----------------------------------------------------------------


def sum_displacement_products(inputs: LayerInput, size: int, shift: Array) -> Array:
    """Compute `patch_products` with one matrix product for all displacements by `down` rows.

    Every pixel is multiplied with the row window of its neighbors, size − 1 to the left and right,
    in the row `down` below it. The border rows and columns that a pair of offsets does not visit
    are subtracted from the sum.
    """
    height, width, channels = inputs.shape
    dtype = np.dtype(np.float64 if channels < MIN_FLOAT32_CHANNELS else np.float32)
    reach, across = size - 1, (2 * size - 1) * channels
    sums = [_BorderSums.zeros(size, down, channels) for down in range(size)]
    window_values = height * width * across  # of one image
    step = max(
        1,
        min(ROW_WINDOW_BYTES // (dtype.itemsize * window_values), MAX_SUMMED_PIXELS // width),
    )
    buffer = np.empty(min(step, len(inputs)) * window_values, dtype)
    for batch in inputs.batches(step):
        windows = buffer[: len(batch) * window_values].reshape(
            height, len(batch), width, -1, channels
        )
        write_row_windows(batch, shift, reach, windows)
        if batch.row_weights is not None:
            windows *= np.sqrt(batch.row_weights)[:, None, None, None].astype(dtype)
        for down in range(size):
            sums[down].add(windows, down)
    total = np.zeros((size, size, channels, size, size, channels))
    for down in range(size):
        _write_offset_pairs(sums[down], down, total)
    return total.reshape(size * size * channels, -1)


@dataclass(frozen=True, slots=True)
class _BorderSums:
    """Σ pixel·window for all pixels and the row windows `down` rows below them.

    whole (c, wc) is the sum over all pixels, w = 2k − 1. The others are its parts at the border:
    rows (2, k', c, wc) at the top and bottom, k' = k − 1 − down; columns (2, k − 1, c, wc) at the
    left and right; and corners (2, k', 2, k − 1, c, wc), pixels where these meet. In columns and
    corners, the neighbors that no offset leaves out stay 0.
    """

    whole: Array
    rows: Array
    columns: Array
    corners: Array

    @classmethod
    def zeros(cls, size: int, down: int, channels: int) -> _BorderSums:
        """Return sums over no pixel."""
        shape, reach, border = (channels, (2 * size - 1) * channels), size - 1, size - 1 - down
        return cls(
            np.zeros(shape),
            np.zeros((2, border, *shape)),
            np.zeros((2, reach, *shape)),
            np.zeros((2, border, 2, reach, *shape)),
        )

    def add(self, windows: Array, down: int) -> None:
        """Add the products of windows (H, m, W, 2k − 1, c)."""
        height, m, width, positions, channels = windows.shape
        reach, across = positions // 2, positions * channels
        pixels = windows[: height - down, :, :, reach]  # (H', m, W, c)
        neighbors = windows[down:].reshape(height - down, m, width, across)
        first = 0 if down else reach * channels  # in the same row, only those to the right
        border = self.rows.shape[1]
        whole, *rows = _multiply_rows(
            pixels.reshape(height - down, m * width, channels),
            neighbors.reshape(height - down, m * width, across)[:, :, first:],
            border,
        )
        self.whole[:, first:] += whole
        for side in range(2):
            self.rows[side, :, :, first:] += rows[side]
        for column in range(reach):
            used = slice((reach - column) * channels, (2 * reach - column) * channels)
            for side, x in enumerate((column, width - reach + column)):
                column_sum, *corners = _multiply_rows(
                    pixels[:, :, x], neighbors[:, :, x, used], border
                )
                self.columns[side, column, :, used] += column_sum
                for edge in range(2):
                    self.corners[edge, :, side, column, :, used] += corners[edge]


def _multiply_rows(pixels: Array, neighbors: Array, border: int) -> tuple[Array, Array, Array]:
    """Return Σ pixelsᵀ·neighbors over all rows, and for each of the first and last `border` rows.

    pixels (H', m, c), neighbors (H', m, w); the sums are (c, w), (border, c, w) and (border, c, w).
    A limited number of pixels is summed at a time, so that sums in single precision keep their
    digits.
    """
    height, m, channels = pixels.shape
    top, bottom = (
        pixels[rows].transpose(0, 2, 1) @ neighbors[rows]
        for rows in (slice(border), slice(height - border, height))
    )
    total = np.zeros((channels, neighbors.shape[2]))
    first, last = 0, height
    if height >= 2 * border:
        first, last = border, height - border
        total += top.sum(axis=0, dtype=np.float64) + bottom.sum(axis=0, dtype=np.float64)
    step = max(1, MAX_SUMMED_PIXELS // m)
    for start in range(first, last, step):
        rows = slice(start, min(start + step, last))
        total += pixels[rows].reshape(-1, channels).T @ neighbors[rows].reshape(
            -1, neighbors.shape[2]
        )
    return total, top, bottom


def _write_offset_pairs(sums: _BorderSums, down: int, total: Array) -> None:
    """Write the sums of all pairs of offsets, one `down` below the other, to total.

    Each is the sum over all pixels minus the border that the pair does not visit. total (k, k, c,
    k, k, c).
    """
    size, channels = total.shape[1:3]
    outside = [  # of the rows that an offset in row `top` of the patch visits
        ((0, slice(top)), (1, slice(top, None))) for top in range(size)
    ]
    for top in range(size - down):
        visited = sums.whole - sum(sums.rows[part].sum(axis=0) for part in outside[top])
        sides = sums.columns - sum(sums.corners[part].sum(axis=0) for part in outside[top])
        for left in range(size):
            value = visited - sum(sides[part].sum(axis=0) for part in outside[left])
            first = 0 if down else left  # column of the leftmost neighbor in the patch
            neighbors = value.reshape(channels, 2 * size - 1, channels)
            neighbors = neighbors[:, size - 1 + first - left :][:, : size - first]
            total[top, left, :, top + down, first:] = neighbors
            total[top + down, first:, :, top, left] = neighbors.transpose(1, 2, 0)
