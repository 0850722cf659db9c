"""What a plan must know of the workers: how many, how many threads, how much memory."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

import dask
import psutil
from distributed import Client, get_worker

from rescnet_dist.cluster.connect import available_cores, check_versions
from rescnet_dist.errors import ClusterError
from rescnet_dist.kernels import prepare

WORKER_TIMEOUT = 60  # seconds to wait for a first worker
PROFILES = 60  # of a second each, that a worker keeps
AT_REST = 300 * 2**20  # bytes of a worker process that has loaded everything, and done nothing


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of a cluster: their number, threads of all together (slots), of the one with the
    most, and of all that share a machine, where these are fewest; memory limit in bytes of the one
    with the least (None: no limit), the share of it that may be used before Dask spills, and the
    bytes that are resident in the fullest of them before the run."""

    count: int
    slots: int
    threads: int
    machine_threads: int
    memory: int | None
    share: float = 0.6
    resident: int = AT_REST

    @property
    def budget(self) -> int | None:
        """Bytes that a worker may use."""
        return None if self.memory is None else int(self.share * self.memory)

    @classmethod
    def of(cls, client: Client) -> Workers:
        """The workers that a client's cluster has now; waits for a first one, and refuses those
        with other software."""
        if not client.nthreads():  # an adaptive cluster at rest starts workers for a task only
            try:
                client.submit(int, pure=False).result(timeout=WORKER_TIMEOUT)
            except TimeoutError:
                raise ClusterError(
                    f"the cluster at {client.scheduler.address} has had no worker for "
                    f"{WORKER_TIMEOUT} s: start workers, then run this again"
                ) from None
        check_versions(client)
        resident, cores = _prepared(client)
        found = client.scheduler_info(n_workers=-1)["workers"].values()
        threads = [worker["nthreads"] for worker in found]
        machines: Counter[str] = Counter()
        for worker in found:
            machines[worker["host"]] += worker["nthreads"]
        limits = [worker["memory_limit"] for worker in found]
        return cls(
            count=len(threads),
            slots=sum(threads),
            threads=max(threads),
            machine_threads=min(*machines.values(), cores),
            memory=min(limit or psutil.virtual_memory().total for limit in limits),
            share=spill_share(),
            resident=max(resident, AT_REST),
        )


def _prepared(client: Client) -> tuple[int, int]:
    """Have all workers load the compiled kernels, so that the first pass need not; returns the
    bytes that are resident in the fullest of them then, and the fewest cores that one may use."""
    tasks = [
        client.submit(_ready, workers=[address], allow_other_workers=True, pure=False)
        for address in client.nthreads()
    ]
    resident, cores = zip(*client.gather(tasks), strict=True)
    return max(resident), min(cores)


def _ready() -> tuple[int, int]:
    """Load the kernels; returns the bytes that are resident in this process, a worker's, and the
    cores that it may use."""
    prepare()
    return int(psutil.Process().memory_info().rss), available_cores()


def forget_old_profiles() -> None:
    """Have the worker that this task runs on keep a minute of Dask's profiles, not an hour.

    A second of them takes about 60 kB, so that a worker would grow by 200 MB in its first hour,
    whatever it does. Elsewhere than on a worker, there are none.
    """
    try:
        worker = get_worker()
    except ValueError:
        return
    for name in ("profile_history", "profile_keys_history"):
        history = getattr(worker, name, None)
        if isinstance(history, deque) and (history.maxlen or math.inf) > PROFILES:
            setattr(worker, name, deque(list(history)[-PROFILES:], maxlen=PROFILES))


def spill_share() -> float:
    """The share of its memory limit from which on a worker spills, or else pauses."""
    for name in ("target", "spill", "pause"):
        share = dask.config.get(f"distributed.worker.memory.{name}", False)
        if share:
            return float(share)
    return 0.9
