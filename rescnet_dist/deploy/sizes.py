"""Sizes of pods: memory and processors from the plan, checked against what a node has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rescnet_dist.errors import SpecError, WorkersTooSmallError
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
    roomy_node : int or None
        Bytes of a node on which workers may grow without spilling, if the nodes are too small.
    """

    workers: int
    threads: int
    worker_memory: int
    worker_pod: int
    scheduler_pod: int
    driver_pod: int
    share: float
    roomy_node: int | None = None

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
    from rescnet_dist.planning import estimate, find_least_memory

    node = node or Node()
    if node.cpus is not None and threads > node.cpus:
        raise SpecError(
            f"Workers of {threads} threads do not fit nodes with {node.cpus:g} allocatable "
            f"processors. Use --threads of at most {math.floor(node.cpus)}, or larger nodes."
        )
    max_memory = _max_worker_memory(node)
    if memory is not None and max_memory is not None and memory > max_memory:
        raise SpecError(
            f"A worker's pod of {format_mib(memory + WORKER_OVERHEAD_BYTES)} MiB "
            f"({format_mib(memory)} MiB for Dask, {format_mib(WORKER_OVERHEAD_BYTES)} MiB for "
            f"other processes) does not fit nodes with {format_mib(node.memory or 0)} MiB of "
            f"allocatable memory. Use --memory of at most {format_mib(max_memory)} MiB, "
            "or larger nodes."
        )
    available = Workers(workers, workers * threads, threads, threads, memory, gpu_memory=gpu_memory)

    def forecast_with(memory: int | None) -> Forecast:
        return estimate(problem, spec, run_spec, replace(available, memory=memory), None)

    forecast, roomy_node = forecast_with(memory), None
    if memory is None:
        memory = _required_memory(forecast)
        if max_memory is not None and memory > max_memory:
            least = find_least_memory(problem, spec, run_spec, available)
            memory = _fit_node(node, least, forecast_with)
            roomy_node = _find_roomy_node(memory, forecast_with)
        forecast = forecast_with(memory)
    scheduler_pod, driver_pod = _other_pods(forecast)
    sizes = Sizes(
        workers=workers,
        threads=threads,
        worker_memory=memory,
        worker_pod=memory + WORKER_OVERHEAD_BYTES,
        scheduler_pod=scheduler_pod,
        driver_pod=driver_pod,
        share=available.share,
        roomy_node=roomy_node,
    )
    _check_node(sizes, node)
    return forecast, sizes


def find_narrow_margin(forecast: Forecast, sizes: Sizes, node: Node) -> str | None:
    """Return a warning if nodes have room for the plan, but not for what workers grow by."""
    if sizes.roomy_node is None:
        return None
    return (
        f"--node-memory of {format_mib(node.memory or 0)} MiB is barely enough: "
        f"{_describe_rest(node)}, of which {format_mib(int(sizes.share * sizes.worker_memory))} "
        f"MiB may be used before Dask spills, and the plan takes "
        f"{format_mib(forecast.peak_memory)} MiB. Workers that grow by "
        f"{100 * (PEAK_MARGIN_RATIO - 1):.0f} % spill, which is slow. Use --node-memory of at "
        f"least {format_mib(sizes.roomy_node)} MiB."
    )


def _max_worker_memory(node: Node) -> int | None:
    """Return the bytes that Dask can have at most in a worker on a node; None if unknown."""
    if node.memory is None:
        return None
    available = max(0, node.memory - WORKER_OVERHEAD_BYTES)
    return available // POD_STEP_BYTES * POD_STEP_BYTES


def _describe_rest(node: Node) -> str:
    """Return what is left of a node's memory for Dask, and why."""
    return (
        f"without {format_mib(WORKER_OVERHEAD_BYTES)} MiB for other processes in a worker's pod, "
        f"{format_mib(_max_worker_memory(node) or 0)} MiB are left for Dask"
    )


def _fit_node(node: Node, least: int, forecast_with: Callable[[int], Forecast]) -> int:
    """Return the bytes for Dask in a worker on a node that the best plan does not fit.

    The planner may find a plan that takes much less. Raise SpecError if there is none; `least` are
    the bytes for Dask in the smallest workers that are advised.
    """
    limit = _max_worker_memory(node) or 0
    try:
        return min(_required_memory(forecast_with(limit)), limit)
    except WorkersTooSmallError as error:
        fitting = _round_up(least)
        while max(_other_pods(forecast_with(fitting))) > fitting + WORKER_OVERHEAD_BYTES:
            fitting += POD_STEP_BYTES  # with more memory there are fewer tasks
        raise SpecError(
            f"--node-memory of {format_mib(node.memory or 0)} MiB is too small: "
            f"{_describe_rest(node)}. {error} This takes --node-memory of at least "
            f"{format_mib(fitting + WORKER_OVERHEAD_BYTES)} MiB."
        ) from None


def _find_roomy_node(memory: int, forecast_with: Callable[[int], Forecast]) -> int | None:
    """Return the bytes of a node on which workers may grow; None if they may with this memory."""
    roomy = memory
    while (need := _required_memory(forecast_with(roomy))) > roomy:
        roomy = need  # a larger worker may have another plan
    return roomy + WORKER_OVERHEAD_BYTES if roomy > memory else None


def _other_pods(forecast: Forecast) -> tuple[int, int]:
    """Return the bytes of the pods of scheduler and driver."""
    traffic = forecast.traffic
    return (
        _round_up(SCHEDULER_BASE_BYTES + traffic.tasks * SCHEDULER_BYTES_PER_TASK),
        _round_up(DRIVER_BASE_BYTES + DRIVER_TRAFFIC_RATIO * traffic.driver),
    )


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
