"""Connections to Dask clusters: the current client, an embedded cluster, or a named one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster, worker_client
from distributed.comm import CommClosedError, parse_address, parse_host_port
from distributed.versions import get_versions as client_versions

from rescnet_dist._compat import (
    ask_versions,
    defer_dashboard,
    fetch_workers,
    identify_workers,
    is_importing_script,
    keep_fork_server_modules,
)
from rescnet_dist.cluster.current import find_client, find_worker
from rescnet_dist.cluster.profiler import PROFILER_DEADLOCKS
from rescnet_dist.errors import (
    ClusterError,
    ClusterLostError,
    ClusterUnreachableError,
    RescnetError,
)
from rescnet_dist.kernels.backend import Backend

# Packages whose versions must be the same in the client and in all workers.
CHECKED_PACKAGES = ("rescnet-dist", "dask", "distributed", "numpy", "scipy", "zarr", "cloudpickle")
# The same for the scheduler, which makes the tasks of a graph out of its description.
SCHEDULER_PACKAGES = ("rescnet-dist", "dask", "distributed", "python", "cloudpickle")
# Futures of Dask raise either.
CANCELLED_ERRORS = (asyncio.CancelledError, concurrent.futures.CancelledError)
# References to objects of dask-gateway, whose `__del__` fails before the process ends.
GATEWAY_REFERENCES: list[Any] = []
MAX_LISTED_ADDRESSES = 3  # of workers, in the error for different versions
CONNECT_SECONDS = 10  # for a scheduler to answer
RECONNECT_SECONDS = 2.0  # between two attempts to reach a scheduler
# Dask configuration of an embedded cluster: the profiler is off only if it can deadlock.
PROFILER_CONFIG = {"distributed.worker.profile.enabled": False} if PROFILER_DEADLOCKS else {}
FORK_CONFIG = {"distributed.worker.multiprocessing-method": "forkserver"}
SCRIPT_REMEDY = (
    "Worker processes import the script that starts them, which must be a file. Put its code under "
    '`if __name__ == "__main__":`, or pass a client of a cluster.'
)


@contextmanager
def current_client(
    *,
    processes: bool = False,
    gpus: bool = False,
    forked: bool = False,
    divide: Callable[[], tuple[int, int]] | None = None,
) -> Iterator[Client]:
    """Yield the current `dask.distributed.Client`, or one of an embedded cluster.

    The embedded cluster listens on loopback only and is closed at exit. By default it has one
    worker in this process, with a thread per core. With `processes` it has the worker processes
    and threads of each that `divide` returns, by default one single-threaded process per core;
    with `forked` they are forks of the fork server of `multiprocessing`, not new processes. With
    `gpus` it has one worker process for each GPU, or only one if
    Dask-CUDA is not installed. The profiler of Dask is off if it can deadlock workers.
    """
    if find_worker() is not None:
        with worker_client() as client:  # frees the thread of this task while it waits
            yield client
        return
    client = find_client()
    if client is not None:
        yield client
        return
    with ExitStack() as stack:
        with _defer_interrupts(), dask.config.set(PROFILER_CONFIG):
            started = _gpu_cluster() if gpus else _cpu_cluster(processes, forked, divide)
            cluster = stack.enter_context(started)
        yield stack.enter_context(Client(cluster, set_as_default=False))


# An embedded cluster is not reachable from other machines, and its errors are raised here, not
# logged a second time.
LOCAL_CLUSTER_OPTIONS = {
    "dashboard_address": "127.0.0.1:0",
    "worker_dashboard_address": "127.0.0.1:0",  # that of a worker thread is public by default
    "silence_logs": logging.CRITICAL,
}


def _cpu_cluster(
    processes: bool, forked: bool, divide: Callable[[], tuple[int, int]] | None
) -> LocalCluster:
    """Start a local cluster of processes, by default one per core, or of one worker in this one."""
    cores = available_cores()
    if not processes:
        return LocalCluster(
            n_workers=1, threads_per_worker=cores, processes=False, **LOCAL_CLUSTER_OPTIONS
        )
    if is_importing_script():  # once more in each worker process
        raise SystemExit(f"error: {SCRIPT_REMEDY}")
    workers, threads = divide() if divide else (cores, 1)
    # The fork server may have an older environment than this process. Workers that are started
    # later in place of others are new processes.
    options: dict[str, Any] = {"env": dict(os.environ)} if forked else {}
    if forked:
        keep_fork_server_modules()
    if deferred := find_spec("bokeh") is not None:
        options |= deferred_dashboard_options()
    with dask.config.set(FORK_CONFIG if forked else {}):
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                host="127.0.0.1",
                **LOCAL_CLUSTER_OPTIONS | options,
            )
        except RuntimeError as error:
            raise ClusterError(
                f"The worker processes of the embedded cluster have not started: {error} If a "
                f"script has started them: {SCRIPT_REMEDY}"
            ) from error
    if deferred:
        defer_dashboard(cluster.scheduler, "scheduler")
    return cluster


def deferred_dashboard_options() -> dict[str, Any]:
    """Return options of a cluster whose dashboards are imported when a page is first requested.

    Servers of workers then listen on the address of the workers.
    """
    preloads = dask.config.get("distributed.worker.preload")
    return {
        "worker_dashboard_address": None,
        "preload": [*preloads, "rescnet_dist.cluster.pages"],
        "scheduler_kwargs": {"dashboard": False},
    }


def _gpu_cluster() -> LocalCluster:
    """Start one worker process for each GPU of this machine; only one without Dask-CUDA."""
    Backend("cupy").prepare()  # raises our error for a missing GPU, not that of Dask-CUDA
    try:
        # In no extra: each release of Dask-CUDA requires a certain release of Dask.
        from dask_cuda import LocalCUDACluster
    except ImportError:
        return LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            memory_limit=0.9,
            **LOCAL_CLUSTER_OPTIONS,
        )
    return LocalCUDACluster(host="127.0.0.1", **LOCAL_CLUSTER_OPTIONS)


@contextmanager
def open_client(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    gateway: str | None = None,
    gateway_cluster: str | None = None,
    wait: float = 0,
) -> Iterator[Client]:
    """Yield a client of a running cluster.

    The cluster is given by the address of its scheduler, by a scheduler file, or by the address of
    a Dask gateway and the name of the cluster there (None: the only one). TLS and authentication
    are those of Dask's configuration. Connecting to a scheduler is retried for `wait` seconds.
    """
    if gateway is not None:
        with _gateway_client(gateway, gateway_cluster) as client:
            yield client
        return
    with _connect_with_retries(scheduler, scheduler_file, wait) as client, client.as_current():
        yield client


def _connect_with_retries(scheduler: str | None, scheduler_file: str | None, wait: float) -> Client:
    """Return a client of a scheduler, which may take `wait` seconds to answer."""
    deadline = time.monotonic() + wait
    while True:
        try:
            return _connect(scheduler, scheduler_file)
        except ClusterError:
            if time.monotonic() + RECONNECT_SECONDS > deadline:
                raise
            time.sleep(RECONNECT_SECONDS)


def _connect(scheduler: str | None, scheduler_file: str | None) -> Client:
    """Return a client of a scheduler; raise ClusterError if it does not answer."""
    address = scheduler or _read_address(str(scheduler_file))
    failure: type[ClusterError] = ClusterUnreachableError
    try:
        check_reachable(address)
        failure = ClusterError  # something listens, but not such a scheduler
        # Not as the default client: one that fails to connect would remain the default.
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not isinstance(error, OSError):  # of the address itself
            failure = ClusterError
        raise failure(
            f"No Dask scheduler answers at {address} ({str(error) or type(error).__name__}). Check "
            "the address, that the scheduler runs, and the TLS settings of Dask's configuration."
        ) from None


def check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at an address.

    A `Client` that fails to connect would log a second error when it is garbage collected.
    """
    scheme, location = parse_address(address)
    if scheme in ("tcp", "tls"):
        socket.create_connection(parse_host_port(location, 8786), CONNECT_SECONDS).close()


