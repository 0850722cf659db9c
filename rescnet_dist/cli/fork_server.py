"""The server that forks the workers of an embedded cluster, so that their imports are done once.

Imports of a worker take two seconds of CPU time. The server is started before this process imports
the same, so that both do it at the same time. This module imports the standard library only.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker

PRELOADED_MODULE = "rescnet_dist.cli.preload"
# Elsewhere, libraries of the system may not survive a fork.
CAN_FORK = sys.platform == "linux"
# Variables that libraries read when they are loaded, as Dask sets them for worker processes that
# have none.
LIBRARY_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# That of all worker processes of Dask, also of those that replace a forked one: strings must have
# the same hash in all.
HASH_SEED = "6640"


def start_fork_server() -> bool:
    """Start the server, unless it runs; do not wait for its imports.

    It ends with this process, and never handles Ctrl-C, nor do the workers that it forks. Return
    whether there is one: not if this is not Linux, nor without a process or socket for it, as if
    the folder for temporary files has a name of more than 80 characters.
    """
    if not CAN_FORK:
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED_MODULE])
    mask = None
    try:
        resource_tracker.ensure_running()  # it would unblock SIGINT
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with _environment(_server_environment()):
            forkserver.ensure_running()
        atexit.register(_stop_fork_server)
    except OSError:
        return False
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return True


def _stop_fork_server() -> None:
    """Kill the server. It would end by itself, but not before its imports are done.

    Until then it holds the standard output, for whose end a pipe waits.
    """
    from rescnet_dist._compat import fork_server_pid  # imports NumPy

    if pid := fork_server_pid():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _server_environment() -> dict[str, str]:
    """Return the variables that the server has in place of those of this process."""
    missing = {k: v for k, v in LIBRARY_ENVIRONMENT.items() if k not in os.environ}
    # Like this process, the server must not import modules of the working directory, where a user
    # may have a click.py.
    safe = {} if {"", os.getcwd()} & {*sys.path} else {"PYTHONSAFEPATH": "1"}
    return missing | safe | {"PYTHONHASHSEED": HASH_SEED}


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment during the body."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
