"""The cluster a run uses: the current Dask client's, or an embedded one for its duration."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster, get_client, get_worker, worker_client
from distributed.comm import CommClosedError, parse_address, parse_host_port

from rescnet_dist.errors import ClusterError, ClusterLostError
from rescnet_dist.kernels.backend import Backend

COMPARED = ("rescnet-dist", "dask", "distributed", "numpy", "scipy", "zarr", "cloudpickle")
SCHEDULER_NEEDS = ("dask", "distributed", "python", "cloudpickle")
CANCELLED_ERRORS = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
)  # a future is, of either
CLOSED: list[Any] = []  # dask-gateway's objects, whose `__del__` fails before the process ends
NAMED = 3  # parts of a cluster that an error names, at most
CONNECT_SECONDS = 10  # for a scheduler to answer
PROFILER_DEADLOCKS = sys.version_info < (3, 11, 12)  # Dask's, of workers: python/cpython#106883
# how workers are configured where it does: without; elsewhere as whoever starts them has it
PROFILED = {"distributed.worker.profile.enabled": False} if PROFILER_DEADLOCKS else {}
AGAIN = 2.0  # seconds between two tries to reach a cluster that is waited for


@contextmanager
def current_client(*, processes: bool = False, gpus: bool = False) -> Iterator[Client]:
    """The current `dask.distributed.Client`, or one of an embedded cluster that ends afterwards.

    The embedded cluster listens on loopback only. With `processes` it has one single-threaded
    worker process per core; else one worker in this process with as many threads. With `gpus` it
    has one for each GPU, by Dask-CUDA; without that, one. Dask does not profile workers where
    that can stop them for ever.
    """
    if _inside_a_task():
        with worker_client() as client:  # gives this task's thread back while it waits
            yield client
        return
    client = _existing_client()
    if client is not None:
        yield client
        return
    with ExitStack() as stack:
        with _interrupts_later(), dask.config.set(PROFILED):
            cluster = stack.enter_context(_gpu_cluster() if gpus else _cpu_cluster(processes))
        yield stack.enter_context(Client(cluster, set_as_default=False))


# what is local is open to nobody else, and what fails is raised here, not logged too
LOCAL = {
    "dashboard_address": "127.0.0.1:0",
    "worker_dashboard_address": "127.0.0.1:0",  # else that of a thread is open to all
    "silence_logs": logging.CRITICAL,
}


def _cpu_cluster(processes: bool) -> LocalCluster:
    cores = available_cores()
    return LocalCluster(
        n_workers=cores if processes else 1,
        threads_per_worker=1 if processes else cores,
        processes=processes,
        host="127.0.0.1" if processes else None,
        **LOCAL,
    )


def _gpu_cluster() -> LocalCluster:
    """One worker process for each GPU of this machine; for the first, without Dask-CUDA."""
    Backend("cupy").prepare()  # whoever has none is told so, whatever Dask-CUDA would say
    try:
        from dask_cuda import LocalCUDACluster  # an optional dependency
    except ImportError:
        return LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", memory_limit=0.9, **LOCAL
        )
    return LocalCUDACluster(host="127.0.0.1", **LOCAL)


@contextmanager
def open_client(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    gateway: str | None = None,
    gateway_cluster: str | None = None,
    wait: float = 0,
) -> Iterator[Client]:
    """A client of a cluster that runs: by the address of its scheduler, by a scheduler file, or by
    the address of a Dask gateway and the cluster's name there (the only one, if None). TLS and
    authentication are as Dask's configuration has them. A scheduler that does not answer is tried
    again for `wait` seconds."""
    if gateway is not None:
        with _gateway_client(gateway, gateway_cluster) as client:
            yield client
        return
    with _reached(scheduler, scheduler_file, wait) as client, client.as_current():
        yield client


def _reached(scheduler: str | None, scheduler_file: str | None, wait: float) -> Client:
    """A client of a scheduler, which may take so many seconds to answer."""
    deadline = time.monotonic() + wait
    while True:
        try:
            return _connect(scheduler, scheduler_file)
        except ClusterError:
            if time.monotonic() + AGAIN > deadline:
                raise
            time.sleep(AGAIN)


def _connect(scheduler: str | None, scheduler_file: str | None) -> Client:
    address = scheduler or _address_in(str(scheduler_file))
    try:
        check_reachable(address)
        # not the default: one that fails to connect would stay that
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address}: {str(error) or type(error).__name__}; check "
            "the address, that it runs, and the TLS settings of Dask's configuration"
        ) from None


def check_reachable(address: str) -> None:
    """Fail where nothing listens; a Client that fails would complain once more when it is freed."""
    scheme, location = parse_address(address)
    if scheme in ("tcp", "tls"):
        socket.create_connection(parse_host_port(location, 8786), CONNECT_SECONDS).close()


def _address_in(scheduler_file: str) -> str:
    """The address that a Dask scheduler has written to a file."""
    try:
        with open(scheduler_file) as file:
            return str(json.load(file)["address"])
    except FileNotFoundError:
        problem = f"there is no scheduler file {scheduler_file}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{scheduler_file} is not a Dask scheduler's file ({type(error).__name__})"
    raise ClusterError(f"{problem}: check the path, and that the scheduler runs")


@contextmanager
def _gateway_client(address: str, name: str | None) -> Iterator[Client]:
    """A client of a cluster at a Dask gateway."""
    try:
        from dask_gateway import Gateway  # an optional dependency
    except ImportError:
        raise ClusterError(
            "a Dask gateway needs dask-gateway: pip install 'rescnet-dist[gateway]'"
        ) from None
    with ExitStack() as stack:
        try:
            CLOSED.append(gateway := stack.enter_context(Gateway(address)))
            running = [report.name for report in gateway.list_clusters()]
        except Exception as error:  # those of aiohttp, and of the gateway itself
            raise ClusterError(
                f"no Dask gateway answers at {address}: {error}; check the address and your rights"
            ) from None
        cluster = stack.enter_context(gateway.connect(_one_of(running, name, address)))
        CLOSED.append(cluster)
        yield stack.enter_context(cluster.get_client())


def _one_of(running: list[str], name: str | None, address: str) -> str:
    """The cluster of a gateway that is named, or the only one; an error where there is none."""
    wanted = name or (running[0] if len(running) == 1 else None)
    if wanted is None or wanted not in running:
        listing = ", ".join(running) or "none"
        problem = f"no cluster {name}" if name else f"{len(running)} clusters"
        raise ClusterError(
            f"the Dask gateway at {address} has {problem} of yours (running: {listing}): name one "
            "that runs, or start one"
        )
    return wanted


@contextmanager
def translate_errors(client: Client, remedy: str = "resume the run") -> Iterator[None]:
    """Say so where the connection to the scheduler is lost, whoever notices it first, and what to
    do on a cluster that runs."""
    try:
        yield
    except (OSError, *CANCELLED_ERRORS) as error:  # a store's is a StoreError from where it arose
        if client.status == "running" and not isinstance(
            error, (CommClosedError, *CANCELLED_ERRORS)
        ):
            raise
        reason = str(error) or type(error).__name__
        raise ClusterLostError(
            f"the connection to the Dask scheduler was lost ({reason}): what is done is kept; "
            f"{remedy} on a cluster that runs"
        ) from None


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Answer Ctrl-C after the body only. Threads and processes that are started in it never do, as
    a terminal sends it to all of them: the driver alone answers it, and ends its workers."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # which would end what follows, where it begins within
    came: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda *_: came.append(1)) if in_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # for what is started
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


def _inside_a_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def _existing_client() -> Client | None:
    try:
        return get_client()
    except ValueError:
        return None


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def list_workers(client: Client) -> dict[str, Any]:
    """What the scheduler knows of each worker, by address. It is asked itself, as what the client's
    `scheduler_info` keeps is replaced in the background, by an answer without any worker."""
    found = client.sync(client.scheduler.identity, n_workers=-1)
    return dict(found["workers"])


def worker_identities(found: dict[str, Any]) -> set[tuple[str, str]]:
    """What tells apart the processes of workers that `list_workers` has found: one that is started
    again may have the address of the one before, but not its folder."""
    return {(address, str(worker["local_directory"])) for address, worker in found.items()}


def check_versions(client: Client) -> None:
    """Refuse a cluster whose workers or scheduler do not have the same software as this process."""
    found = client.get_versions(packages=[*COMPARED])
    here = _relevant(found["client"])
    odd: dict[str, list[str]] = {}  # who has it, by what differs
    for where, there in {"scheduler": found["scheduler"], **found["workers"]}.items():
        names = SCHEDULER_NEEDS if where == "scheduler" else here
        for name in names:
            if (version := _relevant(there).get(name)) != here[name]:
                odd.setdefault(f"{name} {version or '(not installed)'}", []).append(where)
    if odd:
        names_of = {
            address: str(worker["name"]) for address, worker in list_workers(client).items()
        }
        lines = [f"{_parties(who, names_of)} {what}" for what, who in odd.items()]
        wanted = ", ".join(f"{name} {version}" for name, version in here.items())
        raise ClusterError(
            f"the cluster's versions differ from this process's ({wanted}): {'; '.join(lines)}; "
            "install the same everywhere, best by one image"
        )


def _parties(addresses: list[str], names: dict[str, str]) -> str:
    """Some parts of a cluster, by name and address, and that they have what follows."""
    known = [f"{names[a]} ({a})" if names.get(a, a) != a else a for a in addresses[:NAMED]]
    if more := len(addresses) - len(known):
        known.append(f"{more} more")
    return f"{', '.join(known)} {'has' if len(addresses) == 1 else 'have'}"


def _relevant(versions: dict[str, Any]) -> dict[str, str]:
    """The versions that must be the same, by name; of Python, the minor one."""
    packages = versions["packages"]
    python = ".".join(str(packages["python"]).split(".")[:2])
    return {name: packages.get(name) for name in COMPARED} | {"python": python}
