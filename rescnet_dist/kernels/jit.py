"""How kernels are compiled: to run without the GIL, and kept on disk for the next start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

COMPILE_SECONDS = 300  # at most, for all kernels of a module
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


def compile_elsewhere(function: Any, call: str) -> None:
    """Have another process compile a function by running `call`, Python code, where that was never
    done on this machine: it takes 100 MB, which a worker would never give back. If that fails,
    nothing is lost: the function is compiled where it is called."""
    cache_file = getattr(getattr(function, "_cache", None), "_cache_file", None)
    index = getattr(cache_file, "_index_path", "")
    if not index or os.path.exists(index):
        return
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run([sys.executable, "-c", call], timeout=COMPILE_SECONDS, check=False, **quiet)
