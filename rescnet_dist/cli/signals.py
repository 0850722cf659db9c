"""SIGTERM as an exception, so that a command that is ended from outside ends cleanly."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.5  # seconds after which to look whether an exception got lost


class Terminated(KeyboardInterrupt):
    """SIGTERM, as from a cluster that takes its machine back."""


@contextmanager
def terminated_by_signal(*more: signal.Signals) -> Iterator[None]:
    """Have SIGTERM, and more signals, drop what is being done and leave the store clean, as Ctrl-C
    does.

    Where the signal comes while an object is being freed, Python drops the exception; so once it
    is gone, and the body still runs, it is raised again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended, insisting = threading.Event(), threading.Lock()

    def insist(number: int, raised: weakref.ref[Terminated]) -> None:
        while not ended.wait(AGAIN):
            with insisting:
                if raised() is None and not ended.is_set():
                    os.kill(os.getpid(), number)
                    return

    def terminate(number: int, _frame: Any) -> None:
        if ended.is_set():
            return
        stop = Terminated()
        threading.Thread(target=insist, args=(number, weakref.ref(stop)), daemon=True).start()
        try:
            raise stop
        finally:
            del stop  # which its own traceback would keep

    before = {number: signal.signal(number, terminate) for number in (signal.SIGTERM, *more)}
    try:
        yield
    finally:
        ended.set()
        with insisting:  # a signal that is on its way arrives while it is still answered here
            pass
        for number, handler in before.items():
            signal.signal(number, handler)
