"""Dask graphs that fold chunks into accumulators and merge these in a tree, in a fixed order."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from typing import Any

from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.typing import Key

from rescnet_dist.reduce.layer import DescribedLayer


def fold_name(name: str) -> str:
    """Return the Dask name of the tasks that fold the chunks of the pass `name`."""
    return f"{name}-fold"


def fold_graph(
    fold: Callable[..., Any],
    parts: Sequence[tuple[Any, ...]],
    merge: Callable[[Any, Any], Any],
    finish: Callable[..., Any],
    shared: Any,
    *,
    split_every: int,
    name: str,
    lazy_finish: bool = False,
) -> Delayed:
    """Build the graph of finish(shared, merge of all fold(*part)).

    Each part is one task that streams its chunks into one accumulator, so that the number of
    accumulators does not depend on the number of chunks. They are merged in a tree of fan-in
    `split_every`; the parts and the fan-in alone fix the order of every sum. The parts and `shared`
    are embedded in the graph and must be small; since no task depends on where they are stored, all
    workers start at once. The graph is sent as its description, see `FoldLayer`.

    Parameters
    ----------
    fold : callable
        Called as fold(*part); returns an accumulator.
    parts : sequence of tuple
        Arguments of each fold. A `dask.task_spec.TaskRef`, such as a future, is the result of that
        task.
    merge : callable
        Associative merge of two accumulators.
    finish : callable
        Called as finish(shared, merged). With `lazy_finish`, it builds the rest of the graph
        instead: finish(shared, lazy merge, token for its keys).
    shared : object
        First argument of finish.
    split_every : int
        Number of accumulators merged by one task.
    name : str
        Name of the tasks on Dask's dashboard.
    lazy_finish : bool
        Whether finish returns a Delayed.

    Returns
    -------
    Delayed
        The result of finish.
    """
    token = uuid.uuid4().hex  # never reuse a key: the contents of the store may have changed
    layer = FoldLayer(fold, parts, merge, split_every, name, token)
    layer_name = f"{name}-{token}"
    graph = HighLevelGraph({layer_name: layer}, {layer_name: set()})
    merged = Delayed(layer.output_key, graph, layer=layer_name)
    if lazy_finish:
        return finish(shared, merged, token)
    return delayed(finish, pure=False)(shared, merged, dask_key_name=f"{name}-finish-{token}")


class FoldLayer(DescribedLayer):
    """The tasks of a fold and of the tree that merges its accumulators.

    It is sent to the scheduler as it is and becomes tasks there: what it weighs does not depend on
    the number of tasks, only on that of `parts`.
    """

    def __init__(
        self,
        fold: Callable[..., Any],
        parts: Sequence[tuple[Any, ...]],
        merge: Callable[[Any, Any], Any],
        split_every: int,
        name: str,
        token: str,
    ) -> None:
        super().__init__()
        self.fold, self.parts, self.merge = fold, parts, merge
        self.split_every, self.name, self.token = split_every, name, token

    @cached_property
    def levels(self) -> list[int]:
        """The number of accumulators at each level of the tree; see `count_levels`."""
        return count_levels(len(self.parts), self.split_every)

    @property
    def output_key(self) -> Key:
        """The key of the merge of all accumulators."""
        return self._get_key(len(self.levels) - 1, 0)

    def _get_key(self, level: int, index: int) -> Key:
        """Return the key of an accumulator; one that is alone in its batch moves up as it is."""
        counts = self.levels
        while level and self._batch(counts, level, index) == 1:
            level, index = level - 1, index * self.split_every
        if level == 0:
            return (f"{fold_name(self.name)}-{self.token}", index)
        return (f"{self.name}-merge-{self.token}", level - 1, index)

    def _batch(self, counts: list[int], level: int, index: int) -> int:
        """Return how many accumulators of the level below one of `level` merges."""
        return min(self.split_every, counts[level - 1] - index * self.split_every)

    def make_tasks(self) -> Iterator[Task]:
        """Yield the folds, then the merges, level by level."""
        counts = self.levels
        for index, part in enumerate(self.parts):
            yield Task(self._get_key(0, index), self.fold, *part)
        for level, count in enumerate(counts[1:], start=1):
            for index in range(count):
                if (batch := self._batch(counts, level, index)) > 1:
                    first = index * self.split_every
                    merged = (TaskRef(self._get_key(level - 1, first + i)) for i in range(batch))
                    yield Task(self._get_key(level, index), _merge_all, self.merge, List(*merged))

    def __reduce__(self) -> tuple[Any, ...]:
        tree = self.split_every, self.name, self.token
        return FoldLayer, (self.fold, self.parts, self.merge, *tree)


def count_levels(accumulators: int, split_every: int) -> list[int]:
    """Return how many accumulators each level of a tree has, from the folds to the last one.

    >>> count_levels(9, 4)
    [9, 3, 1]
    """
    counts = [accumulators]
    while counts[-1] > 1:
        counts.append(math.ceil(counts[-1] / split_every))
    return counts


def tree_merge(
    parts: Sequence[Delayed],
    merge: Callable[[Any, Any], Any],
    *,
    split_every: int,
    name: str,
    token: str,
) -> Delayed:
    """Build the graph that merges all parts, `split_every` at a time, in their order."""
    level = 0
    while len(parts) > 1:
        batches = [parts[i : i + split_every] for i in range(0, len(parts), split_every)]
        parts = [
            batch[0]
            if len(batch) == 1
            else delayed(_merge_all, pure=False)(
                merge, batch, dask_key_name=(f"{name}-merge-{token}", level, index)
            )
            for index, batch in enumerate(batches)
        ]
        level += 1
    return parts[0]


def _merge_all(merge: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Merge accumulators from left to right."""
    return reduce(merge, parts)
