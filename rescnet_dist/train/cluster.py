"""The cluster a run uses: the current Dask client's, or an embedded one for its duration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster, get_client

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
    client = _existing_client()
    if client is not None:
        yield client
        return
    cores = available_cores()
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_FREED_MEMORY}),
        LocalCluster(
            n_workers=cores if processes else 1,
            threads_per_worker=1 if processes else cores,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


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
    threads = list(client.nthreads().values())
    return max(1, sum(threads)), min(threads, default=1)
