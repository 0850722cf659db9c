"""How many threads BLAS may use inside a task: fixed by the plan, as it can change bits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
        if _limit.users == 0:
            _limit.previous = ThreadpoolController().limit(limits=count, user_api="blas")
            _limit.threads = count
        _limit.users += 1
    try:
        yield
    finally:
        with _limit.changed:
            _limit.users -= 1
            if _limit.users == 0:
                _limit.previous.restore_original_limits()
                _limit.changed.notify_all()
