"""Many real `distributed.Worker`s in few processes, for the rig: no nanny, no profiler, no pages.

Run as `python rig_workers.py SCHEDULER MEMORY`. A line of standard input with a number starts a
process with so many workers, by a fork, so that everything is imported once; "joined" is printed
once they have joined. The line "lose" kills the oldest process. All end with standard input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import dask
import rig_tasks
from distributed import Worker, system

LIGHT_CONFIG = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.admin.tick.interval": "1h",
    "distributed.admin.tick.limit": "1h",
    "distributed.comm.timeouts.connect": "120s",
}
JOINING = 10  # workers of a process that connect at the same time


async def run_workers(address: str, count: int, memory: int) -> None:
    """Run workers of one thread each."""
    assert rig_tasks  # which the tasks need
    workers: list[Worker] = []
    for start in range(0, count, JOINING):
        workers += await asyncio.gather(
            *(
                Worker(address, nthreads=1, memory_limit=memory, data=dict, host="127.0.0.1")
                for _ in range(min(JOINING, count - start))
            )
        )
    os.write(sys.stdout.fileno(), b"joined\n")  # at once, as others write to it too
    await asyncio.Event().wait()


def main(address: str, memory: int) -> None:
    """Start and kill processes of workers as standard input says."""
    system.MEMORY_LIMIT = memory  # a worker may say that it has more than this machine
    children: list[int] = []
    for line in sys.stdin:
        if line.strip() == "lose":
            os.kill(children.pop(0), signal.SIGKILL)
        elif child := os.fork():
            children.append(child)
        else:
            asyncio.run(run_workers(address, int(line), memory))
    for child in children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    dask.config.set(LIGHT_CONFIG)
    main(sys.argv[1], int(sys.argv[2]))
