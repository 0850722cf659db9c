"""Compilation of kernels with Numba: without the GIL, and cached on disk for later processes."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import register_jitable

from rescnet_dist._compat import (
    add_to_numba_source_stamp,
    load_from_numba_cache,
    numba_lock,
    parse_numba_signature,
)

MAX_COMPILE_SECONDS = 300
COMPILE_POLL_SECONDS = 0.1
LOCK_FILE = "rescnet-compile.lock"  # in the folder of Numba's cache
FAST_MATH = {"contract", "nsz"}  # flags of LLVM
Function = TypeVar("Function", bound=Callable[..., Any])


def compile_kernel(function: Function) -> Function:
    """Compile a function for the types that it is called with, once per machine and version.

    It runs in the calling thread, as parallelism comes from Dask tasks. Multiplications and
    additions may be fused; sums are never reordered. Divisors are not compared with 0, so that
    loops with divisions use vectors. The cache is invalid once any module next to this one changes,
    as kernels contain the functions and constants of others. If no cache folder is writable (see
    Numba's NUMBA_CACHE_DIR), the function is compiled in each process.
    """
    return _compile_kernel(function, FAST_MATH)


def compile_exact_kernel(function: Function) -> Function:
    """Compile a function as `compile_kernel` does, but round the result of every operation.

    The bits are those of the same operations elsewhere, as on a GPU.
    """
    return _compile_kernel(function, False)


def _compile_kernel(function: Function, fastmath: set[str] | bool) -> Function:
    """Compile a function with these fast-math flags."""
    options: Any = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    with contextlib.suppress(RuntimeError):  # no folder is writable
        kernel = numba.njit(cache=True, **options)(function)
        if not hasattr(kernel, "compile") or add_to_numba_source_stamp(kernel, _hash_sources()):
            return cast(Function, kernel)
    return cast(Function, numba.njit(**options)(function))


def compile_part(function: Function) -> Function:
    """Compile a function that only kernels call, as a part of them; it must not allocate arrays.

    It has neither entry points for Python and C nor a cache of its own, nor does it count
    references, which saves a tenth of the time of compiling. A call from Python is not compiled.
    """
    return _compile_part(function, FAST_MATH)


def compile_exact_part(function: Function) -> Function:
    """Compile a part, as `compile_part` does, of a kernel of `compile_exact_kernel`."""
    return _compile_part(function, False)


def _compile_part(function: Function, fastmath: set[str] | bool) -> Function:
    """Compile a part with these fast-math flags."""
    options: Any = {"fastmath": fastmath, "error_model": "numpy"}
    options |= {"no_cfunc_wrapper": True, "_nrt": False}
    return register_jitable(**options)(function)


@cache
def _hash_sources() -> str:
    """Return a hash of the modules that kernels, and what they call, are in."""
    sources = {
        entry.name: entry.read_bytes()
        for entry in files(__package__).iterdir()
        if entry.name.endswith(".py")
    }
    found = hashlib.sha256()
    for name in sorted(sources):
        found.update(f"{name} {len(sources[name])}\n".encode() + sources[name])
    return found.hexdigest()


def precompile(
    kernels: Sequence[tuple[Function, Sequence[str]]], *, only_cached: bool = False
) -> None:
    """Compile functions for their signatures, and load them.

    Those that are not in the cache on disk are compiled by other processes first, the first of
    them next to all others: compiling takes 100 MB, which a worker would never release. Processes
    that need them at the same time wait for the first that compiles. If that fails, functions are
    compiled in this process. With `only_cached`, they are left out.
    """
    functions: list[tuple[Any, list[Any]]] = [
        (function, [parse_numba_signature(signature) for signature in signatures])
        for function, signatures in kernels
    ]
    if any(not hasattr(function, "compile") for function, _ in functions):
        return  # NUMBA_DISABLE_JIT
    with numba_lock():  # loading changes state that all threads of this process share
        is_cached = [load_from_numba_cache(*function) for function in functions]
        if only_cached:
            functions = [*compress(functions, is_cached)]
        elif not all(is_cached):
            with _lock_cache(functions[is_cached.index(False)][0]):
                # Another process may have compiled them meanwhile, as that of another worker.
                is_cached = [load_from_numba_cache(*function) for function in functions]
                missing = [*compress(kernels, (not found for found in is_cached))]
                _compile_in_processes([part for part in (missing[:1], missing[1:]) if part])
        for function, types in functions:
            load_from_numba_cache(function, types)  # what another process has compiled by now
            for kind in types:
                function.compile(kind)


@contextlib.contextmanager
def _lock_cache(kernel: Any) -> Iterator[None]:
    """Let one process at a time compile kernels, of those that share a cache on disk.

    All workers of a machine start at the same time, and would compile the same. Where files cannot
    be locked, they do, and also if the lock is not released in time: its owner may be suspended, or
    lost on another machine that shares the cache.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # not on Windows

            folder = Path(kernel.stats.cache_path)
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK_FILE).open("w"))
            deadline = time.monotonic() + MAX_COMPILE_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(COMPILE_POLL_SECONDS)
            # Closing would leave it to forked processes; if this one is killed, it is released.
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


def _compile_in_processes(parts: Sequence[Sequence[tuple[Any, Sequence[str]]]]) -> None:
    """Compile each part in another process, which writes its kernels to the cache on disk."""
    processes = []
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for kernels in parts:
        # They end soon: collecting garbage would take a tenth of their time, and more at the end.
        code = "import atexit, gc; gc.disable(); atexit.register(gc.freeze)\n"
        code += "from importlib import import_module\n"
        code += "from rescnet_dist._compat import parse_numba_signature\n"
        for function, signatures in kernels:
            code += f"kernel = import_module({function.__module__!r}).{function.__name__}\n"
            code += f"for signature in {[*signatures]!r}:\n"
            code += "    kernel.compile(parse_numba_signature(signature))\n"
        with contextlib.suppress(OSError):
            processes.append(subprocess.Popen([sys.executable, "-c", code], **quiet))
    deadline = time.monotonic() + MAX_COMPILE_SECONDS
    for process in processes:
        try:
            process.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
