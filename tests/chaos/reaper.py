"""Counts what the processes of a run do, and strikes at moments drawn beforehand from a seed."""

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

HELD_UP = 8.0  # seconds after which one that is held up may go on in any case


@dataclass(frozen=True, slots=True)
class Moment:
    """When to strike: at the call of a phase with this number, over all processes, in a step of the
    run (0: the survey, n: layer n, None: the whole run); before it, after it, or when a share of
    its usual time has passed. chance, 0 to 1, is for the choice of a victim. Who has reached the
    moment and lives is held up until others have made so many calls."""

    step: int | None
    phase: str
    number: int
    where: Literal["before", "within", "after"]
    share: float
    chance: float
    held_up: int = 0

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step} "
        share = f" {self.share:.0%}" if self.where == "within" else ""
        held_up = f", held up for {self.held_up} calls" if self.held_up else ""
        return f"{step}{self.phase} #{self.number} {self.where}{share}{held_up}"


@dataclass(frozen=True, slots=True)
class Caller:
    """A process that reports: "worker" or "driver"."""

    role: str
    pid: int


@dataclass(frozen=True, slots=True)
class Strike:
    """A moment that has come: who reached it, what was struck, seconds since the reaper began."""

    moment: Moment
    caller: Caller
    victim: str
    seconds: float

    def __str__(self) -> str:
        caller = f"{self.caller.role} {self.caller.pid}"
        return f"{self.seconds:7.2f} s  {self.moment}, reached by {caller}: killed {self.victim}"


def draw_moments(rng: random.Random, calls: Calls, phases: Sequence[str]) -> list[Moment]:
    """One moment for each phase named, as often as it is named, spread evenly over its calls in a
    run that nothing has disturbed: such a moment comes in any run that gets to its end."""
    moments: list[Moment] = []
    for phase in phases:
        reached = [
            (step, number)
            for (step, name), count in sorted(calls.items(), key=str)
            if name == phase and step is not None
            for number in range(1, count + 1)
        ]
        taken = {(m.step, m.number) for m in moments if m.phase == phase}
        moments.append(
            moment_of(rng, phase, *rng.choice([at for at in reached if at not in taken]))
        )
    return moments


def moment_of(rng: random.Random, phase: str, step: int | None, number: int) -> Moment:
    """A moment at a given call; the rest of it is drawn."""
    where: Any = rng.choice(("before", "within", "within", "after"))
    return Moment(step, phase, number, where, rng.random(), rng.random())


class Reaper:
    """Strikes at moments of one run after the other; the processes that report may outlive a run.

    `strike` kills somebody and says whom, or None if nobody can be killed now: then the moment
    comes with the next call of its phase.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers: Counter[Caller] = Counter()
        self.usual: dict[str, float] = {}  # seconds that the last call of a phase took
        self.address = ""
        self.begin([], lambda moment, caller: None)

    def begin(
        self, moments: Sequence[Moment], strike: Callable[[Moment, Caller], str | None]
    ) -> None:
        """Start to count for a new run."""
        with self.lock:
            self.pending, self.strike = list(moments), strike
            self.calls: Calls = Counter()
            self.count = 0
            self.strikes: list[Strike] = []
            self.step: int | None = None
            self.began = time.monotonic()

    @contextmanager
    def listening(self) -> Iterator[Reaper]:
        """Answer the processes that report, on loopback, while the body runs."""
        reaper = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the process that reported is dead
                    reaper.attend(self)

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

    def attend(self, line: socketserver.StreamRequestHandler) -> None:
        """Serve one process until it is gone."""
        role, pid = line.rfile.readline().decode().split()
        caller = Caller(role, int(pid))
        with self.lock:
            self.callers[caller] += 1  # a process has a line for each of its threads
        held: Moment | None = None  # comes when the present call is left
        began = 0.0
        try:
            for text in line.rfile:
                word, what = text.decode().split()
                within: Moment | None = None  # comes after the answer
                if word == "step":
                    with self.lock:
                        self.step = int(what)
                elif word == "leave":
                    self.usual[what] = time.monotonic() - began
                    if held:
                        moment, held = held, None
                        self.come(moment, caller)
                elif moment := self.enter(what):
                    if moment.where == "before":
                        self.come(moment, caller)
                    elif moment.where == "after":
                        held = moment
                    else:
                        within = moment
                began = time.monotonic()
                line.wfile.write(b".")
                if within:
                    time.sleep(within.share * self.usual.get(what, 0.005))
                    self.come(within, caller)
        finally:
            with self.lock:
                self.callers[caller] -= 1
                self.callers += Counter()  # without those that have no line any more
                if held:
                    self.pending.append(held)

    def enter(self, phase: str) -> Moment | None:
        """Count a call; the moment that comes with it, if one does."""
        with self.lock:
            self.count += 1
            for step in {self.step, None}:
                self.calls[step, phase] += 1
            for moment in self.pending:
                if moment.phase == phase and self.is_due(moment):
                    self.pending.remove(moment)
                    return moment
        return None

    def is_due(self, moment: Moment) -> bool:
        """Whether the calls that a moment waits for have been made, or its step is over."""
        if moment.step in (self.step, None):
            return self.calls[moment.step, moment.phase] >= moment.number
        return self.step is not None and moment.step < self.step

    def come(self, moment: Moment, caller: Caller) -> None:
        """Strike."""
        seconds = time.monotonic() - self.began
        victim = self.strike(moment, caller)
        with self.lock:
            if victim is None:
                self.pending.append(moment)
                return
            self.strikes.append(Strike(moment, caller, victim, seconds))
            before = self.count
        deadline = time.monotonic() + HELD_UP
        while caller in self.callers and time.monotonic() < deadline:
            if self.count >= before + moment.held_up:
                break
            time.sleep(0.01)

    def kill(self, caller: Caller) -> str | None:
        """Kill a process that reports, and say so; None if it is dead already."""
        with self.lock:
            self.callers.pop(caller, None)
        try:
            os.kill(caller.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return f"{caller.role} {caller.pid}"

    def living(self, role: str) -> list[Caller]:
        """The processes of a kind that have reported and are connected."""
        with self.lock:
            return sorted((c for c in self.callers if c.role == role), key=lambda c: c.pid)

    def log(self) -> str:
        """What has been struck, and what has not."""
        with self.lock:
            lines = [str(strike) for strike in self.strikes]
            return "\n".join(lines + [f"   not yet  {moment}" for moment in self.pending])
