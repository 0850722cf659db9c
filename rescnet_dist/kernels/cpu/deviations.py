"""Compiled parts of the kernel of second-order features: deviations of the channels in each block.

A channel that varies little within a block, relative to its distance from the mean over the image,
would lose digits to cancellation. Its covariances in that block are recomputed from its pixels.
"""

from __future__ import annotations

import math

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_part
from rescnet_dist.kernels.cpu.variance import (
    MIN_VARIANCE_FRACTION,
    RECOMPUTE_VARIANCE_FRACTION,
)


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
    values: Array,
    overall: Array,
    columns: int,
    block: int,
    stride: int,
    channelwise: bool,
    starts: Array,
    channels: Array,
    centered: Array,
    means: Array,
    variance: Array,
    inverse: Array,
    covariances: Array,
) -> None:
    """Write the inverse deviations of the channels in each block to inverse (blocks, f).

    For channels that are recomputed, means and variance (blocks, f) are corrected, and the
    normalized covariances with all channels are written to covariances (recomputed, f). starts and
    channels are those of `find_recomputed`; channels that are multiplied by 0, as many are after a
    ReLU, are removed from them: the squares of values (H, W, f) must be finite. `columns` is the
    number of blocks in a row; centered (block²,) is a buffer.
    """
    scalar, area = values.dtype.type, block * block
    end = kept = 0
    for i in range(len(means)):
        top, left = i // columns * stride, i % columns * stride
        mean, own_variance, scale = means[i], variance[i], inverse[i]
        begin, end = end, starts[i + 1]
        starts[i] = kept
        for line in range(begin, end):
            a = channels[line]
            mean[a] = _center_channel(values, a, top, left, block, centered)
            total = scalar(0)
            for p in range(area):
                total += centered[p] * centered[p]
            own_variance[a] = total / scalar(area)
        _invert_deviations(own_variance, mean, overall, channelwise, scale)
        for line in range(begin, end):
            a = channels[line]
            if scale[a] == 0:
                continue
            products, channels[kept] = covariances[kept], a
            kept += 1
            for b in range(len(mean)):
                products[b] = 0
            if own_variance[a] == 0:
                continue
            _center_channel(values, a, top, left, block, centered)
            for y in range(block):
                for x in range(block):
                    pixel, value = values[top + y, left + x], centered[y * block + x]
                    for b in range(len(mean)):
                        products[b] += value * (pixel[b] - mean[b])
            for b in range(len(mean)):
                products[b] *= scale[a] * scale[b] / scalar(area)
    starts[len(means)] = kept


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


@compile_part
def _center_channel(
    values: Array, a: int, top: int, left: int, block: int, centered: Array
) -> float:
    """Write channel a of a block minus its mean to centered (block²,); return the mean.

    A constant channel becomes exactly 0, whatever the rounding.
    """
    start = values[top, left, a]
    total = values.dtype.type(0)
    for y in range(block):
        for x in range(block):
            centered[y * block + x] = values[top + y, left + x, a] - start
            total += centered[y * block + x]
    mean = total / values.dtype.type(block * block)
    for p in range(block * block):
        centered[p] -= mean
    return start + mean
