"""The real parts that the chaos tests disturb: a Dask cluster, a SeaweedFS server, drivers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError, URLError

import moments

HOST = "127.0.0.1"
WEED = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
SECRET = "a-secret-of-this-test"
START_TIMEOUT = 60.0  # seconds

GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    groups.add(int(line)) if int(line) > 0 else groups.discard(-int(line))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Nursery:
    """Starts processes and ends all of them, with all that they have started: at the end of its
    context or, by a process that stands by for it, when this one dies before that."""

    def __enter__(self) -> Nursery:
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.guard = subprocess.Popen(
            [sys.executable, "-S", "-c", GUARD], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self.running):
            self.end(process)
        self.guard.communicate()

    def start(
        self, command: Sequence[str], log: Path, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own; what it says goes to a file."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        with self.lock:
            self.running.add(process)
            self._tell_guard(process.pid)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and all that it has started."""
        with self.lock:
            if process not in self.running:
                return
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.running.discard(process)
            self._tell_guard(-process.pid)

    def _tell_guard(self, number: int) -> None:
        assert self.guard.stdin
        self.guard.stdin.write(b"%d\n" % number)
        self.guard.stdin.flush()


@contextmanager
def dask_cluster(
    nursery: Nursery, folder: Path, environment: dict[str, str], workers: int, threads: int
) -> Iterator[Path]:
    """A scheduler and workers that their nannies start again when they die, all on loopback; gives
    the scheduler's file."""
    file, dask = folder / "scheduler.json", (sys.executable, "-m", "dask")
    where = ("--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0")
    scheduler = nursery.start(
        [*dask, "scheduler", *where, "--port", "0", "--scheduler-file", str(file)],
        folder / "scheduler.log",
        environment,
    )
    nannies = nursery.start(
        [
            *(*dask, "worker", *where, "--scheduler-file", str(file)),
            *("--nworkers", str(workers), "--nthreads", str(threads), "--memory-limit", "1GiB"),
            *("--local-directory", str(folder), "--preload", moments.__file__),
        ],
        folder / "workers.log",
        environment,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not file.exists():
            assert scheduler.poll() is None, (folder / "scheduler.log").read_text()
            assert time.monotonic() < deadline, "no scheduler"
            time.sleep(0.05)
        yield file
    finally:
        nursery.end(nannies)
        nursery.end(scheduler)


class Weed:
    """A SeaweedFS server on loopback with one bucket, `runs`, that can be killed and started again
    on the same ports and the same folder."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self.nursery, self.folder, self.log = nursery, folder, folder / "weed.log"
        s3, *others = free_ports(4)
        self.ports = [f"-s3.port={s3}"]
        names = ("master", "volume", "filer")
        self.ports += [f"-{name}.port={p}" for name, p in zip(names, others, strict=True)]
        self.url = f"http://{HOST}:{s3}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.lock = threading.Lock()
        self.server: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Weed]:
        """Start the server, and end it after the body."""
        self.start()
        try:
            yield self
        finally:
            with self.lock:  # one that is just being started again is waited for
                if self.server:
                    self.nursery.end(self.server)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert WEED
        self.server = self.nursery.start(
            [
                *(WEED, "mini", f"-dir={self.folder}", f"-ip={HOST}", f"-ip.bind={HOST}"),
                *(*self.ports, "-admin.ui=false", "-webdav=false", "-bucket=runs"),
            ],
            self.log,
            os.environ | self.environment,
        )
        deadline = time.monotonic() + START_TIMEOUT
        while not self.answers():
            assert self.server.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < deadline, self.log.read_text()[-5000:]
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether the bucket is there, closed to strangers: it is what is made last."""
        try:
            urllib.request.urlopen(f"{self.url}/runs", timeout=1).close()
        except HTTPError as error:
            error.close()
            return error.code == 403
        except (URLError, OSError):
            pass
        return False

    def kill(self, away: float) -> str:
        """Kill the server, and start it again in the background when it has been away for some
        seconds; one that is away already is waited for."""
        assert self.lock.acquire(timeout=2 * START_TIMEOUT)
        assert self.server
        pid = self.server.pid
        self.nursery.end(self.server)

        def come_back() -> None:
            try:
                time.sleep(away)
                self.start()
            finally:
                self.lock.release()

        threading.Thread(target=come_back).start()
        return f"weed {pid} for {away:.1f} s"


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, nor on the one 10,000 above, which SeaweedFS takes
    too; out of the range from which connections get theirs, so that they stay free."""
    found: list[int] = []
    for port in random.sample(range(12_000, 22_000), 1000):
        if len(found) < count and is_free(port) and is_free(port + 10_000):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of loopback."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@contextmanager
def driver(
    nursery: Nursery, arguments: Sequence[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The command line `rescnet` with these arguments, ended after the body at the latest."""
    process = nursery.start([sys.executable, moments.__file__, *arguments], log, environment)
    try:
        yield process
    finally:
        nursery.end(process)
