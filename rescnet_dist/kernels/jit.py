"""How kernels are compiled: to run without the GIL, and kept on disk for the next start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """A function compiled for the types that it is called with, once per machine and version.

    It runs in the thread that calls it, as tasks are what is parallel. Multiplications and
    additions may be fused; sums are never reordered.
    """
    return cast(
        Function, numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})(function)
    )
