"""Compiled kernel: normalized channel covariances of every block of an image, pooled.

An image is divided into square cells of gcd(block, stride) pixels a side, so that every block is a
whole number of cells. Pairs of channels are processed by their offset: the products of every
channel b with channel b + offset, modulo the number of channels, form one long vector. Products
are summed in cells, and cells into blocks by window sums along one axis and then the other, so that
each product is computed once, however many blocks contain it. The mean over the whole image is
subtracted first. A channel that varies little within a block, relative to its distance from that
mean, would lose digits to cancellation, and is recomputed for that block from its pixels.
"""

from __future__ import annotations

import math

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel, compile_part
from rescnet_dist.kernels.cpu.variance import (
    MIN_VARIANCE_FRACTION,
    RECOMPUTE_VARIANCE_FRACTION,
)

WINDOW_SUM_COLUMNS = 512  # summed at a time, so that they stay in the fastest cache
MAX_DIRECT_CELLS = 4  # along a block, up to which cells are simply added
POOL_BLOCKS_SIGNATURE = (  # in single precision
    "void(float32[:,:,:,::1], int64, int64, int64[:,:,::1], int64[:,::1], "
    "boolean, boolean, boolean, float32[:,:,::1])"
)


@compile_kernel
def pool_blocks(
    maps: Array,
    block: int,
    stride: int,
    targets: Array,
    parents: Array,
    channelwise: bool,
    power: bool,
    use_max: bool,
    pooled: Array,
) -> None:
    """Pool the normalized covariances of ReLU(maps), maps (n, H, W, f), over pyramid cells.

    The result is written to pooled (n, cells, pairs). targets (rows, columns, levels) are the
    pyramid cells that each block is pooled into, by the maximum (use_max) or by the sum. parents
    (m, 2) are pairs of pyramid cells of which the first is pooled into the second afterwards, in
    order. channelwise: each channel is divided by its own standard deviation, and pairs are those
    of different channels; otherwise all are divided by one standard deviation of the block, and
    pairs of a channel with itself are included. power: signed square roots are pooled.
    """
    filters = maps.shape[3]
    rows, columns = targets.shape[:2]
    side = math.gcd(block, stride)
    length, step = block // side, stride // side
    cell_rows = ((rows - 1) * stride + block) // side
    cell_columns = ((columns - 1) * stride + block) // side
    scalar, area = maps.dtype.type, block * block
    inverse_area, first_offset, last_offset = (
        scalar(1 / area),
        1 if channelwise else 0,
        filters // 2,
    )

    values = np.empty((cell_rows * side, cell_columns * side, 2 * filters), maps.dtype)
    cells = np.empty((cell_rows, cell_columns * filters), maps.dtype)
    next_cells = np.empty((cell_rows, cell_columns * filters), maps.dtype)
    column_sums = np.empty((rows, cell_columns * filters), maps.dtype)
    transposed = np.empty((cell_columns, rows * filters), maps.dtype)
    block_sums = np.empty((columns, rows * filters), maps.dtype)
    scratch = np.empty(WINDOW_SUM_COLUMNS, maps.dtype)
    means = np.empty((columns, rows, 2 * filters), maps.dtype)
    inverse = np.empty((columns, rows, 2 * filters), maps.dtype)
    recomputed = np.empty((columns, rows, filters + 1), np.int32)
    entries = np.empty(filters, maps.dtype)
    by_offset = np.empty((pooled.shape[1], last_offset + 1, filters), maps.dtype)
    overall = np.empty(filters, maps.dtype)
    total = np.empty(filters, np.float64)
    variance = np.empty((columns, rows, filters), maps.dtype)
    centered = np.empty(area, maps.dtype)
    covariances = np.empty((0, filters), maps.dtype)

    for image in range(len(maps)):
        if not _center(maps[image], values, total, overall):
            _fill(pooled[image], np.nan)  # `max` would drop it
            continue
        for cell in range(len(by_offset)):
            _fill(by_offset[cell], -np.inf if use_max else 0.0)
        # First the channels themselves, then their products by offset, those of two at a time
        for offset in range(-1, last_offset + 1):
            if offset < 0:
                _sum_channels(values, side, cells)
            elif offset % 2 == 0:
                _sum_products(values, side, offset, cells, next_cells)
            summed = next_cells if offset > 0 and offset % 2 else cells
            _sum_windows(summed, length, step, column_sums, scratch)
            _swap_axes(column_sums, filters, transposed)
            _sum_windows(transposed, length, step, block_sums, scratch)
            if offset < 0:
                for c in range(columns):
                    for r in range(rows):
                        for a in range(filters):
                            means[c, r, a] = block_sums[c, r * filters + a] / scalar(area)
                continue
            if offset == 0:
                lines = _find_recomputed(block_sums, area, means, variance, recomputed)
                if lines > len(covariances):
                    covariances = np.empty((lines, filters), maps.dtype)
                _normalize(
                    values,
                    overall,
                    block,
                    stride,
                    channelwise,
                    variance,
                    recomputed,
                    centered,
                    means,
                    inverse,
                    covariances,
                )
            if offset < first_offset:
                continue
            _pool_offset(
                block_sums,
                inverse_area,
                means,
                inverse,
                recomputed,
                covariances,
                offset,
                power,
                use_max,
                targets,
                entries,
                by_offset,
            )
        for p in range(len(parents)):
            for offset in range(last_offset + 1):
                _pool(by_offset[parents[p, 1], offset], by_offset[parents[p, 0], offset], use_max)
        _flatten_pairs(by_offset, first_offset, pooled[image])


