"""Threads of BLAS, whose number a plan fixes, and threads for parts of an array."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from threadpoolctl import ThreadpoolController

from rescnet_dist._compat import release_openblas_control


class _Limit(NamedTuple):
    """A number of BLAS threads, and whether it replaces another for a while."""

    threads: int
    is_replacement: bool = False


class _LimitInForce:
    """The process-wide limit in force, and the number of tasks that rely on it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.limit: _Limit | None = None
        self.users = 0
        self.replacing = 0  # of those tasks, which wait for another limit
        self.controller: ThreadpoolController | None = None  # of the libraries that are limited
        self.limiters = list[Any]()  # know the numbers of threads before the limit

    def enter(self, limit: _Limit) -> None:
        """Set a limit, as soon as no task relies on another."""
        with self.changed:
            self.changed.wait_for(lambda: not self.replacing and self._admits(limit))
            self.users += 1
            try:
                self._set(limit)
            except BaseException:
                self._leave()
                raise

    def replace(self, limit: _Limit) -> None:
        """Set another limit than the one that the caller relies on.

        Tasks that share that one must replace it too, or end, before. No other task begins until
        then. The caller still relies on a limit if this fails.
        """
        with self.changed:
            self.users -= 1
            self.replacing += 1
            try:
                self.changed.wait_for(lambda: self._admits(limit))
                self._set(limit)
            finally:
                self.users += 1
                self.replacing -= 1
                self.changed.notify_all()  # others may wait for the same

    def leave(self) -> None:
        """Restore the numbers of threads before the limit, if no other task relies on it."""
        with self.changed:
            self._leave()

    def _admits(self, limit: _Limit) -> bool:
        """Return whether no task relies on another limit."""
        return self.users == 0 or self.limit == limit

    def _leave(self) -> None:
        """Count a task less, and restore the numbers of threads after the last one."""
        self.users -= 1
        if self.users == 0:
            while self.limiters and not self.replacing:  # the last one first: it knows the limit
                release_openblas_control()
                self.limiters.pop().restore_original_limits()
            if not self.replacing:
                self.controller = None
            release_openblas_control()  # so that any thread can set the next limit
            self.changed.notify_all()

    def _set(self, limit: _Limit) -> None:
        """Set a limit in all BLAS libraries that are loaded."""
        release_openblas_control()
        controller = _find_blas(len(sys.modules))
        limiter = controller.limit(limits=limit.threads, user_api="blas")
        self.limit = limit
        if controller is not self.controller:  # the first task, or a library was loaded since
            self.controller = controller
            self.limiters.append(limiter)


class _Held(threading.local):
    """The limit that this thread relies on, 0 for none."""

    threads = 0


_in_force = _LimitInForce()  # keeps tasks from fighting for it, so that any thread may set it
_held = _Held()


@contextmanager
def blas_threads(count: int, *, numpy_only: bool = False) -> Iterator[None]:
    """Run the body with exactly `count` BLAS threads.

    BLAS has one setting for the whole process, while tasks may run in several threads of a worker:
    tasks that need the same count share it, others wait until the last of them has left.

    SciPy has a BLAS of its own, which cannot be limited before it is loaded. With `numpy_only` it
    is not loaded, which takes 0.3 s: for bodies that do not call it.

    Parameters
    ----------
    count : int
        Number of threads.
    numpy_only : bool, default False
        Whether the body calls NumPy's BLAS only.

    Raises
    ------
    RuntimeError
        In a body with another number; see `one_blas_thread`.
    """
    if _held.threads == count:
        yield
        return
    if _held.threads:
        raise RuntimeError(f"This thread has {_held.threads} BLAS threads already, not {count}.")
    if not numpy_only:
        importlib.import_module("scipy.linalg")
    _in_force.enter(_Limit(count))
    _held.threads = count
    try:
        yield
    finally:
        _held.threads = 0
        _in_force.leave()


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Run the body with one BLAS thread; yield the number that it replaces, for `parts_in_threads`.

    NumPy and SciPy have threads of their own each, which wait actively for the next call: small
    products of both in turns would take ten times as long. The body may be that of `blas_threads`.
    In a thread without a body of its own, while other threads have one, nothing is replaced.
    """
    if not _held.threads and _in_force.users:
        yield 1
        return
    count = count_blas_threads()
    if not _held.threads:
        with blas_threads(1):
            yield count
        return
    if count == 1:
        yield count
        return
    _in_force.replace(_Limit(1, is_replacement=True))
    _held.threads = 1
    try:
        yield count
    finally:
        _held.threads = count
        _in_force.replace(_Limit(count))


def count_blas_threads() -> int:
    """Return the threads that BLAS may use in this thread."""
    if _held.threads:
        return _held.threads
    libraries = ThreadpoolController().select(user_api="blas").info()
    return max((int(library["num_threads"] or 1) for library in libraries), default=1)


@contextmanager
def parts_in_threads(threads: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a function like `map` that calls functions in so many threads, in this one if it is 1.

    Functions must release the GIL.
    """
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, "rescnet-parts") as pool:
        yield pool.map


@lru_cache(maxsize=1)
def _find_blas(_loaded_modules: int) -> ThreadpoolController:
    """Return the controller of all loaded BLAS libraries.

    The search takes time, so it is repeated only when modules, and libraries with them, were
    loaded since.
    """
    return ThreadpoolController()
