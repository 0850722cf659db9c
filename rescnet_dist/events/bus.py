"""Delivery of events to the listeners of a run, which cannot break the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Self

from rescnet_dist.errors import SpecError
from rescnet_dist.events.classes import Event, Listener

logger = logging.getLogger(__name__)


def check_listeners(listeners: Any) -> None:
    """Raise SpecError if listeners is not a sequence of callables."""
    if not isinstance(listeners, Sequence):
        raise SpecError(f"listeners={listeners!r} is not a list. Pass [{listeners!r}].")
    for listener in listeners:
        if not callable(listener):
            raise SpecError(
                f"{listener!r} in listeners is not callable. Pass a function of an event, or an "
                "instance of a subclass of rescnet_dist.Callback."
            )


MAX_LISTENER_FAILURES = 10  # before a listener is disabled
LISTENER_TIMEOUT_SECONDS = 60.0  # that the driver waits for its listeners


class EventBus:
    """Delivers events to listeners, in order, in a thread of its own. Use it as a context manager.

    The thread keeps Dask's client from waiting for listeners. An exception in a listener is logged;
    after `MAX_LISTENER_FAILURES` of them the listener gets no more events. Only exceptions that are
    meant to stop a program, such as KeyboardInterrupt, stop the run: they are raised in the
    driver's next call of `publish` or `check`.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._failures = [(listener, [0]) for listener in listeners]
        self._events: SimpleQueue[tuple[Event, threading.Event] | None] = SimpleQueue()
        self._interrupts: SimpleQueue[BaseException] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._deliver_events, name="rescnet-events", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._events.put(None)
        self._thread.join(LISTENER_TIMEOUT_SECONDS)

    def publish(self, event: Event) -> None:
        """Publish an event and wait until all listeners have handled it.

        Raises the exception with which a listener has stopped the run.
        """
        delivered = self.publish_nowait(event)
        if not delivered.wait(LISTENER_TIMEOUT_SECONDS):
            logger.warning(
                "Listeners have not handled %s after %s s. The run continues.",
                type(event).__name__,
                LISTENER_TIMEOUT_SECONDS,
            )
        self.check()

    def publish_nowait(self, event: Event) -> threading.Event:
        """Queue an event without waiting; return a flag that is set once it is delivered."""
        delivered = threading.Event()
        self._events.put((event, delivered))
        return delivered

    def check(self) -> None:
        """Raise the exception with which a listener has stopped the run, if one has."""
        with suppress(Empty):
            raise self._interrupts.get_nowait()

    def _deliver_events(self) -> None:
        """Deliver queued events until the bus is closed."""
        while (entry := self._events.get()) is not None:
            event, delivered = entry
            for listener, failures in self._failures:
                if failures[0] < MAX_LISTENER_FAILURES:
                    self._notify(listener, failures, event)
            delivered.set()

    def _notify(self, listener: Listener, failures: list[int], event: Event) -> None:
        """Call one listener; count its failures and queue its interrupts."""
        try:
            listener(event)
        except (Exception, SystemExit):
            failures[0] += 1
            disabled = f" It gets no more events after {MAX_LISTENER_FAILURES} failures."
            logger.exception(
                "Listener %r failed on %s. The run continues.%s",
                listener,
                type(event).__name__,
                disabled if failures[0] == MAX_LISTENER_FAILURES else "",
            )
        except BaseException as interrupt:
            self._interrupts.put(interrupt)
