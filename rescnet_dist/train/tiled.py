"""The pass of a layer whose scatter matrix no worker can hold: tiles of it, shared over workers.

After the chunks' pass, which has written the features to the run's work area: one task per tile
sums its part of the scatter matrix, one per tile its part of the Cholesky factor (left-looking),
and one solves with it. Tiles lie in the work area; tasks hand on their checksums.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from rescnet_dist.kernels import (
    Standardizer,
    Tally,
    TileScatter,
    factor_tile,
    feature_blocks,
    fit_bank,
    fit_classifier,
    tiled_whitening,
)
from rescnet_dist.planning.plan import Group
from rescnet_dist.reduce import blas_threads
from rescnet_dist.store import Checksums, checksum, read_block, with_retries, write_block
from rescnet_dist.train.chunks import Reader, feature_path
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.passes import Checked, Pass, grow_group, store_bank, store_classifier
from rescnet_dist.train.state import Array, RunState, Task
from rescnet_dist.train.task_events import log_io, log_solving, report
from rescnet_dist.train.worker_cache import load_state


def finish_in_tiles(task: Task, merged: Delayed, token: str) -> Delayed:
    """The graph from the merged statistics of a pass to its fits; merged is a `Checked`."""
    state = load_state(task)
    blocks = range(len(_blocks(state)))

    def task_of(name: str, function: Any, at: tuple[int, ...], *arguments: Any) -> Delayed:
        return delayed(function, pure=False)(
            task, *arguments, dask_key_name=(f"grow-{name}-{token}", *at)
        )

    facts = task_of("means", means_of_features, (), merged)
    scatter = {
        (i, j): task_of("scatter", scatter_tile, (i, j), facts, i, j)
        for i in blocks
        for j in range(i + 1)
    }
    diagonals = [scatter[i, i] for i in blocks]
    standardized = task_of("standardize", standardize, (), facts, diagonals)
    factor: dict[tuple[int, int], Delayed] = {}
    for j in blocks:
        for i in range(j, len(blocks)):
            needed = {(row, k): factor[row, k] for k in range(j) for row in {i, j}}
            if i > j:
                needed[j, j] = factor[j, j]
            factor[i, j] = task_of(
                "factor", factorize_tile, (i, j), standardized, scatter[i, j], needed, i, j
            )
    return task_of("finish", finish_tiled_layer, (), merged, standardized, factor)


def means_of_features(_task: Task, checked: Checked) -> tuple[int, Array, dict[str, Any]]:
    """What the scatter's tiles need of the pass: the number of samples, the means (D,) and the
    checksums of the features by block."""
    moments = checked.statistics.features
    return moments.count, moments.mean, checked.checksums.chunks


def scatter_tile(
    task: Task, facts: tuple[int, Array, dict[str, Any]], i: int, j: int
) -> tuple[int, Array]:
    """Sum and store tile (i, j) of the scatter matrix; returns its checksum and, where i = j, its
    diagonal, else nothing."""
    run, state = task.run, load_state(task)
    blocks, (_, means, checksums) = _blocks(state), facts
    rows, columns = blocks[i], blocks[j]
    features, target = run.work("features"), run.work("scatter", write=True)
    everything = Group(0, 0, state.plan.images, state.plan.chunk_images)
    reader = Reader.of(task, everything, state, 0)
    tile = TileScatter.empty(means[rows], means[columns])
    meter = reader.meter
    with blas_threads(1):
        for number, chunk in enumerate(reader.chunks()):
            left, right = (
                _read(
                    features,
                    (slice(chunk.start, chunk.stop), blocks[block]),
                    checksums[feature_path(block)][number],
                    run,
                    meter,
                )[chunk.train]
                for block in (i, j)
            )
            tile.add(left, right)
    values = tile.value()
    with_retries(
        lambda: write_block(target, (rows.start, columns.start), values), f"tiles of {run}"
    )
    meter.written += values.nbytes
    log_io(task, "grow", meter)
    report(task, "tile", name="scatter", row=i, column=j)
    return checksum(values), np.diagonal(values).copy() if i == j else np.zeros(0)


def standardize(
    task: Task, facts: tuple[int, Array, dict[str, Any]], diagonals: list[tuple[int, Array]]
) -> Standardizer:
    """How the features are standardized, from the diagonal tiles."""
    log_solving(task, "grow")
    squares = np.concatenate([diagonal for _, diagonal in diagonals])
    return Standardizer.of(squares, facts[0], load_state(task).spec.ridge)


def factorize_tile(
    task: Task,
    standardized: Standardizer,
    scatter: tuple[int, Array],
    needed: dict[tuple[int, int], int],
    i: int,
    j: int,
) -> int:
    """Make and store tile (i, j) of the Cholesky factor; returns its checksum. needed holds the
    checksums of the tiles of the factor that it is made from."""
    run, state = task.run, load_state(task)
    blocks = _blocks(state)
    covariance, target = run.work("scatter"), run.work("factor", write=True)
    meter = TaskMeter()
    read = partial(_factor, target, blocks, needed, run, meter)
    with blas_threads(1):
        tile = _read(covariance, (blocks[i], blocks[j]), scatter[0], run, meter)
        values = factor_tile(
            standardized.tile(tile, blocks[i], blocks[j]),
            ((read(i, k), read(j, k)) for k in range(j)),
            read(j, j) if i > j else None,
            standardized,
        )
    values = np.ascontiguousarray(values)
    at = blocks[i].start, blocks[j].start
    with_retries(lambda: write_block(target, at, values), f"tiles of {run}")
    meter.written += values.nbytes
    log_io(task, "grow", meter)
    report(task, "tile", name="factor", row=i, column=j)
    return checksum(values)


def finish_tiled_layer(
    task: Task,
    checked: Checked,
    standardized: Standardizer,
    checksums: dict[tuple[int, int], int],
) -> tuple[Tally, Checksums]:
    """As `passes.finish_layer`, with the factor in tiles."""
    run, state, statistics = task.run, load_state(task), checked.statistics
    blocks = _blocks(state)
    meter = TaskMeter()
    read = partial(_factor, run.work("factor"), blocks, checksums, run, meter)
    white = tiled_whitening(statistics.features, standardized, blocks, read)
    with blas_threads(state.plan.solve_threads):
        classifier = fit_classifier(
            statistics.features, state.spec, task.layer, state.classes, white
        )
        bank = fit_bank(statistics.inputs, state.spec, task.layer + 1)
    store_bank(task, bank)
    store_classifier(task, classifier)
    log_io(task, "grow", meter)
    kept = {path: v for path, v in checked.checksums.chunks.items() if not path.startswith("work/")}
    return statistics.tally, Checksums(kept)


def _blocks(state: RunState) -> list[slice]:
    return feature_blocks(state.features, state.plan.tile_features or state.features)


def _read(
    array: Any, block: tuple[slice, slice], expected: int, run: Any, meter: TaskMeter
) -> Array:
    what = f"reading {array.path} of {run}"
    values = with_retries(lambda: read_block(array, block, expected), what)
    meter.read += values.nbytes
    return values


def _factor(
    array: Any,
    blocks: list[slice],
    checksums: dict[tuple[int, int], int],
    run: Any,
    meter: TaskMeter,
    i: int,
    j: int,
) -> Array:
    """Tile (i, j) of the factor."""
    return _read(array, (blocks[i], blocks[j]), checksums[i, j], run, meter)


GROW_IN_TILES = Pass("grow", grow_group, Checked.merge, finish_in_tiles, spread=True)
