"""Preload module of `dask worker` that compiles the kernels before the first task.

Numba's cache on disk is valid for one kind of processor only, so an image cannot include it. In a
new container the kernels are compiled again, which takes half a minute.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rescnet_dist.kernels import prepare


async def dask_setup(_worker: Any) -> None:
    """Compile the kernels; Dask calls this once the worker serves its health page.

    The worker registers with its scheduler only afterwards.
    """
    await asyncio.to_thread(prepare)
