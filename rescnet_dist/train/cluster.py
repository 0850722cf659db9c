"""The cluster a run uses: the current Dask client's, or an embedded one for its duration."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster, get_client, get_worker, worker_client

from rescnet_dist.errors import ClusterError

WORKER_TIMEOUT = 60  # seconds to wait for a first worker

# Dask's own setting has malloc hand every large array back to the system at once; the chunks'
# temporary arrays are then mapped and zeroed anew each time, which costs a third of the run.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 32 * 2**20,
    "MALLOC_TRIM_THRESHOLD_": 256 * 2**20,
}


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
    environ = dask.config.get("distributed.nanny.pre-spawn-environ", {}) | KEEP_FREED_MEMORY
    with (
        _workers_ignore_interrupts(),
        dask.config.set({"distributed.nanny.pre-spawn-environ": environ}),
    ):
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


def cluster_slots(client: Client) -> tuple[int, int]:
    """Tasks the cluster runs at a time, and threads of its smallest worker."""
    if not client.nthreads():  # an adaptive cluster at rest starts workers for a task only
        try:
            client.submit(int, pure=False).result(timeout=WORKER_TIMEOUT)
        except TimeoutError:
            raise ClusterError(
                f"the cluster at {client.scheduler.address} has had no worker for "
                f"{WORKER_TIMEOUT} s: start workers, then run this again"
            ) from None
    threads = list(client.nthreads().values())
    return sum(threads), min(threads)
