"""Dask graphs that fold chunks into accumulators and merge these in a tree, in a fixed order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from dask.delayed import Delayed, delayed


def fold_name(name: str) -> str:
    """What Dask calls the tasks that fold the chunks of a pass of this name."""
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
    spread: bool = False,
) -> Delayed:
    """A lazy finish(shared, merge of all fold(*part)).

    With `spread`, finish itself makes the rest of the graph: finish(shared, lazy merge, token for
    its keys).

    Each part is one task that streams its chunks into one accumulator, so that few accumulators
    exist however many chunks there are. They are merged in a tree of fan-in `split_every`; parts
    and fan-in alone fix the order of every sum. The parts and `shared` travel inside the graph and
    must be small; as no task depends on where such a thing lies, all workers begin at once. Dask's
    dashboard shows the tasks under `name`.
    """
    token = uuid.uuid4().hex  # never reuse a key: a store may hold something else by now
    folded = [
        delayed(fold, pure=False)(*part, dask_key_name=(f"{fold_name(name)}-{token}", index))
        for index, part in enumerate(parts)
    ]
    merged = tree_merge(folded, merge, split_every=split_every, name=name, token=token)
    if spread:
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
    """The lazy merge of all parts, `split_every` at a time, in their order."""
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
    return reduce(merge, parts)
