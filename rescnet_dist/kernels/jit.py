"""How kernels are compiled: to run without the GIL, and kept on disk for the next start."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import sigutils
from numba.core.compiler_lock import global_compiler_lock

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


def prepared(function: Function, *signatures: str) -> Function:
    """The function, compiled for the types of some signatures and loaded.

    Where that was never done on this machine, another process compiles it: that takes 100 MB, which
    a worker would never give back. If it cannot, the function is compiled here.
    """
    kernel: Any = function
    if not hasattr(kernel, "compile"):  # NUMBA_DISABLE_JIT
        return function
    kinds = [sigutils.normalize_signature(signature)[0] for signature in signatures]
    keeps = kernel._cache.cache_path is not None  # or else another process would do it in vain
    with global_compiler_lock:  # as loading changes what all threads of this process share
        if keeps and any(
            kernel._cache.load_overload(kind, kernel.targetctx) is None for kind in kinds
        ):
            _compile_elsewhere(function, signatures)
        for kind in kinds:
            kernel.compile(kind)
    return function


def _compile_elsewhere(function: Any, signatures: tuple[str, ...]) -> None:
    """Have another process compile a function, and keep it on disk."""
    call = f"from {function.__module__} import {function.__name__} as kernel\n"
    call += "from numba.core.sigutils import normalize_signature\n"
    call += f"for signature in {signatures!r}: kernel.compile(normalize_signature(signature)[0])"
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run([sys.executable, "-c", call], timeout=COMPILE_SECONDS, check=False, **quiet)
