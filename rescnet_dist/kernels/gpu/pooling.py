"""Second-order pooling on a GPU: the features of a layer from its maps."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from rescnet_dist.kernels.gpu.device import Array, format_initializer, load_module

MAX_RING_SUMS = 20  # sums that a thread holds in a ring; with more, it keeps running sums
POOLING_SLAB_BYTES = 512 * 2**20  # size of the centered maps that are held at a time
MAX_SLAB_IMAGES = 2**15  # images of one kernel launch
PAIR_THREADS = 128  # threads of a block that computes pairs of channels
CENTER_THREADS = 512  # threads of a block that centers an image, or the filters if more


def pool_blocks(
    maps: Array,
    block: int,
    stride: int,
    targets: np.ndarray[Any, Any],
    parents: np.ndarray[Any, Any],
    channelwise: bool,
    power: bool,
    counts: np.ndarray[Any, Any] | None,
    cells: int,
    pairs: int,
) -> Array:
    """Return the pooled covariances (n, cells·pairs) of maps (n, H, W, f)."""
    n, height, width, filters = maps.shape
    rows, columns, _ = targets.shape
    maps = cupy.ascontiguousarray(maps, np.float32)
    pooled = cupy.empty((n, cells * pairs), np.float32)
    kernels = _load_kernels(
        (height, width, filters),
        block,
        stride,
        _make_hashable(targets),
        _make_hashable(parents),
        cells,
        pairs,
        channelwise,
        power,
        counts is None,
    )
    tasks = _list_tasks(filters, channelwise, math.gcd(block, stride))
    step = max(1, min(POOLING_SLAB_BYTES // (4 * height * width * filters), MAX_SLAB_IMAGES))
    values = cupy.empty((min(step, n), height, width, filters), np.float32)
    overall = cupy.empty((len(values), filters), np.float32)
    means, inverse = (
        cupy.empty((len(values), rows, columns, filters), np.float32) for _ in range(2)
    )
    for start in range(0, n, step):
        slab, into = maps[start : start + step], pooled[start : start + step]
        m = len(slab)
        kernels["center"]((m,), (filters * _count_groups(filters),), (slab, values, overall))
        kernels["normalize"](
            (m, columns), (-(-filters // 32) * 32,), (values, overall, means, inverse)
        )
        kernels["pool"](
            (-(-len(tasks) // PAIR_THREADS), m),
            (PAIR_THREADS,),
            (values, overall, means, inverse, tasks, into),
        )
    if counts is not None:
        pooled *= cupy.asarray(np.repeat(1 / counts, pairs).astype(np.float32))
    return pooled


def _make_hashable(table: np.ndarray[Any, Any]) -> tuple[bytes, tuple[int, ...]]:
    """Return the bytes, as int64, and the shape of a table."""
    return np.ascontiguousarray(table, np.int64).tobytes(), table.shape


def _count_groups(filters: int) -> int:
    """Return the number of pixels of an image that are centered at a time."""
    return max(1, CENTER_THREADS // filters)


@lru_cache(maxsize=16)
def _list_tasks(filters: int, channelwise: bool, side: int) -> Array:
    """Return the tasks (m, 4) of threads, int32: channel, partner, distance of another, first pair.

    The distance is 0 if there is no other partner. Pairs are counted row by row of the upper
    triangle. With cells of several pixels a side, the partners of a channel are divided into two
    halves, so that threads next to each other read channels next to each other; with cells of one
    pixel, a thread that has neighboring partners is faster.
    """
    tasks, pair = [], 0
    for channel in range(filters):
        partners = range(channel + channelwise, filters)
        half = -(-len(partners) // 2)
        step, distance = (1, half) if side > 1 else (2, 1)
        for place in range(0, half * step, step):
            has_other = place + distance < len(partners)
            tasks.append((channel, partners[place], distance * has_other, pair + place))
        pair += len(partners)
    return cupy.asarray(np.array(tasks, np.int32))


@lru_cache(maxsize=16)
def _load_kernels(
    shape: tuple[int, int, int],
    block: int,
    stride: int,
    targets: tuple[bytes, tuple[int, ...]],
    parents: tuple[bytes, tuple[int, ...]],
    cells: int,
    pairs: int,
    channelwise: bool,
    power: bool,
    use_max: bool,
) -> dict[str, Any]:
    """Compile the kernels for one network; targets and parents as of `_make_hashable`."""
    height, width, filters = shape
    table, parent_table = (np.frombuffer(t[0], np.int64).reshape(t[1]) for t in (targets, parents))
    rows, columns, levels = table.shape
    side = math.gcd(block, stride)
    length, step = block // side, stride // side
    first = table[0, 0]  # cell of each level, whose cells are numbered row by row
    bin_of_column = (table[0] - first).T
    counts = bin_of_column.max(axis=1) + 1
    bin_of_row = ((table[:, 0] - first) // counts).T
    definitions = {
        "FILTERS": filters,
        "HEIGHT": height,
        "WIDTH": width,
        "BLOCK": block,
        "STRIDE": stride,
        "ROWS": rows,
        "COLUMNS": columns,
        "SIDE": side,
        "LENGTH": length,
        "STEP": step,
        "CELL_ROWS": ((rows - 1) * stride + block) // side,
        "CELL_COLUMNS": ((columns - 1) * stride + block) // side,
        "PAIRS": pairs,
        "TASKS": len(_list_tasks(filters, channelwise, side)),
        "GROUPS": _count_groups(filters),
        "CELLS": cells,
        "LEVELS": levels,
        "BINS": int(counts.max()),
        "CHANNELWISE": int(channelwise),
        "POWER": int(power),
        "USE_MAX": int(use_max),
        "RING": int(length * columns <= MAX_RING_SUMS),
        "PARENT_COUNT": len(parent_table),
        "FIRST_CELL": format_initializer(first),
        "BIN_COUNT": format_initializer(counts),
        "BIN_OF_ROW": format_initializer(bin_of_row),
        "BIN_OF_COLUMN": format_initializer(bin_of_column),
        "PARENTS": format_initializer([*parent_table.tolist(), [0, 0]]),
    }
    module = load_module("pooling", tuple(definitions.items()))
    return {name: module.get_function(name) for name in ("center", "normalize", "pool")}
