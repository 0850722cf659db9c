"""Leave a cluster in good time: what a worker has finished goes to the others before it ends.

`python -m rescnet_dist.cluster.retire` is what a pod runs when it is told to stop. It never fails:
what is not handed over is computed again.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import dask
from distributed import Client

from rescnet_dist.cluster.connect import check_reachable


def leave(name: str, address: str, seconds: float = 20) -> dict[str, Any]:
    """Have the scheduler move what the worker of this name alone holds, and give it nothing more to
    do; what is known of the workers that have left. A scheduler that is gone, as all of a cluster
    goes at the end of a job, is not waited for."""
    deadline = time.monotonic() + seconds
    check_reachable(address)
    with Client(address, timeout=seconds, set_as_default=False) as client:
        retired = client.sync(
            client.scheduler.retire_workers, names=[name], close_workers=False, remove=False,
            callback_timeout=max(0.1, deadline - time.monotonic()),
        )  # fmt: skip
    return dict(retired)


def main() -> None:
    """Leave as the worker, and from the scheduler, that the environment names."""
    name = os.environ.get("RESCNET_WORKER_NAME") or os.environ.get("DASK_WORKER_NAME")
    try:
        if not name:
            raise ValueError("RESCNET_WORKER_NAME is not set")
        address = dask.config.get("scheduler-address", None)
        if not address:
            raise ValueError("DASK_SCHEDULER_ADDRESS is not set")
        found = leave(name, address, float(os.environ.get("RESCNET_LEAVE_SECONDS", "20")))
        print(f"left: {', '.join(found) or 'no such worker'}", file=sys.stderr)
    except Exception as error:  # a worker that cannot say goodbye ends nevertheless
        print(f"left without a word: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
