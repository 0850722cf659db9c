"""The Dask client and worker of this thread, for code that also runs where there is neither.

A process that has not imported distributed has neither, and does not import it to find out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client, Worker


def find_client() -> Client | None:
    """Return the client that Dask computes with, if any.

    Returns
    -------
    distributed.Client or None
        The current client; in a task, that of its worker.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        return None


def find_worker() -> Worker | None:
    """Return the worker whose task this thread runs, if any.

    Returns
    -------
    distributed.Worker or None
        The worker; None in threads that a task has started, which Dask does not know.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None
