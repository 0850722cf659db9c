"""Retire a Dask worker: move its results to other workers before it stops.

A pod runs `python -m rescnet_dist.cluster.retire` when it is terminated. The command never fails:
results that are not moved are computed again.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import dask
from distributed import Client

from rescnet_dist.cluster.connect import check_reachable


def retire_worker(name: str, address: str, seconds: float = 20) -> dict[str, Any]:
    """Have a scheduler move the results that only one worker has, and give it no more tasks.

    Return what the scheduler knows of the retired workers, by address. A scheduler that is gone,
    as at the end of a job, is not waited for.
    """
    deadline = time.monotonic() + seconds
    check_reachable(address)
    with Client(address, timeout=seconds, set_as_default=False) as client:
        retired = client.retire_workers(
            names=[name],
            close_workers=False,
            remove=False,
            callback_timeout=max(0.1, deadline - time.monotonic()),
        )
    return dict(retired)


def main() -> None:
    """Retire the worker that the environment names from the scheduler that it names."""
    name = os.environ.get("RESCNET_WORKER_NAME") or os.environ.get("DASK_WORKER_NAME")
    try:
        if not name:
            raise ValueError("RESCNET_WORKER_NAME is not set")
        address = dask.config.get("scheduler-address", None)
        if not address:
            raise ValueError("DASK_SCHEDULER_ADDRESS is not set")
        seconds = float(os.environ.get("RESCNET_LEAVE_SECONDS", "20"))
        retired = retire_worker(name, address, seconds)
        print(f"retired: {', '.join(retired) or 'no such worker'}", file=sys.stderr)
    except Exception as error:  # the worker stops in any case
        print(f"not retired: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
