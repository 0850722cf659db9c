"""Processes that belong together: started in order, watched, and stopped without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "RESCNET_STACK"  # a variable that all of them carry, and all that they start
LAST_LINES = 20
KILL_AFTER = 5.0  # seconds that what is left over gets to end by itself


class PartFailed(Exception):
    """A part that did not come up, or that ended by itself."""


class Stopped(Exception):
    """The stack was asked to stop before it was up."""


@dataclass(frozen=True)
class SplitData:
    """A process, what it says, and the seconds that it gets to end in."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    patience: float

    def last_lines(self) -> str:
        """The end of what it said."""
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (nothing)"


def _without_cloud(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the user's own AWS account, whose token or profile would go before the
    keys of the stack."""
    return {k: v for k, v in environment.items() if not k.startswith("AWS_")}


class Parts:
    """The processes of a stack, each in a session of its own, so that Ctrl-C reaches none of them
    but by `stop`. `stopping` is set when the stack is to end."""

    def __init__(self, mark: str, logs: Path, stopping: threading.Event) -> None:
        self._mark, self._logs, self._stopping = mark, logs, stopping
        self._running: list[SplitData] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str],
        until: Callable[[], bool],
        *,
        within: float = 60,
        patience: float = 10,
    ) -> None:
        """Start a part, and wait until it does its work."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                command,
                env=_without_cloud(os.environ) | environment | {MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        part = SplitData(name, process, log, patience)
        self._running.append(part)
        deadline = time.monotonic() + within
        while not until():
            self.check()
            if time.monotonic() > deadline:
                raise PartFailed(
                    f"{name} did not come up within {within:g} s; the last lines of {log}:\n"
                    f"{part.last_lines()}"
                )
            if self._stopping.wait(0.1):
                raise Stopped

    def check(self) -> None:
        """Fail if a part has ended."""
        for part in self._running:
            code = part.process.poll()
            if code is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                raise PartFailed(
                    f"{part.name} {how}; the last lines of {part.log}:\n{part.last_lines()}"
                )

    def stop(self) -> None:
        """End all parts, the last one first, and whatever they have left behind."""
        for part in reversed(self._running):
            part.process.terminate()
            try:
                part.process.wait(part.patience)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(part.process.pid, signal.SIGKILL)
                part.process.wait()
        self._running.clear()
        end_leftovers(self._mark)


def end_leftovers(mark: str) -> int:
    """End all processes that carry a mark, as of a part or a stack that was killed; how many."""
    found = marked(mark)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=KILL_AFTER)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=KILL_AFTER)
    return len(found)


def marked(mark: str) -> list[psutil.Process]:
    """The processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # those of others, and those that have just ended
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found
