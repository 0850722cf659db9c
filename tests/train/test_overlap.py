"""Reading ahead and writing behind: at the same time as the work, in order, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import dask
import pytest
from distributed import Client, LocalCluster, get_worker

from rescnet_dist.errors import StoreError
from rescnet_dist.train.overlap import read_ahead, write_behind


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A worker, as only tasks read ahead; without Dask's profiler, which holds on to the frames
    that it looks at, and so to what is in them."""
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_the_next_item_is_read_while_one_is_worked_on(client: Client) -> None:
    """Which would wait for ever if it were not; and no more than the next one."""

    def work() -> list[int]:
        begun = [threading.Event() for _ in range(4)]

        def read(item: int) -> int:
            begun[item].set()
            return 10 * item

        results = []
        for item, given in read_ahead(range(4), read):
            results.append(given())
            if item < 3:
                assert begun[item + 1].wait(10)
            assert not any(event.is_set() for event in begun[item + 2 :])
        return results

    assert client.submit(work, pure=False).result() == [0, 10, 20, 30]


def test_a_failed_read_is_raised_where_its_item_is_worked_on(client: Client) -> None:
    """Not earlier, when it was read."""

    def work() -> list[str]:
        log = []
        for item, given in read_ahead([2, 1, 0], lambda item: 2 / item):
            try:
                log.append(f"{item} {given():g}")
            except ZeroDivisionError:
                log.append(f"{item} failed")
        return log

    assert client.submit(work, pure=False).result() == ["2 1", "1 2", "0 failed"]


def test_what_is_given_is_not_held_on_to(client: Client) -> None:
    """As memory for one more chunk is not planned for."""

    class Chunk:
        alive = 0

        def __init__(self) -> None:
            Chunk.alive += 1

        def __del__(self) -> None:
            Chunk.alive -= 1

    def work() -> int:
        most = 0
        for _, given in read_ahead(range(5), lambda _: Chunk()):
            chunk = given()
            del chunk
            most = max(most, Chunk.alive)
        return most

    assert client.submit(work, pure=False).result() <= 1


def test_one_thing_is_written_while_the_next_is_made(client: Client) -> None:
    """And the next put waits for it, and returns what it gave."""

    def work() -> list[str | None]:
        going_on = threading.Event()

        def slowly() -> str:
            assert going_on.wait(10)
            return f"first, for {get_name()}"

        def get_name() -> str:
            return threading.current_thread().name.split("_")[0]

        with write_behind() as behind:
            results = [behind.put(slowly)]
            going_on.set()
            results += [behind.put(lambda: "second"), behind.wait(), behind.wait()]
        return results

    expected = [None, "first, for rescnet-store", "second", None]
    assert client.submit(work, pure=False).result() == expected


def test_a_failed_write_is_raised_by_the_next(client: Client) -> None:
    """It is never lost."""

    def work() -> None:
        with write_behind() as behind:
            behind.put(lambda: 1 / 0)
            behind.put(lambda: 2)

    with pytest.raises(ZeroDivisionError):
        client.submit(work, pure=False).result()


def test_a_write_that_says_what_is_wrong_wins_over_what_failed_after_it(client: Client) -> None:
    """As a full store must end a pass at once, whatever comes of the next chunk meanwhile."""

    def refuse() -> None:
        raise StoreError("no room")

    def work(write: Callable[[], object]) -> None:
        with write_behind() as behind:
            behind.put(write)
            raise KeyError("later")

    with pytest.raises(StoreError, match="no room"):
        client.submit(work, refuse, pure=False).result()
    with pytest.raises(KeyError, match="later"):
        client.submit(work, lambda: 1 / 0, pure=False).result()


def test_what_is_not_taken_is_not_lost_in_silence(client: Client) -> None:
    """A loop that skips an item would get the next one for it."""

    def work() -> None:
        for _ in read_ahead(range(5), lambda item: item):
            continue

    with pytest.raises(RuntimeError, match="has not been taken"):
        client.submit(work, pure=False).result()


def test_the_threads_report_for_the_worker_of_their_task(client: Client) -> None:
    """Which Dask would not find from there."""
    from rescnet_dist.train.task_events import this_worker

    def work() -> bool:
        return all(given() is get_worker() for _, given in read_ahead([0], lambda _: this_worker()))

    assert client.submit(work, pure=False).result()
