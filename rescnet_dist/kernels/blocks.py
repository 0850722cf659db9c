"""Covariances of the channels in every block of an image, normalized and pooled, compiled.

An image is cut into square cells of gcd(block, stride) pixels a side, of which every block is a
whole number. Pairs of channels are gone through by how far they are apart: the products of every
channel b with channel b + apart, taken round, are one long vector. They are summed in cells, and
cells into blocks by running sums along one axis and then the other, so that each product is formed
once, however many blocks it is in. Means are taken off the whole image first; a channel that hardly
varies within a block, compared with how far it is from that mean, would lose digits so, and is done
again for that block from its pixels.
"""

from __future__ import annotations

import math

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.jit import compiled

NO_VARIANCE = 1e-8  # of the mean square: below it a channel counts as constant in its block
FLAT = 1e-2  # of the mean square about the image's mean: below it a channel is done pixel by pixel
STRIP = 512  # columns that running sums are made of at a time
DIRECT = 4  # cells along a block up to which they are simply added up
SIGNATURE = (  # of pool_blocks in single precision
    "void(float32[:,:,:,::1], int64, int64, int64[:,:,::1], int64[:,::1], "
    "boolean, boolean, boolean, float32[:,:,::1])"
)


@compiled
def pool_blocks(
    maps: Array,
    block: int,
    stride: int,
    targets: Array,
    parents: Array,
    channelwise: bool,
    power: bool,
    largest: bool,
    pooled: Array,
) -> None:
    """Pool the normalized covariances of ReLU(maps) into pooled (n, cells, pairs).

    maps (n, H, W, f). targets (rows, columns, levels): the cells that each block is pooled into, by
    the largest entry or by adding them up. parents (m, 2): cells that are pooled into others
    afterwards, in order. pooled is written over. channelwise: each channel is divided by its own
    deviation, and pairs are those of different channels; else all by one deviation of the block.
    power: signed square roots are pooled.
    """
    filters = maps.shape[3]
    rows, columns, levels = targets.shape
    side = math.gcd(block, stride)
    length, step = block // side, stride // side
    cell_rows = ((rows - 1) * stride + block) // side
    cell_columns = ((columns - 1) * stride + block) // side
    kind, area = maps.dtype.type, block * block
    share, lead, last = kind(1 / area), 1 if channelwise else 0, filters // 2

    values = np.empty((cell_rows * side, cell_columns * side, 2 * filters), maps.dtype)
    cells = np.empty((cell_rows, cell_columns * filters), maps.dtype)
    later = np.empty_like(cells)
    below = np.empty((rows, cell_columns * filters), maps.dtype)
    turned = np.empty((cell_columns, rows * filters), maps.dtype)
    boxed = np.empty((columns, rows * filters), maps.dtype)
    scratch = np.empty(STRIP, maps.dtype)
    means = np.empty((columns, rows, 2 * filters), maps.dtype)
    inverse = np.empty((columns, rows, 2 * filters), maps.dtype)
    redone = np.empty((columns, rows, filters + 1), np.int32)
    entry = np.empty(filters, maps.dtype)
    found = np.empty((pooled.shape[1], last + 1, filters), maps.dtype)

    for image in range(len(maps)):
        overall = _center(maps[image], values)
        if not math.isfinite(overall.sum()):
            pooled[image] = np.nan  # which `max` would drop
            continue
        _sum_channels(values, side, cells)
        _box(cells, length, step, below, turned, boxed, scratch)
        for c in range(columns):
            for r in range(rows):
                for a in range(filters):
                    means[c, r, a] = boxed[c, r * filters + a] / kind(area)
        _sum_products(values, side, 0, cells, later)
        _box(cells, length, step, below, turned, boxed, scratch)
        lines = _normalize(
            values, overall, boxed, block, stride, channelwise, means, inverse, redone
        )
        found[:] = -np.inf if largest else 0.0
        for apart in range(lead, last + 1):
            if (apart - lead) % 2 == 0:
                _sum_products(values, side, apart, cells, later)
            _box(
                later if (apart - lead) % 2 else cells, length, step, below, turned, boxed, scratch
            )
            for c in range(columns):
                for r in range(rows):
                    box = boxed[c, r * filters : (r + 1) * filters]
                    mean, scale = means[c, r], inverse[c, r]
                    mean_b, scale_b = mean[apart:], scale[apart:]
                    if largest and levels == 1 and not power and redone[c, r, filters] == 0:
                        into = found[targets[r, c, 0], apart]  # the usual case, in one go
                        for b in range(filters):
                            covariance = box[b] * share - mean[b] * mean_b[b]
                            into[b] = max(into[b], covariance * (scale[b] * scale_b[b]))
                        continue
                    for b in range(filters):
                        covariance = box[b] * share - mean[b] * mean_b[b]
                        entry[b] = covariance * (scale[b] * scale_b[b])
                    if redone[c, r, filters]:
                        _put_redone(redone[c, r], lines, apart, entry)
                    if power:
                        for b in range(filters):
                            entry[b] = math.copysign(math.sqrt(abs(entry[b])), entry[b])
                    for level in range(levels):
                        _pool(found[targets[r, c, level], apart], entry, largest)
        for p in range(len(parents)):
            for apart in range(last + 1):
                _pool(found[parents[p, 1], apart], found[parents[p, 0], apart], largest)
        _unroll(found, lead, pooled[image])


