"""Images in memory, divided between threads of this process or tasks of Dask.

No array of Dask is made of them: importing dask.array takes a second, here and in each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

import dask
import numpy as np

from rescnet_dist.cluster.tasks import call_in_threads

Array = np.ndarray[Any, np.dtype[Any]]


def map_in_threads(
    compute: Callable[..., Array],
    chunks: Sequence[int],
    arrays: Sequence[Array],
    shared: Any,
    steps: Sequence[Callable[..., Array]] = (),
    *,
    first: int = 0,
) -> list[Array]:
    """Call a function with consecutive rows of arrays, in threads of this process.

    Parameters
    ----------
    compute : callable
        Function of the rows of each array and of `shared`, with the keyword `block_info` that
        `dask.array.map_blocks` gives it, as far as the rows of the first array go. What steps have
        returned for the rows follows the arrays.
    chunks : sequence of int
        Number of rows of each call; their sum is n.
    arrays : sequence of ndarray of shape (n, ...)
        The arrays.
    shared : object
        Another argument of all calls.
    steps : sequence of callable, optional
        Functions of the rows of the first array and of `shared`, which are called for each chunk
        before `compute`, at the same time.
    first : int, default 0
        Number of the first row, if the arrays are parts of larger ones.

    Returns
    -------
    list of ndarray
        What the calls return, in order.
    """
    chunked = list(zip(*_divide(chunks, arrays, first), strict=True))
    calls = [(step, shared, edges, block[:1]) for edges, block in chunked for step in steps]
    results = iter(call_in_threads(_call, calls))
    for _, block in chunked:
        block += islice(results, len(steps))
    return call_in_threads(_call, [(compute, shared, *chunk) for chunk in chunked])


def map_in_tasks(
    compute: Callable[..., Array],
    chunks: Sequence[int],
    arrays: Sequence[Array],
    shared: Any,
    steps: Sequence[Callable[..., Array]] = (),
    *,
    first: int = 0,
) -> list[Array]:
    """Call a function with consecutive rows of arrays, in tasks of Dask, and compute these.

    Parameters
    ----------
    compute, chunks, arrays, steps, first
        As of `map_in_threads`.
    shared : Delayed or object
        Another argument of all calls; one that is Delayed is computed once.

    Returns
    -------
    list of ndarray
        What the calls return, in order.
    """
    from dask.delayed import delayed

    call, tasks = delayed(_call, pure=False), list[Any]()
    for edges, block in zip(*_divide(chunks, arrays, first), strict=True):
        images = [delayed(block[0], pure=False, traverse=False)] if steps else block[:1]
        results = [call(step, shared, edges, images) for step in steps]
        tasks.append(call(compute, shared, edges, [*images, *block[1:], *results]))
    return list(dask.compute(*tasks))


def _call(
    compute: Callable[..., Array], shared: Any, rows: tuple[int, int], blocks: Sequence[Array]
) -> Array:
    """Call a function with rows of arrays, of which it gets the number of the first."""
    return compute(*blocks, shared, block_info={0: {"array-location": [rows]}})


def _divide(
    chunks: Sequence[int], arrays: Sequence[Array], first: int
) -> tuple[list[tuple[int, int]], list[list[Array]]]:
    """Return numbers of the first row of each chunk and the one after the last, and these rows.

    `first` is the number of the first row of the arrays.
    """
    edges = list(pairwise(accumulate(chunks, initial=first)))
    rows = [[array[i - first : j - first] for array in arrays] for i, j in edges]
    return edges, rows