@compile_part
def _fill(matrix: Array, value: float) -> None:
    """Set all entries of a matrix; Numba takes longer to compile an assignment to a slice."""
    for i in range(matrix.shape[0]):
        row = matrix[i]
        for j in range(len(row)):
            row[j] = value


@compile_part
def _center(image: Array, values: Array, total: Array, mean: Array) -> bool:
    """Write ReLU(image) minus its mean over the image to values (H, W, 2f), and the mean (f,).

    The channels are written twice, one copy after the other, so that channel b + offset can be read
    without a modulo. total (f,) is a buffer in double precision. Return whether the mean is finite.
    """
    height, width, filters = values.shape[0], values.shape[1], image.shape[2]
    for a in range(filters):
        total[a] = 0
    for y in range(height):
        for x in range(width):
            pixel, into = image[y, x], values[y, x]
            for a in range(filters):
                into[a] = max(pixel[a], 0)
            for a in range(filters):
                total[a] += into[a]
    is_finite = True
    for a in range(filters):
        mean[a] = total[a] / (height * width)
        is_finite = is_finite and math.isfinite(mean[a])
    for y in range(height):
        for x in range(width):
            into = values[y, x]
            for a in range(filters):
                into[a] -= mean[a]
            for a in range(filters):
                into[filters + a] = into[a]
    return is_finite


