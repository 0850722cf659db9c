"""The cluster a run uses: the current Dask client's, or an embedded one for its duration."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client, LocalCluster, get_client, get_worker, worker_client

from rescnet_dist.errors import ClusterError

COMPARED = ("rescnet-dist", "dask", "distributed", "numpy", "scipy", "zarr", "cloudpickle")
SCHEDULER_NEEDS = ("dask", "distributed", "python", "cloudpickle")
CONNECT_TIMEOUT = "10s"  # for a scheduler to answer


@contextmanager
def current_client(*, processes: bool = False) -> Iterator[Client]:
    """The current `dask.distributed.Client`, or one of an embedded cluster that ends afterwards.

    The embedded cluster listens on loopback only. With `processes` it has one single-threaded
    worker process per core; else one worker in this process with as many threads.
    """
    if _inside_a_task():
        with worker_client() as client:  # gives this task's thread back while it waits
            yield client
        return
    client = _existing_client()
    if client is not None:
        yield client
        return
    cores = available_cores()
    with _workers_ignore_interrupts():
        cluster = LocalCluster(
            n_workers=cores if processes else 1,
            threads_per_worker=1 if processes else cores,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,  # what fails is raised here, and need not be logged too
        )
    with cluster, Client(cluster, set_as_default=False) as client:
        yield client


@contextmanager
def connected(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    gateway: str | None = None,
    gateway_cluster: str | None = None,
) -> Iterator[Client]:
    """A client of a cluster that runs: by the address of its scheduler, by a scheduler file, or by
    the address of a Dask gateway and the cluster's name there (the only one, if None). TLS and
    authentication are as Dask's configuration has them."""
    with _connect(scheduler, scheduler_file, gateway, gateway_cluster) as client:
        yield client


def _connect(
    scheduler: str | None,
    scheduler_file: str | None,
    gateway: str | None,
    gateway_cluster: str | None,
) -> Client:
    if gateway is not None:
        return _gateway_client(gateway, gateway_cluster)
    where = scheduler or scheduler_file
    if scheduler_file is not None and not os.path.isfile(scheduler_file):
        raise ClusterError(f"there is no scheduler file {scheduler_file}: check the path")
    try:
        return Client(scheduler, scheduler_file=scheduler_file, timeout=CONNECT_TIMEOUT)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {where}: {error or type(error).__name__}; check the "
            "address, that it runs, and the TLS settings of Dask's configuration"
        ) from None


def _gateway_client(address: str, name: str | None) -> Client:
    try:
        from dask_gateway import Gateway  # an optional dependency
    except ImportError:
        raise ClusterError(
            "a Dask gateway needs dask-gateway: pip install 'rescnet-dist[gateway]'"
        ) from None
    try:
        gateway = Gateway(address)
        running = [report.name for report in gateway.list_clusters()]
    except Exception as error:  # those of aiohttp, and of the gateway itself
        raise ClusterError(
            f"no Dask gateway answers at {address}: {error}; check the address and your rights"
        ) from None
    wanted = name or (running[0] if len(running) == 1 else None)
    if wanted not in running:
        listing = ", ".join(running) or "none"
        problem = f"no cluster {name}" if name else f"{len(running)} clusters"
        raise ClusterError(
            f"the Dask gateway at {address} has {problem} of yours (running: {listing}): name one "
            "that runs, or start one"
        )
    return gateway.connect(wanted).get_client()


@contextmanager
def _workers_ignore_interrupts() -> Iterator[None]:
    """Have processes started in the body ignore Ctrl-C, which a terminal sends to all of them: the
    driver alone answers it, and ends its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


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


def check_versions(client: Client) -> None:
    """Refuse a cluster whose workers or scheduler do not have the same software as this process."""
    found = client.get_versions(packages=[*COMPARED])
    here = _relevant(found["client"])
    lines = []
    for where, there in {"scheduler": found["scheduler"], **found["workers"]}.items():
        names = SCHEDULER_NEEDS if where == "scheduler" else here
        for name in names:
            if (version := _relevant(there).get(name)) != here[name]:
                lines.append(f"{where} has {name} {version or '(not installed)'}")
    if lines:
        wanted = ", ".join(f"{name} {version}" for name, version in here.items())
        raise ClusterError(
            f"the cluster's versions differ from this process's ({wanted}): {'; '.join(lines)}; "
            "install the same everywhere, best by one image"
        )


def _relevant(versions: dict[str, Any]) -> dict[str, str]:
    """The versions that must be the same, by name; of Python, the minor one."""
    packages = versions["packages"]
    python = ".".join(str(packages["python"]).split(".")[:2])
    return {name: packages.get(name) for name in COMPARED} | {"python": python}
