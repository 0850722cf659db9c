"""A driver of passes with very many tasks, run in place of `rescnet train`.

Its passes use the package's own loop: a graph of folds, a tree of merges, and a report and
checksums of each chunk that reach the driver. Only the folds themselves do nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from rescnet_dist.cluster import open_client
from rescnet_dist.events.bus import EventBus
from rescnet_dist.planning import Group, Plan
from rescnet_dist.store import Location, RunStore
from rescnet_dist.train.executor import run_pass
from rescnet_dist.train.monitor import PassMonitor
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import GroupParts, Task
from rescnet_dist.train.task_events import log_chunk_done, log_chunk_started


def fold(task: Task, group: Group) -> dict[str, int]:
    """Report the chunks of a group; return their checksums."""
    for start, stop in group.chunks():
        log_chunk_started(task, "grow", start)
        log_chunk_done(task, "grow", start, stop)
    return {f"{name}/0001/c/{start}/0": start for start, _ in group.chunks() for name in "ms"}


def merge(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Merge the checksums of two groups."""
    return one | other


def finish(_task: Task, merged: dict[str, int]) -> dict[str, int]:
    """Return the checksums of all chunks."""
    return merged


def main(accumulators: int, passes: int) -> None:
    """Run passes with a number of accumulators."""
    plan = Plan(accumulators, 1, accumulators, split_every=2, solve_threads=1)
    counts: Any = np.ones((accumulators, 10), np.int64)
    run = RunStore(Location("s3://runs/nothing"))
    address = os.environ["DASK_SCHEDULER_ADDRESS"]
    empty_pass = Pass("grow", fold, merge, finish)
    with open_client(scheduler=address, wait=60) as client, EventBus([]) as bus:
        client.wait_for_workers(1)
        monitor = PassMonitor(run, client, bus)
        for layer in range(1, passes + 1):
            task = Task(run, layer)
            parts = GroupParts(task, plan, counts)
            checksums, _ = run_pass(empty_pass, task, parts, plan, monitor)
            assert len(checksums) == 2 * accumulators


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
