"""Preload module of `dask worker` that compiles the kernels before the first task.

In a container of our image they are loaded from the image. Elsewhere, and on processors that the
image has no kernels for, they are compiled, which takes a quarter of a minute on two cores.
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
