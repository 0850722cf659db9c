"""How kernels are compiled: to run without the GIL, and kept on disk for the next start."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import sigutils

COMPILE_SECONDS = 300  # at most
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


def prepared(function: Function, signature: str) -> Function:
    """The function, compiled for the types of a signature and loaded.

    Where that was never done on this machine, another process compiles it: that takes 100 MB, which
    a worker would never give back. If it cannot, the function is compiled here.
    """
    kernel, types = cast(Any, function), _types(signature)
    if not hasattr(kernel, "compile"):  # NUMBA_DISABLE_JIT
        return function
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if kernel._cache.load_overload(types, kernel.targetctx) is None:
            call = f"import {__name__} as jit, {function.__module__} as module\n"
            call += f"module.{function.__name__}.compile(jit._types({signature!r}))"
            quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            command = [sys.executable, "-c", call]
            subprocess.run(command, timeout=COMPILE_SECONDS, check=False, **quiet)
    kernel.compile(types)
    return function


def _types(signature: str) -> Any:
    """The types of a signature's arguments, under which Numba keeps what it compiled."""
    return sigutils.normalize_signature(signature)[0]