def _read_address(scheduler_file: str) -> str:
    """Read the address that a Dask scheduler has written to a file."""
    try:
        with open(scheduler_file) as file:
            return str(json.load(file)["address"])
    except FileNotFoundError:
        problem = f"There is no scheduler file {scheduler_file}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{scheduler_file} is not a scheduler file of Dask ({type(error).__name__})"
    raise ClusterError(f"{problem}. Check the path, and that the scheduler runs.")


@contextmanager
def _gateway_client(address: str, name: str | None) -> Iterator[Client]:
    """Yield a client of a cluster at a Dask gateway."""
    try:
        from dask_gateway import Gateway  # an optional dependency
    except ImportError:
        raise ClusterError(
            "The package dask-gateway is missing. Run pip install 'rescnet-dist[gateway]'."
        ) from None
    with ExitStack() as stack:
        try:
            GATEWAY_REFERENCES.append(gateway := stack.enter_context(Gateway(address)))
            running = [report.name for report in gateway.list_clusters()]
        except Exception as error:  # of aiohttp, or of the gateway itself
            raise ClusterError(
                f"No Dask gateway answers at {address} ({error}). Check the address and your "
                "permissions."
            ) from None
        cluster = stack.enter_context(gateway.connect(_select_cluster(running, name, address)))
        GATEWAY_REFERENCES.append(cluster)
        yield stack.enter_context(cluster.get_client())