@compiled
def _center(image: Array, values: Array) -> Array:
    """Write ReLU(image) less its mean over the image twice, one behind the other, to values (H, W,
    2f); returns the mean (f,)."""
    height, width, filters = values.shape[0], values.shape[1], image.shape[2]
    total = np.zeros(filters, np.float64)
    for y in range(height):
        for x in range(width):
            pixel, into = image[y, x], values[y, x]
            for a in range(filters):
                into[a] = max(pixel[a], 0)
            for a in range(filters):
                total[a] += into[a]
    mean = (total / (height * width)).astype(values.dtype)
    for y in range(height):
        for x in range(width):
            into = values[y, x]
            for a in range(filters):
                into[a] -= mean[a]
            for a in range(filters):
                into[filters + a] = into[a]
    return mean


@compiled
def _sum_channels(values: Array, side: int, cells: Array) -> None:
    """Sums in each cell of the channels: values (H, W, 2f) to cells (rows, columns·f)."""
    filters = values.shape[2] // 2
    cells[:] = 0
    for r in range(len(cells)):
        for c in range(cells.shape[1] // filters):
            into = cells[r, c * filters : (c + 1) * filters]
            for y in range(r * side, (r + 1) * side):
                for x in range(c * side, (c + 1) * side):
                    p = values[y, x]
                    for b in range(filters):
                        into[b] += p[b]


@compiled
def _sum_products(values: Array, side: int, apart: int, cells: Array, later: Array) -> None:
    """Sums in each cell of the products of channels that are `apart`, and, to later, of those that
    are one more apart: what is read serves both. values (H, W, 2f) to cells (rows, columns·f)."""
    filters = values.shape[2] // 2
    for r in range(len(cells)):
        for c in range(cells.shape[1] // filters):
            into = cells[r, c * filters : (c + 1) * filters]
            more = later[r, c * filters : (c + 1) * filters]
            if side == 1:
                p, q = values[r, c], values[r, c, apart:]
                for b in range(filters):
                    into[b] = p[b] * q[b]
                    more[b] = p[b] * q[b + 1]
                continue
            for b in range(filters):
                into[b] = 0
                more[b] = 0
            for y in range(r * side, (r + 1) * side):
                x, stop = c * side, (c + 1) * side
                while x + 4 <= stop:
                    p, q = values[y, x], values[y, x, apart:]
                    s, t = values[y, x + 1], values[y, x + 1, apart:]
                    u, v = values[y, x + 2], values[y, x + 2, apart:]
                    w, z = values[y, x + 3], values[y, x + 3, apart:]
                    for b in range(filters):
                        into[b] += p[b] * q[b] + s[b] * t[b] + u[b] * v[b] + w[b] * z[b]
                        more[b] += (
                            p[b] * q[b + 1] + s[b] * t[b + 1] + u[b] * v[b + 1] + w[b] * z[b + 1]
                        )
                    x += 4
                while x < stop:
                    p, q = values[y, x], values[y, x, apart:]
                    for b in range(filters):
                        into[b] += p[b] * q[b]
                        more[b] += p[b] * q[b + 1]
                    x += 1


@compiled
def _box(
    cells: Array, length: int, step: int, below: Array, turned: Array, boxed: Array, scratch: Array
) -> None:
    """Sums of cells (y, x·f) over every block, to boxed (columns, rows·f)."""
    rows = len(below)
    filters = boxed.shape[1] // rows
    _windows(cells, length, step, below, scratch)
    for r in range(rows):
        for x in range(len(turned)):
            into = turned[x, r * filters : (r + 1) * filters]
            part = below[r, x * filters : (x + 1) * filters]
            for b in range(filters):
                into[b] = part[b]
    _windows(turned, length, step, boxed, scratch)


@compiled
def _windows(parts: Array, length: int, step: int, sums: Array, line: Array) -> None:
    """sums[i] (w,) = Σ parts[i·step : i·step + length], parts (m, w); no sum is ever taken off
    another. Longer windows are the end of one run of `length` parts and the beginning of the next,
    and are summed up in line (≥ w,), a few columns at a time, which stay in the fastest cache.
    """
    count, width = sums.shape
    if length <= DIRECT:
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
    for left in range(0, width, STRIP):
        right = min(left + STRIP, width)
        total = line[: right - left]
        for run in range(0, last + 1, length):
            total[:] = 0
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
            total[:] = 0
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


@compiled
def _normalize(
    values: Array,
    overall: Array,
    squares: Array,
    block: int,
    stride: int,
    channelwise: bool,
    means: Array,
    inverse: Array,
    redone: Array,
) -> Array:
    """Find what channels are divided by in each block, inverse (columns, rows, 2f), like means
    (…, 2f) twice, one behind the other; from squares (columns, rows·f), summed over blocks.

    Which channels are done again is told in redone (columns, rows, f + 1), by the line of the
    returned normalized covariances (lines, f) with all others, or -1, and behind them how many
    there are in the block; their means are corrected.
    """
    columns, rows, filters = redone.shape[0], redone.shape[1], redone.shape[2] - 1
    kind, area = values.dtype.type, block * block
    variance = np.empty((columns, rows, filters), values.dtype)
    lines = 0
    for c in range(columns):
        for r in range(rows):
            redone[c, r, filters] = 0
            for a in range(filters):
                square = squares[c, r * filters + a] / kind(area)
                variance[c, r, a] = square - means[c, r, a] ** 2
                redone[c, r, a] = -1
                if not variance[c, r, a] > kind(FLAT) * square:
                    redone[c, r, a] = lines
                    redone[c, r, filters] += 1
                    lines += 1
    covariances = np.empty((lines, filters), values.dtype)
    centered = np.empty(area, values.dtype)
    for c in range(columns):
        for r in range(rows):
            top, left, mean = r * stride, c * stride, means[c, r]
            for a in range(filters):
                if redone[c, r, a] >= 0:
                    mean[a] = _center_channel(values, a, top, left, block, centered)
                    total = kind(0)
                    for p in range(area):
                        total += centered[p] * centered[p]
                    variance[c, r, a] = total / kind(area)
            _divisors(variance[c, r], mean, overall, channelwise, inverse[c, r])
            for a in range(filters):
                mean[filters + a] = mean[a]
            for a in range(filters):
                if redone[c, r, a] >= 0:
                    line, scale = covariances[redone[c, r, a]], inverse[c, r]
                    line[:] = 0
                    if variance[c, r, a] == 0:
                        continue
                    _center_channel(values, a, top, left, block, centered)
                    for y in range(block):
                        for x in range(block):
                            pixel, i = values[top + y, left + x], centered[y * block + x]
                            for b in range(filters):
                                line[b] += i * (pixel[b] - mean[b])
                    for b in range(filters):
                        line[b] *= scale[a] * scale[b] / kind(area)
    return covariances


@compiled
def _divisors(
    variance: Array, mean: Array, overall: Array, channelwise: bool, inverse: Array
) -> None:
    """What a block's channels are divided by, inverse (2f,): the deviation of each, or that of all
    pixels and channels; 0 where there is none. variance (f,), mean (f,) about overall (f,)."""
    filters = len(variance)
    middle = 0.0
    for a in range(filters):
        middle += (mean[a] + overall[a]) / filters
    spread, whole = 0.0, 0.0
    for a in range(filters):
        level = mean[a] + overall[a]
        square = variance[a] + level * level
        inverse[a] = 1 / math.sqrt(variance[a]) if variance[a] > NO_VARIANCE * square else 0.0
        spread += variance[a] + (level - middle) ** 2
        whole += square
    if not channelwise:
        inverse[:filters] = math.sqrt(filters / spread) if spread > NO_VARIANCE * whole else 0.0
    inverse[filters:] = inverse[:filters]


@compiled
def _center_channel(
    values: Array, a: int, top: int, left: int, block: int, centered: Array
) -> float:
    """Write a channel of a block, less its mean, to centered (block²,); returns the mean. A constant
    channel is exactly 0, whatever rounding does."""
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


@compiled
def _put_redone(redone: Array, lines: Array, apart: int, entry: Array) -> None:
    """Put what was done again in a block into its entries (f,), of channels that are `apart`."""
    filters = len(entry)
    for b in range(filters):
        other = b + apart if b + apart < filters else b + apart - filters
        if redone[b] >= 0:
            entry[b] = lines[redone[b], other]
        elif redone[other] >= 0:
            entry[b] = lines[redone[other], b]


@compiled
def _pool(into: Array, entry: Array, largest: bool) -> None:
    if largest:
        for b in range(len(into)):
            into[b] = max(into[b], entry[b])
    else:
        for b in range(len(into)):
            into[b] += entry[b]


@compiled
def _unroll(found: Array, lead: int, pooled: Array) -> None:
    """Entries (cells, apart, f) to pairs (cells, a ≤ b) row by row; without a = b if lead is 1."""
    last, filters = found.shape[1] - 1, found.shape[2]
    for cell in range(len(pooled)):
        pair = 0
        for a in range(filters):
            for b in range(a + lead, filters):
                near = b - a <= last
                pooled[cell, pair] = (
                    found[cell, b - a, a] if near else found[cell, filters - (b - a), b]
                )
                pair += 1
