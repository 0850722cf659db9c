"""The driver of conjugate gradients: which iteration is next, and what is committed of it.

After each iteration, a record in the work area gives its number and the checksums of what it has
stored. A driver that takes over continues with the next iteration, and ends in the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.events.classes import SolverIteration
from rescnet_dist.events.metrics import PassMetrics
from rescnet_dist.model import ConjugateGradients
from rescnet_dist.planning.plan import Plan
from rescnet_dist.store import RunStore
from rescnet_dist.train.cg_tasks import FIT, START, StoredIterate, make_iteration_pass
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import GroupParts, Task

# Computes a pass with these arguments of each fold.
Compute = Callable[[Pass, Task, Sequence[tuple[Any, ...]]], tuple[Any, PassMetrics]]


@dataclass(frozen=True, slots=True)
class Solve:
    """The solve of a layer whose features are in the work area.

    caches are the keys of the caches with the features of each group of chunks, and empty if these
    do not stay in memory.
    """

    run: RunStore
    plan: Plan
    solver: ConjugateGradients
    task: Task
    compute: Compute
    caches: Sequence[str] = ()

    def run_iterations(self, save: Callable[[StoredIterate], None]) -> PassMetrics:
        """Continue where the work area is; `save` is called after each iteration.

        Return the metrics of all passes.
        """
        record, metrics = self.run.read_work_record("progress"), PassMetrics()
        if record:
            stored = StoredIterate(**record)
        else:
            stored, metrics = self.compute(START, self.task, [(self.task,)])
            save(stored)
        while not is_done(stored, self.solver):
            pass_ = make_iteration_pass(stored)
            stored, observed = self.compute(pass_, self.task, self.make_parts(stored))
            metrics = metrics.plus_solve(observed)
            save(stored)
        _, observed = self.compute(FIT, self.task, [(self.task, stored)])
        return metrics.plus_solve(observed)

    def make_parts(self, stored: StoredIterate) -> GroupParts:
        """Return the arguments of the task of each group in an iteration."""
        no_counts = np.zeros((self.plan.accumulators, 0), np.int64)
        return GroupParts(self.task, self.plan, no_counts, tuple(self.caches), (stored,))


def is_done(stored: StoredIterate, solver: ConjugateGradients) -> bool:
    """Return whether no other iteration follows."""
    return stored.error <= solver.tolerance or stored.number >= solver.iterations


def make_event(stored: StoredIterate, layer: int, solver: ConjugateGradients) -> SolverIteration:
    """Return the event of an iteration that is done."""
    return SolverIteration(layer, stored.number, solver.iterations, stored.error)
