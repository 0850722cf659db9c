"""Shelves: where maps wait for the next layer in the memory of workers, host's or GPU's.

Each group of chunks has one, a Dask future that the driver holds and that every task of the group
takes as an argument: Dask sends the task to the worker with the shelf, and frees the shelf when
the driver is gone. A shelf never travels: whoever gets it elsewhere, or after its worker was lost,
finds it empty, and computes what was on it again from the store.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from dask.sizeof import sizeof
from distributed import Client, Future, stealing, wait

from rescnet_dist.cluster.workers import GPU_MEMORY_FRACTION, spill_fraction
from rescnet_dist.kernels import Backend
from rescnet_dist.train.task_events import this_worker

PLACED = 30.0  # seconds for shelves to be in place
BEYOND = 0.05  # of its memory that a worker may take more than planned, and still keep things


@dataclass(frozen=True, slots=True)
class ChunkState:
    """What is kept of a chunk: maps (n, H, W, f) and features (n, D) of a layer, and the scores
    (n, C) that entered it."""

    layer: int
    maps: Any
    scores: Any
    features: Any

    def with_maps_in(self, dtype: str) -> ChunkState:
        """The same, its maps in the precision that they have been rounded to."""
        return replace(self, maps=self.maps.astype(dtype, copy=False))


EMPTY = ChunkState(0, None, None, None)  # what there is before the first layer


@dataclass
class ChunkCache:
    """What one worker keeps of one group of chunks, by the first row of each; planned bytes."""

    planned: int = 0
    held: dict[int, ChunkState] = field(default_factory=dict)
    images: dict[int, Any] = field(default_factory=dict)
    chunks: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    backend: Backend | None = None  # of what is on it

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[int]]:
        return ChunkCache, (self.planned,)

    def __del__(self) -> None:
        """Give a GPU's memory back, which others may be waiting for once a run is done."""
        if self.backend:
            self.held.clear()
            self.images.clear()
            self.backend.free()

    def take(self, start: int, layer: int) -> ChunkState | None:
        """What is kept of a chunk and is of this layer or one before; it is kept no longer."""
        with self.lock:
            found = self.held.get(start)
            return self.held.pop(start) if found and found.layer <= layer else None

    def put(self, start: int, held: ChunkState, backend: Backend) -> None:
        """Keep something of a chunk, in place of what there was, if there is room."""
        with self.lock:
            self.held.pop(start, None)
            if has_room(backend):
                self.held[start], self.backend = held, backend

    def put_images(self, start: int, images: Any, backend: Backend) -> None:
        """Keep the images (n, H, W, d) of a chunk, if there is room."""
        if has_room(backend):
            self.images[start], self.backend = images, backend


sizeof.register(ChunkCache, lambda shelf: shelf.planned)


def has_room(backend: Backend) -> bool:
    """Whether this worker may keep more: more groups than planned are its, where others died."""
    if backend.on_gpu:
        return backend.used_share() < GPU_MEMORY_FRACTION + BEYOND
    limit = this_worker().memory_manager.memory_limit
    return not limit or psutil.Process().memory_info().rss < (spill_fraction() + BEYOND) * limit


def disable_stealing(names: Sequence[str]) -> None:
    """On a scheduler: never have idle workers take over tasks of these names, which would find
    their shelf empty; what is on it is not in the size that Dask weighs against the time."""
    stealing.fast_tasks.update(names)


class CacheSet:
    """The shelves of a run's groups, spread over the workers of a cluster."""

    def __init__(self, client: Client, users: Sequence[str]) -> None:
        """users: the names of the tasks that take shelves, as Dask has them."""
        self._client = client
        self._users = tuple(users)
        self._homes: list[str] = []
        self._futures: list[Future] = []

    def futures(self) -> list[Future]:
        """That of each group."""
        return self._futures

    def spread(self, planned: Sequence[int], *, stored: bool) -> None:
        """Have one for each group, of so many bytes. Where workers have come or gone, shelves move
        to them, which empties those: only once all that is on them is `stored` too."""
        if self._futures and not stored:
            return
        workers = sorted(self._client.nthreads())
        if not workers:
            return
        homes = [workers[group % len(workers)] for group in range(len(planned))]
        if homes != self._homes:
            before = dict(enumerate(zip(self._homes, self._futures, strict=True)))
            self._futures = [
                before[group][1]
                if before.get(group, ("",))[0] == home
                else self._new(group, size, home)
                for group, (home, size) in enumerate(zip(homes, planned, strict=True))
            ]
            self._homes = homes
            self._let_go()
            with suppress(Exception):  # as where the scheduler has not got this package: what is
                self._client.run_on_scheduler(disable_stealing, self._users)  # stolen takes time

    def _new(self, group: int, planned: int, home: str) -> Future:
        return self._client.submit(
            ChunkCache, planned, key=f"rescnet-shelf-{uuid.uuid4().hex}-{group}",
            workers=[home], allow_other_workers=True,
        )  # fmt: skip

    def _let_go(self) -> None:
        """Have shelves bound to no worker once they are in place: where all workers were gone for a
        moment, Dask would wait for the very one that a shelf was made on, for ever."""
        # the client is no current one where the caller keeps it to itself; and a cluster that has
        # just lost its workers may take its time
        with self._client.as_current(), suppress(TimeoutError):
            wait(self._futures, timeout=PLACED)
        unbound: dict[str, list[str]] = {future.key: [] for future in self._futures}
        self._client.sync(self._client.scheduler.set_restrictions, worker=unbound)

    def release(self) -> None:
        """Free all of them, even if the graph of a pass that failed still knows of them."""
        for future in self._futures:
            future.release()
        self._homes, self._futures = [], []
