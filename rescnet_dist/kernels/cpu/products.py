"""Products of all patches of images with themselves on the CPU, without unfolding the patches.

A k×k patch has k⁴ pairs of offsets but only (2k−1)² displacements between them: the sums of two
pairs of offsets with the same displacement differ only in the pixels at the border that one of them
visits and the other does not. Two algorithms follow from that; the cheaper one is used.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.aligned import aligned_zeros
from rescnet_dist.kernels.cpu.blas import add_scatter
from rescnet_dist.kernels.cpu.loading import kernel, tile_shape
from rescnet_dist.kernels.cpu.pixels import write_patches
from rescnet_dist.kernels.inputs import LayerInput

BATCH_BYTES = 2 * 2**20  # size of the padded images that are held at a time, for the cache
MAX_SUMMED_PIXELS = 1024  # one by one in single precision: sums of more would lose digits
PAIR_BATCH_IMAGES = 512  # whose products are summed in single precision
MAX_PAIR_PIXELS = 4096  # times channels, up to which products of all pairs of pixels are held
MAX_SUMS_BYTES = 128 * 2**20  # size of the sums of all displacements that are held at a time
MIN_SUMS_ROWS = 6  # those of a tile
MAX_TILE_PADDING = 5, 15  # rows and columns of sums that fill the last tiles, at most


def patch_products(inputs: LayerInput, size: int, shift: Array, extent: Array) -> Array:
    """Return Σ p pᵀ (k²c, k²c) over all valid size×size patches p of inputs − shift.

    shift (c,); extent (c,) bounds |inputs − shift|. A patch is flattened in the order row, column,
    channel. Pixels are multiplied by the root of the weight of their image, if there are weights.
    """
    if uses_pairs(*inputs.shape, size):
        return sum_pair_products(inputs, size, shift)
    return sum_displacement_products(inputs, size, shift)


def uses_pairs(height: int, width: int, channels: int, size: int) -> bool:
    """Return whether products of all pairs of pixels are cheaper than those by displacements."""
    return pair_cost(height, width, channels) <= displacement_cost(height, width, channels, size)


def products_bytes(height: int, width: int, channels: int, size: int) -> int:
    """Return the bytes that `patch_products` uses, beyond its input and its result."""
    if size > min(height, width):
        return 0  # there is no patch
    if uses_pairs(height, width, channels, size):
        pixels = height * width * channels
        return 4 * pixels * (pixels + PAIR_BATCH_IMAGES) + 8 * (size**2 * channels) ** 2
    grids = (_divide_pixels(height, width, size, down) for down in range(size))
    rectangles = sum((len(rows) - 1) * (len(columns) - 1) for rows, columns in grids)
    row = sums_bytes(rectangles, (2 * size - 1) * channels + MAX_TILE_PADDING[1])
    sums = min((channels + MAX_TILE_PADDING[0]) * row, max(MAX_SUMS_BYTES, MIN_SUMS_ROWS * row))
    return max(BATCH_BYTES, padded_bytes(height, width, channels, size)) + sums


def sums_bytes(rectangles: int, span: int) -> int:
    """Return the bytes of the sums of a channel, in double and in single precision."""
    return (8 + 4) * rectangles * span


def padded_bytes(height: int, width: int, channels: int, size: int) -> int:
    """Return the bytes of an image as `sum_displacement_products` pads it."""
    return 4 * height * (width + 2 * size - 2) * channels


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
    for batch in inputs.batches(PAIR_BATCH_IMAGES):
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
    """Compute `patch_products` from sums for all displacements by `down` rows at a time.

    Every pixel is multiplied with the row window of its neighbors, size − 1 to the left and right,
    in the row `down` below it. Rows and columns at the border that not all pairs of offsets visit
    are summed on their own.
    """
    height, width, channels = inputs.shape
    tile_rows, lanes = tile_shape()
    grids = [_divide_pixels(height, width, size, down) for down in range(size)]
    rectangles = np.array(
        [
            (down, *rows, *columns)
            for down, (all_rows, all_columns) in enumerate(grids)
            for rows in pairwise(all_rows)
            for columns in pairwise(all_columns)
        ]
    )
    span = -(-(2 * size - 1) * channels // lanes) * lanes
    roots = np.ones(len(inputs), np.float32)
    if inputs.row_weights is not None:
        roots = np.sqrt(inputs.row_weights).astype(np.float32)
    tiles = max(1, MAX_SUMS_BYTES // (tile_rows * sums_bytes(len(rectangles), span)))
    side = min(tiles, -(-channels // tile_rows)) * tile_rows  # channels whose sums are held
    total = np.zeros((size, size, channels, size, size, channels))
    for first in range(0, channels, side):
        totals, start = np.zeros((len(rectangles), side, span)), 0
        kernel("sum_rectangles")(
            inputs.maps,
            inputs.images,
            inputs.rows,
            roots,
            shift.astype(np.float32),
            size,
            max(1, min(BATCH_BYTES // padded_bytes(*inputs.shape, size), len(inputs))),
            rectangles,
            MAX_SUMMED_PIXELS,
            first,
            aligned_zeros(totals.size, lanes, roots).reshape(totals.shape),
            totals,
        )
        sums = totals[:, : channels - first, : (2 * size - 1) * channels]
        for down, (rows, columns) in enumerate(grids):
            shape = len(rows) - 1, len(columns) - 1
            own = sums[start : start + shape[0] * shape[1]].reshape(*shape, *sums.shape[1:])
            _write_offset_pairs(own, rows, columns, down, first, total)
            start += shape[0] * shape[1]
        del totals, sums, own  # before the next ones are allocated
    return total.reshape(size * size * channels, -1)


def _divide_pixels(height: int, width: int, size: int, down: int) -> tuple[list[int], list[int]]:
    """Return the first rows and columns of the parts that pixels are divided into, and their ends.

    An offset `down` rows above another in a patch visits all pixels but some rows and columns at
    the border, which are parts of their own. No part is longer than MAX_SUMMED_PIXELS.
    """
    return tuple(  # type: ignore[return-value]
        sorted(
            {edge for i in range(border + 1) for edge in (i, length - border + i)}
            | {*range(0, length, MAX_SUMMED_PIXELS)}
        )
        for length, border in ((height - down, size - 1 - down), (width, size - 1))
    )


def _write_offset_pairs(
    sums: Array, rows: list[int], columns: list[int], down: int, channel: int, total: Array
) -> None:
    """Write the sums of all pairs of offsets, one `down` below the other, to total.

    Each is the sum over the parts of the image that the pair visits. sums (parts of rows, parts of
    columns, c', w) of c' channels from `channel` on, the edges of the parts are rows and columns;
    total (k, k, c, k, k, c).
    """
    size, channels = total.shape[1:3]
    border = size - 1 - down
    skipped = 0 if down else size - 1  # positions of windows
    own = slice(channel, channel + sums.shape[2])
    for top in range(size - down):
        first, last = rows.index(top), rows.index(rows[-1] - border + top)
        visited = sums[first:last].sum(axis=0)
        for left in range(size):
            first, last = columns.index(left), columns.index(columns[-1] - size + 1 + left)
            value = visited[first:last].sum(axis=0).reshape(-1, 2 * size - 1, channels)
            begin = 0 if down else left  # column of the leftmost neighbor in the patch
            neighbors = value[:, size - 1 + begin - left - skipped :][:, : size - begin]
            total[top, left, own, top + down, begin:] = neighbors
            total[top + down, begin:, :, top, left, own] = neighbors.transpose(1, 2, 0)
