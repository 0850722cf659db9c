"""The server that forks the workers of an embedded cluster, so that their imports are done once.

Imports of a worker take two seconds of CPU time. The server is started before this process imports
the same, so that both do it at the same time. This module imports the standard library only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

PRELOADED_MODULE = "rescnet_dist.cli.preload"
# Elsewhere, libraries of the system may not survive a fork.
CAN_FORK = sys.platform == "linux"
# Variables that libraries read when they are loaded, as Dask sets them for worker processes.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def start_fork_server() -> None:
    """Start the server, unless it runs or this is not Linux; do not wait for its imports.

    It ends with this process, and never handles Ctrl-C, nor do the workers that it forks.
    """
    if not CAN_FORK:
        return
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED_MODULE])
    resource_tracker.ensure_running()  # it would unblock SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _environment(WORKER_ENVIRONMENT):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _environment(defaults: dict[str, str]) -> Iterator[None]:
    """Set the variables that are not set, during the body."""
    missing = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
