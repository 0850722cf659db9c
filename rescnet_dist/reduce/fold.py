"""Dask graphs that fold chunks into accumulators and merge these in a tree, in a fixed order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from dask.delayed import Delayed, delayed


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
    workers start at once.

    Parameters
    ----------
    fold : callable
        Called as fold(*part); returns an accumulator.
    parts : sequence of tuple
        Arguments of each fold.
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
    folded = [
        delayed(fold, pure=False)(*part, dask_key_name=(f"{fold_name(name)}-{token}", index))
        for index, part in enumerate(parts)
    ]
    merged = tree_merge(folded, merge, split_every=split_every, name=name, token=token)
    if lazy_finish:
        return finish(shared, merged, token)
    return delayed(finish, pure=False)(shared, merged, dask_key_name=f"{name}-finish-{token}")


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
