"""Computing lazy arrays chunk by chunk, on a cluster or by threads, for progress bars and files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.system import CPU_COUNT

from rescnet_dist.data.kinds import is_dask_array

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

Array = np.ndarray[Any, np.dtype[Any]]


def count_threads(client: Client | None) -> int:
    """Return the threads of a cluster, or of this machine without one."""
    return sum(client.nthreads().values()) if client else CPU_COUNT


def compute_batches(
    arrays: Sequence[Any], client: Client | None, threads: int
) -> Iterator[tuple[int, Sequence[Array]]]:
    """Yield the first row and the rows of all arrays, for each chunk of the first array, in order.

    Arrays in memory are one chunk. Lazy ones are computed on the cluster of a client, or by threads
    of this process. Images are read as workers or threads are free, so that memory does not grow
    with their number.
    """
    if not is_dask_array(arrays[0]):
        yield 0, arrays
        return
    edges = np.cumsum([0, *arrays[0].chunks[0]]).tolist()
    parts = ([array[start:stop] for array in arrays] for start, stop in pairwise(edges))
    if client is None:
        results = _compute_locally(parts, threads, len(edges) - 1)
    else:
        results = _compute_on(client, parts)
    yield from zip(edges, results, strict=False)


def compute_slices(
    compute: Callable[[slice], Sequence[Array]], count: int, step: int
) -> Iterator[tuple[int, Sequence[Array]]]:
    """Yield the first row and what `compute` returns for each slice of `step` of `count` rows."""
    for start in range(0, count, step):
        yield start, compute(slice(start, start + step))


def _compute_locally(parts: Iterable[list[da.Array]], threads: int, count: int) -> Iterator[Any]:
    """Yield the arrays of each of `count` parts, computed by threads of this process, a few ahead.

    Parts that are fewer than the threads have several each, for the tasks that they consist of.
    """
    scheduler = "synchronous" if count >= threads else "threads"
    running: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(threads, "rescnet-batch") as pool:
        try:
            for part in parts:
                if len(running) > threads:
                    yield running.popleft().result()
                running.append(pool.submit(dask.compute, *part, scheduler=scheduler))
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _compute_on(client: Client, parts: Iterable[list[da.Array]]) -> Iterator[Any]:
    """Yield the arrays of each part, computed on a cluster.

    All parts are one graph: the scheduler fails now and then if several that share a task, here
    that of the network, are submitted while others run.
    """
    waiting = list(parts)
    futures = deque(client.compute([array for part in waiting for array in part]))
    for part in waiting:
        yield client.gather([futures.popleft() for _ in part])
