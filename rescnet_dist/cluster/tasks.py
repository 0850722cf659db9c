"""Independent calls of a function: tasks of a cluster, or threads of this process without Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import dask
from dask.system import CPU_COUNT

from rescnet_dist.cluster.current import find_client

Result = TypeVar("Result")

SCHEDULER_SETTINGS = ("scheduler", "pool", "num_workers")  # of Dask's configuration


def uses_own_threads() -> bool:
    """Return whether calls are made by threads of this process, without Dask.

    Returns
    -------
    bool
        False if there is a client, or Dask's configuration chooses a scheduler or its threads.
    """
    is_configured = any(dask.config.get(name, None) is not None for name in SCHEDULER_SETTINGS)
    return not is_configured and find_client() is None


def call_each(function: Callable[..., Result], arguments: Iterable[Iterable[Any]]) -> list[Result]:
    """Call a function with each of several lists of arguments, at the same time.

    Parameters
    ----------
    function : callable
        Called in threads of this process, or in tasks of Dask; see `uses_own_threads`. Only the
        second imports distributed.
    arguments : iterable of iterable
        The arguments of each call.

    Returns
    -------
    list
        What the calls return, in order.
    """
    if uses_own_threads():
        return call_in_threads(function, arguments)
    from dask.delayed import delayed

    task = delayed(function, pure=False)
    return list(dask.compute(*(task(*call) for call in arguments)))


def call_in_threads(
    function: Callable[..., Result], arguments: Iterable[Iterable[Any]]
) -> list[Result]:
    """Call a function with each of several lists of arguments, in threads of this process.

    Parameters
    ----------
    function : callable
        The function. If a call raises, those that have not started are not made.
    arguments : iterable of iterable
        The arguments of each call.

    Returns
    -------
    list
        What the calls return, in order.
    """
    calls = list(arguments)
    with ThreadPoolExecutor(min(CPU_COUNT, max(len(calls), 1))) as pool:
        try:
            return list(pool.map(lambda call: function(*call), calls))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
