"""The processes of a stack: started in order, monitored, and all stopped at the end."""

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

MARK_VARIABLE = "RESCNET_STACK"  # in the environment of all parts, and of their child processes
MAX_LOG_LINES = 20  # of a failed part that are shown
TERMINATE_SECONDS = 5.0  # that leftover processes have to end before they are killed


class PartError(Exception):
    """A part did not start, or ended by itself."""


class Stopped(Exception):
    """The stack was stopped before it was ready."""


@dataclass(frozen=True)
class Part:
    """A process, its log file, and the seconds that it has to end."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stop_seconds: float

    def last_lines(self) -> str:
        """Return the last lines of the log, indented."""
        lines = self.log.read_text(errors="replace").splitlines()[-MAX_LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (nothing)"


def _remove_aws(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of the user's own AWS account.

    A token or profile there would take precedence over the keys of the stack.
    """
    return {k: v for k, v in environment.items() if not k.startswith("AWS_")}


class Parts:
    """The processes of a stack.

    Each has its own session, so that Ctrl-C reaches them through `stop` only. `stopping` is set
    when the stack is to end.
    """

    def __init__(self, mark: str, logs: Path, stopping: threading.Event) -> None:
        self._mark, self._logs, self._stopping = mark, logs, stopping
        self._running: list[Part] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str],
        is_ready: Callable[[], bool],
        *,
        start_seconds: float = 60,
        stop_seconds: float = 10,
    ) -> None:
        """Start a part, and wait until it is ready.

        Raise PartError if a part ends, or is not ready after `start_seconds`, and Stopped if the
        stack is to end.
        """
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=_remove_aws(os.environ) | environment | {MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        part = Part(name, process, log, stop_seconds)
        self._running.append(part)
        deadline = time.monotonic() + start_seconds
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise PartError(
                    f"{name} was not ready after {start_seconds:g} s. The last lines of {log}:\n"
                    f"{part.last_lines()}"
                )
            if self._stopping.wait(0.1):
                raise Stopped

    def check(self) -> None:
        """Raise PartError if a part has ended."""
        for part in self._running:
            code = part.process.poll()
            if code is not None:
                end = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                raise PartError(
                    f"{part.name} {end}. The last lines of {part.log}:\n{part.last_lines()}"
                )

    def stop(self) -> None:
        """End all parts, the last one first, and all child processes that are left."""
        for part in reversed(self._running):
            part.process.terminate()
            try:
                part.process.wait(part.stop_seconds)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(part.process.pid, signal.SIGKILL)
                part.process.wait()
        self._running.clear()
        end_leftovers(self._mark)


def end_leftovers(mark: str) -> int:
    """End all processes with a mark, as of a killed part or stack; return their number."""
    found = find_marked(mark)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=TERMINATE_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=TERMINATE_SECONDS)
    return len(found)


def find_marked(mark: str) -> list[psutil.Process]:
    """Return all other processes with a mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # processes of other users, and those that have just ended
            if process.pid != os.getpid() and process.environ().get(MARK_VARIABLE) == mark:
                found.append(process)
    return found
