"""How kernels are compiled: to run without the GIL, and kept on disk for the next start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A function compiled for the types that it is called with, once per machine and version.

    It runs in the thread that calls it, as tasks are what is parallel. Multiplications and
    additions may be fused; sums are never reordered. Where no folder can be written to (see Numba's
    NUMBA_CACHE_DIR), it is compiled anew in each process.
    """
    options: Any = {"nogil": True, "fastmath": {"contract", "nsz"}}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast(Function, numba.njit(**options)(function))
