"""Measurement of a pass: time by phase, bytes read and written, and memory of the workers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zarr

from rescnet_dist.events.metrics import PHASES, PassMetrics


class TaskMeter:
    """Measures where the time of a task goes and how many bytes it reads and writes.

    Times are those of the task's own thread, so that they add up to the time of the task: reading
    and writing count only as far as the task waits for them.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES[:3], 0.0)
        self.read = self.written = 0

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Add the time that the body takes to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started

    def count_read(self, array: zarr.Array[Any], rows: int) -> None:
        """Count rows of an array as read."""
        self.read += rows * math.prod(array.shape[1:]) * array.dtype.itemsize

    def to_dict(self) -> dict[str, Any]:
        """Return seconds by phase, and bytes read and written, as plain values."""
        return {"seconds": dict(self.seconds), "read": self.read, "written": self.written}


class MetricsCollector:
    """Collects the messages of the tasks of a pass into `PassMetrics`."""

    def __init__(self) -> None:
        self._pass_started = self._last_chunk = self._solve_started = time.perf_counter()
        self._seconds = dict.fromkeys(PHASES[:3], 0.0)
        self._read = self._written = self._redone = 0
        self._memory: dict[str, int] = {}

    def add_chunk(self, worker: str, memory: int, *, is_repeat: bool) -> None:
        """Count a chunk, done by a worker with `memory` resident bytes."""
        self._last_chunk = self._solve_started = time.perf_counter()
        self.add_memory(worker, memory)
        self._redone += is_repeat

    def add_task(self, fields: dict[str, Any]) -> None:
        """Add the times and bytes of a task that has finished; fields as `TaskMeter.to_dict`."""
        for phase, seconds in fields["seconds"].items():
            self._seconds[phase] += seconds
        self.add_io(fields["read"], fields["written"])

    def add_io(self, read: int, written: int) -> None:
        """Add bytes read from and written to the store."""
        self._read += read
        self._written += written

    def add_memory(self, worker: str, memory: int) -> None:
        """Note the resident bytes of a worker."""
        self._memory[worker] = max(memory, self._memory.get(worker, 0))

    def start_solve(self, worker: str, memory: int) -> None:
        """Note that all accumulators are merged, on a worker with `memory` resident bytes."""
        self._solve_started = time.perf_counter()
        self.add_memory(worker, memory)

    def finish(self) -> PassMetrics:
        """Return the metrics of the pass, which ends now."""
        now, busy = time.perf_counter(), sum(self._seconds.values())
        # tasks run in parallel: scale their times to the wall time of the chunks
        scale = (self._last_chunk - self._pass_started) / busy if busy else 0.0
        seconds = {phase: scale * spent for phase, spent in self._seconds.items()}
        seconds |= {
            "reduce": self._solve_started - self._last_chunk,
            "solve": now - self._solve_started,
        }
        return PassMetrics(seconds, self._read, self._written, self._memory, self._redone)
