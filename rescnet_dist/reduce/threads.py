"""How many threads BLAS may use inside a task: fixed by the plan, as it can change bits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import threadpoolctl
from threadpoolctl import ThreadpoolController


class _Limit:
    """The process-wide limit now in force and how many tasks rely on it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.threads = 0
        self.users = 0
        self.previous: Any = None


_limit = _Limit()


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Run the body with exactly `count` BLAS threads.

    BLAS has one setting for the whole process, while tasks may run in several threads of a
    worker: those that ask for the same count share it, others wait until the last has left.
    """
    with _limit.changed:
        _limit.changed.wait_for(lambda: _limit.users == 0 or _limit.threads == count)
        _take_control()
        limiter = _controller(len(sys.modules)).limit(limits=count, user_api="blas")
        if _limit.users == 0:
            _limit.previous, _limit.threads = limiter, count
        _limit.users += 1
    try:
        yield
    finally:
        with _limit.changed:
            _limit.users -= 1
            if _limit.users == 0:
                _take_control()
                _limit.previous.restore_original_limits()
                _take_control()  # and leave it to whoever is next
                _limit.changed.notify_all()


@lru_cache(maxsize=1)
def _controller(_modules: int) -> ThreadpoolController:
    """What sets the threads of all BLAS libraries, which takes some time to find; they come with
    modules, of which there are so many by now."""
    return ThreadpoolController()


def _take_control() -> None:
    """Let this thread set OpenBLAS's limit.

    From 3.8 on, threadpoolctl silently ignores all threads but the first that set one, to keep
    them from fighting; here `_limit` already does that.
    """
    release = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
