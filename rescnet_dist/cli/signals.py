"""SIGTERM as an exception, so that a terminated command cleans up before it exits."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOST_EXCEPTION_SECONDS = 0.5  # between two checks whether the exception was dropped


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM, as from a cluster that reclaims its machine."""


@contextmanager
def raise_on_signal(*more: signal.Signals) -> Iterator[None]:
    """Raise `Terminated` in the body for SIGTERM and other signals, as Ctrl-C does.

    Python drops an exception that is raised while an object is finalized. If the exception is gone
    and the body still runs, the signal is sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended, resend_lock = threading.Event(), threading.Lock()

    def resend_if_lost(number: int, raised: weakref.ref[Terminated]) -> None:
        while not ended.wait(LOST_EXCEPTION_SECONDS):
            with resend_lock:
                if raised() is None and not ended.is_set():
                    os.kill(os.getpid(), number)
                    return

    def terminate(number: int, _frame: Any) -> None:
        if ended.is_set():
            return
        stop = Terminated()
        arguments = (number, weakref.ref(stop))
        threading.Thread(target=resend_if_lost, args=arguments, daemon=True).start()
        try:
            raise stop
        finally:
            del stop  # its own traceback would keep it alive

    handlers = {number: signal.signal(number, terminate) for number in (signal.SIGTERM, *more)}
    try:
        yield
    finally:
        ended.set()
        with resend_lock:  # a signal that was just sent arrives while this handler is installed
            pass
        for number, handler in handlers.items():
            signal.signal(number, handler)
