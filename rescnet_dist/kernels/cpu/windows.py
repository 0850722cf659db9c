"""Compiled parts of kernels: sums of all windows of consecutive tiles.

No sum is ever subtracted from another, as that would lose digits. A long window is the end of one
run of `length` tiles and the beginning of the next. Sums from each tile to the end of a run are
stored; those from the beginning of the next run are in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_part
from rescnet_dist.kernels.cpu.tiles import (
    TILE_FLOATS,
    add,
    fill_tile,
    load_tile,
    multiply_add,
    repeat_vector,
    spread_floats,
    store_tile,
)
from rescnet_dist.kernels.cpu.vectors import LANES

MIN_OVERLAP = 3  # windows that contain a tile, from which on sums of runs are faster


@compile_part
def _add_tile(tiles: Array, place: int, _: int, total: Any) -> Any:
    """Return a tile plus the tile at tiles[place]."""
    return add(total, load_tile(tiles, place, LANES))


@compile_part
def _add_products(values: Array, first: int, second: int, total: Any) -> Any:
    """Return a tile plus the products of the floats from `first` on and the vector at `second`."""
    return multiply_add(spread_floats(values, first), repeat_vector(values, second), total)


def _make_sum_windows(add_part: Callable[..., Any]) -> Callable[..., None]:
    """Return the function that sums windows of what `add_part` adds."""

    @compile_part
    def sum_windows(
        parts: Array,
        place: int,
        other: int,
        part_step: int,
        length: int,
        step: int,
        run_sums: Array,
        sums: Array,
        into: int,
        sums_step: int,
        count: int,
    ) -> None:
        zero, skipped = sums.dtype.type(0), step * part_step
        if length < MIN_OVERLAP * step:
            for i in range(count):
                total = fill_tile(zero)
                for t in range(i * skipped, i * skipped + length * part_step, part_step):
                    total = add_part(parts, place + t, other + t, total)
                store_tile(sums, into + i * sums_step, LANES, total)
            return
        store_tile(run_sums, length * TILE_FLOATS, LANES, fill_tile(zero))
        i = 0
        while i < count:
            t = i * skipped + length * part_step  # the tile after the run
            total = fill_tile(zero)
            for y in range(length - 1, -1, -1):
                t -= part_step
                total = add_part(parts, place + t, other + t, total)
                store_tile(run_sums, y * TILE_FLOATS, LANES, total)
            store_tile(sums, into + i * sums_step, LANES, total)
            t += length * part_step
            total = fill_tile(zero)
            end = min(count - i, length // step + 1)
            for k in range(1, end):
                for _ in range(step):
                    total = add_part(parts, place + t, other + t, total)
                    t += part_step
                run_sum = load_tile(run_sums, k * step * TILE_FLOATS, LANES)
                store_tile(sums, into + (i + k) * sums_step, LANES, add(run_sum, total))
            i += end

    return sum_windows


# (tiles, place, place, tile_step, length, step, run_sums, sums, into, sums_step, count): write the
# sums of `count` windows of `length` tiles, `step` tiles apart. The first tile and sum begin at
# tiles[place] and sums[into]; the next ones are tile_step and sums_step floats after them.
# run_sums ((length + 1)·TILE_FLOATS,) is a buffer.
sum_windows = _make_sum_windows(_add_tile)
# (values, first, second, value_step, …): row r of a tile is values[first + r] times the vector at
# values[second]; both begin value_step floats later for the next tile.
sum_product_windows = _make_sum_windows(_add_products)
