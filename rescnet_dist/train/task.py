"""Description of a pass that is sent to each of its tasks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.task_spec import TaskRef

from rescnet_dist.planning.plan import Plan
from rescnet_dist.store import RunStore

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Description of a pass that is sent to each of its tasks.

    Attributes
    ----------
    run : RunStore
        Store of the run.
    layer : int
        Layer that the pass works on; 0 for the survey.
    stored_layer : int
        Last layer whose maps are in the store.
    cache_maps : bool
        Whether the state of a chunk stays in the worker's memory.
    save_maps : bool
        Whether the maps and scores of a chunk are written to the store.
    cache_features : bool
        Whether features are cached together with the maps.
    driver : str
        Unique name of the driver; empty to bypass the worker's cache of small objects.
    counts : ndarray of shape (C,)
        Number of training images of each class, repeated in proportion to their weights, if any;
        shape (0,) for a task without a group of images.
    class_offsets : ndarray of shape (C,)
        Number of training images of each class before those of the task, in the same way; zeros of
        shape (1,) for a task without a group of images.
    """

    run: RunStore
    layer: int
    stored_layer: int = 0
    cache_maps: bool = False
    save_maps: bool = True
    cache_features: bool = True
    driver: str = ""
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    class_offsets: Array = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(frozen=True, slots=True)
class GroupParts(Sequence[tuple[Any, ...]]):
    """The arguments of the task of each group: its description, the group and its cache, if any.

    They are made where they are needed, on the scheduler; what is sent there is a few bytes per
    group.

    Attributes
    ----------
    task : Task
        Description of the pass.
    plan : Plan
        The plan, which has the groups.
    counts : ndarray of shape (G, C)
        Number of training images of each class in each group; (G, 0) if they are not known.
    caches : tuple of str
        Keys of the caches of all groups; empty without caches.
    """

    task: Task
    plan: Plan
    counts: Array
    caches: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.plan.accumulators

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        counts, known = self.counts, bool(self.counts.size)
        offsets, total = np.cumsum(counts, axis=0) - counts, counts.sum(axis=0)
        for group in self.plan.groups():
            task, index = self.task, group.index
            if known:
                task = replace(task, counts=total, class_offsets=offsets[index].copy())
            cache = (TaskRef(self.caches[index]),) if self.caches else ()
            yield (task, group, *cache)

    def __reduce__(self) -> tuple[Any, ...]:
        counts = self.counts.astype(np.min_scalar_type(self.counts.max(initial=0)))
        packed = zlib.compress(counts.tobytes(), level=1)
        return _unpack_parts, (
            *(self.task, self.plan, packed, counts.dtype.str, counts.shape),
            zlib.compress("\n".join(self.caches).encode()),
        )


def _unpack_parts(
    task: Task, plan: Plan, packed: bytes, dtype: str, shape: tuple[int, int], caches: bytes
) -> GroupParts:
    """Return the parts that were packed."""
    counts = np.frombuffer(zlib.decompress(packed), dtype).reshape(shape).astype(np.int64)
    keys = zlib.decompress(caches).decode().split()
    return GroupParts(task, plan, counts, tuple(keys))
