"""Reading ahead and writing behind: what a store takes, while a task computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from distributed import get_worker

from rescnet_dist.errors import RescnetError
from rescnet_dist.train.task_events import adopt

Item = TypeVar("Item")
Value = TypeVar("Value")


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Value]
) -> Iterator[tuple[Item, Callable[[], Value]]]:
    """Each item with a function that gives, once, what `read` gives of it, or raises what it did.

    The next item is read by another thread while its predecessor is worked on; no more than one is
    ever read ahead, and what has been given is not held on to.
    """
    with _thread() as pool:
        coming: list[tuple[Item, Future[Value]]] = []
        for item in items:
            coming.append((item, pool.submit(read, item)))
            if len(coming) == 2:
                yield coming[0][0], partial(_result_of_first, coming)
                _check_taken(coming, 1)
        if coming:
            yield coming[0][0], partial(_result_of_first, coming)
            _check_taken(coming, 0)


def _result_of_first(coming: list[tuple[Item, Future[Value]]]) -> Value:
    return coming.pop(0)[1].result()


def _check_taken(coming: list[Any], left: int) -> None:
    """Refuse to go on from an item that was not taken, as the next one would pass for it."""
    if len(coming) != left:
        raise RuntimeError("what was read ahead has not been taken")


class WriteBehind:
    """Writes one thing at a time in another thread, while the next one is made."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._pending: Future[Any] | None = None

    def put(self, write: Callable[[], Any]) -> Any:
        """Begin to write something; waits for what was put before, and returns what that
        gave, None if there was nothing."""
        before = self.wait()
        self._pending = self._pool.submit(write)
        return before

    def wait(self) -> Any:
        """Wait until all is written; returns what the last write gave, or raises what it raised."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def problem(self) -> BaseException | None:
        """Why what was put last could not be written, if so; waits for it."""
        return None if self._pending is None else self._pending.exception()


@contextmanager
def write_behind() -> Iterator[WriteBehind]:
    """A `WriteBehind` whose thread ends with the block. If that fails, and what is being written
    has failed too, by an error that says what is wrong, that one is raised: it came first."""
    with _thread() as pool:
        behind = WriteBehind(pool)
        try:
            yield behind
        except Exception:
            if isinstance(problem := behind.problem(), RescnetError):
                raise problem from None
            raise


def _thread() -> ThreadPoolExecutor:
    """One more thread for the task that this is called from."""
    return ThreadPoolExecutor(1, "rescnet-store", initializer=adopt, initargs=(get_worker(),))
