"""Following a pass: its messages are counted on the scheduler, and a summary reaches the driver.

Tasks report each chunk to the scheduler. A plugin there counts the reports, so that the driver gets
a few hundred of them in a pass, whatever the number of workers.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import suppress
from dataclasses import fields
from typing import Any

from dask.base import tokenize
from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from rescnet_dist._compat import find_scheduler_plugin, forget_events, subscribe_client
from rescnet_dist.events.bus import EventBus
from rescnet_dist.events.classes import ChunkDone, ChunkRebuilt, PassRetried
from rescnet_dist.events.metrics import PassMetrics
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import MAX_CHUNK_REPORTS
from rescnet_dist.store import RunStore
from rescnet_dist.train.metrics import MetricsCollector
from rescnet_dist.train.task_events import progress_topic

TRACKER_TOKEN_LENGTH = 12  # in hexadecimal digits
MAX_REBUILT_REPORTS = 100  # that reach the driver in a pass
STORE_REPORT_SECONDS = 30.0  # between two reports that the store is retried, of any worker


class PassTracker(SchedulerPlugin):
    """Counts the messages of the tasks of one pass on the scheduler, and reports to the driver."""

    def __init__(
        self, scheduler: Any, topic: str, client: str, phase: str, layer: int, chunks: int
    ) -> None:
        self.send, self.topic, self.client = scheduler.log_event, topic, client
        self.name = _tracker_name(topic, client)
        self.phase, self.layer, self.chunks = phase, layer, chunks
        self.chunks_per_report = math.ceil(chunks / MAX_CHUNK_REPORTS)
        self.done: set[int] = set()  # first images of the chunks that are done
        self.started: set[int] = set()  # first images of the chunks that were started
        self.metrics = MetricsCollector()
        self.unreported = (0, 0)  # chunks that are done and their images
        self.rebuilt = Counter[bool]()  # by whether it was unexpected
        self.store_reported = -math.inf  # when the driver was last told that the store is retried

    def log_event(self, topic: str, msg: Any) -> None:
        """Handle a message of Dask's event log."""
        if topic != self.topic or not isinstance(msg, dict):
            return
        if msg["kind"] == "rebuilt":
            unexpected = bool(msg.get("unexpected", True))
            self.rebuilt[unexpected] += 1
            if self.rebuilt[unexpected] <= MAX_REBUILT_REPORTS:
                self.report(msg)
            return
        if msg["kind"] == "store_retried":
            if time.monotonic() - self.store_reported > STORE_REPORT_SECONDS:
                self.store_reported = time.monotonic()
                self.report(msg | {"phase": self.phase, "layer": self.layer})
            return
        if (msg.get("phase"), msg.get("layer")) != (self.phase, self.layer):
            return  # from a pass that was abandoned
        match msg["kind"]:
            case "chunk":
                self.count_chunk(msg)
            case "started":
                self.started.add(msg["start"])
            case "task_done":
                self.metrics.add_task(msg)
            case "io":
                self.metrics.add_io(msg["read"], msg["written"])
                self.metrics.add_memory(msg["worker"], msg["memory"])
            case "solving":
                self.metrics.start_solve(msg["worker"], msg["memory"])

    def count_chunk(self, message: dict[str, Any]) -> None:
        """Count a chunk that is done; report it if enough are."""
        is_repeat = message["start"] in self.done
        self.done.add(message["start"])
        self.metrics.add_chunk(message["worker"], message["memory"], is_repeat=is_repeat)
        if self.chunks_per_report == 1:
            self.report(message)
        elif not is_repeat:
            chunks, images = self.unreported
            self.unreported = chunks + 1, images + message["images"]
            if chunks + 1 == self.chunks_per_report or len(self.done) == self.chunks:
                self.report(message | {"images": self.unreported[1]})
                self.unreported = (0, 0)

    def report(self, message: dict[str, Any]) -> None:
        """Send a message to the driver."""
        self.send(self.name, message)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Stop if the driver has disconnected."""
        if client == self.client:
            self.stop(scheduler)

    def stop(self, scheduler: Any) -> None:
        """Leave the scheduler, which forgets what the tasks and this tracker have sent.

        A scheduler may outlive many runs, and nobody reads these messages again. The tracker of
        another driver of the run has counted those of the tasks as they came.
        """
        _remove(scheduler, self.name)
        for topic in (self.topic, self.name):
            forget_events(scheduler, topic)


def _tracker_name(topic: str, client: str) -> str:
    """Return the name of the tracker of a driver, and of the topic of its reports to this driver.

    Two drivers may follow the topic of a run for a while, as one that was frozen and replaced. Each
    has a tracker of its own, which the other one does not remove. The name is short, as each report
    has it.
    """
    return f"rescnet-{tokenize(topic, client)[:TRACKER_TOKEN_LENGTH]}"


def _remove(scheduler: Any, name: str) -> None:
    """Remove a tracker, if there is one of this name."""
    if find_scheduler_plugin(scheduler, name):
        scheduler.remove_plugin(name)


def start_tracking(*arguments: Any, dask_scheduler: Any) -> None:
    """Install the tracker of a pass on a scheduler, in place of the driver's earlier one.

    A scheduler that was started again does not know that the driver has subscribed.
    """
    tracker = PassTracker(dask_scheduler, *arguments)
    _remove(dask_scheduler, tracker.name)
    dask_scheduler.add_plugin(tracker, name=tracker.name)
    subscribe_client(dask_scheduler, tracker.name, tracker.client)


def stop_tracking(name: str, *, dask_scheduler: Any) -> PassMetrics:
    """Remove a tracker from a scheduler; return the metrics of its pass."""
    tracker = find_scheduler_plugin(dask_scheduler, name)
    if tracker is None:
        return PassMetrics()
    tracker.stop(dask_scheduler)
    metrics: PassMetrics = tracker.metrics.finish()
    return metrics


def find_progress(
    name: str, first: int, last: int, *, dask_scheduler: Any
) -> tuple[int, list[int], list[int]]:
    """Return the number of chunks that are done, and those done and started from `first` to `last`.

    `name` is that of the tracker. Chunks are given by their first image.
    """
    tracker = find_scheduler_plugin(dask_scheduler, name)
    if tracker is None:
        return 0, [], []
    done, started = (
        sorted(start for start in starts if first <= start < last)
        for starts in (tracker.done, tracker.started)
    )
    return len(tracker.done), done, started


class PassMonitor:
    """Follows the passes of a run from its driver, one after the other.

    It subscribes to the reports once. A message before each pass would delay its graph, as a client
    waits between two messages.
    """

    def __init__(self, run: RunStore, client: Client, bus: EventBus) -> None:
        self.client, self.bus = client, bus
        self.phase, self.layer = "", 0
        self.topic = progress_topic(run)
        self.tracker = _tracker_name(self.topic, client.id)
        self.is_subscribed = False

    def start(self, phase: str, layer: int, plan: Plan) -> None:
        """Follow the next pass: publish its messages, and count them on the scheduler."""
        self.phase, self.layer = phase, layer
        if not self.is_subscribed:
            self.client.subscribe_topic(self.tracker, self)
            self.is_subscribed = True
        arguments = self.topic, self.client.id, phase, layer, plan.chunks
        self.client.run_on_scheduler(start_tracking, *arguments)

    def close(self) -> None:
        """Receive no further messages; forget the bus, as the client never forgets a handler."""
        if self.is_subscribed and self.client.status == "running":
            with suppress(Exception):  # the connection may be lost
                self.client.unsubscribe_topic(self.tracker)
        self.is_subscribed = False
        self.bus = EventBus([])

    def __call__(self, event: tuple[float, dict[str, Any]]) -> None:
        """Publish a message of the tracker as an event."""
        message = event[1]
        if message["kind"] == "store_retried":
            retried = PassRetried(message["phase"], message["layer"], message["reason"])
            self.bus.publish_nowait(retried)
            return
        event_class: Any = ChunkRebuilt if message["kind"] == "rebuilt" else ChunkDone
        names = (field.name for field in fields(event_class))
        self.bus.publish_nowait(event_class(**{name: message[name] for name in names}))

    def finish(self) -> PassMetrics:
        """Return the metrics of the pass, which has ended."""
        metrics: PassMetrics = self.client.run_on_scheduler(stop_tracking, self.tracker)
        return metrics

    def cancel(self) -> None:
        """Stop counting the messages of a pass that has failed."""
        with suppress(Exception):  # the connection may be lost
            self.client.run_on_scheduler(stop_tracking, self.tracker)

    def count_done(self) -> int:
        """Return the number of chunks that are done."""
        count: int = self.client.run_on_scheduler(find_progress, self.tracker, 0, 0)[0]
        return count

    def describe_suspect(self, group: int, plan: Plan) -> str:
        """Describe the chunk of a group that was started last, or that comes next."""
        chunks = list(plan.groups()[group].chunks())
        limits = chunks[0][0], chunks[-1][1]
        _, done, started = self.client.run_on_scheduler(find_progress, self.tracker, *limits)
        remaining = [chunk for chunk in chunks if chunk[0] not in done]
        if not remaining:
            return f"group {group}"
        suspects = [chunk for chunk in remaining if chunk[0] in started]
        start, stop = suspects[-1] if suspects else remaining[0]
        return f"chunk {start // plan.chunk_images} (images {start} to {stop})"

    def publish_retry(self, reason: str) -> None:
        """Publish that the pass continues after a failure."""
        self.bus.publish(PassRetried(self.phase, self.layer, reason))
