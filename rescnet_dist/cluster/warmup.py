"""A preload of `dask worker`: kernels are compiled before the worker takes its first task.

What Numba keeps on disk is good for one kind of processor only, so that an image cannot bring it
along: in a fresh container it is made anew, which takes half a minute.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rescnet_dist.kernels import prepare


async def dask_setup(_worker: Any) -> None:
    """Called by Dask once the worker serves its health page, before it tells its scheduler."""
    await asyncio.to_thread(prepare)
