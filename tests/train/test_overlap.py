"""Read-ahead and write-behind: concurrent with the work, in order, one item at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import dask
import pytest
from distributed import Client, LocalCluster, get_worker

from rescnet_dist.errors import StoreError, StoreUnreachableError
from rescnet_dist.store import get_reporter, report_retries
from rescnet_dist.train.overlap import read_ahead, write_behind


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client with one worker, as only tasks read ahead.

    Dask's profiler is off, as it keeps references to frames, and so to their locals.
    """
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_next_item_is_read_while_one_is_processed(client: Client) -> None:
    """The test would time out otherwise; no more than the next item is read."""

    def work() -> list[int]:
        started = [threading.Event() for _ in range(4)]

        def read(item: int) -> int:
            started[item].set()
            return 10 * item

        results = []
        for item, get_value in read_ahead(range(4), read):
            results.append(get_value())
            if item < 3:
                assert started[item + 1].wait(10)
            assert not any(event.is_set() for event in started[item + 2 :])
        return results

    assert client.submit(work, pure=False).result() == [0, 10, 20, 30]


def test_failed_read_is_raised_when_its_item_is_processed(client: Client) -> None:
    """It is not raised earlier, when it was read."""

    def work() -> list[str]:
        log = []
        for item, get_value in read_ahead([2, 1, 0], lambda item: 2 / item):
            try:
                log.append(f"{item} {get_value():g}")
            except ZeroDivisionError:
                log.append(f"{item} failed")
        return log

    assert client.submit(work, pure=False).result() == ["2 1", "1 2", "0 failed"]


def test_nothing_is_read_after_the_store_was_unreachable(client: Client) -> None:
    """A task ends after the retries of one item, not of two."""

    def work() -> list[int]:
        started = []

        def read(item: int) -> int:
            started.append(item)
            raise StoreUnreachableError("gone")

        _, get_value = next(read_ahead(range(4), read))
        with pytest.raises(StoreUnreachableError, match="gone"):
            get_value()
        return started

    assert client.submit(work, pure=False).result() == [0]


def test_retries_of_threads_are_reported_as_those_of_their_task(client: Client) -> None:
    """The driver is told whichever thread waits for the store."""

    def work() -> bool:
        with report_retries(print):
            return [get_value() for _, get_value in read_ahead("a", lambda _: get_reporter())] == [
                print
            ]

    assert client.submit(work, pure=False).result()


def test_returned_values_are_not_referenced(client: Client) -> None:
    """The plan has no memory for one more chunk."""

    class Chunk:
        alive = 0

        def __init__(self) -> None:
            Chunk.alive += 1

        def __del__(self) -> None:
            Chunk.alive -= 1

    def work() -> int:
        largest = 0
        for _, get_value in read_ahead(range(5), lambda _: Chunk()):
            chunk = get_value()
            del chunk
            largest = max(largest, Chunk.alive)
        return largest

    assert client.submit(work, pure=False).result() <= 1


def test_write_runs_while_next_item_is_prepared(client: Client) -> None:
    """The next put waits for it, and returns its result."""

    def work() -> list[str | None]:
        released = threading.Event()

        def write_slowly() -> str:
            assert released.wait(10)
            return f"first, for {get_name()}"

        def get_name() -> str:
            return threading.current_thread().name.split("_")[0]

        with write_behind() as writer:
            results = [writer.put(write_slowly)]
            released.set()
            results += [writer.put(lambda: "second"), writer.wait(), writer.wait()]
        return results

    expected = [None, "first, for rescnet-store", "second", None]
    assert client.submit(work, pure=False).result() == expected


def test_failed_write_is_raised_by_next_put(client: Client) -> None:
    """The error is never lost."""

    def work() -> None:
        with write_behind() as writer:
            writer.put(lambda: 1 / 0)
            writer.put(lambda: 2)

    with pytest.raises(ZeroDivisionError):
        client.submit(work, pure=False).result()


def test_rescnet_error_of_write_wins_over_later_error(client: Client) -> None:
    """A full store must end a pass at once, whatever happens to the next chunk."""

    def fail() -> None:
        raise StoreError("no room")

    def work(write: Callable[[], object]) -> None:
        with write_behind() as writer:
            writer.put(write)
            raise KeyError("later")

    with pytest.raises(StoreError, match="no room"):
        client.submit(work, fail, pure=False).result()
    with pytest.raises(KeyError, match="later"):
        client.submit(work, lambda: 1 / 0, pure=False).result()


def test_skipped_item_is_an_error(client: Client) -> None:
    """A loop that skips an item would get its value for the next one."""

    def work() -> None:
        for _ in read_ahead(range(5), lambda item: item):
            continue

    with pytest.raises(RuntimeError, match="has not been consumed"):
        client.submit(work, pure=False).result()


def test_threads_belong_to_worker_of_their_task(client: Client) -> None:
    """Dask does not find the worker from another thread."""
    from rescnet_dist.train.task_events import this_worker

    def work() -> bool:
        return all(
            get_value() is get_worker() for _, get_value in read_ahead([0], lambda _: this_worker())
        )

    assert client.submit(work, pure=False).result()
