"""Preload of the rig's scheduler: measures how long its event loop is blocked.

`dask scheduler --preload` calls `dask_setup`. Delays go to the file that `RIG_DELAYS` names, one
line each: time of day, seconds that a callback was late, and CPU seconds of the loop meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import rescnet_dist.train  # noqa: F401, which would delay the loop at the first graph

TICK_SECONDS = 0.02
MIN_DELAY_SECONDS = 0.02  # that is written


async def dask_setup(scheduler: Any) -> None:
    """Start the measurement in the event loop of a scheduler."""
    scheduler.rig_probe = asyncio.create_task(measure_delays(os.environ["RIG_DELAYS"]))


async def measure_delays(path: str) -> None:
    """Write each delay of this event loop to a file."""
    with open(path, "a", buffering=1) as file:
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            late = time.monotonic() - wall - TICK_SECONDS
            if late > MIN_DELAY_SECONDS:
                file.write(f"{time.time():.3f} {late:.4f} {time.thread_time() - cpu:.4f}\n")
