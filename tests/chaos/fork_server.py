"""Starts the processes of the endurance harness by forking one that has imported everything.

A driver, scheduler or worker then starts in a fraction of a second instead of several. Each runs
the real command in a session of its own. Requests and answers are lines of JSON on standard input
and output. At the end of the input, all processes are killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

CLONE_NEWNET = 0x40000000
EARLY = "distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "s3fs"
LATE = "distributed.protocol.numpy", "obstore", "scipy.interpolate"  # in runs, when needed


class ForkServer:
    """The client of a fork server; use it as a context manager."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log, self.environment = log, environment

    def __enter__(self) -> ForkServer:
        with self.log.open("ab") as log:
            self.server = subprocess.Popen(
                [sys.executable, __file__],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
                bufsize=1,
            )
        self.request()  # waits until everything is imported
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate()

    def request(self, **fields: Any) -> Any:
        """Send a request and return its answer."""
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(fields) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def start(
        self, command: str, arguments: list[str], log: Path, network: str | None = None
    ) -> Forked:
        """Start a command; its output is appended to a file.

        network is the path of a network namespace to run in.
        """
        log_path = str(log)
        pid = self.request(start=command, arguments=arguments, log=log_path, network=network)
        return Forked(self, pid, command)


class Forked:
    """A process of a fork server."""

    def __init__(self, server: ForkServer, pid: int, command: str) -> None:
        self.server, self.pid, self.command = server, pid, command
        self.code: int | None = None
        self.sent: dict[signal.Signals, bool] = {}  # whether the process has caught all of each

    def poll(self) -> int | None:
        """Return the exit code, the negative number of a signal, or None while the process runs."""
        if self.code is None:
            self.code = self.server.request(poll=self.pid)
        return self.code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                self.sent[number] = self.sent.get(number, True) and catches(self.pid, number)
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.code = self.server.request(wait=self.pid) if self.code is None else self.code

    def has_children(self) -> bool:
        """Return whether processes of its session outlive it."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal now."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def serve() -> dict[str, Any] | None:
    """Answer requests; return the request in a forked process, and None at the end of the input."""
    codes: dict[int, int | None] = {}
    for line in sys.stdin:
        request, answer = json.loads(line), None
        if "start" in request:
            if (pid := os.fork()) == 0:
                return request
            answer, codes[pid] = pid, None
        elif "poll" in request or "wait" in request:
            pid = request.get("poll") or request["wait"]
            if codes[pid] is None:
                found, status = os.waitpid(pid, os.WNOHANG if "poll" in request else 0)
                codes[pid] = os.waitstatus_to_exitcode(status) if found else None
            answer = codes[pid]
        print(json.dumps(answer), flush=True)
    for pid, code in codes.items():
        if code is None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    return None


def become(request: dict[str, Any]) -> None:
    """Run a command in this forked process, as a process of its own."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # of a process that is stuck
    if request["network"]:
        enter_network(request["network"])
    name = request["start"]
    sys.argv = [name, *request["arguments"]]
    if name == "rescnet":
        from rescnet_dist.cli import main
    elif name == "scheduler":
        from distributed.cli.dask_scheduler import main
    else:
        from distributed.cli.dask_worker import main
    main(request["arguments"])


def enter_network(path: str) -> None:
    """Move this process into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path) as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def import_everything() -> None:
    """Import what the commands need, so that forked processes have it."""
    for name in (*EARLY, *LATE):
        import_module(name)
    import rescnet_dist.cli

    for name in ("cluster", "cli.actions", "data.sources", "lifecycle", "network", "planning"):
        package = import_module(f"rescnet_dist.{name}")
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    from rescnet_dist.cli.group import COMMANDS
    from rescnet_dist.kernels import prepare

    context = rescnet_dist.cli.main.make_context("rescnet", ["info"], resilient_parsing=True)
    for name in COMMANDS:
        rescnet_dist.cli.main.get_command(context, name)
    prepare()
    gc.freeze()  # so that collections in forked processes copy less memory


if __name__ == "__main__":
    import_everything()
    if (request := serve()) is not None:
        become(request)
