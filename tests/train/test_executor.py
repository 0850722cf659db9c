"""Execution of a pass: its graph is sent in parts, and its result is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster, wait

from rescnet_dist.errors import PassError
from rescnet_dist.events import Event, PassRetried
from rescnet_dist.events.bus import EventBus
from rescnet_dist.planning import Plan
from rescnet_dist.reduce import fold
from rescnet_dist.store import RunStore
from rescnet_dist.train.executor import _wait_for_result, run_pass
from rescnet_dist.train.monitor import PassMonitor
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import Task


class LateFuture:
    """A finished future whose result times out a few times."""

    def __init__(self, client: Client, function: Any, timeouts: int) -> None:
        self.future, self.timeouts = client.submit(function, pure=False), timeouts
        wait(self.future)

    @property
    def status(self) -> str:
        """Status of the future."""
        return str(self.future.status)

    def exception(self, timeout: float) -> Any:
        """Return the exception of the future, if it has failed."""
        return self.future.exception(timeout)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, after some timeouts."""
        self.timeouts -= 1
        if self.timeouts >= 0:
            raise TimeoutError(f"timed out after {timeout} s")
        return self.future.result(timeout)


def make_failing_task(error: Exception) -> Any:
    """Return a task that raises this error."""

    def fail() -> None:
        raise error

    return fail


MONITOR: Any = SimpleNamespace(bus=EventBus([]))


def test_slow_result_is_waited_for(client: Client) -> None:
    """A pass that has just ended, or whose result takes long to fetch, has not failed."""
    future: Any = LateFuture(client, lambda: 7, timeouts=3)
    assert _wait_for_result(future, MONITOR, client) == 7


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("a task's own")])
def test_error_of_task_is_raised(client: Client, error: Exception) -> None:
    """A TimeoutError of the task itself is raised too, and not mistaken for the wait's."""
    future: Any = LateFuture(client, make_failing_task(error), timeouts=1)
    with pytest.raises(type(error), match=str(error)):
        _wait_for_result(future, MONITOR, client)


# graphs that are sent in parts -----------------------------------------------------------------

FOLDS, FOLDS_PER_PART = 40, 8


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Client]:
    """Yield a client of a worker with one thread, which computes one task at a time."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def run_numbers(client: Client, folder: Path, listeners: Any = ()) -> Any:
    """Run a pass whose merge is associative and not commutative; return its result."""
    plan = Plan(FOLDS, 1, FOLDS, split_every=2, solve_threads=1)
    task = Task(RunStore.create(folder / "run", {}), layer=1)
    numbers = Pass("numbers", fold_number, merge_numbers, lambda _task, merged: merged)
    with (
        EventBus(list(listeners)) as bus,
        closing(PassMonitor(task.run, client, bus)) as monitor,
    ):
        result, _ = run_pass(numbers, task, [(n,) for n in range(FOLDS)], plan, monitor)
    return result


def count_tasks(client: Client) -> int:
    """Return the number of tasks of passes that the scheduler knows."""
    names = client.run_on_scheduler(lambda dask_scheduler: [*map(str, dask_scheduler.tasks)])
    return sum("numbers-" in name for name in names)


def wait_until_forgotten(client: Client) -> None:
    """Wait until the scheduler has no task of a pass."""
    deadline = time.monotonic() + 10
    while count_tasks(client):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the graph of these passes in five parts."""
    monkeypatch.setattr(fold, "MAX_FOLDS_PER_LAYER", FOLDS_PER_PART)


CALLS: list[tuple[str, int]] = []  # of this process, which is that of the workers too
FAILING: list[int] = []  # numbers at which a fold fails, once each


def fold_number(number: int) -> list[int]:
    """Fold a number; fail if it is to."""
    CALLS.append(("fold", number))
    time.sleep(0.01)  # so that all parts arrive while the first one is computed
    if number in FAILING:
        FAILING.remove(number)
        raise ZeroDivisionError("no such number")
    return [number]


def merge_numbers(left: list[int], right: list[int]) -> list[int]:
    """Merge two lists of numbers."""
    CALLS.append(("merge", left[0]))
    return left + right


@pytest.mark.usefixtures("_parts")
def test_earlier_parts_run_first(one_thread: Client, tmp_path: Path) -> None:
    """Merges come before the folds of later parts, so that few accumulators wait for one."""
    CALLS.clear()
    assert run_numbers(one_thread, tmp_path) == list(range(FOLDS))
    kinds = [kind for kind, _ in CALLS]
    assert (kinds.count("fold"), kinds.count("merge")) == (FOLDS, FOLDS - 1)
    parts = [number // FOLDS_PER_PART for kind, number in CALLS if kind == "fold"]
    assert parts == sorted(parts)
    waiting = [kinds[:n].count("fold") - kinds[:n].count("merge") for n in range(len(kinds))]
    assert max(waiting) <= 8  # of 40: a path of the tree, and what is sent ahead
    wait_until_forgotten(one_thread)


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("failing", [0, 13, FOLDS - 1])
def test_failed_fold_of_any_part_is_retried(client: Client, tmp_path: Path, failing: int) -> None:
    """It may fail before or after the later parts have arrived."""
    FAILING[:] = [failing] * 2
    events: list[Event] = []
    assert run_numbers(client, tmp_path, [events.append]) == list(range(FOLDS))
    assert sum(isinstance(event, PassRetried) for event in events) == 2
    assert FAILING == []
    wait_until_forgotten(client)


@pytest.mark.usefixtures("_parts")
def test_tasks_of_all_parts_are_cancelled_after_failures(client: Client, tmp_path: Path) -> None:
    """A cluster that outlives the run would compute them otherwise."""
    FAILING[:] = [3] * 100
    with pytest.raises(PassError, match="no such number"):
        run_numbers(client, tmp_path)
    FAILING.clear()
    wait_until_forgotten(client)


PART_SECONDS = 0.2  # in which the folds of a part are done


@pytest.fixture
def _slow_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a part when the tasks of the earlier one are done."""
    get = Client.get

    def get_slowly(client: Client, *args: Any, **options: Any) -> Any:
        futures = get(client, *args, **options)
        time.sleep(PART_SECONDS)
        return futures

    monkeypatch.setattr(Client, "get", get_slowly)


@pytest.mark.usefixtures("_parts", "_slow_parts")
@pytest.mark.parametrize("failing", [0, FOLDS_PER_PART - 1])
def test_fold_that_fails_before_later_parts_arrive_is_retried(
    client: Client, tmp_path: Path, failing: int
) -> None:
    """The later parts are added to a scheduler that has the failed task already."""
    FAILING[:] = [failing] * 2
    assert run_numbers(client, tmp_path) == list(range(FOLDS))
    assert FAILING == []
    wait_until_forgotten(client)


@pytest.mark.usefixtures("_parts")
def test_interrupt_between_parts_leaves_nothing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the tasks of the parts that were sent, nor the plugin that counts their messages."""
    get, sent = Client.get, []

    def get_twice(client: Client, *args: Any, **options: Any) -> Any:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(len(sent))
        return get(client, *args, **options)

    def list_plugins() -> set[str]:
        found: list[str] = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
        return set(found)

    monkeypatch.setattr(Client, "get", get_twice)
    before = list_plugins()
    with pytest.raises(KeyboardInterrupt):
        run_numbers(client, tmp_path)
    wait_until_forgotten(client)
    assert list_plugins() <= before
