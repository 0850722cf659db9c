"""SIGTERM as an exception, so that a command that is ended from outside ends cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, as from a cluster that takes its machine back."""


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Have SIGTERM drop what is being done and leave the store clean, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_signal: int, _frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
