"""Dask's profiler in workers: how much it keeps, and whether it may run."""

from __future__ import annotations

import sys

from rescnet_dist._compat import limit_profile_history, stop_profiler
from rescnet_dist.cluster.current import find_worker

PROFILE_HISTORY_SECONDS = 60  # of Dask's profiles that a worker keeps, one per second
# Dask's profiler can deadlock a worker on these versions of Python: python/cpython#106883
PROFILER_DEADLOCKS = sys.version_info < (3, 11, 12)


def limit_profiler() -> None:
    """Have the worker of this task keep a minute of Dask's profiles instead of an hour.

    A second of profiles takes about 60 kB, so a worker would grow by 200 MB in its first hour,
    whatever it does. If the profiler can deadlock the worker, it is stopped. Outside of a worker
    this does nothing.
    """
    worker = find_worker()
    if worker is None:
        return
    limit_profile_history(worker, PROFILE_HISTORY_SECONDS)
    if PROFILER_DEADLOCKS:
        stop_profiler(worker)
