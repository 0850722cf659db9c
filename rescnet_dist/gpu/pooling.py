"""Second-order pooling on a GPU: from maps to the features of a layer."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from rescnet_dist.gpu.device import Array, braces, module

RING = 20  # sums of blocks that a thread holds: with more they run along the rows of blocks
SLAB_BYTES = 512 * 2**20  # of centered maps that are held at a time
PAIR_THREADS = 128
CHANNEL_THREADS = 512


def pool_blocks(
    maps: Array,
    block: int,
    stride: int,
    targets: np.ndarray[Any, Any],
    parents: np.ndarray[Any, Any],
    channelwise: bool,
    power: bool,
    largest: bool,
    cells: int,
    pairs: int,
) -> Array:
    """(n, cells·pairs) of maps (n, H, W, f), as `kernels.blocks.pool_blocks` has it."""
    n, height, width, filters = maps.shape
    rows, columns, _ = targets.shape
    maps = cupy.ascontiguousarray(maps, np.float32)
    pooled = cupy.empty((n, cells * pairs), np.float32)
    kernels = _kernels(
        (height, width, filters), block, stride, _hashable(targets), _hashable(parents), cells,
        pairs, channelwise, power, largest,
    )  # fmt: skip
    tasks = _tasks(filters, channelwise)
    step = max(1, min(SLAB_BYTES // (4 * height * width * filters), 2**15))
    values = cupy.empty((min(step, n), height, width, filters), np.float32)
    overall = cupy.empty((len(values), filters), np.float32)
    means, inverse = (
        cupy.empty((len(values), rows, columns, filters), np.float32) for _ in range(2)
    )
    for start in range(0, n, step):
        some, into = maps[start : start + step], pooled[start : start + step]
        m = len(some)
        kernels["center"]((m,), (filters * _groups(filters),), (some, values, overall))
        kernels["normalize"](
            (m, columns), (-(-filters // 32) * 32,), (values, overall, means, inverse)
        )
        kernels["pool"](
            (-(-len(tasks) // PAIR_THREADS), m), (PAIR_THREADS,),
            (values, overall, means, inverse, tasks, into),
        )  # fmt: skip
    return pooled


def _hashable(table: np.ndarray[Any, Any]) -> tuple[bytes, tuple[int, ...]]:
    return np.ascontiguousarray(table, np.int64).tobytes(), table.shape


def _groups(filters: int) -> int:
    """Pixels of an image that are worked on at a time."""
    return max(1, CHANNEL_THREADS // filters)


@lru_cache(maxsize=16)
def _tasks(filters: int, channelwise: bool) -> Array:
    """(m, 4) of 32 bits: a channel, its first partner, the number of them, 1 or 2, and the first of
    their pairs, which are counted row by row of the upper triangle."""
    found, pair = [], 0
    for first in range(filters):
        for partner in range(first + channelwise, filters, 2):
            count = min(2, filters - partner)
            found.append((first, partner, count, pair))
            pair += count
    return cupy.asarray(np.array(found, np.int32))


@lru_cache(maxsize=16)
def _kernels(
    shape: tuple[int, int, int],
    block: int,
    stride: int,
    targets: tuple[bytes, tuple[int, ...]],
    parents: tuple[bytes, tuple[int, ...]],
    cells: int,
    pairs: int,
    channelwise: bool,
    power: bool,
    largest: bool,
) -> dict[str, Any]:
    """The kernels for one kind of network."""
    height, width, filters = shape
    table, tree = (np.frombuffer(t[0], np.int64).reshape(t[1]) for t in (targets, parents))
    rows, columns, levels = table.shape
    side = math.gcd(block, stride)
    length, step = block // side, stride // side
    first = table[0, 0]  # of each level: its cells are numbered row by row
    bin_of_column = (table[0] - first).T
    counts = bin_of_column.max(axis=1) + 1
    bin_of_row = ((table[:, 0] - first) // counts).T
    definitions = {
        "FILTERS": filters, "HEIGHT": height, "WIDTH": width, "BLOCK": block, "STRIDE": stride,
        "ROWS": rows, "COLUMNS": columns, "SIDE": side, "LENGTH": length, "STEP": step,
        "CELL_ROWS": ((rows - 1) * stride + block) // side,
        "CELL_COLUMNS": ((columns - 1) * stride + block) // side,
        "PAIRS": pairs, "TASKS": len(_tasks(filters, channelwise)), "GROUPS": _groups(filters),
        "CELLS": cells, "LEVELS": levels, "BINS": int(counts.max()),
        "CHANNELWISE": int(channelwise), "POWER": int(power), "LARGEST": int(largest),
        "RING": int(length * columns <= RING), "PARENT_COUNT": len(tree),
        "FIRST_CELL": braces(first), "BIN_COUNT": braces(counts),
        "BIN_OF_ROW": braces(bin_of_row), "BIN_OF_COLUMN": braces(bin_of_column),
        "PARENTS": braces([*tree.tolist(), [0, 0]]),
    }  # fmt: skip
    compiled = module("pooling", tuple(definitions.items()))
    return {name: compiled.get_function(name) for name in ("center", "normalize", "pool")}
