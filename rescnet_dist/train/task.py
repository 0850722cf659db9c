"""Description of a pass that is sent to each of its tasks."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
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
        Whether the features of a chunk stay in the worker's memory, with its maps or alone.
    driver : str
        Unique name of the driver; empty to bypass the worker's cache of small objects.
    counts : ndarray of shape (C,)
        Number of training images of each class, repeated in proportion to their weights, if any;
        shape (0,) for a task without a group of images.
    class_offsets : ndarray of shape (C,)
        Number of training images of each class before those of the task, in the same way; zeros of
        shape (1,) for a task without a group of images.
    packed : bytes
        All of these but the offsets, as they are sent; empty if they are packed when they are sent,
        as in a task from `dataclasses.replace`. See `pack`.
    """

    run: RunStore
    layer: int
    stored_layer: int = 0
    cache_maps: bool = False
    save_maps: bool = True
    cache_features: bool = False
    driver: str = ""
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    class_offsets: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    packed: bytes = field(default=b"", init=False, repr=False)

    def pack(self) -> Task:
        """Return the same task with what all groups share packed, once for all of them."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        return _set_packed(replace(self), pickle.dumps(values))

    def with_offsets(self, class_offsets: Array) -> Task:
        """Return the same task with other offsets (C,), packed if this one is."""
        return _set_packed(replace(self, class_offsets=class_offsets), self.packed)

    def __reduce__(self) -> tuple[Any, ...]:
        # A scheduler serializes the tasks of all workers at once, while its event loop waits.
        offsets = self.class_offsets
        packed = self.packed or replace(self, class_offsets=offsets[:0]).pack().packed
        return _unpack_task, (packed, offsets.dtype.str, offsets.tobytes())


def _set_packed(task: Task, packed: bytes) -> Task:
    """Set what is packed of a new task, and return it."""
    object.__setattr__(task, "packed", packed)
    return task


def _unpack_task(packed: bytes, dtype: str, offsets: bytes) -> Task:
    """Return the task that was packed; what many tasks share is unpacked once."""
    return replace(_unpack_shared(packed), class_offsets=np.frombuffer(offsets, dtype).copy())


@lru_cache(maxsize=16)
def _unpack_shared(packed: bytes) -> Task:
    """Return a task without its offsets."""
    return Task(**pickle.loads(packed))


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
    others : tuple
        Other arguments of all tasks, between the group and the cache.
    first : int
        The first group, unless these are the parts of all groups. See `__getitem__`.
    before, total : ndarray of shape (C,), optional
        Number of training images of each class in earlier groups and in all groups, if these are
        not all of them.
    """

    task: Task
    plan: Plan
    counts: Array
    caches: tuple[str, ...] = ()
    others: tuple[Any, ...] = ()
    first: int = 0
    before: Array | None = None
    total: Array | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: Any) -> Any:
        """Return the arguments of one task, or a slice with those of neighbors."""
        if not isinstance(index, slice):
            return list(self)[index]
        start, stop, _ = index.indices(len(self))
        before, total = self._sums()
        return replace(
            self,
            counts=self.counts[start:stop],
            caches=self.caches[start:stop],
            first=self.first + start,
            before=before + self.counts[:start].sum(axis=0),
            total=total,
        )

    def _sums(self) -> tuple[Array, Array]:
        """Return the number of images of each class in earlier and in all groups, (C,) each."""
        if self.before is None or self.total is None:
            return np.zeros(self.counts.shape[1], np.int64), self.counts.sum(axis=0)
        return self.before, self.total

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        counts, known = self.counts, bool(self.counts.size)
        before, total = self._sums()
        offsets = before + np.cumsum(counts, axis=0) - counts
        shared = (replace(self.task, counts=total) if known else self.task).pack()
        groups = self.plan.groups()[self.first : self.first + len(self)]
        for index, group in enumerate(groups):
            task = shared
            if known:
                task = task.with_offsets(offsets[index].copy())
            cache = (TaskRef(self.caches[index]),) if self.caches else ()
            yield (task, group, *self.others, *cache)

    def __reduce__(self) -> tuple[Any, ...]:
        counts = self.counts.astype(np.min_scalar_type(self.counts.max(initial=0)))
        packed = zlib.compress(counts.tobytes(), level=1)
        return _unpack_parts, (
            *(self.task, self.plan, packed, counts.dtype.str, counts.shape),
            zlib.compress("\n".join(self.caches).encode()),
            *(self.others, self.first, self.before, self.total),
        )


def _unpack_parts(
    task: Task,
    plan: Plan,
    packed: bytes,
    dtype: str,
    shape: tuple[int, int],
    caches: bytes,
    *others: Any,
) -> GroupParts:
    """Return the parts that were packed."""
    counts = np.frombuffer(zlib.decompress(packed), dtype).reshape(shape).astype(np.int64)
    keys = zlib.decompress(caches).decode().split()
    return GroupParts(task, plan, counts, tuple(keys), *others)
