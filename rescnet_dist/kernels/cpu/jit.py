"""Compilation of kernels with Numba: without the GIL, and cached on disk for later processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from rescnet_dist._compat import is_missing_in_numba_cache, numba_lock, parse_numba_signature

MAX_COMPILE_SECONDS = 300
Function = TypeVar("Function", bound=Callable[..., Any])


def compile_kernel(function: Function) -> Function:
    """Compile a function for the types that it is called with, once per machine and version.

    It runs in the calling thread, as parallelism comes from Dask tasks. Multiplications and
    additions may be fused; sums are never reordered. If no cache folder is writable (see Numba's
    NUMBA_CACHE_DIR), the function is compiled in each process.
    """
    options: Any = {"nogil": True, "fastmath": {"contract", "nsz"}}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast(Function, numba.njit(**options)(function))


def precompile(function: Function, *signatures: str) -> Function:
    """Compile a function for some signatures, load it, and return it.

    If it is not in the cache on disk, another process compiles it first: compiling takes 100 MB,
    which a worker would never release. If that fails, the function is compiled in this process.
    """
    kernel: Any = function
    if not hasattr(kernel, "compile"):  # NUMBA_DISABLE_JIT
        return function
    types = [parse_numba_signature(signature) for signature in signatures]
    with numba_lock():  # loading changes state that all threads of this process share
        if is_missing_in_numba_cache(kernel, types):
            _compile_in_subprocess(function, signatures)
        for kind in types:
            kernel.compile(kind)
    return function


def _compile_in_subprocess(function: Any, signatures: tuple[str, ...]) -> None:
    """Compile a function in another process, which writes it to the cache on disk."""
    call = f"from {function.__module__} import {function.__name__} as kernel\n"
    call += "from rescnet_dist._compat import parse_numba_signature\n"
    call += f"for signature in {signatures!r}: kernel.compile(parse_numba_signature(signature))"
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-c", call], timeout=MAX_COMPILE_SECONDS, check=False, **quiet
        )
