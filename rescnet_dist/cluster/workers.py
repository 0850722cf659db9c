"""Number, threads and memory of the workers of a cluster, as a plan needs them."""

from __future__ import annotations

import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil
from distributed import Client, Future

from rescnet_dist._compat import (
    identify_workers,
    lack_workers,
    remove_restrictions,
)
from rescnet_dist.cluster.connect import (
    available_cores,
    check_versions,
    list_workers,
    worker_identities,
)
from rescnet_dist.cluster.memory import GPU_MEMORY_FRACTION, spill_fraction
from rescnet_dist.cluster.profiler import limit_profiler
from rescnet_dist.cluster.scaling import held_workers
from rescnet_dist.errors import ClusterError, ClusterLostError, ClusterUnreachableError
from rescnet_dist.kernels import Backend

SWITCH_INTERVAL_SECONDS = 0.0005  # of a thread's turn while another one waits
WORKER_TIMEOUT_SECONDS = 60  # to wait for a first worker, or for another if all are lost
LOST_WORKERS_CHECK_SECONDS = 5.0  # between two checks whether those to be prepared are lost
NUMPY_BACKEND = Backend()
BASELINE_RSS_BYTES = 300 * 2**20  # of a worker that has imported everything and run no task


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a cluster.

    Attributes
    ----------
    count : int
        Number of workers.
    slots : int
        Threads of all workers together.
    threads : int
        Threads of the worker with the most.
    machine_threads : int
        Threads of all workers on one machine, for the machine with the fewest.
    memory : int or None
        Memory limit in bytes of the worker with the least; None without a limit.
    share : float, default 0.6
        Fraction of the memory limit that may be used before Dask spills.
    resident : int, default BASELINE_RSS_BYTES
        Resident bytes of the largest worker process before the run.
    gpu_memory : int or None, default None
        Smallest number of bytes of a GPU that each worker has; None without GPUs.
    """

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
        """Bytes that a worker may use before Dask spills; None without a limit."""
        return None if self.memory is None else int(self.share * self.memory)

    @property
    def gpu_budget(self) -> int | None:
        """Bytes of its GPU that a worker may use; None without GPUs."""
        return None if self.gpu_memory is None else int(GPU_MEMORY_FRACTION * self.gpu_memory)

    @classmethod
    def from_client(cls, client: Client, backend: Backend = NUMPY_BACKEND) -> Workers:
        """Return the workers that a client's cluster has now, after waiting for a first one.

        If the client holds more workers than have joined (`hold_workers`), the number is that.
        Raise ClusterError for workers with other versions, or without the GPU that the backend
        needs.
        """
        wait_for_worker(client)
        check_versions(client)
        resident, cores, gpu_memory = _prepare_workers(client, backend)
        workers = cls.from_worker_info(list_workers(client))
        if backend.on_gpu and workers is not None and workers.threads > 1:
            raise ClusterError(
                f'array_backend="cupy" runs one task at a time on a GPU, but there are workers '
                f"with {workers.threads} threads. Start them with --nthreads 1, as `dask cuda "
                "worker` does."
            )
        if workers is None:  # they were there a moment ago
            raise _lost_workers(client)
        more = max(held_workers(client) - workers.count, 0)
        return replace(
            workers,
            count=workers.count + more,
            slots=workers.slots + more * workers.threads,
            machine_threads=min(workers.machine_threads, cores),
            resident=max(resident, BASELINE_RSS_BYTES),
            gpu_memory=gpu_memory,
        )

    @classmethod
    def from_worker_info(cls, found: dict[str, Any]) -> Workers | None:
        """Return the workers that `list_workers` has found, with baseline RSS; None without any."""
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


@dataclass(frozen=True, slots=True)
class CheckedWorkers:
    """The workers of a cluster, and the identities of those that were checked."""

    workers: Workers
    identities: frozenset[int]

    @classmethod
    def from_client(cls, client: Client, backend: Backend = NUMPY_BACKEND) -> CheckedWorkers:
        """Return the workers that a client's cluster has now; see `Workers.from_client`."""
        wait_for_worker(client)
        # Listed before they are checked: a worker that joins in between counts as unchecked.
        present = frozenset(worker_identities(list_workers(client)))
        return cls(Workers.from_client(client, backend), present)


def find_workers(client: Client) -> tuple[Workers | None, frozenset[int]]:
    """Return the workers that a client's cluster has now, None without any, and their identities.

    What the scheduler knows of each worker stays there; see `worker_identities`.
    """
    workers, identities = client.run_on_scheduler(_summarize_workers)
    # the configuration of this process counts
    return workers and replace(workers, share=spill_fraction()), identities


