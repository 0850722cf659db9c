"""Dask graphs that fold chunks into accumulators and merge these in a tree, in a fixed order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.task_spec import List, Task, TaskRef
from dask.typing import Key

from rescnet_dist.reduce.layer import DescribedLayer
from rescnet_dist.reduce.levels import count_levels

MAX_FOLDS_PER_LAYER = 512  # a scheduler adds a layer in one step, some 50 µs for each of its tasks


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
    workers start at once. The graph is sent as its description, see `FoldLayer`. That of many folds
    has several layers, which can be sent one after the other, see `split_graph`.

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
    tree = MergeTree(len(parts), split_every, name, token)
    layers, dependencies = dict[str, Layer](), dict[str, set[str]]()
    layer_name = ""
    for start, stop in tree.cut(MAX_FOLDS_PER_LAYER):
        layer_name, earlier = f"{name}-{start}-{token}", set(layers)
        layers[layer_name] = FoldLayer(fold, parts[start:stop], merge, tree, start)
        dependencies[layer_name] = earlier
    graph = HighLevelGraph(layers, dependencies)
    merged = Delayed(tree.root, graph, layer=layer_name)
    if lazy_finish:
        return finish(shared, merged, token)
    return delayed(finish, pure=False)(shared, merged, dask_key_name=f"{name}-finish-{token}")


def split_graph(graph: Delayed) -> tuple[list[HighLevelGraph], Delayed]:
    """Split a graph of `fold_graph` into graphs that a client can send one after the other.

    A scheduler adds a graph in one step, during which its event loop waits. Each of these graphs
    refers to results of the earlier ones, whose futures must be kept until all of them are sent.

    Parameters
    ----------
    graph : Delayed
        The graph of a pass.

    Returns
    -------
    first : list of HighLevelGraph
        The layers of folds but the last, in order. A client computes the output keys of each.
    last : Delayed
        The rest, with the same key as `graph`.
    """
    layers, dependencies = graph.dask.layers, graph.dask.dependencies
    folds = [name for name, layer in layers.items() if isinstance(layer, FoldLayer)]
    first = folds[:-1]
    rest = {name: layer for name, layer in layers.items() if name not in first}
    last = HighLevelGraph(rest, {name: dependencies[name] - set(first) for name in rest})
    alone = [HighLevelGraph({name: layers[name]}, {name: set()}) for name in first]
    return alone, Delayed(graph.key, last, layer=graph.__dask_layers__()[0])


@dataclass(frozen=True, slots=True)
class MergeTree:
    """The tree that merges the accumulators of a pass, and the keys of its tasks.

    Attributes
    ----------
    folds : int
        Number of accumulators.
    split_every : int
        Number of accumulators merged by one task.
    name : str
        Name of the pass.
    token : str
        Unique part of all keys.
    """

    folds: int
    split_every: int
    name: str
    token: str

    @property
    def root(self) -> Key:
        """The key of the merge of all accumulators."""
        return self.get_key(len(self.count_levels()) - 1, 0)

    def count_levels(self) -> list[int]:
        """Return the number of accumulators at each level of the tree; see `count_levels`."""
        return count_levels(self.folds, self.split_every)

    def cut(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of about `limit` folds at most, each a whole branch of the tree."""
        width = self.split_every
        while width * self.split_every <= limit:
            width *= self.split_every
        for start in range(0, self.folds, width):
            yield start, min(start + width, self.folds)

    def get_key(self, level: int, index: int) -> Key:
        """Return the key of an accumulator; one that is alone in its batch moves up as it is."""
        while level and self.count_merged(level, index) == 1:
            level, index = level - 1, index * self.split_every
        if level == 0:
            return (f"{fold_name(self.name)}-{self.token}", index)
        return (f"{self.name}-merge-{self.token}", level - 1, index)

    def count_merged(self, level: int, index: int) -> int:
        """Return how many accumulators of the level below one of `level` merges."""
        below = -(-self.folds // self.split_every ** (level - 1))
        return min(self.split_every, below - index * self.split_every)

    def count_complete(self, level: int, folds: int) -> int:
        """Return how many accumulators of a level need only the first `folds` ones."""
        width = self.split_every**level
        return -(-folds // width) if folds == self.folds else folds // width


class FoldLayer(DescribedLayer):
    """Some of the folds of a pass, and the merges whose last accumulator is one of theirs.

    It is sent to the scheduler as it is and becomes tasks there: what it weighs does not depend on
    the number of tasks, only on that of `parts`. Merges may refer to earlier layers.

    Parameters
    ----------
    fold : callable
        Called as fold(*part).
    parts : sequence of tuple
        Arguments of the folds of this layer.
    merge : callable
        Merge of two accumulators.
    tree : MergeTree
        The tree of all folds.
    first : int
        Number of folds in earlier layers.
    """

    def __init__(
        self,
        fold: Callable[..., Any],
        parts: Sequence[tuple[Any, ...]],
        merge: Callable[[Any, Any], Any],
        tree: MergeTree,
        first: int,
    ) -> None:
        super().__init__()
        self.fold, self.parts, self.merge = fold, parts, merge
        self.tree, self.first = tree, first

    def _complete(self, level: int) -> range:
        """Return the accumulators of a level that this layer completes."""
        count, stop = self.tree.count_complete, self.first + len(self.parts)
        return range(count(level, self.first), count(level, stop))

    def make_tasks(self) -> Iterator[Task]:
        """Yield the folds, then the merges, level by level."""
        tree = self.tree
        for index, part in enumerate(self.parts, start=self.first):
            yield Task(tree.get_key(0, index), self.fold, *part)
        for level in range(1, len(tree.count_levels())):
            for index in self._complete(level):
                if (batch := tree.count_merged(level, index)) > 1:
                    first = index * tree.split_every
                    merged = (TaskRef(tree.get_key(level - 1, first + i)) for i in range(batch))
                    yield Task(tree.get_key(level, index), _merge_all, self.merge, List(*merged))

    def get_output_keys(self) -> set[Key]:
        """Return the keys that later layers use: those that no merge of this layer does."""
        tree, top = self.tree, len(self.tree.count_levels()) - 1
        keys = set[Key]()
        for level in range(top + 1):
            merged = self._complete(level + 1) if level < top else range(0)
            free = (i for i in self._complete(level) if i // tree.split_every not in merged)
            keys.update(tree.get_key(level, index) for index in free)
        return keys

    def __reduce__(self) -> tuple[Any, ...]:
        return FoldLayer, (self.fold, self.parts, self.merge, self.tree, self.first)


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
