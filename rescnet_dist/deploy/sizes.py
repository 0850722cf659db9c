"""Sizes of pods: memory and processors from the plan, checked against what a node has."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rescnet_dist.errors import SpecError
from rescnet_dist.formatting import format_mib

if TYPE_CHECKING:
    from rescnet_dist.planning import Forecast, Problem
    from rescnet_dist.spec import NetworkSpec, RunSpec

MIB = 2**20
POD_STEP_BYTES = 64 * MIB  # memory is rounded up to multiples of this
PEAK_MARGIN_RATIO = 1.05  # on the planned peak, as workers grow a little by themselves
WORKER_OVERHEAD_BYTES = 256 * MIB  # in the pod, for compiling kernels and the preStop command
SCRATCH_STORAGE_BYTES = 3 * 1024 * MIB  # of each pod's ephemeral storage: /tmp, logs

# Measured as the peak resident memory of the processes of rendered pods: a scheduler takes 280 MiB
# with 20 tasks in a layer, 300 with 2,000 and 410 with 20,000; a driver takes 340 MiB on S3 with
# few tasks, and 2.9 times the bytes that reach it in a layer on top (tests/deploy/test_sizes.py and
# test_job.py, which require a third of these sizes to be free). The scheduler gets more, for open
# dashboard pages and for hundreds of workers, which were not measured.
SCHEDULER_BASE_BYTES = 768 * MIB
SCHEDULER_BYTES_PER_TASK = 12 * 1024  # for each task of a layer
DRIVER_BASE_BYTES = 768 * MIB
DRIVER_TRAFFIC_RATIO = 5  # times the bytes that reach the driver in a layer


@dataclass(frozen=True, slots=True)
class Node:
    """Resources that a node can give to pods, each None if unknown.

    `kubectl describe node` lists them as Allocatable; subtract what DaemonSets take.

    Attributes
    ----------
    memory, storage : int or None
        Bytes of memory and of ephemeral storage.
    cpus : float or None
        Processors.
    """

    memory: int | None = None
    cpus: float | None = None
    storage: int | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a deployment.

    Attributes
    ----------
    workers, threads : int
        Number of workers, and of threads in each.
    worker_memory : int
        Bytes that Dask may use in each worker.
    worker_pod, scheduler_pod, driver_pod : int
        Bytes of memory of the pods.
    share : float
        Share of worker_memory that the plan may fill before Dask spills.
    """

    workers: int
    threads: int
    worker_memory: int
    worker_pod: int
    scheduler_pod: int
    driver_pod: int
    share: float

    @property
    def worker_storage(self) -> int:
        """Bytes of a worker's ephemeral storage: what it may spill, and scratch space."""
        return self.worker_memory + SCRATCH_STORAGE_BYTES


def compute_sizes(
    problem: Problem,
    spec: NetworkSpec,
    run_spec: RunSpec,
    workers: int,
    threads: int,
    memory: int | None = None,
    node: Node | None = None,
    gpu_memory: int | None = None,
) -> tuple[Forecast, Sizes]:
    """Plan a run on workers of a given memory, and compute the sizes of all pods.

    memory and gpu_memory are bytes per worker. By default, memory is what the best plan that fits
    a node needs. Raise SpecError if a pod does not fit a node.
    """
    from rescnet_dist.cluster.workers import Workers  # slow to import, with Dask
    from rescnet_dist.planning import estimate

    node = node or Node()
    if node.cpus is not None and threads > node.cpus:
        raise SpecError(
            f"Workers of {threads} threads do not fit nodes with {node.cpus:g} allocatable "
            f"processors. Use --threads of at most {math.floor(node.cpus)}, or larger nodes."
        )
    max_memory = None
    if node.memory is not None:
        max_memory = (node.memory - WORKER_OVERHEAD_BYTES) // POD_STEP_BYTES * POD_STEP_BYTES
    if max_memory is not None and (memory or POD_STEP_BYTES) > max_memory:
        requested = memory or POD_STEP_BYTES
        raise SpecError(
            f"A worker's pod of {format_mib(requested + WORKER_OVERHEAD_BYTES)} MiB "
            f"({format_mib(requested)} MiB for Dask, {format_mib(WORKER_OVERHEAD_BYTES)} MiB for "
            f"other processes) does not fit nodes with {format_mib(node.memory or 0)} MiB of "
            f"allocatable memory. Use --memory of at most {format_mib(max(max_memory, 0))} MiB, "
            "or larger nodes."
        )
    available = Workers(workers, workers * threads, threads, threads, memory, gpu_memory=gpu_memory)
    forecast = estimate(problem, spec, run_spec, available, None)
    if memory is None:
        memory = _required_memory(forecast)
        if max_memory is not None and memory > max_memory:
            # with this limit, the planner may find a plan that takes much less
            limited = replace(available, memory=max_memory)
            smaller = estimate(problem, spec, run_spec, limited, None)
            memory = min(_required_memory(smaller), max_memory)
        forecast = estimate(problem, spec, run_spec, replace(available, memory=memory), None)
    traffic = forecast.traffic
    sizes = Sizes(
        workers=workers,
        threads=threads,
        worker_memory=memory,
        worker_pod=memory + WORKER_OVERHEAD_BYTES,
        scheduler_pod=_round_up(SCHEDULER_BASE_BYTES + traffic.tasks * SCHEDULER_BYTES_PER_TASK),
        driver_pod=_round_up(DRIVER_BASE_BYTES + DRIVER_TRAFFIC_RATIO * traffic.driver),
        share=available.share,
    )
    _check_node(sizes, node)
    return forecast, sizes


def _check_node(sizes: Sizes, node: Node) -> None:
    """Raise SpecError if a pod does not fit a node."""
    for part, size in (("scheduler", sizes.scheduler_pod), ("driver", sizes.driver_pod)):
        if node.memory is not None and size > node.memory:
            raise SpecError(
                f"The {part}'s pod of {format_mib(size)} MiB does not fit nodes with "
                f"{format_mib(node.memory)} MiB of allocatable memory. Use larger nodes."
            )
    if node.storage is not None and sizes.worker_storage > node.storage:
        raise SpecError(
            f"A worker's pod needs {format_mib(sizes.worker_storage)} MiB of ephemeral storage, to "
            f"spill all of its memory and for {format_mib(SCRATCH_STORAGE_BYTES)} MiB of scratch "
            f"space. It does not fit nodes with {format_mib(node.storage)} MiB of allocatable "
            "storage. Use less memory, or nodes with larger disks."
        )


def _required_memory(forecast: Forecast) -> int:
    """Return the bytes of a worker with which a plan stays below Dask's spill threshold."""
    return _round_up(math.ceil(PEAK_MARGIN_RATIO * forecast.peak_memory / forecast.workers.share))


def _round_up(size: int) -> int:
    """Round bytes up to a multiple of `POD_STEP_BYTES`."""
    return math.ceil(size / POD_STEP_BYTES) * POD_STEP_BYTES
