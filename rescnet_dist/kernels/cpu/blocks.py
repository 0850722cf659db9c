"""Compiled kernel: normalized channel covariances of every block of an image, pooled.

An image is divided into square cells of gcd(block, stride) pixels a side, so that every block is a
whole number of cells. Products of channels are summed in cells, and cells into blocks by window
sums along one axis and then the other, so that a product is computed once or twice, however many
blocks contain it. Pairs of channels are divided into groups, each of which is pooled before the
next one, so that its sums stay in the cache: TILE_ROWS channels with the channels of a few vectors.
Rows and lanes beyond the last channel read what follows, and are not pooled. The mean over the
whole image is subtracted first.
"""

from __future__ import annotations

import math

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.deviations import find_recomputed, normalize
from rescnet_dist.kernels.cpu.jit import compile_kernel, compile_part
from rescnet_dist.kernels.cpu.registers import add_tile
from rescnet_dist.kernels.cpu.tiles import (
    TILE_FLOATS,
    add,
    allocate_zeros,
    fill_tile,
    load_tile,
    maximum,
    multiply,
    multiply_add,
    repeat_vector,
    spread_floats,
    store_tile,
    subtract_product,
)
from rescnet_dist.kernels.cpu.vectors import LANES, MAX_VECTORS, TILE_ROWS
from rescnet_dist.kernels.cpu.windows import sum_product_windows, sum_windows

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
    height, width = cell_rows * side, cell_columns * side
    dtype, blocks, first_offset = maps.dtype, rows * columns, 1 if channelwise else 0
    # Vectors of a group: sums of pixels, if cells are no larger, stay in the fastest cache
    max_vectors = 1 if side == 1 else min(MAX_VECTORS, (filters + LANES - 1) // LANES)
    group = max_vectors * TILE_FLOATS
    padded = (filters + TILE_FLOATS - 1) // TILE_FLOATS * TILE_FLOATS
    pitch = (cell_columns * filters + TILE_FLOATS - 1) // TILE_FLOATS * TILE_FLOATS

    flat = allocate_zeros(height * width * filters, maps)
    values = flat[: height * width * filters].reshape(height, width, filters)
    line = np.empty(width * filters, dtype)
    overall = np.empty(filters, dtype)
    cell_group = 0 if side == 1 else cell_columns * group
    cells = allocate_zeros(cell_rows * max(pitch, cell_group), maps)
    squares = allocate_zeros(cell_rows * pitch, maps)
    column_sums = allocate_zeros(rows * max(pitch, cell_columns * group), maps)
    block_sums = allocate_zeros(columns * group, maps)
    run_sums = allocate_zeros((length + 1) * TILE_FLOATS, maps)
    sums = np.empty((2, blocks * padded), dtype)
    flat_means = allocate_zeros(blocks * filters, maps)
    means = flat_means[: blocks * filters].reshape(blocks, filters)
    flat_inverse = allocate_zeros(blocks * filters, maps)
    inverse = flat_inverse[: blocks * filters].reshape(blocks, filters)
    variance = np.empty((blocks, filters), dtype)
    starts = np.empty(blocks + 1, np.int64)
    channels = np.empty(blocks * filters, np.int32)
    centered = np.empty((2 + block * block) * padded, dtype)
    products = np.empty(TILE_ROWS * padded, dtype)
    covariances = np.empty((0, filters), dtype)
    entries = allocate_zeros(group, maps)
    by_cell = allocate_zeros(pooled.shape[1] * group, maps)
    own_rows, recomputed_rows = np.empty(TILE_ROWS, np.int64), np.empty(TILE_ROWS, np.int64)
    for row in range(TILE_ROWS):
        own_rows[row] = row

    for image in range(len(maps)):
        if not _center(maps[image], values, line, overall):
            _write_nan(pooled[image])  # `max` would drop it
            continue
        _sum_channels(flat, filters, height, width, side, pitch, cells, squares)
        for moment in range(2):
            _sum_moments(
                squares if moment else cells, filters, pitch, padded, length, step, rows, columns,
                run_sums, column_sums, sums[moment],
            )  # fmt: skip
        lines = find_recomputed(
            sums[0].reshape(blocks, padded), sums[1].reshape(blocks, padded), block * block,
            means, variance, starts, channels,
        )  # fmt: skip
        if lines > len(covariances):
            covariances = np.empty((lines, filters), dtype)
        normalize(
            flat, width, overall, columns, block, stride, channelwise, starts, channels, centered,
            recomputed_rows, products, means, variance, inverse, covariances,
        )  # fmt: skip
        for a in range(0, filters - first_offset, TILE_ROWS):
            b, all_vectors = a + first_offset, (filters - a - first_offset + LANES - 1) // LANES
            while all_vectors:
                vectors = all_vectors // ((all_vectors + max_vectors - 1) // max_vectors)
                _sum_columns(
                    flat, filters, height, width, side, length, step, rows, a, b, vectors,
                    own_rows, cells, run_sums, column_sums,
                )  # fmt: skip
                _fill(by_cell, vectors * pooled.shape[1], -np.inf if use_max else 0.0)
                for r in range(rows):
                    _sum_row(
                        column_sums, r * cell_columns, length, step, columns, vectors,
                        run_sums, block_sums,
                    )  # fmt: skip
                    _pool_row(
                        block_sums, block * block, flat_means, flat_inverse, r * columns, filters,
                        starts, channels, covariances, a, b, vectors, power, use_max, targets[r],
                        entries, by_cell,
                    )  # fmt: skip
                for p in range(len(parents)):
                    _pool(by_cell, parents[p, 1], by_cell, parents[p, 0], vectors, use_max)
                _write_pairs(by_cell, a, b, vectors, first_offset, filters, pooled[image])
                b, all_vectors = b + vectors * LANES, all_vectors - vectors


@compile_part
def _write_nan(pooled: Array) -> None:
    """Set all entries of a matrix to NaN; Numba takes longer to compile a slice."""
    for i in range(pooled.shape[0]):
        row = pooled[i]
        for j in range(len(row)):
            row[j] = np.nan


@compile_part
def _center(image: Array, values: Array, line: Array, mean: Array) -> bool:
    """Write ReLU(image) minus its mean over the image to values (H, W, f), and the mean (f,).

    line (W·f,) is a buffer. Return whether the mean is finite.
    """
    height, width, filters = values.shape
    zero = values.dtype.type(0)
    for j in range(len(line)):
        line[j] = 0
    for y in range(height):
        pixels = image[y].reshape(-1)
        for j in range(len(line)):
            line[j] += max(pixels[j], zero)
    is_finite = True
    for a in range(filters):
        total = 0.0
        for j in range(a, len(line), filters):
            total += line[j]
        mean[a] = total / (height * width)
        is_finite = is_finite and math.isfinite(mean[a])
    for j in range(0, len(line), filters):
        for a in range(filters):
            line[j + a] = mean[a]
    for y in range(height):
        pixels, into = image[y].reshape(-1), values[y].reshape(-1)
        for j in range(len(line)):
            into[j] = max(pixels[j], zero) - line[j]
    return is_finite


@compile_part
def _sum_channels(
    flat: Array,
    filters: int,
    height: int,
    width: int,
    side: int,
    pitch: int,
    cells: Array,
    squares: Array,
) -> None:
    """Sum the channels of flat (H, W, f), and their squares, in each cell.

    cells and squares hold a row of cells every `pitch` floats.
    """
    for y in range(0, height, side):
        for x in range(0, width, side):
            for a in range(0, filters, TILE_FLOATS):  # the last floats are overwritten by the next
                total = fill_tile(flat.dtype.type(0))
                total_squares = total
                for down in range(y, y + side):
                    for p in range(down * width + x, down * width + x + side):
                        value = load_tile(flat, p * filters + a, LANES)
                        total = add(total, value)
                        total_squares = multiply_add(value, value, total_squares)
                into = y // side * pitch + x // side * filters + a
                store_tile(cells, into, LANES, total)
                store_tile(squares, into, LANES, total_squares)


@compile_part
def _sum_moments(
    cells: Array,
    filters: int,
    pitch: int,
    padded: int,
    length: int,
    step: int,
    rows: int,
    columns: int,
    run_sums: Array,
    column_sums: Array,
    sums: Array,
) -> None:
    """Sum cells (cell_rows, pitch) of all channels into blocks, sums (rows·columns, padded)."""
    for x in range(0, pitch, TILE_FLOATS):
        sum_windows(cells, x, x, pitch, length, step, run_sums, column_sums, x, pitch, rows)
    for r in range(rows):
        for x in range(0, padded, TILE_FLOATS):
            place = r * pitch + x
            sum_windows(
                column_sums, place, place, filters, length, step,
                run_sums, sums, r * columns * padded + x, padded, columns,
            )  # fmt: skip


@compile_part
def _sum_columns(
    flat: Array,
    filters: int,
    height: int,
    width: int,
    side: int,
    length: int,
    step: int,
    rows: int,
    a: int,
    b: int,
    vectors: int,
    own_rows: Array,
    cells: Array,
    run_sums: Array,
    column_sums: Array,
) -> None:
    """Sum the products of a group over the rows of blocks, column_sums (rows, columns, group).

    These are the products of channels a, a + 1, … and the vectors from channel b on, of pixels flat
    (H, W, f). Columns are those of cells.
    """
    size, line = vectors * TILE_FLOATS, width * filters
    row = width // side * size
    if side == 1:
        for x in range(width):
            sum_product_windows(
                flat, x * filters + a, x * filters + b, line, length, step,
                run_sums, column_sums, x * size, row, rows,
            )  # fmt: skip
        return
    for y in range(0, height, side):
        for x in range(0, width, side):
            place, pixel = y // side * row + x // side * size, y * line + x * filters
            for z in range(place, place + size, TILE_FLOATS):
                store_tile(cells, z, LANES, fill_tile(cells.dtype.type(0)))
            add_tile(
                flat, pixel + a, own_rows, 0, line, filters, flat, pixel + b, line, filters,
                cells, place, vectors * LANES, side, side, vectors,
            )  # fmt: skip
    for x in range(0, row, TILE_FLOATS):
        sum_windows(cells, x, x, row, length, step, run_sums, column_sums, x, row, rows)


@compile_part
def _sum_row(
    column_sums: Array,
    first_cell: int,
    length: int,
    step: int,
    columns: int,
    vectors: int,
    run_sums: Array,
    block_sums: Array,
) -> None:
    """Sum the columns of cells from first_cell on into a row of blocks, block_sums (Q, group)."""
    size = vectors * TILE_FLOATS
    for x in range(0, size, TILE_FLOATS):
        place = first_cell * size + x
        sum_windows(
            column_sums, place, place, size, length, step, run_sums, block_sums, x, size, columns
        )


@compile_part
def _fill(sums: Array, tiles: int, value: float) -> None:
    """Set all floats of the first tiles of sums."""
    for x in range(0, tiles * TILE_FLOATS, TILE_FLOATS):
        store_tile(sums, x, LANES, fill_tile(sums.dtype.type(value)))


@compile_part
def _pool_row(
    block_sums: Array,
    area: int,
    means: Array,
    inverse: Array,
    first_block: int,
    filters: int,
    starts: Array,
    channels: Array,
    covariances: Array,
    a: int,
    b: int,
    vectors: int,
    power: bool,
    use_max: bool,
    targets: Array,
    entries: Array,
    by_cell: Array,
) -> None:
    """Pool the normalized covariances of a group in a row of blocks to by_cell (cells, group)."""
    size, row_step = vectors * TILE_FLOATS, vectors * LANES
    inverse_area = fill_tile(block_sums.dtype.type(1 / area))
    for c in range(len(targets)):
        i = first_block + c
        is_plain = use_max and targets.shape[1] == 1 and not power and starts[i] == starts[i + 1]
        into, target = (by_cell, targets[c, 0] * size) if is_plain else (entries, 0)
        mean = spread_floats(means, i * filters + a)
        scale = spread_floats(inverse, i * filters + a)
        for x in range(0, row_step, LANES):
            other = i * filters + b + x
            covariance = subtract_product(
                multiply(load_tile(block_sums, c * size + x, row_step), inverse_area),
                mean,
                repeat_vector(means, other),
            )
            covariance = multiply(covariance, multiply(scale, repeat_vector(inverse, other)))
            if is_plain:
                covariance = maximum(covariance, load_tile(into, target + x, row_step))
            store_tile(into, target + x, row_step, covariance)
        if is_plain:
            continue
        for line in range(starts[i], starts[i + 1]):
            _insert_recomputed(channels[line], covariances[line], a, b, row_step, entries)
        if power:
            for j in range(size):
                entries[j] = math.copysign(math.sqrt(abs(entries[j])), entries[j])
        for level in range(targets.shape[1]):
            _pool(by_cell, targets[c, level], entries, 0, vectors, use_max)


@compile_part
def _insert_recomputed(
    channel: int, covariances: Array, a: int, b: int, row_step: int, entries: Array
) -> None:
    """Overwrite the entries of a channel that was recomputed, covariances (f,), in a group.

    The group are channels a, a + 1, … in rows of `row_step` channels from b on.
    """
    filters = len(covariances)
    if a <= channel < a + TILE_ROWS:
        row = (channel - a) * row_step
        for x in range(min(row_step, filters - b)):
            entries[row + x] = covariances[b + x]
    if b <= channel < b + row_step:
        for row in range(min(TILE_ROWS, filters - a)):
            entries[row * row_step + channel - b] = covariances[a + row]


@compile_part
def _pool(
    by_cell: Array, cell: int, entries: Array, source: int, vectors: int, use_max: bool
) -> None:
    """Pool group `source` of entries into a cell of by_cell, by the maximum or by the sum."""
    size = vectors * TILE_FLOATS
    for x in range(0, size, TILE_FLOATS):
        value, into = load_tile(entries, source * size + x, LANES), cell * size + x
        other = load_tile(by_cell, into, LANES)
        store_tile(by_cell, into, LANES, maximum(value, other) if use_max else add(value, other))


@compile_part
def _write_pairs(
    by_cell: Array, a: int, b: int, vectors: int, first_offset: int, filters: int, pooled: Array
) -> None:
    """Copy the entries of a group to pairs (cells, a ≤ b), row by row of the triangle.

    Pairs a = b are left out if first_offset is 1.
    """
    for cell in range(len(pooled)):
        for row in range(min(TILE_ROWS, filters - first_offset - a)):
            channel = a + row
            first = max(b, channel + first_offset)
            count = min(b + vectors * LANES, filters) - first
            start = (cell * TILE_ROWS + row) * vectors * LANES + first - b
            # pairs of the rows above
            pair = channel * (2 * (filters - first_offset) - channel + 1) // 2
            pair += first - channel - first_offset
            into, source = pooled[cell, pair : pair + count], by_cell[start : start + count]
            for j in range(count):
                into[j] = source[j]
