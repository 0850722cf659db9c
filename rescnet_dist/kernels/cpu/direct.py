"""Compiled kernels: convolution, and sums of products of pixels, from padded images in the cache.

A pixel and its neighbors to the right are consecutive in memory. So a row of a patch is a part of a
row of the padded image, and no patch is ever copied.
"""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel, compile_part
from rescnet_dist.kernels.cpu.layout import write_line
from rescnet_dist.kernels.cpu.registers import add_tile, part_vectors, split_vectors
from rescnet_dist.kernels.cpu.vectors import LANES, MAX_VECTORS, TILE_ROWS

BLOCK_PIXELS = 112  # whose products are summed at a time: their neighbors stay in the fastest cache
BORDER_PIXELS = 64  # of lines at the border, whose neighbors take more of the cache
SLACK = 64  # floats after the last pixel, which vectors and tiles that end there read, too
CONVOLVE_SIGNATURE = (
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], float32[::1], int64, "
    "float32[:,::1], float32[::1], float32[:,:,:,::1])"
)
SUM_RECTANGLES_SIGNATURE = (
    "void(float32[:,:,:,::1], float32[:,:,:,::1], int64[::1], float32[::1], float32[::1], int64, "
    "int64, int64[:,::1], int64, int64, float32[:,:,::1], float64[:,:,::1])"
)


@compile_kernel
def convolve_images(
    first: Array,
    second: Array,
    rows: Array,
    low: Array,
    scale: Array,
    size: int,
    weights: Array,
    bias: Array,
    maps: Array,
) -> None:
    """Convolve the images `rows` (m,), as (pixel − low)·scale and 0 outside, to maps (m, H, W, f).

    first (n, H, W, f'), second (n, H, W, d), low and scale (c,), weights (size²·c, f), bias (f,).
    """
    height, width = first.shape[1:3]
    channels = first.shape[3] + second.shape[3]
    depth, filters = weights.shape
    before, line = (size - 1) // 2, (width + size - 1) * channels
    padded = np.zeros((height + size - 1) * line + SLACK, np.float32)
    pixels = height * width
    starts = np.empty(pixels + TILE_ROWS, np.int64)  # of the patch of each pixel
    for y in range(height):
        for x in range(width):
            starts[y * width + x] = y * line + x * channels
    for p in range(pixels, len(starts)):
        starts[p] = starts[pixels - 1]
    all_vectors = (filters + LANES - 1) // LANES
    parts = split_vectors(all_vectors)
    packed = np.zeros(depth * all_vectors * LANES, np.float32)  # columns of each part together
    padded_bias = np.zeros(all_vectors * LANES, np.float32)
    for b in range(filters):  # one assignment would take seconds to compile
        padded_bias[b] = bias[b]
    x = 0
    for vectors in parts:
        for d in range(depth):
            place = depth * x + d * vectors * LANES
            for b in range(min(vectors * LANES, filters - x)):
                packed[place + b] = weights[d, x + b]
        x += vectors * LANES
    sums = np.empty(TILE_ROWS * MAX_VECTORS * LANES, np.float32)
    row = size * channels
    for i in range(len(rows)):
        for y in range(height):
            start = (before + y) * line + before * channels
            inside = padded[start : start + width * channels]
            write_line(first[rows[i], y], second[rows[i], y], low, scale, inside)
        flat, x = maps[i].reshape(pixels * filters), 0
        for vectors in parts:
            count = vectors * LANES
            used = min(count, filters - x)
            own_bias = padded_bias[x : x + count]
            for p in range(0, pixels, TILE_ROWS):
                # Sums of no filter are written over by the next pixel, if it is computed later;
                # those of the last pixels may not fit into the maps.
                end = (p + TILE_ROWS - 1) * filters + x + count
                fits = (used == count or len(parts) == 1) and end <= len(flat)
                into, begin = (flat, p * filters + x) if fits else (sums, 0)
                step = filters if fits else count
                for r in range(TILE_ROWS):
                    line_sums = into[begin + r * step : begin + r * step + count]
                    for b in range(count):
                        line_sums[b] = own_bias[b]
                add_tile(
                    padded, 0, starts, p, line, 1,
                    packed, depth * x, row * count, count,
                    into, begin, step, size, row, vectors,
                )  # fmt: skip
                if not fits:
                    for r in range(min(TILE_ROWS, pixels - p)):
                        place = (p + r) * filters + x
                        line_maps, line_sums = flat[place : place + used], sums[r * count :]
                        for b in range(used):
                            line_maps[b] = line_sums[b]
            x += count


