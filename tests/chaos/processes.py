"""The processes of the chaos tests: a Dask cluster, a SeaweedFS server, drivers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError, URLError

import call_reports
from ports import HOST, find_free_ports

WEED = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
SECRET = "a-secret-of-this-test"
START_TIMEOUT_SECONDS = 60.0

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


class ProcessGroup:
    """Starts processes, and kills them with their children at the end of its context.

    If this process dies before that, a guard process kills them.
    """

    def __enter__(self) -> ProcessGroup:
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.guard = subprocess.Popen(
            [sys.executable, "-S", "-c", GUARD], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self.running):
            self.kill(process)
        self.guard.communicate()

    def start(
        self, command: Sequence[str], log: Path, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own; its output goes to a file."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        with self.lock:
            self.running.add(process)
            self._notify_guard(process.pid)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its children."""
        with self.lock:
            if process not in self.running:
                return
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.running.discard(process)
            self._notify_guard(-process.pid)

    def _notify_guard(self, number: int) -> None:
        """Add a process id to those of the guard; a negative one removes it."""
        assert self.guard.stdin
        self.guard.stdin.write(b"%d\n" % number)
        self.guard.stdin.flush()


@contextmanager
def start_cluster(
    group: ProcessGroup, folder: Path, environment: dict[str, str], workers: int, threads: int
) -> Iterator[Path]:
    """Start a scheduler and workers with nannies on loopback; yield the scheduler's file."""
    file, dask = folder / "scheduler.json", (sys.executable, "-m", "dask")
    address = ("--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0")
    scheduler = group.start(
        [*dask, "scheduler", *address, "--port", "0", "--scheduler-file", str(file)],
        folder / "scheduler.log",
        environment,
    )
    nannies = group.start(
        [
            *(*dask, "worker", *address, "--scheduler-file", str(file)),
            *("--nworkers", str(workers), "--nthreads", str(threads), "--memory-limit", "1GiB"),
            *("--local-directory", str(folder), "--preload", call_reports.__file__),
        ],
        folder / "workers.log",
        environment,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not file.exists():
            assert scheduler.poll() is None, (folder / "scheduler.log").read_text()
            assert time.monotonic() < deadline, "no scheduler"
            time.sleep(0.05)
        yield file
    finally:
        group.kill(nannies)
        group.kill(scheduler)


class SeaweedServer:
    """A SeaweedFS server on loopback with one bucket, `runs`, that can be killed and restarted with
    the same ports and folder."""

    def __init__(self, group: ProcessGroup, folder: Path, host: str = HOST) -> None:
        self.group, self.folder, self.log = group, folder, folder / "weed.log"
        self.host = host
        s3, *others = find_free_ports(4)
        self.ports = [f"-s3.port={s3}"]
        names = ("master", "volume", "filer")
        self.ports += [f"-{name}.port={p}" for name, p in zip(names, others, strict=True)]
        self.url = f"http://{host}:{s3}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.lock = threading.Lock()
        self.server: subprocess.Popen[bytes] | None = None

    @contextmanager
    def run(self) -> Iterator[SeaweedServer]:
        """Run the server during the body."""
        self.start()
        try:
            yield self
        finally:
            with self.lock:  # wait for one that is being restarted
                if self.server:
                    self.group.kill(self.server)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert WEED
        self.server = self.group.start(
            [
                *(WEED, "mini", f"-dir={self.folder}", f"-ip={self.host}"),
                f"-ip.bind={self.host}",
                *(*self.ports, "-admin.ui=false", "-webdav=false", "-bucket=runs"),
            ],
            self.log,
            os.environ | self.environment,
        )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.is_ready():
            assert self.server.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < deadline, self.log.read_text()[-5000:]
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Return whether the bucket, which is created last, exists and needs credentials."""
        try:
            urllib.request.urlopen(f"{self.url}/runs", timeout=1).close()
        except HTTPError as error:
            error.close()
            return error.code == 403
        except (URLError, OSError):
            pass
        return False

    def kill(self, seconds: float) -> str:
        """Kill the server, and restart it in the background after some seconds.

        Wait first for one that is being restarted.
        """
        self._acquire()
        assert self.server
        pid = self.server.pid
        self.group.kill(self.server)

        def restart() -> None:
            try:
                time.sleep(seconds)
                self.start()
            finally:
                self.lock.release()

        threading.Thread(target=restart).start()
        return f"weed {pid} for {seconds:.1f} s"

    def wait_for_restart(self) -> None:
        """Wait until the server answers again, if it was killed."""
        self._acquire()
        self.lock.release()

    def _acquire(self) -> None:
        """Acquire the lock that is held while the server is down."""
        assert self.lock.acquire(timeout=2 * START_TIMEOUT_SECONDS)


@contextmanager
def start_driver(
    group: ProcessGroup, arguments: Sequence[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `rescnet` with these arguments; it is killed after the body at the latest."""
    process = group.start([sys.executable, call_reports.__file__, *arguments], log, environment)
    try:
        yield process
    finally:
        group.kill(process)
