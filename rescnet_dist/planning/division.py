"""Division of the cores of one machine between workers: how many, with how many threads each."""

from __future__ import annotations

from typing import NamedTuple

from rescnet_dist.planning.requirements import (
    LARGE_ACCUMULATOR_BYTES,
    Problem,
    accumulator_bytes,
)
from rescnet_dist.spec import NetworkSpec

# Accumulators that are large take longer to send from one process to another than to add, so
# there is one process. Many threads of a process wait for each other in Python code, so there are
# several processes where accumulators are small. Measured in the guide to performance.
MAX_THREADS = 4  # of a worker whose accumulators are small


class Division(NamedTuple):
    """Workers of a machine, and the threads of each."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{self.workers} × {self.threads}"


def divide_cores(
    problem: Problem, spec: NetworkSpec, *, cores: int, numa_nodes: int = 1
) -> Division:
    """Return the division of a machine that trains a network fastest.

    Large accumulators are merged in the memory of one worker for each NUMA node; with small ones,
    workers have at most `MAX_THREADS` threads. All cores are used, and all workers have the same
    number of threads.

    Parameters
    ----------
    problem : Problem
        The images to train on.
    spec : NetworkSpec
        The network.
    cores : int
        Cores that the workers may use.
    numa_nodes : int, default 1
        NUMA nodes that these cores belong to.

    Returns
    -------
    Division
        Workers, and threads of each.
    """
    if accumulator_bytes(problem, spec) >= LARGE_ACCUMULATOR_BYTES:
        workers = numa_nodes if cores % numa_nodes == 0 else 1
        return Division(workers, cores // workers)
    threads = max(count for count in range(1, MAX_THREADS + 1) if cores % count == 0)
    return Division(cores // threads, threads)
