"""The pass of a layer whose scatter matrix does not fit on any worker, computed in tiles.

The pass over the chunks has written the features to the run's work area. After it, one task per
tile sums its part of the scatter matrix, one task per tile computes its part of the Cholesky factor
(left-looking), and one task solves with it. Tiles are stored in the work area; tasks pass on only
their checksums.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from rescnet_dist.kernels import (
    Standardizer,
    TileScatter,
    factor_tile,
    tiled_whitening,
)
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.model import Tally, check_features, fit_bank, fit_head
from rescnet_dist.planning.plan import Group
from rescnet_dist.store import Checksums, checksum, read_block, write_block
from rescnet_dist.train.chunks import Reader, feature_path
from rescnet_dist.train.grown import WORK_PREFIX
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.object_cache import load_state
from rescnet_dist.train.passes import (
    ChecksummedStatistics,
    Pass,
    grow_group,
    store_bank,
    store_head,
)
from rescnet_dist.train.task import Array, Task
from rescnet_dist.train.task_events import log_io, log_solving, reports_retries, send


def finish_in_tiles(task: Task, merged: Delayed, token: str) -> Delayed:
    """Build the graph from the merged `ChecksummedStatistics` of a pass to its fits."""
    state = load_state(task)
    blocks = range(len(state.feature_blocks(task.layer)))

    def delay(name: str, function: Any, index: tuple[int, ...], *arguments: Any) -> Delayed:
        return delayed(function, pure=False)(
            task, *arguments, dask_key_name=(f"grow-{name}-{token}", *index)
        )

    summary = delay("means", summarize_features, (), merged)
    scatter = {
        (i, j): delay("scatter", scatter_tile, (i, j), summary, i, j)
        for i in blocks
        for j in range(i + 1)
    }
    diagonals = [scatter[i, i] for i in blocks]
    standardizer = delay("standardize", fit_standardizer, (), summary, diagonals)
    factor: dict[tuple[int, int], Delayed] = {}
    for j in blocks:
        for i in range(j, len(blocks)):
            needed = {(row, k): factor[row, k] for k in range(j) for row in {i, j}}
            if i > j:
                needed[j, j] = factor[j, j]
            factor[i, j] = delay(
                "factor", factorize_tile, (i, j), standardizer, scatter[i, j], needed, i, j
            )
    return delay("finish", finish_tiled_layer, (), merged, standardizer, factor)


@reports_retries
def summarize_features(
    task: Task, merged: ChecksummedStatistics
) -> tuple[float, Array, dict[str, Any]]:
    """Return the number of samples, the means (D,), and the checksums of the features by block."""
    moments = merged.statistics.features
    check_features(moments, load_state(task).architecture)
    return moments.count, moments.mean, merged.checksums.chunks


@reports_retries
def scatter_tile(
    task: Task, summary: tuple[float, Array, dict[str, Any]], i: int, j: int
) -> tuple[int, Array]:
    """Sum and store tile (i, j) of the scatter matrix.

    Return its checksum and, if i = j, its diagonal, otherwise an empty array.
    """
    run, state = task.run, load_state(task)
    blocks, (_, means, checksums) = state.feature_blocks(task.layer), summary
    rows, columns = blocks[i], blocks[j]
    features, target = run.work("features"), run.work("scatter", write=True)
    all_chunks = Group(0, 0, state.plan.images, state.plan.chunk_images)
    reader = Reader.of(task, all_chunks, state, 0)
    tile = TileScatter.empty(means[rows], means[columns])
    meter = reader.meter
    with blas_threads(1):
        for number, chunk in enumerate(reader.chunks()):
            left, right = (
                _read_tile(
                    features,
                    (slice(chunk.start, chunk.stop), blocks[block]),
                    checksums[feature_path(block)][number],
                    meter,
                )[chunk.train]
                for block in (i, j)
            )
            tile.add(left, right, None if chunk.weights is None else chunk.weights[chunk.train])
    values = tile.value()
    write_block(target, (rows.start, columns.start), values)
    meter.written += values.nbytes
    log_io(task, "grow", meter)
    send(task, "tile", name="scatter", row=i, column=j)
    return checksum(values), np.diagonal(values).copy() if i == j else np.zeros(0)


def fit_standardizer(
    task: Task, summary: tuple[float, Array, dict[str, Any]], diagonals: list[tuple[int, Array]]
) -> Standardizer:
    """Fit the standardization of the features from the diagonal tiles."""
    log_solving(task, "grow")
    squares = np.concatenate([diagonal for _, diagonal in diagonals])
    count, mean, _ = summary
    return Standardizer.of(squares, mean, count, load_state(task).spec.head.ridge)


@reports_retries
def factorize_tile(
    task: Task,
    standardizer: Standardizer,
    scatter: tuple[int, Array],
    needed: dict[tuple[int, int], int],
    i: int,
    j: int,
) -> int:
    """Compute and store tile (i, j) of the Cholesky factor; return its checksum.

    needed holds the checksums of the tiles of the factor that it is computed from.
    """
    run, state = task.run, load_state(task)
    blocks = state.feature_blocks(task.layer)
    covariance, target = run.work("scatter"), run.work("factor", write=True)
    meter = TaskMeter()
    read = partial(_read_factor_tile, target, blocks, needed, meter)
    with blas_threads(1):
        tile = _read_tile(covariance, (blocks[i], blocks[j]), scatter[0], meter)
        values = factor_tile(
            standardizer.tile(tile, blocks[i], blocks[j]),
            ((read(i, k), read(j, k)) for k in range(j)),
            read(j, j) if i > j else None,
            standardizer,
        )
    values = np.ascontiguousarray(values)
    corner = blocks[i].start, blocks[j].start
    write_block(target, corner, values)
    meter.written += values.nbytes
    log_io(task, "grow", meter)
    send(task, "tile", name="factor", row=i, column=j)
    return checksum(values)


@reports_retries
def finish_tiled_layer(
    task: Task,
    merged: ChecksummedStatistics,
    standardizer: Standardizer,
    checksums: dict[tuple[int, int], int],
) -> tuple[Tally, Checksums]:
    """Fit and store as `passes.finish_layer` does, with the factor in tiles."""
    run, state, statistics = task.run, load_state(task), merged.statistics
    blocks = state.feature_blocks(task.layer)
    meter = TaskMeter()
    read = partial(_read_factor_tile, run.work("factor"), blocks, checksums, meter)
    whitening = tiled_whitening(statistics.features, standardizer, blocks, read)
    architecture, rate = state.architecture, state.spec.learning_rate_at(task.layer)
    with blas_threads(state.plan.solve_threads):
        head = fit_head(statistics.features, architecture, rate, whitening)
        if statistics.inputs:
            store_bank(task, fit_bank(statistics.inputs, architecture, task.layer + 1))
    store_head(task, head)
    log_io(task, "grow", meter)
    _, lasting = merged.checksums.split(WORK_PREFIX)
    return statistics.tally, run.store_checksums(task.layer, lasting)


def _read_tile(array: Any, block: tuple[slice, slice], expected: int, meter: TaskMeter) -> Array:
    """Read a block of an array of the work area, and compare it with its checksum."""
    values = read_block(array, block, expected)
    meter.read += values.nbytes
    return values


def _read_factor_tile(
    array: Any,
    blocks: list[slice],
    checksums: dict[tuple[int, int], int],
    meter: TaskMeter,
    i: int,
    j: int,
) -> Array:
    """Read tile (i, j) of the Cholesky factor."""
    return _read_tile(array, (blocks[i], blocks[j]), checksums[i, j], meter)


GROW_IN_TILES = Pass(
    "grow", grow_group, ChecksummedStatistics.merge, finish_in_tiles, lazy_finish=True
)
