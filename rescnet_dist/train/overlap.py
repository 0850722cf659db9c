"""Overlap of store access with computation: read the next item, write the last one in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from distributed import Worker, get_worker

from rescnet_dist.errors import RescnetError, StoreUnreachableError
from rescnet_dist.store import Reporter, get_reporter, set_reporter
from rescnet_dist.train.task_events import set_thread_worker

Item = TypeVar("Item")
Value = TypeVar("Value")


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Value]
) -> Iterator[tuple[Item, Callable[[], Value]]]:
    """Yield each item with a function that returns `read(item)`, or raises what that raised.

    The function must be called exactly once, before the next item is requested. The next item is
    read in another thread while the current one is processed. At most one item is read ahead, and
    no reference to a returned value is kept. If the store cannot be reached, nothing more is read:
    the retries of the next item would take as long again.
    """
    failures: list[StoreUnreachableError] = []

    def read_if_reachable(item: Item) -> Value:
        if failures:
            raise failures[0]
        try:
            return read(item)
        except StoreUnreachableError as error:
            failures.append(error)
            raise

    with _start_thread() as pool:
        pending: list[tuple[Item, Future[Value]]] = []
        for item in items:
            pending.append((item, pool.submit(read_if_reachable, item)))
            if len(pending) == 2:
                yield pending[0][0], partial(_pop_result, pending)
                _check_consumed(pending, 1)
        if pending:
            yield pending[0][0], partial(_pop_result, pending)
            _check_consumed(pending, 0)


def _pop_result(pending: list[tuple[Item, Future[Value]]]) -> Value:
    """Remove the first pending read and return its result."""
    return pending.pop(0)[1].result()


def _check_consumed(pending: list[Any], expected: int) -> None:
    """Raise RuntimeError if a result was not consumed: the next item would get it."""
    if len(pending) != expected:
        raise RuntimeError(
            "A value that was read ahead has not been consumed. Call the function of each item "
            "exactly once."
        )


class WriteBehind:
    """Runs one write at a time in another thread while the caller prepares the next one."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._pending: Future[Any] | None = None

    def put(self, write: Callable[[], Any]) -> Any:
        """Wait for the previous write, start this one, and return the result of the previous one.

        The result is None if there was no previous write.
        """
        previous = self.wait()
        self._pending = self._pool.submit(write)
        return previous

    def wait(self) -> Any:
        """Wait for the last write; return its result, or raise what it raised."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def exception(self) -> BaseException | None:
        """Wait for the last write and return its exception, if it has failed."""
        return None if self._pending is None else self._pending.exception()


@contextmanager
def write_behind() -> Iterator[WriteBehind]:
    """Provide a `WriteBehind` whose thread ends with the block.

    If the block fails, and the pending write has failed with a RescnetError too, that one is
    raised: it came first and says what is wrong.
    """
    with _start_thread() as pool:
        writer = WriteBehind(pool)
        try:
            yield writer
        except Exception:
            if isinstance(error := writer.exception(), RescnetError):
                raise error from None
            raise


def _start_thread() -> ThreadPoolExecutor:
    """Start one more thread for the task of this thread."""

    def share_context(worker: Worker, report: Reporter | None) -> None:
        set_thread_worker(worker)
        set_reporter(report)

    context = get_worker(), get_reporter()
    return ThreadPoolExecutor(1, "rescnet-store", initializer=share_context, initargs=context)
