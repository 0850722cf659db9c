"""Messages of a pass, counted on the scheduler: few of them reach the driver."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import Client, LocalCluster

from rescnet_dist.events import ChunkDone, PassRetried
from rescnet_dist.events.bus import EventBus
from rescnet_dist.planning import Plan
from rescnet_dist.planning.requirements import MAX_CHUNK_REPORTS
from rescnet_dist.store import Location, RunStore
from rescnet_dist.train.monitor import MAX_REBUILT_REPORTS, PassMonitor, PassTracker
from rescnet_dist.train.task_events import progress_topic

TOPIC = "rescnet-run"


class Log:
    """Stands in for a scheduler: keeps what is logged."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def log_event(self, _topic: str, message: dict[str, Any]) -> None:
        """Keep a message."""
        self.messages.append(message)


def make_chunk(number: int, **changes: Any) -> dict[str, Any]:
    """Return the message of a chunk of 10 images that is done."""
    message = {"kind": "chunk", "phase": "grow", "layer": 2, "start": 10 * number, "images": 10}
    return message | {"worker": f"w{number % 7}", "memory": number} | changes


@pytest.mark.parametrize(
    "chunks", [1, MAX_CHUNK_REPORTS, MAX_CHUNK_REPORTS + 1, 7 * MAX_CHUNK_REPORTS + 5]
)
def test_reports_are_few_and_complete(chunks: int) -> None:
    """They count all images, once, whatever is repeated."""
    log = Log()
    tracker = PassTracker(log, TOPIC, "client", "grow", 2, chunks)
    for number in range(chunks):
        tracker.log_event(TOPIC, make_chunk(number))
        tracker.log_event("another-topic", make_chunk(number))
        tracker.log_event(TOPIC, make_chunk(number, layer=1))  # of an abandoned pass
    tracker.log_event(TOPIC, make_chunk(0))
    found = {message["start"]: message["images"] for message in log.messages}
    assert sum(found.values()) == 10 * chunks
    assert len(found) <= MAX_CHUNK_REPORTS
    metrics = tracker.metrics.finish()
    assert metrics.redone == 1
    assert metrics.memory == {
        f"w{worker}": max(n for n in range(chunks) if n % 7 == worker)
        for worker in range(min(7, chunks))
    }


def test_rebuilt_chunks_are_reported_up_to_a_number() -> None:
    """A store that has lost everything does not flood the driver."""
    log = Log()
    tracker = PassTracker(log, TOPIC, "client", "grow", 2, 1000)
    for number in range(2 * MAX_REBUILT_REPORTS):
        message = {"kind": "rebuilt", "layer": 1, "start": number}
        tracker.log_event(TOPIC, message | {"unexpected": False})
    assert len(log.messages) == MAX_REBUILT_REPORTS
    tracker.log_event(TOPIC, message | {"unexpected": True})
    assert len(log.messages) == MAX_REBUILT_REPORTS + 1  # others do not hide it


def test_driver_that_was_replaced_does_not_stop_the_next_one() -> None:
    """A run has had two drivers on one cluster, of which the first was frozen for a while."""
    run, plan = RunStore(Location.of("memory://replaced")), Plan(20, 10, 1, 2, 1)
    reports: list[Any] = []
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as frozen,
        Client(cluster, set_as_default=False) as driver,
        EventBus([reports.append]) as bus,
    ):
        old, new = (PassMonitor(run, client, bus) for client in (frozen, driver))
        for monitor in (old, new):
            monitor.start("grow", 1, plan)
        driver.log_event(progress_topic(run), make_chunk(0, layer=1))
        assert [old.count_done(), new.count_done()] == [1, 1]
        old.cancel()  # which forgets the messages so far
        driver.log_event(progress_topic(run), make_chunk(1, layer=1))
        assert [old.count_done(), new.count_done()] == [0, 2]
        deadline = time.monotonic() + 20
        while not any(report.start == 10 for report in reports):
            assert time.monotonic() < deadline
            time.sleep(0.01)
            driver.log_event(progress_topic(run), make_chunk(1, layer=1))


def test_reports_continue_after_a_restart_of_the_scheduler() -> None:
    """Which does not know that the driver has subscribed; after the end of the run, none come."""
    run, plan = RunStore(Location.of("memory://restarted")), Plan(20, 10, 1, 2, 1)
    reports: list[Any] = []
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as driver,
        EventBus([reports.append]) as bus,
    ):
        monitor = PassMonitor(run, driver, bus)

        def count_after(layer: int) -> int:
            """Report a chunk, and something else after it that arrives in any case."""
            driver.log_event(progress_topic(run), make_chunk(0, layer=layer))
            ended.clear()
            deadline = time.monotonic() + 20
            while not ended:
                driver.log_event("end", layer)
                assert time.monotonic() < deadline
                time.sleep(0.01)
            bus.publish(PassRetried("grow", layer, ""))  # waits for earlier events
            return sum(isinstance(report, ChunkDone) for report in reports)

        ended: list[int] = []
        driver.subscribe_topic("end", lambda event: ended.append(event[1]))
        monitor.start("grow", 1, plan)
        assert count_after(1) == 1
        cluster.scheduler.unsubscribe_topic(monitor.tracker, driver.id)
        monitor.start("grow", 2, plan)
        assert count_after(2) == 2
        monitor.close()
        assert count_after(2) == 2


def test_retries_of_the_store_are_those_of_the_pass_that_was_tracked() -> None:
    """Although the next one may have begun when the message arrives."""
    log = Log()
    tracker = PassTracker(log, TOPIC, "client", "grow", 2, 1000)
    tracker.log_event(TOPIC, {"kind": "store_retried", "reason": "no answer"})
    (message,) = log.messages
    assert (message["phase"], message["layer"], message["reason"]) == ("grow", 2, "no answer")


@pytest.mark.parametrize("is_lost", [False, True])
def test_scheduler_keeps_no_reports_of_a_pass(is_lost: bool) -> None:
    """That has ended, or whose driver is gone: a scheduler may outlive thousands of drivers.

    Neither those of the tasks nor those of the tracker.
    """
    run, plan = RunStore(Location.of("memory://reports")), Plan(20, 10, 1, 2, 1)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as other,
        Client(cluster, set_as_default=False) as driver,
        EventBus([]) as bus,
    ):
        monitor = PassMonitor(run, driver, bus)

        def count_events() -> list[int]:
            topics = monitor.topic, monitor.tracker
            return [len(other.get_events(topic)) for topic in topics]

        monitor.start("grow", 1, plan)
        other.log_event(progress_topic(run), make_chunk(0, layer=1))
        assert count_events() == [1, 1]
        if is_lost:
            driver.close()
        else:
            monitor.finish()
        deadline = time.monotonic() + 20
        while count_events() != [0, 0]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
