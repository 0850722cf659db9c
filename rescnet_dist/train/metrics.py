"""What a pass took: where its time went, bytes moved, and workers' memory, as they report it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import zarr

PHASES = ("read", "compute", "write", "reduce", "solve")


class TaskMeter:
    """Where the time of a task goes, and how many bytes it moves.

    Times are those of the task's own thread, so that they add up to the task's: reading and writing
    count as far as they are waited for.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES[:3], 0.0)
        self.read = self.written = 0

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Add the time that the body takes to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began

    def count_read(self, array: zarr.Array[Any], rows: int) -> None:
        """Count rows of an array as read."""
        self.read += rows * math.prod(array.shape[1:]) * array.dtype.itemsize

    def facts(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"seconds": dict(self.seconds), "read": self.read, "written": self.written}


@dataclass(frozen=True, slots=True)
class PassMetrics:
    """What a pass took.

    seconds by phase: while chunks are worked on, tasks wait to read, compute, and wait to write;
    then accumulators are merged ("reduce"), and the layer is solved for. They add up to those of
    the pass but for what the driver does before and behind. Bytes read from and written to the
    store, not compressed, by tasks that ended; the most bytes resident in each worker when it had
    finished a chunk, or merged all; chunks that were done more than once.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    redone: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class MetricsCollector:
    """Gathers what the tasks of a pass report into an `PassMetrics`."""

    def __init__(self) -> None:
        self._began = self._chunks = self._solve = time.perf_counter()
        self._seconds = dict.fromkeys(PHASES[:3], 0.0)
        self._read = self._written = self._redone = 0
        self._memory: dict[str, int] = {}

    def chunk_done(self, worker: str, memory: int, *, again: bool) -> None:
        """A chunk is done, again or for the first time, by a worker that holds so many bytes."""
        self._chunks = self._solve = time.perf_counter()
        self._memory[worker] = max(memory, self._memory.get(worker, 0))
        self._redone += again

    def task_done(self, facts: dict[str, Any]) -> None:
        """A task has finished its chunks; facts are its meter's."""
        for phase, seconds in facts["seconds"].items():
            self._seconds[phase] += seconds
        self.moved(facts["read"], facts["written"])

    def moved(self, read: int, written: int) -> None:
        """So many bytes were read from and written to the store."""
        self._read += read
        self._written += written

    def solving(self, worker: str, memory: int) -> None:
        """All is merged, on a worker that holds so many bytes."""
        self._solve = time.perf_counter()
        self._memory[worker] = max(memory, self._memory.get(worker, 0))

    def observed(self) -> PassMetrics:
        """What has been observed up to now, the end of the pass."""
        now, working = time.perf_counter(), sum(self._seconds.values())
        share = (self._chunks - self._began) / working if working else 0.0
        seconds = {phase: share * spent for phase, spent in self._seconds.items()}
        seconds |= {"reduce": self._solve - self._chunks, "solve": now - self._solve}
        return PassMetrics(seconds, self._read, self._written, self._memory, self._redone)
