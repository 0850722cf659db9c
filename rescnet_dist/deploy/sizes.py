"""How large pods are: memory and processors from the plan, and whether a node has room for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.formatting import format_mib
from rescnet_dist.planning import Forecast, Problem, estimate
from rescnet_dist.spec import NetworkSpec, RunSpec

MIB = 2**20
STEP = 64 * MIB  # that memory is rounded up to
MARGIN = 1.05  # on the peak that the plan promises, as workers grow a little by themselves
BESIDE = 256 * MIB  # in a worker's pod beside the worker: what compiles kernels, what says goodbye
STORAGE = 3 * 1024 * MIB  # of each pod's ephemeral storage: /tmp, logs

# Measured, as the most that was resident in the processes of rendered pods: a scheduler takes
# 280 MiB with 20 tasks in a layer, 300 with 2,000 and 410 with 20,000; a driver 340 MiB on S3 with
# few tasks, and 2.9 times what reaches it in a layer beside that (tests/deploy/test_sizes.py and
# test_job.py, which hold a third of these sizes free). More is left to the scheduler for pages
# that are looked at and for hundreds of workers, which were not measured.
SCHEDULER = 768 * MIB  # of the scheduler, and
SCHEDULER_PER_TASK = 12 * 1024  # for each task of a layer
DRIVER = 768 * MIB  # of the driver, and as often what reaches it in a layer:
DRIVER_TIMES = 5


@dataclass(frozen=True, slots=True)
class Node:
    """What a node has to give (`kubectl describe node`: Allocatable, less what DaemonSets take):
    bytes of memory, processors, bytes of ephemeral storage; None where nobody has said."""

    memory: int | None = None
    cpus: float | None = None
    storage: int | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Workers, threads of each, bytes that Dask may use in each, and bytes of the pods."""

    workers: int
    threads: int
    worker_memory: int
    worker_pod: int
    scheduler_pod: int
    driver_pod: int
    share: float

    @property
    def worker_storage(self) -> int:
        """Bytes of a worker's ephemeral storage: what it may spill, and scratch."""
        return self.worker_memory + STORAGE


def sized(
    problem: Problem,
    spec: NetworkSpec,
    run_spec: RunSpec,
    workers: int,
    threads: int,
    memory: int | None = None,
    node: Node | None = None,
    gpu_memory: int | None = None,
) -> tuple[Forecast, Sizes]:
    """The plan of a run on workers of so much memory, of a GPU too, and the size of all pods.

    Left out, memory is what the best plan takes that fits a node. What does not fit is refused.
    """
    node = node or Node()
    if node.cpus is not None and threads > node.cpus:
        raise SpecError(
            f"workers of {threads} threads do not fit nodes that have {node.cpus:g} processors to "
            f"give: use threads of at most {math.floor(node.cpus)}, or larger nodes"
        )
    room = None if node.memory is None else (node.memory - BESIDE) // STEP * STEP
    if room is not None and (memory or STEP) > room:
        wanted = memory or STEP
        raise SpecError(
            f"a worker's pod of {format_mib(wanted + BESIDE)} MiB ({format_mib(wanted)} MiB for Dask, "
            f"{format_mib(BESIDE)} MiB beside) does not fit nodes that have "
            f"{format_mib(node.memory or 0)} MiB to give: use memory of at most "
            f"{format_mib(max(room, 0))} MiB, or larger nodes"
        )
    there = Workers(workers, workers * threads, threads, threads, memory, gpu_memory=gpu_memory)
    found = estimate(problem, spec, run_spec, there, None)
    if memory is None:
        memory = _taken_by(found)
        if room is not None and memory > room:  # another plan, which may take much less
            smaller = estimate(problem, spec, run_spec, replace(there, memory=room), None)
            memory = min(_taken_by(smaller), room)
        found = estimate(problem, spec, run_spec, replace(there, memory=memory), None)
    moved = found.traffic
    sizes = Sizes(
        workers=workers,
        threads=threads,
        worker_memory=memory,
        worker_pod=memory + BESIDE,
        scheduler_pod=_rounded(SCHEDULER + moved.tasks * SCHEDULER_PER_TASK),
        driver_pod=_rounded(DRIVER + DRIVER_TIMES * moved.driver),
        share=there.share,
    )
    _check_room(sizes, node)
    return found, sizes


def _check_room(sizes: Sizes, node: Node) -> None:
    """Refuse pods that no node has room for."""
    for part, size in (("scheduler", sizes.scheduler_pod), ("driver", sizes.driver_pod)):
        if node.memory is not None and size > node.memory:
            raise SpecError(
                f"the {part}'s pod of {format_mib(size)} MiB does not fit nodes that have "
                f"{format_mib(node.memory)} MiB to give: use larger nodes"
            )
    if node.storage is not None and sizes.worker_storage > node.storage:
        raise SpecError(
            f"a worker's pod wants {format_mib(sizes.worker_storage)} MiB of ephemeral storage, room "
            f"to spill all of its memory and {format_mib(STORAGE)} MiB, and nodes have "
            f"{format_mib(node.storage)} MiB to give: use less memory, or nodes with larger disks"
        )


def _taken_by(found: Forecast) -> int:
    """Bytes of a worker, so that what a plan takes is less than what Dask would spill from."""
    return _rounded(math.ceil(MARGIN * found.peak_memory / found.workers.share))


def _rounded(size: int) -> int:
    return math.ceil(size / STEP) * STEP
