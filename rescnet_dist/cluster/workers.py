"""What a plan must know of the workers: how many, how many threads, how much memory."""

from __future__ import annotations

import math
import socket
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import psutil
from distributed import Client, get_worker

from rescnet_dist.cluster.connect import (
    PROFILER_DEADLOCKS,
    available_cores,
    check_versions,
    list_workers,
)
from rescnet_dist.errors import ClusterError, ClusterLostError
from rescnet_dist.kernels import Backend

WORKER_TIMEOUT = 60  # seconds to wait for a first worker
PROFILES = 60  # of a second each, that a worker keeps
GPU_MEMORY_FRACTION = 0.85  # of a GPU's memory that may be used
HOST = Backend()
BASELINE_RSS_BYTES = (
    300 * 2**20
)  # bytes of a worker process that has loaded everything, and done nothing


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of a cluster: their number, threads of all together (slots), of the one with the
    most, and of all that share a machine, where these are fewest; memory limit in bytes of the one
    with the least (None: no limit), the share of it that may be used before Dask spills, and the
    bytes that are resident in the fullest of them before the run; bytes of a GPU that each of them
    has, at least (None: they use none)."""

    count: int
    slots: int
    threads: int
    machine_threads: int
    memory: int | None
    share: float = 0.6
    resident: int = BASELINE_RSS_BYTES
    gpu_memory: int | None = None

    @property
    def budget(self) -> int | None:
        """Bytes that a worker may use."""
        return None if self.memory is None else int(self.share * self.memory)

    @property
    def gpu_budget(self) -> int | None:
        """Bytes of its GPU that a worker may use."""
        return None if self.gpu_memory is None else int(GPU_MEMORY_FRACTION * self.gpu_memory)

    @classmethod
    def of(cls, client: Client, backend: Backend = HOST) -> Workers:
        """The workers that a client's cluster has now; waits for a first one, and refuses those
        with other software, or without the GPU that the backend needs."""
        wait_for_worker(client)
        check_versions(client)
        resident, cores, gpu_memory = _prepared(client, backend)
        found = cls.among(list_workers(client))
        if backend.on_gpu and found is not None and found.threads > 1:
            raise ClusterError(
                f'array_backend="cupy" has one task at a time on a GPU, and there are workers of '
                f"{found.threads} threads: start them with --nthreads 1, as `dask cuda worker` does"
            )
        if found is None:  # since a moment ago
            raise ClusterLostError(
                f"the cluster at {client.scheduler.address} has lost all its workers"
            )
        return replace(
            found,
            machine_threads=min(found.machine_threads, cores),
            resident=max(resident, BASELINE_RSS_BYTES),
            gpu_memory=gpu_memory,
        )

    @classmethod
    def among(cls, found: dict[str, Any]) -> Workers | None:
        """Those that `list_workers` has found, as they would be at rest; None without any."""
        if not found:
            return None
        threads = [worker["nthreads"] for worker in found.values()]
        machines: Counter[str] = Counter()
        for worker in found.values():
            machines[worker["host"]] += worker["nthreads"]
        limits = [worker["memory_limit"] for worker in found.values()]
        return cls(
            count=len(threads),
            slots=sum(threads),
            threads=max(threads),
            machine_threads=min(machines.values()),
            memory=min(limit or psutil.virtual_memory().total for limit in limits),
            share=spill_fraction(),
        )


def wait_for_worker(client: Client, seconds: float = WORKER_TIMEOUT) -> None:
    """Wait for a first worker of the client's cluster; refused if none comes in so many seconds."""
    if client.nthreads():
        return
    try:  # an adaptive cluster at rest starts workers for a task only
        client.submit(int, pure=False).result(timeout=seconds)
    except TimeoutError:
        raise ClusterError(
            f"the cluster at {client.scheduler.address} has had no worker for {seconds:.0f} s: "
            "start workers (the log of one that does not come says why), then run this again, or "
            "wait longer (--wait)"
        ) from None


def _prepared(client: Client, backend: Backend) -> tuple[int, int, int | None]:
    """Have all workers load the compiled kernels, so that the first pass need not; returns the
    bytes that are resident in the fullest of them then, the fewest cores that one may use, and the
    fewest bytes of a GPU that one has, where several share it."""
    addresses = list(client.nthreads())
    tasks = [
        client.submit(_ready, backend, workers=[address], allow_other_workers=True, pure=False)
        for address in addresses
    ]
    resident, cores, gpus = zip(*client.gather(tasks), strict=True)
    return max(resident), min(cores), _least_of_a_gpu(gpus)


Gpu = tuple[str, str, int, int]  # machine, name, bytes, and those that a process may take


def _least_of_a_gpu(found: Sequence[Gpu | None]) -> int | None:
    """The bytes of a GPU that each worker may count on, of those that they have: an equal part of
    one that several share, or what it may take, if that is less."""
    gpus = [gpu for gpu in found if gpu]
    sharing = Counter(gpu[:2] for gpu in gpus)
    parts = (min(size // sharing[host, name], mine) for host, name, size, mine in gpus)
    return min(parts, default=None)


def _ready(backend: Backend) -> tuple[int, int, Gpu | None]:
    """Load the kernels; returns the bytes that are resident in this process, a worker's, the cores
    that it may use, and its GPU."""
    limit_profiler()
    backend.prepare()
    memory = backend.memory()
    gpu = (socket.gethostname(), *memory) if memory else None
    return int(psutil.Process().memory_info().rss), available_cores(), gpu


def limit_profiler() -> None:
    """Have the worker that this task runs on keep a minute of Dask's profiles, not an hour.

    A second of them takes about 60 kB, so that a worker would grow by 200 MB in its first hour,
    whatever it does. Where taking them can stop the worker for ever, it takes none from now on.
    Elsewhere than on a worker, there are none.
    """
    try:
        worker = get_worker()
    except ValueError:
        return
    for name in ("profile_history", "profile_keys_history"):
        history = getattr(worker, name, None)
        if isinstance(history, deque) and (history.maxlen or math.inf) > PROFILES:
            setattr(worker, name, deque(list(history)[-PROFILES:], maxlen=PROFILES))
    profiling = worker.periodic_callbacks.get("profile")
    if PROFILER_DEADLOCKS and profiling and profiling.is_running():
        worker.loop.add_callback(profiling.stop)


def spill_fraction() -> float:
    """The share of its memory limit from which on a worker spills, or else pauses."""
    for name in ("target", "spill", "pause"):
        share = dask.config.get(f"distributed.worker.memory.{name}", False)
        if share:
            return float(share)
    return 0.9
