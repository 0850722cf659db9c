"""The tasks of the rig: those of a real pass, with their messages and results, but no arithmetic.

An accumulator says that it is as large as that of the real network, and weighs a few bytes. It
records how it was merged: the bytes that came from other workers, and the depth of the tree.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from distributed import get_worker

from rescnet_dist.kernels import Backend
from rescnet_dist.model import Tally
from rescnet_dist.planning import Group
from rescnet_dist.store import Checksums
from rescnet_dist.train.chunk_cache import ChunkCache
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.object_cache import load_state
from rescnet_dist.train.passes import ChecksummedStatistics, Pass
from rescnet_dist.train.task import Task
from rescnet_dist.train.task_events import (
    log_chunk_done,
    log_chunk_started,
    log_solving,
    log_task_done,
)

TASK_SECONDS = float(os.environ.get("RIG_TASK_SECONDS", "0"))  # that a fold of a layer takes
GOLDEN_RATIO = 0.618  # spreads the folds of neighbors
ACCUMULATOR_BYTES = int(os.environ.get("RIG_ACCUMULATOR_BYTES", "1000000000"))


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A sum of nothing: where it is, how it was merged, and when its first fold started."""

    worker: str
    started: float
    moved_bytes: int = 0
    depth: int = 0
    folds: int = 1

    def merge(self, other: Accumulator) -> Accumulator:
        """Return the merge of both, made on this worker."""
        here = get_worker().address
        moved = sum(ACCUMULATOR_BYTES for part in (self, other) if part.worker != here)
        return Accumulator(
            here,
            min(self.started, other.started),
            self.moved_bytes + other.moved_bytes + moved,
            max(self.depth, other.depth) + 1,
            self.folds + other.folds,
        )


sizeof.register(Accumulator, lambda _: ACCUMULATOR_BYTES)


def prepare_worker(_backend: Backend) -> tuple[int, int, None]:
    """Load no kernel; return memory, cores and GPU of a worker, as `cluster.workers` asks."""
    return 2**28, 1, None


def count(task: Task, group: Group, _cache: ChunkCache | None = None) -> list[Any]:
    """Count the images of each class in a group; return a list of one."""
    classes = load_state(task).classes
    return [np.full(classes, (group.stop - group.start) // classes, np.int64)]


def fold(name: str, paths: Sequence[str], task: Task, group: Group) -> ChecksummedStatistics:
    """Report the chunks of a group as a real task does; return an accumulator."""
    started, checksums = time.time(), Checksums()
    for start, stop in group.chunks():
        log_chunk_started(task, name, start)
        log_chunk_done(task, name, start, stop)
        checksums = checksums.merge(Checksums(dict.fromkeys(paths, (2**31 + start,))))
    if name == "grow":
        time.sleep(TASK_SECONDS * (0.5 + GOLDEN_RATIO * group.index % 1))
    log_task_done(task, name, TaskMeter())
    return ChecksummedStatistics(Accumulator(get_worker().address, started), checksums)


def survey(task: Task, group: Group, _cache: ChunkCache | None = None) -> ChecksummedStatistics:
    """Fold a group in the survey."""
    return fold("survey", ["data/images"], task, group)


def grow(task: Task, group: Group, _cache: ChunkCache | None = None) -> ChecksummedStatistics:
    """Fold a group in the pass of a layer."""
    return fold("grow", [f"{name}/{task.layer:04d}" for name in ("maps", "scores")], task, group)


def finish(task: Task, merged: ChecksummedStatistics) -> Checksums:
    """Write how the accumulators were merged to the folder of the rig; return the checksums."""
    log_solving(task, "grow" if task.layer else "survey")
    found = merged.statistics
    record = {
        "layer": task.layer,
        "first_task": found.started,
        "moved_bytes": found.moved_bytes,
        "depth": found.depth,
        "folds": found.folds,
        "result": time.time(),
    }
    Path(os.environ["RIG_FOLDER"], f"tree-{task.layer}.json").write_text(json.dumps(record))
    return task.run.store_checksums(task.layer, merged.checksums)


def finish_grow(task: Task, merged: ChecksummedStatistics) -> tuple[Tally, Checksums]:
    """Finish the pass of a layer."""
    return Tally.empty(), finish(task, merged)


def score(task: Task, group: Group, _cache: ChunkCache | None = None) -> Tally:
    """Fold a group in the pass that scores the last layer."""
    fold("score", [], task, group)
    return Tally.empty()


def stack(_task: Task, counts: list[Any]) -> Any:
    """Return the counts of all groups (G, C)."""
    return np.stack(counts)


def add(left: list[Any], right: list[Any]) -> list[Any]:
    """Join two lists of counts."""
    return left + right


COUNT = Pass("count", count, add, stack)
SURVEY = Pass("survey", survey, ChecksummedStatistics.merge, finish)
SCORE = Pass("score", score, Tally.merge, lambda _task, tally: tally)
GROW = Pass("grow", grow, ChecksummedStatistics.merge, finish_grow)
