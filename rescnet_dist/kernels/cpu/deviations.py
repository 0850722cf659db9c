"""Compiled parts of the kernel of second-order features: deviations of the channels in each block.

A channel that varies little within a block, relative to its distance from the mean over the image,
would lose digits to cancellation. Its covariances in that block are recomputed from its pixels.
"""

from __future__ import annotations

import math

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_part
from rescnet_dist.kernels.cpu.registers import add_tile
from rescnet_dist.kernels.cpu.tiles import (
    TILE_FLOATS,
    add,
    fill_tile,
    load_tile,
    multiply,
    multiply_add,
    store_tile,
    subtract_product,
)
from rescnet_dist.kernels.cpu.variance import (
    MIN_VARIANCE_FRACTION,
    RECOMPUTE_VARIANCE_FRACTION,
)
from rescnet_dist.kernels.cpu.vectors import LANES, MAX_VECTORS, TILE_ROWS


@compile_part
def find_recomputed(
    sums: Array,
    squares: Array,
    area: int,
    means: Array,
    variance: Array,
    starts: Array,
    channels: Array,
) -> int:
    """Write means and variances of channels in blocks, and the channels that are recomputed.

    sums and squares (blocks, ≥ f) are summed over blocks of `area` pixels; means and variance
    (blocks, f). Recomputed channels of block i are channels[starts[i] : starts[i + 1]], starts
    (blocks + 1,). Return their number.
    """
    scalar, count = means.dtype.type, 0
    fraction = scalar(RECOMPUTE_VARIANCE_FRACTION)
    for i in range(len(means)):
        own_sums, own_squares, mean, own_variance = sums[i], squares[i], means[i], variance[i]
        starts[i] = count
        is_recomputed = False
        for a in range(len(mean)):
            mean[a] = own_sums[a] / scalar(area)
            square = own_squares[a] / scalar(area)
            own_variance[a] = square - mean[a] * mean[a]
            is_recomputed |= not own_variance[a] > fraction * square
        if is_recomputed:
            for a in range(len(mean)):
                if not own_variance[a] > fraction * (own_squares[a] / scalar(area)):
                    channels[count] = a
                    count += 1
    starts[len(means)] = count
    return count


