"""Images in memory, divided between threads of this process.

Dask would do the same, but importing dask.array and distributed takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.system import CPU_COUNT

if TYPE_CHECKING:
    from distributed import Client

Array = np.ndarray[Any, np.dtype[Any]]

SCHEDULER_SETTINGS = ("scheduler", "pool", "num_workers")  # of Dask's configuration


def find_client() -> Client | None:
    """Return the client that Dask computes with, if any.

    Returns
    -------
    distributed.Client or None
        The current client; in a task, that of its worker. None if distributed is not imported,
        as there is no client then.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        return None


def uses_own_threads() -> bool:
    """Return whether images are computed by threads of this process, without Dask.

    Returns
    -------
    bool
        False if there is a client, or Dask's configuration chooses a scheduler or its threads.
    """
    is_configured = any(dask.config.get(name, None) is not None for name in SCHEDULER_SETTINGS)
    return not is_configured and find_client() is None


def map_rows(compute: Callable[..., Array], chunks: Sequence[int], *arrays: Array) -> list[Array]:
    """Call a function with consecutive rows of arrays, in threads.

    Parameters
    ----------
    compute : callable
        Function of the rows of each array, with the keyword `block_info` that
        `dask.array.map_blocks` gives it, as far as the rows of the first array go.
    chunks : sequence of int
        Number of rows of each call; their sum is n.
    *arrays : ndarray of shape (n, ...)
        The arrays.

    Returns
    -------
    list of ndarray
        What the calls return, in order.
    """

    def call(rows: tuple[int, int]) -> Array:
        blocks = (array[slice(*rows)] for array in arrays)
        return compute(*blocks, block_info={0: {"array-location": [rows]}})

    edges = list(pairwise(accumulate(chunks, initial=0)))
    with ThreadPoolExecutor(min(CPU_COUNT, len(edges))) as pool:
        return list(pool.map(call, edges))
