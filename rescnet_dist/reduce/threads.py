"""Number of BLAS threads inside a task: fixed by the plan, as it can change bits of the result."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

from rescnet_dist._compat import release_openblas_control


class _ThreadLimit:
    """The process-wide limit in force, and the number of tasks that rely on it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.threads = 0
        self.users = 0
        self.controller: ThreadpoolController | None = None  # of the libraries that are limited
        self.limiters = list[Any]()  # know the numbers of threads before the limit


_limit = _ThreadLimit()  # keeps tasks from fighting for the limit, so that any thread may set it


@contextmanager
def blas_threads(count: int, *, numpy_only: bool = False) -> Iterator[None]:
    """Run the body with exactly `count` BLAS threads.

    BLAS has one setting for the whole process, while tasks may run in several threads of a worker:
    tasks that need the same count share it, others wait until the last of them has left.

    SciPy has a BLAS of its own, which cannot be limited before it is loaded. With `numpy_only` it
    is not loaded, which takes 0.3 s: for bodies that do not call it.
    """
    if not numpy_only:
        importlib.import_module("scipy.linalg")
    with _limit.changed:
        _limit.changed.wait_for(lambda: _limit.users == 0 or _limit.threads == count)
        release_openblas_control()
        controller = _find_blas(len(sys.modules))
        limiter = controller.limit(limits=count, user_api="blas")
        _limit.threads = count
        if controller is not _limit.controller:  # the first task, or a library was loaded since
            _limit.controller = controller
            _limit.limiters.append(limiter)
        _limit.users += 1
    try:
        yield
    finally:
        with _limit.changed:
            _limit.users -= 1
            if _limit.users == 0:
                while _limit.limiters:  # the last one first, as the first one knows no limit
                    release_openblas_control()
                    _limit.limiters.pop().restore_original_limits()
                _limit.controller = None
                release_openblas_control()  # so that any thread can set the next limit
                _limit.changed.notify_all()


@lru_cache(maxsize=1)
def _find_blas(_loaded_modules: int) -> ThreadpoolController:
    """Return the controller of all loaded BLAS libraries.

    The search takes time, so it is repeated only when modules, and libraries with them, were
    loaded since.
    """
    return ThreadpoolController()