def _summarize_workers(*, dask_scheduler: Any) -> tuple[Workers | None, frozenset[int]]:
    """Return workers and identities; runs on a scheduler."""
    found = identify_workers(dask_scheduler)
    return Workers.from_worker_info(found), frozenset(worker_identities(found))


def has_workers(client: Client) -> bool:
    """Return whether a client's cluster has a worker now; their list stays on the scheduler."""
    return bool(client.run_on_scheduler(_has_workers))


def _has_workers(*, dask_scheduler: Any) -> bool:
    """Return whether there is a worker; runs on a scheduler."""
    return bool(dask_scheduler.workers)


def wait_for_worker(client: Client, seconds: float = WORKER_TIMEOUT_SECONDS) -> None:
    """Wait for a first worker; raise ClusterUnreachableError if none joins in `seconds`."""
    if client.nthreads():
        return
    try:  # an idle adaptive cluster starts workers only for a task
        client.submit(int, pure=False).result(timeout=seconds)
    except TimeoutError:
        raise ClusterUnreachableError(
            f"The cluster at {client.scheduler.address} has had no worker for {seconds:.0f} s. "
            "Start workers (if one does not join, see its log), then run this again, or "
            "wait longer (--wait)."
        ) from None


def _prepare_workers(client: Client, backend: Backend) -> tuple[int, int, int | None]:
    """Have all workers load the compiled kernels before the first pass.

    Return the resident bytes of the largest worker afterwards, the fewest cores that a worker may
    use, and the fewest bytes of a GPU that a worker has if several share it. If all are lost
    meanwhile, others that join are prepared; raise ClusterLostError if none does.
    """
    addresses = list(client.nthreads())
    if not addresses:
        raise _lost_workers(client)
    tasks = [
        client.submit(
            _prepare_worker, backend, workers=[address], allow_other_workers=True, pure=False
        )
        for address in addresses
    ]
    _wait_for_prepared(client, tasks)
    resident, cores, gpus = zip(*client.gather(tasks), strict=True)
    return max(resident), min(cores), _smallest_gpu_share(gpus)


def _wait_for_prepared(client: Client, tasks: list[Future]) -> None:
    """Wait for tasks that are bound to workers; unbind them while there is no worker."""
    keys, last_seen = [task.key for task in tasks], time.monotonic()
    while pending := [task for task in tasks if not task.done()]:
        try:
            pending[0].exception(timeout=LOST_WORKERS_CHECK_SECONDS)  # waits until it is done
        except TimeoutError:
            if client.run_on_scheduler(_unbind_waiting, keys):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > WORKER_TIMEOUT_SECONDS:
                raise _lost_workers(client) from None


def _unbind_waiting(keys: Sequence[str], *, dask_scheduler: Any) -> bool:
    """Let tasks whose workers are lost run on any that joins; runs on a scheduler.

    Dask would wait for the lost ones, although other workers are allowed. Return whether there is a
    worker.
    """
    if lack_workers(dask_scheduler, keys):
        remove_restrictions(dask_scheduler, keys)
    return _has_workers(dask_scheduler=dask_scheduler)


def _lost_workers(client: Client) -> ClusterLostError:
    """Return the error for a cluster that had workers a moment ago."""
    return ClusterLostError(
        f"The cluster at {client.scheduler.address} has lost all its workers. Start workers, then "
        "run this again."
    )


Gpu = tuple[str, str, int, int]  # host, name, bytes, and bytes that a process may use


def _smallest_gpu_share(gpus: Sequence[Gpu | None]) -> int | None:
    """Return the bytes of a GPU that every worker can use; None if no worker has a GPU.

    A GPU that several workers share is divided equally, and no worker gets more than its process
    may use.
    """
    present = [gpu for gpu in gpus if gpu]
    sharing = Counter(gpu[:2] for gpu in present)
    shares = (min(size // sharing[host, name], usable) for host, name, size, usable in present)
    return min(shares, default=None)


def shorten_switch_interval() -> None:
    """Let the threads of this process take turns more often than every 5 ms, Python's default.

    While the thread that feeds a GPU waits for another one's turn to end, the GPU idles.
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_SECONDS))


def _prepare_worker(backend: Backend) -> tuple[int, int, Gpu | None]:
    """Load the kernels in this worker; return its resident bytes, cores and GPU."""
    limit_profiler()
    if backend.on_gpu:
        shorten_switch_interval()
    backend.prepare()
    memory = backend.memory()
    gpu = (socket.gethostname(), *memory) if memory else None
    return int(psutil.Process().memory_info().rss), available_cores(), gpu