def _select_cluster(running: list[str], name: str | None, address: str) -> str:
    """Return the named cluster of a gateway, or the only one; raise ClusterError without any."""
    selected = name or (running[0] if len(running) == 1 else None)
    if selected is None or selected not in running:
        listing = ", ".join(running) or "none"
        problem = f"no cluster {name}" if name else f"{len(running)} clusters"
        raise ClusterError(
            f"The Dask gateway at {address} has {problem} of yours (running: {listing}). Name one "
            "that runs, or start one."
        )
    return selected


@contextmanager
def translate_errors(client: Client, remedy: str = "resume the run") -> Iterator[None]:
    """Raise ClusterLostError if the connection to the scheduler is lost in the body.

    `remedy` is what the message advises to do on a running cluster.
    """
    try:
        yield
    except RescnetError:
        raise
    except (Exception, *CANCELLED_ERRORS) as error:
        # What a call of a client without a scheduler raises depends on the call and the moment.
        if client.status == "running" and not isinstance(
            error, (CommClosedError, *CANCELLED_ERRORS)
        ):
            raise
        reason = str(error) or type(error).__name__
        raise ClusterLostError(
            f"The connection to the Dask scheduler was lost ({reason}). Finished work is kept; "
            f"{remedy} on a running cluster."
        ) from None


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Handle Ctrl-C only after the body.

    Threads and processes that the body starts never handle it. A terminal sends it to all of them,
    but only the driver must handle it, and stop its workers.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    # The resource tracker unblocks SIGINT when it is started, so it must not start in the body.
    resource_tracker.ensure_running()
    received: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda *_: received.append(1)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the children
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if received:
        signal.raise_signal(signal.SIGINT)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def list_workers(client: Client) -> dict[str, Any]:
    """Return what the scheduler knows of each worker, by address."""
    return fetch_workers(client)


def worker_identities(workers: dict[str, Any]) -> dict[int, str]:
    """Return the addresses of workers that `list_workers` has returned, by a number that
    identifies their process.

    A restarted worker may have the address of the previous one, but not its local directory.
    """
    return {
        _hash_text(f"{address} {worker['local_directory']}"): address
        for address, worker in workers.items()
    }


def _hash_text(text: str) -> int:
    """Return a number of 8 bytes that is the same in all processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def check_versions(client: Client, known: Collection[int] = ()) -> None:
    """Raise ClusterError if workers or scheduler have other versions than this process.

    Workers whose identities are `known` are not asked.
    """
    if known:
        expected = _select_versions(client_versions([*CHECKED_PACKAGES]))
        addresses = client.run_on_scheduler(_compare_new_workers, expected, frozenset(known))
    else:
        versions = client.get_versions(packages=[*CHECKED_PACKAGES])
        expected = _select_versions(versions["client"])
        addresses = _compare_versions(
            expected, {"scheduler": versions["scheduler"], **versions["workers"]}
        )
    if addresses:
        names_by_address = {
            address: str(worker["name"]) for address, worker in list_workers(client).items()
        }
        lines = [
            f"{_list_addresses(owners, names_by_address)} {package}"
            for package, owners in addresses.items()
        ]
        listing = ", ".join(f"{name} {version}" for name, version in expected.items())
        raise ClusterError(
            f"The cluster's versions differ from this process's ({listing}): {'; '.join(lines)}. "
            "Install the same versions everywhere, for example with one container image."
        )


def _compare_versions(expected: dict[str, str], found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the addresses of parts of a cluster by the package and version that differs."""
    addresses: dict[str, list[str]] = {}
    for address, info in found.items():
        names = SCHEDULER_PACKAGES if address == "scheduler" else expected
        for name in names:
            if (version := _select_versions(info).get(name)) != expected[name]:
                addresses.setdefault(f"{name} {version or '(not installed)'}", []).append(address)
    return addresses


async def _compare_new_workers(
    expected: dict[str, str], known: frozenset[int], *, dask_scheduler: Any
) -> dict[str, list[str]]:
    """Compare the versions of workers that are not `known`; runs on a scheduler."""
    identities = worker_identities(identify_workers(dask_scheduler))
    new = [address for number, address in identities.items() if number not in known]
    found = await ask_versions(dask_scheduler, CHECKED_PACKAGES, new)
    return _compare_versions(expected, found)


def _list_addresses(addresses: list[str], names: dict[str, str]) -> str:
    """Return the names and addresses of parts of a cluster, at most a few, and "has" or "have"."""
    listed = [
        f"{names[a]} ({a})" if names.get(a, a) != a else a for a in addresses[:MAX_LISTED_ADDRESSES]
    ]
    if more := len(addresses) - len(listed):
        listed.append(f"{more} more")
    return f"{', '.join(listed)} {'has' if len(addresses) == 1 else 'have'}"


def _select_versions(versions: dict[str, Any]) -> dict[str, str]:
    """Return the versions that must be the same, by package; of Python only major and minor."""
    packages = versions["packages"]
    python = ".".join(str(packages["python"]).split(".")[:2])
    return {name: packages.get(name) for name in CHECKED_PACKAGES} | {"python": python}
