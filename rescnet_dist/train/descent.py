"""The driver of a block coordinate descent: which step is next, and what is committed of it.

After each step, a record in the work area says which steps are done and gives the checksums of what
they have stored. A driver that takes over continues with the next step, and ends in the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rescnet_dist.events.classes import BlockSolved
from rescnet_dist.events.metrics import PassMetrics
from rescnet_dist.model import BlockSolver
from rescnet_dist.planning.plan import Group
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RunStore
from rescnet_dist.train.blockwise import (
    COLUMNS_PATH,
    FACTORIZE,
    FIT,
    Step,
    StepPart,
    StepResult,
    StepSolve,
    make_step_pass,
)
from rescnet_dist.train.chunks import feature_path
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import Task

# Computes a pass with these arguments of each fold.
Compute = Callable[[Pass, Task, Sequence[tuple[Any, ...]]], tuple[Any, PassMetrics]]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a descent is, with the checksums of what it has stored.

    Attributes
    ----------
    factors : tuple of int
        Checksums of the factors, by block.
    steps : int
        Number of steps that are done.
    predictions : tuple of int
        Checksums of the predictions, by group, with the changes of all steps but the last one.
    weights : tuple of int
        Checksums of the last weights of each block that has any.
    old_weights : tuple of int
        Checksums of the weights after the sweep before, of each block that has any.
    change, norm : float
        Sums of squares, over the last sweep, of the changes of the weights and of the new weights.
    """

    factors: tuple[int, ...]
    steps: int = 0
    predictions: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    old_weights: tuple[int, ...] = ()
    change: float = 0.0
    norm: float = 0.0

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Progress:
        """Return the progress of a record; the inverse of `dataclasses.asdict`."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
        }
        return cls(**values)

    def next_step(self, solver: BlockSolver) -> Step | None:
        """Return the next step; None after the last sweep, or one with little change."""
        step = Step.at(self.steps, len(self.factors))
        if step.block == 0 and step.sweep:
            is_small = math.sqrt(self.change) <= solver.tolerance * math.sqrt(self.norm)
            if is_small or step.sweep == solver.sweeps:
                return None
        return step

    def last_event(self, layer: int, solver: BlockSolver) -> BlockSolved:
        """Return the event of the last step that is done."""
        step = Step.at(self.steps - 1, len(self.factors))
        change = math.sqrt(self.change / self.norm) if self.norm else 0.0
        sweeps = step.sweep + 1, solver.sweeps
        return BlockSolved(layer, *sweeps, step.block + 1, len(self.factors), change)

    def plus(self, result: StepResult) -> Progress:
        """Return the progress after one more step."""
        step = Step.at(self.steps, len(self.factors))
        is_new_sweep = step.block == 0
        weights, old = list(self.weights), list(self.old_weights)
        if step.sweep:
            old[step.block : step.block + 1] = [weights[step.block]]
        weights[step.block : step.block + 1] = [result.weights]
        return replace(
            self,
            steps=self.steps + 1,
            predictions=result.predictions,
            weights=tuple(weights),
            old_weights=tuple(old),
            change=result.change + (0 if is_new_sweep else self.change),
            norm=result.norm + (0 if is_new_sweep else self.norm),
        )


@dataclass(frozen=True, slots=True)
class Descent:
    """The descent of a layer whose features are in the work area.

    checksums are those of the work area that the pass over the images has returned, by path.
    """

    run: RunStore
    state: RunState
    task: Task
    checksums: Mapping[str, Sequence[int]]
    compute: Compute

    def solve(self, save: Callable[[Progress], None]) -> PassMetrics:
        """Continue where the work area is; `save` is called after each step. Return the metrics."""
        solver = self.state.spec.head.block_solver
        assert solver is not None
        record, metrics = self.run.read_work_record("progress"), PassMetrics()
        if record:
            progress = Progress.from_dict(record)
        else:
            progress, metrics = self.factorize()
            save(progress)
        while step := progress.next_step(solver):
            result, observed = self.compute(
                make_step_pass(self.make_solve(step, progress)),
                self.task,
                self.make_parts(step, progress),
            )
            progress, metrics = progress.plus(result), metrics.plus_solve(observed)
            save(progress)
        sweep = Step.at(progress.steps - 1, len(progress.factors)).sweep
        _, observed = self.compute(FIT, self.task, [(self.task, sweep, progress.weights)])
        return metrics.plus_solve(observed)

    def factorize(self) -> tuple[Progress, PassMetrics]:
        """Factorize the covariances of all blocks."""
        blocks = self.state.feature_blocks(self.task.layer)
        parts = [(self.task, block, self.get_features(block)) for block in range(len(blocks))]
        found, metrics = self.compute(FACTORIZE, self.task, parts)
        return Progress(tuple(found[block] for block in range(len(parts)))), metrics

    def make_solve(self, step: Step, progress: Progress) -> StepSolve:
        """Return the last task of a step."""
        columns, weights = self.checksums[COLUMNS_PATH][step.block], None
        if step.sweep:
            weights = progress.weights[step.block]
        return StepSolve(step, columns, progress.factors[step.block], weights)

    def make_parts(self, step: Step, progress: Progress) -> list[tuple[Any, ...]]:
        """Return the arguments of the task of each group in a step."""
        groups = self.state.plan.groups()
        if step.number == 0:
            return [(self.task, groups[0], None)]
        last = step.previous
        old = progress.old_weights[last.block] if last.sweep else None

        def make_part(group: Group) -> StepPart:
            first = group.start // group.chunk_images
            chunks = slice(first, first + len(list(group.chunks())))
            return StepPart(
                step,
                self.get_features(step.block)[chunks],
                self.get_features(last.block)[chunks],
                progress.predictions[group.index] if last.number else None,
                (progress.weights[last.block], old),
            )

        return [(self.task, group, make_part(group)) for group in groups]

    def get_features(self, block: int) -> tuple[int, ...]:
        """Return the checksums of the features of a block, by chunk."""
        return tuple(self.checksums[feature_path(block)])