@compile_part
def _sum_channels(values: Array, side: int, cells: Array) -> None:
    """Sum the channels of values (H, W, 2f) in each cell, to cells (rows, columns·f)."""
    filters = values.shape[2] // 2
    for r in range(len(cells)):
        for c in range(cells.shape[1] // filters):
            into = cells[r, c * filters : (c + 1) * filters]
            for b in range(filters):
                into[b] = 0
            for y in range(r * side, (r + 1) * side):
                for x in range(c * side, (c + 1) * side):
                    p = values[y, x]
                    for b in range(filters):
                        into[b] += p[b]


@compile_part
def _sum_products(values: Array, side: int, offset: int, cells: Array, next_cells: Array) -> None:
    """Sum the products of channels b and b + offset in each cell, to cells (rows, columns·f).

    Those of channels b and b + offset + 1 are summed to next_cells (rows, columns·f), from the same
    reads. values (H, W, 2f).
    """
    filters = values.shape[2] // 2
    for r in range(len(cells)):
        for c in range(cells.shape[1] // filters):
            into = cells[r, c * filters : (c + 1) * filters]
            next_into = next_cells[r, c * filters : (c + 1) * filters]
            if side == 1:
                p, q = values[r, c], values[r, c, offset:]
                for b in range(filters):
                    into[b] = p[b] * q[b]
                    next_into[b] = p[b] * q[b + 1]
                continue
            for b in range(filters):
                into[b] = 0
                next_into[b] = 0
            for y in range(r * side, (r + 1) * side):
                x, stop = c * side, (c + 1) * side
                while x + 4 <= stop:
                    p, q = values[y, x], values[y, x, offset:]
                    s, t = values[y, x + 1], values[y, x + 1, offset:]
                    u, v = values[y, x + 2], values[y, x + 2, offset:]
                    w, z = values[y, x + 3], values[y, x + 3, offset:]
                    for b in range(filters):
                        into[b] += p[b] * q[b] + s[b] * t[b] + u[b] * v[b] + w[b] * z[b]
                        next_into[b] += (
                            p[b] * q[b + 1] + s[b] * t[b + 1] + u[b] * v[b + 1] + w[b] * z[b + 1]
                        )
                    x += 4
                while x < stop:
                    p, q = values[y, x], values[y, x, offset:]
                    for b in range(filters):
                        into[b] += p[b] * q[b]
                        next_into[b] += p[b] * q[b + 1]
                    x += 1


@compile_part
def _swap_axes(source: Array, filters: int, into: Array) -> None:
    """Copy source (rows, columns·f) to `into` (columns, rows·f)."""
    for r in range(len(source)):
        for c in range(len(into)):
            part = source[r, c * filters : (c + 1) * filters]
            into_part = into[c, r * filters : (r + 1) * filters]
            for b in range(filters):
                into_part[b] = part[b]


@compile_part
def _sum_windows(parts: Array, length: int, step: int, sums: Array, scratch: Array) -> None:
    """Write Σ parts[i·step : i·step + length], parts (m, w), to sums[i] (w,), for every i.

    No sum is ever subtracted from another, as that would lose digits. A long window is the end of
    one run of `length` parts and the beginning of the next; both are accumulated in scratch, a
    limited number of columns at a time, which stay in the fastest cache.
    """
    count, width = sums.shape
    if length <= MAX_DIRECT_CELLS:
        for i in range(count):
            into, part = sums[i], parts[i * step]
            for j in range(width):
                into[j] = part[j]
            for t in range(1, length):
                part = parts[i * step + t]
                for j in range(width):
                    into[j] += part[j]
        return
    last = (count - 1) * step
    for left in range(0, width, WINDOW_SUM_COLUMNS):
        right = min(left + WINDOW_SUM_COLUMNS, width)
        total = scratch[: right - left]
        for run in range(0, last + 1, length):
            for j in range(len(total)):
                total[j] = 0
            for y in range(run + length - 1, run - 1, -1):
                part = parts[y, left:right]
                if y % step or y > last:
                    for j in range(len(total)):
                        total[j] += part[j]
                else:
                    into = sums[y // step, left:right]
                    for j in range(len(total)):
                        total[j] += part[j]
                        into[j] = total[j]
            for j in range(len(total)):
                total[j] = 0
            for y in range(run + 1, min(run + length - 1, last) + 1):
                part = parts[y + length - 1, left:right]
                if y % step:
                    for j in range(len(total)):
                        total[j] += part[j]
                else:
                    into = sums[y // step, left:right]
                    for j in range(len(total)):
                        total[j] += part[j]
                        into[j] += total[j]


@compile_part
def _find_recomputed(
    squares: Array, area: int, means: Array, variance: Array, recomputed: Array
) -> int:
    """Write the variances of the channels in each block, and which of them are recomputed.

    squares (columns, rows·f) are summed over blocks of `area` pixels; means (columns, rows, 2f);
    variance (columns, rows, f). recomputed (columns, rows, f + 1) holds a line for each channel
    that must be recomputed from its pixels, -1 for the others, and as its last entry the number of
    them in the block. Return the number of lines.
    """
    columns, rows, filters = variance.shape
    scalar, lines = variance.dtype.type, 0
    for c in range(columns):
        for r in range(rows):
            sums, mean = squares[c, r * filters : (r + 1) * filters], means[c, r]
            own_variance, own_lines = variance[c, r], recomputed[c, r]
            before = lines
            for a in range(filters):
                square = sums[a] / scalar(area)
                own_variance[a] = square - mean[a] ** 2
                own_lines[a] = -1
                if not own_variance[a] > scalar(RECOMPUTE_VARIANCE_FRACTION) * square:
                    own_lines[a] = lines
                    lines += 1
            own_lines[filters] = lines - before
    return lines


@compile_part
def _normalize(
    values: Array,
    overall: Array,
    block: int,
    stride: int,
    channelwise: bool,
    variance: Array,
    recomputed: Array,
    centered: Array,
    means: Array,
    inverse: Array,
    covariances: Array,
) -> None:
    """Compute the inverse deviations of the channels in each block, inverse (columns, rows, 2f).

    inverse and means (columns, rows, 2f) hold the channels twice, one copy after the other. For
    channels that are recomputed from their pixels, variance and means are corrected, and the
    normalized covariances (lines, f) with all channels are written. variance and recomputed are
    those of `_find_recomputed`; centered (block²,) is a buffer.
    """
    columns, rows, filters = variance.shape
    scalar, area = values.dtype.type, block * block
    for c in range(columns):
        for r in range(rows):
            top, left, mean, scale = r * stride, c * stride, means[c, r], inverse[c, r]
            own_variance, own_lines = variance[c, r], recomputed[c, r]
            for a in range(filters):
                if own_lines[a] >= 0:
                    mean[a] = _center_channel(values, a, top, left, block, centered)
                    total = scalar(0)
                    for p in range(area):
                        total += centered[p] * centered[p]
                    own_variance[a] = total / scalar(area)
            _invert_deviations(own_variance, mean, overall, channelwise, scale)
            for a in range(filters):
                mean[filters + a] = mean[a]
            for a in range(filters):
                if own_lines[a] >= 0:
                    line = covariances[own_lines[a]]
                    for b in range(filters):
                        line[b] = 0
                    if own_variance[a] == 0:
                        continue
                    _center_channel(values, a, top, left, block, centered)
                    for y in range(block):
                        for x in range(block):
                            pixel, i = values[top + y, left + x], centered[y * block + x]
                            for b in range(filters):
                                line[b] += i * (pixel[b] - mean[b])
                    for b in range(filters):
                        line[b] *= scale[a] * scale[b] / scalar(area)


@compile_part
def _invert_deviations(
    variance: Array, mean: Array, overall: Array, channelwise: bool, inverse: Array
) -> None:
    """Write 1/deviation of a block's channels to inverse (2f,), 0 for those without variance.

    The deviation is that of each channel, or else that of all pixels and channels. variance (f,);
    mean (f,) is relative to overall (f,).
    """
    filters = len(variance)
    grand_mean = 0.0
    for a in range(filters):
        grand_mean += (mean[a] + overall[a]) / filters
    spread, whole = 0.0, 0.0
    for a in range(filters):
        level = mean[a] + overall[a]
        square = variance[a] + level * level
        inverse[a] = (
            1 / math.sqrt(variance[a]) if variance[a] > MIN_VARIANCE_FRACTION * square else 0.0
        )
        spread += variance[a] + (level - grand_mean) ** 2
        whole += square
    if not channelwise:
        common = math.sqrt(filters / spread) if spread > MIN_VARIANCE_FRACTION * whole else 0.0
        for a in range(filters):
            inverse[a] = common
    for a in range(filters):
        inverse[filters + a] = inverse[a]


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


@compile_part
def _pool_offset(
    block_sums: Array,
    inverse_area: float,
    means: Array,
    inverse: Array,
    recomputed: Array,
    covariances: Array,
    offset: int,
    power: bool,
    use_max: bool,
    targets: Array,
    entries: Array,
    by_offset: Array,
) -> None:
    """Pool the normalized covariances of channels b and b + offset to by_offset (cells, o, f)."""
    columns, rows, filters = recomputed.shape[0], recomputed.shape[1], recomputed.shape[2] - 1
    levels = targets.shape[2]
    for c in range(columns):
        for r in range(rows):
            sums = block_sums[c, r * filters : (r + 1) * filters]
            mean, scale = means[c, r], inverse[c, r]
            mean_b, scale_b = mean[offset:], scale[offset:]
            if use_max and levels == 1 and not power and recomputed[c, r, filters] == 0:
                into = by_offset[targets[r, c, 0], offset]  # the usual case, in one loop
                for b in range(filters):
                    covariance = sums[b] * inverse_area - mean[b] * mean_b[b]
                    into[b] = max(into[b], covariance * (scale[b] * scale_b[b]))
                continue
            for b in range(filters):
                covariance = sums[b] * inverse_area - mean[b] * mean_b[b]
                entries[b] = covariance * (scale[b] * scale_b[b])
            if recomputed[c, r, filters]:
                _insert_recomputed(recomputed[c, r], covariances, offset, entries)
            if power:
                for b in range(filters):
                    entries[b] = math.copysign(math.sqrt(abs(entries[b])), entries[b])
            for level in range(levels):
                _pool(by_offset[targets[r, c, level], offset], entries, use_max)


@compile_part
def _insert_recomputed(recomputed: Array, covariances: Array, offset: int, entries: Array) -> None:
    """Overwrite the entries (f,) of channels b and b + offset of which one was recomputed."""
    filters = len(entries)
    for b in range(filters):
        other = b + offset if b + offset < filters else b + offset - filters
        if recomputed[b] >= 0:
            entries[b] = covariances[recomputed[b], other]
        elif recomputed[other] >= 0:
            entries[b] = covariances[recomputed[other], b]


@compile_part
def _pool(into: Array, entries: Array, use_max: bool) -> None:
    """Pool entries (f,) into `into` (f,), by the maximum or by the sum."""
    if use_max:
        for b in range(len(into)):
            into[b] = max(into[b], entries[b])
    else:
        for b in range(len(into)):
            into[b] += entries[b]


@compile_part
def _flatten_pairs(by_offset: Array, first_offset: int, pooled: Array) -> None:
    """Copy entries (cells, offset, f) to pairs (cells, a ≤ b), row by row of the triangle.

    Pairs a = b are left out if first_offset is 1.
    """
    last_offset, filters = by_offset.shape[1] - 1, by_offset.shape[2]
    for cell in range(len(pooled)):
        pair = 0
        for a in range(filters):
            for b in range(a + first_offset, filters):
                is_near = b - a <= last_offset
                pooled[cell, pair] = (
                    by_offset[cell, b - a, a] if is_near else by_offset[cell, filters - (b - a), b]
                )
                pair += 1