@compile_part
def normalize(
    flat: Array,
    width: int,
    overall: Array,
    columns: int,
    block: int,
    stride: int,
    channelwise: bool,
    starts: Array,
    channels: Array,
    centered: Array,
    rows: Array,
    products: Array,
    means: Array,
    variance: Array,
    inverse: Array,
    covariances: Array,
) -> None:
    """Write the inverse deviations of the channels in each block to inverse (blocks, f).

    For channels that are recomputed, means and variance (blocks, f) are corrected, and the
    normalized covariances with all channels are written to covariances (recomputed, f). starts and
    channels are those of `find_recomputed`; channels that are multiplied by 0, as many are after a
    ReLU, are removed from them: the squares of pixels flat (H, W, f) must be finite. `columns` is
    the number of blocks in a row. Buffers are centered (2 + block², pitch), rows (TILE_ROWS,) and
    products (TILE_ROWS, pitch), where pitch is f, rounded up to whole tiles.
    """
    scalar, area, filters = flat.dtype.type, block * block, means.shape[1]
    pitch = (filters + TILE_FLOATS - 1) // TILE_FLOATS * TILE_FLOATS
    end = kept = 0
    for i in range(len(means)):
        mean, own_variance, scale = means[i], variance[i], inverse[i]
        begin, end = end, starts[i + 1]
        starts[i] = kept
        if begin < end:
            pixel = (i // columns * width + i % columns) * stride * filters
            _center_block(flat, pixel, filters, width, block, pitch, centered)
            for line in range(begin, end):
                a = channels[line]
                mean[a], own_variance[a] = centered[a], centered[pitch + a]
        _invert_deviations(own_variance, mean, overall, channelwise, scale)
        first = kept
        for line in range(begin, end):
            a = channels[line]
            if scale[a] != 0:
                channels[kept] = a
                kept += 1
        for line in range(first, kept, TILE_ROWS):
            for row in range(TILE_ROWS):
                rows[row] = channels[min(line + row, kept - 1)]
            _multiply_channels(centered, rows, filters, block, pitch, products)
            for row in range(min(TILE_ROWS, kept - line)):
                covariance, own_scale = covariances[line + row], scale[rows[row]] / scalar(area)
                for b in range(filters):
                    covariance[b] = products[row * pitch + b] * (own_scale * scale[b])
    starts[len(means)] = kept


@compile_part
def _center_block(
    flat: Array, start: int, filters: int, width: int, block: int, pitch: int, centered: Array
) -> None:
    """Write the pixels of a block minus the mean of each channel to centered (2 + block², pitch).

    The first two rows are the means and the variances of the channels. The pixels flat (H, W, f)
    begin at `start`. A constant channel becomes exactly 0, whatever the rounding.
    """
    scalar = flat.dtype.type
    inverse_area, one = fill_tile(scalar(1 / (block * block))), fill_tile(scalar(1))
    for a in range(0, filters, TILE_FLOATS):
        first = load_tile(flat, start + a, LANES)
        total = fill_tile(scalar(0))
        squares = total
        for y in range(block):
            line = start + y * width * filters + a
            for x in range(block):
                value = load_tile(flat, line + x * filters, LANES)
                total = add(total, subtract_product(value, first, one))
        mean = multiply(total, inverse_area)
        for y in range(block):
            line = start + y * width * filters + a
            for x in range(block):
                value = load_tile(flat, line + x * filters, LANES)
                value = subtract_product(subtract_product(value, first, one), mean, one)
                store_tile(centered, (2 + y * block + x) * pitch + a, LANES, value)
                squares = multiply_add(value, value, squares)
        store_tile(centered, a, LANES, add(first, mean))
        store_tile(centered, pitch + a, LANES, multiply(squares, inverse_area))


@compile_part
def _multiply_channels(
    centered: Array, rows: Array, filters: int, block: int, pitch: int, products: Array
) -> None:
    """Write the products of TILE_ROWS channels with all channels to products (TILE_ROWS, pitch).

    They are summed over the pixels of a block, which begin at the third row of `centered`.
    """
    zero = fill_tile(centered.dtype.type(0))
    for x in range(0, TILE_ROWS * pitch, TILE_FLOATS):
        store_tile(products, x, LANES, zero)
    for x in range(0, filters, MAX_VECTORS * LANES):
        vectors = min(MAX_VECTORS, (filters - x + LANES - 1) // LANES)
        add_tile(
            centered, 2 * pitch, rows, 0, block * pitch, pitch,
            centered, 2 * pitch + x, block * pitch, pitch,
            products, x, pitch, block, block, vectors,
        )  # fmt: skip


@compile_part
def _invert_deviations(
    variance: Array, mean: Array, overall: Array, channelwise: bool, inverse: Array
) -> None:
    """Write 1/deviation of a block's channels to inverse (f,), 0 for those without variance.

    The deviation is that of each channel, or else that of all pixels and channels. variance (f,);
    mean (f,) is relative to overall (f,).
    """
    filters, scalar = len(variance), variance.dtype.type
    if channelwise:
        for a in range(filters):
            level = mean[a] + overall[a]
            square = variance[a] + level * level
            has_variance = variance[a] > scalar(MIN_VARIANCE_FRACTION) * square
            root = math.sqrt(variance[a] if has_variance else scalar(1))
            inverse[a] = scalar(1) / root if has_variance else scalar(0)
        return
    grand_mean = 0.0
    for a in range(filters):
        grand_mean += (mean[a] + overall[a]) / filters
    spread, whole = 0.0, 0.0
    for a in range(filters):
        level = mean[a] + overall[a]
        spread += variance[a] + (level - grand_mean) ** 2
        whole += variance[a] + level * level
    common = math.sqrt(filters / spread) if spread > MIN_VARIANCE_FRACTION * whole else 0.0
    for a in range(filters):
        inverse[a] = common
