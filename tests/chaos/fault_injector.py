"""Counts the calls of the processes of a run, and injects faults at calls drawn from a seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Calls = Counter[tuple[int | None, str]]  # by step and phase; under None, those of all steps

MAX_DELAY_SECONDS = 8.0  # after which a delayed process continues in any case


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """When to inject a fault: at call `number` of a phase, counted over all processes.

    step is that of the run (0: the survey, n: layer n, None: the whole run). The fault comes before
    the call, after it, or when a fraction of its usual time has passed. chance, 0 to 1, is for the
    choice of a victim. A caller that survives is delayed until others have made `delay_calls`
    calls.
    """

    step: int | None
    phase: str
    number: int
    position: Literal["before", "within", "after"]
    fraction: float
    chance: float
    delay_calls: int = 0

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step} "
        fraction = f" {self.fraction:.0%}" if self.position == "within" else ""
        delay = f", delayed for {self.delay_calls} calls" if self.delay_calls else ""
        return f"{step}{self.phase} #{self.number} {self.position}{fraction}{delay}"


@dataclass(frozen=True, slots=True)
class Caller:
    """A process that reports: "worker" or "driver"."""

    role: str
    pid: int


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """An injected fault: who reached the point, what was killed, seconds since the start."""

    point: FaultPoint
    caller: Caller
    victim: str
    seconds: float

    def __str__(self) -> str:
        caller = f"{self.caller.role} {self.caller.pid}"
        return f"{self.seconds:7.2f} s  {self.point}, reached by {caller}: killed {self.victim}"


def draw_points(rng: random.Random, calls: Calls, phases: Sequence[str]) -> list[FaultPoint]:
    """Draw one point for each phase named, as often as it is named.

    Points are uniform over the calls of a run without faults, so that any complete run reaches
    them.
    """
    points: list[FaultPoint] = []
    for phase in phases:
        reached = [
            (step, number)
            for (step, name), count in sorted(calls.items(), key=str)
            if name == phase and step is not None
            for number in range(1, count + 1)
        ]
        used = {(p.step, p.number) for p in points if p.phase == phase}
        call = rng.choice([call for call in reached if call not in used])
        points.append(draw_point_at(rng, phase, *call))
    return points


def draw_point_at(rng: random.Random, phase: str, step: int | None, number: int) -> FaultPoint:
    """Return a point at a given call; the rest of it is drawn."""
    position: Any = rng.choice(("before", "within", "within", "after"))
    return FaultPoint(step, phase, number, position, rng.random(), rng.random())


class FaultInjector:
    """Injects faults into one run after the other; the reporting processes may outlive a run.

    `inject` kills a process and returns its name, or None if none can be killed now: then the point
    is tried again with the next call of its phase.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers: Counter[Caller] = Counter()
        self.last_seconds: dict[str, float] = {}  # of the last call of each phase
        self.address = ""
        self.start([], lambda point, caller: None)

    def start(
        self, points: Sequence[FaultPoint], inject: Callable[[FaultPoint, Caller], str | None]
    ) -> None:
        """Start to count for a new run."""
        with self.lock:
            self.pending, self.inject = list(points), inject
            self.calls: Calls = Counter()
            self.count = 0
            self.faults: list[InjectedFault] = []
            self.step: int | None = None
            self.started = time.monotonic()

    @contextmanager
    def listen(self) -> Iterator[FaultInjector]:
        """Answer the reporting processes, on loopback, while the body runs."""
        injector = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the reporting process is dead
                    injector.serve(self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        with Server(("127.0.0.1", 0), Handler) as server:
            self.address = f"127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def serve(self, connection: socketserver.StreamRequestHandler) -> None:
        """Serve one thread of a process until it is gone."""
        role, pid = connection.rfile.readline().decode().split()
        caller = Caller(role, int(pid))
        with self.lock:
            self.callers[caller] += 1  # a process has one connection per thread
        after: FaultPoint | None = None  # comes when the current call is left
        started = 0.0
        try:
            for text in connection.rfile:
                word, value = text.decode().split()
                within: FaultPoint | None = None  # comes after the answer
                if word == "step":
                    with self.lock:
                        self.step = int(value)
                elif word == "leave":
                    self.last_seconds[value] = time.monotonic() - started
                    if after:
                        point, after = after, None
                        self.trigger(point, caller)
                elif point := self.count_call(value):
                    if point.position == "before":
                        self.trigger(point, caller)
                    elif point.position == "after":
                        after = point
                    else:
                        within = point
                started = time.monotonic()
                connection.wfile.write(b".")
                if within:
                    time.sleep(within.fraction * self.last_seconds.get(value, 0.005))
                    self.trigger(within, caller)
        finally:
            with self.lock:
                self.callers[caller] -= 1
                self.callers += Counter()  # drops callers without connections
                if after:
                    self.pending.append(after)

    def count_call(self, phase: str) -> FaultPoint | None:
        """Count a call; return the point that is due with it, if any."""
        with self.lock:
            self.count += 1
            for step in {self.step, None}:
                self.calls[step, phase] += 1
            for point in self.pending:
                if point.phase == phase and self.is_due(point):
                    self.pending.remove(point)
                    return point
        return None

    def is_due(self, point: FaultPoint) -> bool:
        """Return whether the call of a point has been reached, or its step is over."""
        if point.step in (self.step, None):
            return self.calls[point.step, point.phase] >= point.number
        return self.step is not None and point.step < self.step

    def trigger(self, point: FaultPoint, caller: Caller) -> None:
        """Inject the fault of a point; delay the caller if it survives."""
        seconds = time.monotonic() - self.started
        victim = self.inject(point, caller)
        with self.lock:
            if victim is None:
                self.pending.append(point)
                return
            self.faults.append(InjectedFault(point, caller, victim, seconds))
            before = self.count
        deadline = time.monotonic() + MAX_DELAY_SECONDS
        while caller in self.callers and time.monotonic() < deadline:
            if self.count >= before + point.delay_calls:
                break
            time.sleep(0.01)

    def kill(self, caller: Caller) -> str | None:
        """Kill a reporting process and return its name; None if it is dead already."""
        with self.lock:
            self.callers.pop(caller, None)
        try:
            os.kill(caller.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return f"{caller.role} {caller.pid}"

    def list_alive(self, role: str) -> list[Caller]:
        """Return the connected processes of a kind."""
        with self.lock:
            return sorted((c for c in self.callers if c.role == role), key=lambda c: c.pid)

    def describe(self) -> str:
        """List the injected faults, and the points that were not reached."""
        with self.lock:
            lines = [str(fault) for fault in self.faults]
            return "\n".join(lines + [f"   not yet  {point}" for point in self.pending])
