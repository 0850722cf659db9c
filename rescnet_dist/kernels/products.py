"""Products of all patches of images with themselves, without unfolding the patches.

A k×k patch has k⁴ pairs of offsets but only (2k−1)² displacements between them: what is summed for
one pair is what is summed for another of the same displacement, but for the pixels at the border
that one sweeps over and the other does not. Two ways follow from that. Either pays in its place.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rescnet_dist.kernels import compiled
from rescnet_dist.kernels.blas import Array, add_scatter

STRIP_BYTES = 4 * 2**20  # of pixels with their neighbours that are held at a time
MOST_SUMMED = 4096  # pixels, in single precision: sums of more would lose digits
FEW_CHANNELS = 8  # which BLAS sums one by one: in double precision, as they cost little
MOST_PIXELS = 4096  # in all channels, of which all pairs are held


def patch_products(images: Array, size: int) -> Array:
    """Σ p pᵀ over all valid size×size patches p of images (n, H, W, c) in float32: (k²c, k²c).

    A patch is flattened in the order row, column, channel.
    """
    _, height, width, channels = images.shape
    if pair_cost(height, width, channels) <= displacement_cost(height, width, channels, size):
        return products_of_pairs(images, size)
    return products_of_displacements(images, size)


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


def products_of_pairs(images: Array, size: int) -> Array:
    """`patch_products`, from the products of all pairs of pixels of an image."""
    n, height, width, channels = images.shape
    pixels = height * width * channels
    pairs = np.zeros((pixels, pixels), images.dtype, order="F")
    add_scatter(pairs, np.ascontiguousarray(images.reshape(n, pixels)))
    total = np.zeros((size * size * channels,) * 2)
    compiled.slide()(pairs.T, height, width, channels, size, total)
    return total


# all displacements: for any images ----------------------------------------------------------------


def products_of_displacements(images: Array, size: int) -> Array:
    """`patch_products`, from one matrix product for all displacements by so many rows down.

    Every pixel is multiplied with the strip of its neighbours size − 1 to the left and right in the
    row `down` below it. Rows and columns at the border that a pair of offsets does not sweep over
    are multiplied once more by themselves, and taken off.
    """
    n, height, width, channels = images.shape
    kind = np.float64 if channels < FEW_CHANNELS else np.float32
    lines = np.ascontiguousarray(images.transpose(1, 0, 2, 3), dtype=kind)  # (H, n, W, c)
    across = (2 * size - 1) * channels
    wholes = np.zeros((size, channels, across))
    at_once = min(STRIP_BYTES // (4 * across), MOST_SUMMED)
    step = max(1, at_once // (height * width))
    for start in range(0, n, step):
        batch = np.ascontiguousarray(lines[:, start : start + step])
        strips = _strips(batch, size).reshape(height, -1, across)
        for down in range(size):
            first = 0 if down else (size - 1) * channels  # in the same row, those to the right
            pixels = batch[: height - down].reshape(-1, channels)
            wholes[down, :, first:] += pixels.T @ strips[down:].reshape(-1, across)[:, first:]
    total = np.zeros((size, size, channels, size, size, channels))
    each = 4 * 2 * (size - 1) * (height + width) * across  # bytes of the border of an image, about
    step = max(1, 2 * STRIP_BYTES // max(each, 1))
    for down in range(size):
        parts = [
            _border(lines[:, start : start + step], size, down) for start in range(0, n, step)
        ] or [_border(lines, size, down)]
        rows, columns, corners = (sum(found) for found in zip(*parts, strict=True))
        _put(wholes[down], rows, columns, corners, down, total)
    return total.reshape(size * size * channels, -1)


def _strips(lines: Array, size: int) -> Array:
    """Each pixel of lines (H, n, W, c) with its neighbours up to size − 1 to the left and right, 0
    outside: (H, n, W, 2·size − 1, c)."""
    height, n, width, channels = lines.shape
    strips = np.zeros((height, n, width, 2 * size - 1, channels), lines.dtype)
    for place in range(2 * size - 1):
        right = place - size + 1
        first, last = max(0, -right), max(0, width - max(0, right))
        strips[:, :, first:last, place] = lines[:, :, first + right : last + right]
    return strips


def _border(lines: Array, size: int, down: int) -> tuple[Array, Array, Array]:
    """What single rows and columns of lines (H, n, W, c) have in the products with the strips
    `down` below, (c, wc) each: rows (2, k', …) at the top and bottom, k' = k − 1 − down; columns
    (2, k − 1, …) at the left and right; and the pixels where they meet, (2, k', 2, k − 1, …)."""
    height, n, width, channels = lines.shape
    reach, few, across = size - 1, size - 1 - down, (2 * size - 1) * channels
    ys = np.array([range(few), range(height - reach, height - down)], dtype=int).reshape(-1)
    xs = np.array([range(reach), range(width - reach, width)], dtype=int).reshape(-1)
    strips = _strips(lines[ys + down], size).reshape(2 * few, n * width, across)
    rows = lines[ys].reshape(2 * few, n * width, channels).transpose(0, 2, 1) @ strips
    padded = np.pad(lines[down:], ((0, 0), (0, 0), (reach, reach), (0, 0)))
    beside = sliding_window_view(padded, 2 * size - 1, axis=2)[:, :, xs]
    beside = beside.transpose(2, 0, 1, 4, 3).reshape(2 * reach, height - down, n, across)
    pixels = lines[: height - down][:, :, xs].transpose(2, 0, 3, 1)  # (2(k − 1), H', c, n)
    corners = pixels[:, ys] @ beside[:, ys]
    along = pixels.transpose(0, 2, 1, 3).reshape(2 * reach, channels, (height - down) * n)
    columns = along @ beside.reshape(2 * reach, (height - down) * n, across)
    return (
        rows.reshape(2, few, channels, across),
        columns.reshape(2, reach, channels, across),
        corners.swapaxes(0, 1).reshape(2, few, 2, reach, channels, across),
    )


def _put(
    whole: Array, rows: Array, columns: Array, corners: Array, down: int, total: Array
) -> None:
    """Put the sums for all pairs of offsets of which one is `down` below the other into total
    (k, k, c, k, k, c): whole (c, wc), less the border that they do not sweep over."""
    size, channels = total.shape[1:3]
    outside = [  # of the rows that an offset in row `top` of the patch sweeps over
        ((0, slice(top)), (1, slice(top, None))) for top in range(size)
    ]
    for top in range(size - down):
        swept = whole - sum(rows[part].sum(axis=0, dtype=np.float64) for part in outside[top])
        sides = columns - sum(corners[part].sum(axis=0, dtype=np.float64) for part in outside[top])
        for left in range(size):
            value = swept - sum(sides[part].sum(axis=0, dtype=np.float64) for part in outside[left])
            first = 0 if down else left  # the place of the leftmost pixel beside it in the patch
            beside = value.reshape(channels, 2 * size - 1, channels)
            beside = beside[:, size - 1 + first - left :][:, : size - first]
            total[top, left, :, top + down, first:] = beside
            total[top + down, first:, :, top, left] = beside.transpose(1, 2, 0)