@compile_kernel
def sum_rectangles(
    first: Array,
    second: Array,
    rows: Array,
    roots: Array,
    shift: Array,
    size: int,
    batch: int,
    rectangles: Array,
    max_pixels: int,
    first_channel: int,
    sums: Array,
    totals: Array,
) -> None:
    """Add Σ pixel·window over the pixels of each rectangle to totals (R, c', w').

    Of the pixel, these are the channels from first_channel on, as many as totals have rows.
    The window of a pixel are its neighbors in a row below it: up to size − 1 to the left and right,
    or in its own row the pixel itself and those to the right. Pixels are those of the images `rows`
    (m,), minus shift (c,), times the root of the image, roots (m,). rectangles (R, 5) are how many
    rows the window is below the pixel, and first and last row and column of the pixels, the last
    ones excluded. At most max_pixels are summed in single precision; `batch` images are held at a
    time. totals have a multiple of TILE_ROWS rows, and columns for whole vectors. sums (R, c', w')
    are a buffer of zeros.
    """
    height, width = first.shape[1:3]
    channels = first.shape[3] + second.shape[3]
    reach = size - 1
    line = (width + 2 * reach) * channels
    image = height * line
    padded = np.zeros(batch * image + SLACK, np.float32)
    own_rows = np.empty(TILE_ROWS, np.int64)
    for row in range(TILE_ROWS):
        own_rows[row] = row
    count = len(totals)
    pending = np.empty(count, np.int64)
    windows = np.empty((count, 4), np.int64)
    for index in range(count):
        pending[index] = 0
        down, top, _, left, right = rectangles[index]
        skipped = 0 if down else reach  # positions of a window
        # Those that are outside of the image for all pixels are left out.
        used = max(0, reach + 1 - right - skipped) * channels // LANES * LANES
        end = (min(2 * reach + 1, width + reach - left) - skipped) * channels
        windows[index, 0] = top * line + (reach + left) * channels + first_channel
        windows[index, 1] = (top + down) * line + (left + skipped) * channels
        windows[index, 2] = used
        windows[index, 3] = (end - used + LANES - 1) // LANES
    scale = np.empty(channels, np.float32)
    for start in range(0, len(rows), batch):
        m = min(batch, len(rows) - start)
        for i in range(m):
            n, root = rows[start + i], roots[start + i]
            for a in range(channels):
                scale[a] = root
            for y in range(height):
                place = i * image + y * line + reach * channels
                inside = padded[place : place + width * channels]
                write_line(first[n, y], second[n, y], shift, scale, inside)
            for index in range(count):
                lines = rectangles[index, 2] - rectangles[index, 1]
                length = rectangles[index, 4] - rectangles[index, 3]
                if lines > 1 and length > 1:  # while the image is in the cache
                    _add_blocks(
                        padded, i * image, windows[index], line, channels, lines, length,
                        BLOCK_PIXELS, max_pixels, own_rows, sums[index], totals[index],
                        pending, index,
                    )  # fmt: skip
        for index in range(count):
            lines = rectangles[index, 2] - rectangles[index, 1]
            length = rectangles[index, 4] - rectangles[index, 3]
            if lines == 1 or length == 1:  # one line of pixels of each image: all images at a time
                _add_blocks(
                    padded, 0, windows[index], image, channels if lines == 1 else line, m,
                    lines * length, BORDER_PIXELS, max_pixels, own_rows, sums[index], totals[index],
                    pending, index,
                )  # fmt: skip
    for index in range(count):
        _flush(sums[index], totals[index], windows[index], pending, index)


@compile_part
def _add_blocks(
    padded: Array,
    place: int,
    window: Array,
    outer_step: int,
    inner_step: int,
    outer: int,
    inner: int,
    block: int,
    max_pixels: int,
    own_rows: Array,
    sums: Array,
    total: Array,
    pending: Array,
    index: int,
) -> None:
    """Add the products of outer·inner pixels and their windows, `block` pixels at a time.

    window (4,) are the places of the first pixel and of its window, relative to `place`, the first
    float of a window that is used, and the number of vectors that are.
    """
    step = max(1, min(block, max_pixels) // inner)
    for y in range(0, outer, step):
        lines = min(step, outer - y)
        if pending[index] + lines * inner > max_pixels:
            _flush(sums, total, window, pending, index)
        pending[index] += lines * inner
        begin = place + y * outer_step
        _add_products(
            padded, begin + window[0], begin + window[1], outer_step, inner_step,
            lines, inner, window[2], window[3], own_rows, sums,
        )  # fmt: skip


@compile_part
def _add_products(
    padded: Array,
    pixel: int,
    window: int,
    outer_step: int,
    inner_step: int,
    outer: int,
    inner: int,
    first: int,
    vectors: int,
    own_rows: Array,
    sums: Array,
) -> None:
    """Add the products of pixels and their windows to sums (c', w').

    The first pixel and its window begin at these places of `padded`. Of a window, these are the
    vectors from the float `first` on.
    """
    flat, span = sums.reshape(sums.size), sums.shape[1]
    count = (vectors + MAX_VECTORS - 1) // MAX_VECTORS
    x = first
    for part in range(count):
        width = part_vectors(vectors, part, count)
        for a in range(0, len(sums), TILE_ROWS):
            add_tile(
                padded, pixel + a, own_rows, 0, outer_step, inner_step,
                padded, window + x, outer_step, inner_step,
                flat, a * span + x, span, outer, inner, width,
            )  # fmt: skip
        x += width * LANES


@compile_part
def _flush(sums: Array, total: Array, window: Array, pending: Array, index: int) -> None:
    """Add sums (c', w') to total (c', w'), and set them to 0; pending[index] pixels were summed.

    Only the part of the window that is used, see `_add_blocks`.
    """
    if pending[index]:
        begin, end = window[2], window[2] + window[3] * LANES
        for a in range(len(sums)):
            row, row_total = sums[a, begin:end], total[a, begin:end]
            for b in range(end - begin):
                row_total[b] += row[b]
                row[b] = 0
        pending[index] = 0
