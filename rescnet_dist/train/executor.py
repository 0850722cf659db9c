"""Execution of the graph of a pass, with retries after failures of workers and tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from distributed import Client, Future, KilledWorker

from rescnet_dist._compat import retry_future
from rescnet_dist.cluster.connect import CANCELLED_ERRORS
from rescnet_dist.errors import ClusterLostError, PassError, RescnetError, mask_secrets
from rescnet_dist.events.bus import EventBus
from rescnet_dist.events.classes import ChunkDone, ChunkRebuilt, PassRetried
from rescnet_dist.events.metrics import PassMetrics
from rescnet_dist.planning.plan import Plan
from rescnet_dist.reduce import fold_graph
from rescnet_dist.train.metrics import MetricsCollector
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import Task
from rescnet_dist.train.task_events import progress_topic


def run_pass(
    pass_: Pass,
    task: Task,
    parts: Sequence[tuple[Any, ...]],
    plan: Plan,
    client: Client,
    bus: EventBus,
) -> tuple[Any, PassMetrics]:
    """Compute a pass as one graph; return its result and its metrics.

    `parts` are the arguments of each fold.

    Workers may die without limit while chunks get done. Other failures are retried, and end the
    pass with a PassError that names chunk and cause after `MAX_CONSECUTIVE_FAILURES` of them.
    A RescnetError is not retried: its message says what is wrong.
    """
    graph = fold_graph(
        pass_.fold,
        parts,
        pass_.merge,
        pass_.finish,
        task,
        split_every=plan.split_every,
        name=pass_.name,
        lazy_finish=pass_.lazy_finish,
    )
    with _subscribe(pass_, task, client, bus) as monitor:
        future = client.compute(graph)
        try:
            return _get_result(future, monitor, plan, client), monitor.metrics.finish()
        except BaseException:
            if client.status == "running":
                future.cancel()  # a cluster that outlives this run would continue to write
            raise


class PassMonitor:
    """Follows the messages of the tasks of one pass."""

    def __init__(self, pass_: Pass, task: Task, bus: EventBus) -> None:
        self.phase, self.layer, self.bus = pass_.name, task.layer, bus
        self.done: set[int] = set()  # first images of the chunks that are done
        self.started: set[int] = set()  # first images of the chunks that were started
        self.metrics = MetricsCollector()
        self.lock = threading.Lock()

    def __call__(self, event: tuple[float, dict[str, Any]]) -> None:
        """Handle an event of Dask's event log."""
        message = event[1]
        if message["kind"] == "chunk":
            chunk = _build_event(ChunkDone, message)
            if self._is_from_this_pass(message):
                with self.lock:
                    is_repeat = chunk.start in self.done
                    self.done.add(chunk.start)
                self.metrics.add_chunk(chunk.worker, chunk.memory, is_repeat=is_repeat)
                self.bus.publish_nowait(chunk)
        elif message["kind"] == "started" and self._is_from_this_pass(message):
            with self.lock:
                self.started.add(message["start"])
        elif message["kind"] == "task_done" and self._is_from_this_pass(message):
            self.metrics.add_task(message)
        elif message["kind"] == "io" and self._is_from_this_pass(message):
            self.metrics.add_io(message["read"], message["written"])
            self.metrics.add_memory(message["worker"], message["memory"])
        elif message["kind"] == "solving" and self._is_from_this_pass(message):
            self.metrics.start_solve(message["worker"], message["memory"])
        elif message["kind"] == "rebuilt":
            self.bus.publish_nowait(_build_event(ChunkRebuilt, message))

    def _is_from_this_pass(self, message: dict[str, Any]) -> bool:
        """Return whether a message is from this pass, not from one that was abandoned."""
        return (message["phase"], message["layer"]) == (self.phase, self.layer)

    def describe_suspect(self, group: int, plan: Plan) -> str:
        """Describe the chunk of a group that was started last, or that comes next."""
        with self.lock:
            remaining = [c for c in plan.groups()[group].chunks() if c[0] not in self.done]
            started = [c for c in remaining if c[0] in self.started]
        if not remaining:
            return f"group {group}"
        start, stop = started[-1] if started else remaining[0]
        return f"chunk {start // plan.chunk_images} (images {start} to {stop})"

    def publish_retry(self, reason: str) -> None:
        """Publish that the pass continues after a failure."""
        self.bus.publish(PassRetried(self.phase, self.layer, reason))


def _build_event(event_class: Any, message: dict[str, Any]) -> Any:
    """Build an event from the message of a task."""
    return event_class(**{field.name: message[field.name] for field in fields(event_class)})


@contextmanager
def _subscribe(pass_: Pass, task: Task, client: Client, bus: EventBus) -> Iterator[PassMonitor]:
    """Provide a monitor that receives the messages of a pass."""
    monitor, topic = PassMonitor(pass_, task, bus), progress_topic(task.run)
    client.subscribe_topic(topic, monitor)
    try:
        yield monitor
    finally:
        if client.status == "running":
            client.unsubscribe_topic(topic)


MAX_CONSECUTIVE_FAILURES = 3  # without a chunk done between them


def _get_result(future: Future, monitor: PassMonitor, plan: Plan, client: Client) -> Any:
    """Return the future's result; retry after failures that may be transient."""
    failures, known_done = 0, 0
    while True:
        try:
            return _wait_for_result(future, monitor, client)
        except RescnetError:
            raise
        except (Exception, *CANCELLED_ERRORS) as error:
            is_lost = client.status != "running" or isinstance(error, CANCELLED_ERRORS)
            reason = _describe_failure(error, monitor, plan)
        phase = f"the pass of layer {monitor.layer}" if monitor.layer else "the survey"
        if is_lost:
            raise ClusterLostError(
                f"The connection to the Dask scheduler was lost during {phase}. Everything "
                "committed is kept. Resume the run on a running cluster."
            )
        with monitor.lock:
            failures = 1 if len(monitor.done) > known_done else failures + 1
            known_done = len(monitor.done)
        if failures == MAX_CONSECUTIVE_FAILURES:
            raise PassError(
                f"{phase.capitalize()} has failed {MAX_CONSECUTIVE_FAILURES} times without a chunk "
                f"done in between: {reason.rstrip('.')}. Everything committed is kept. Fix the "
                "cause, then resume the run."
            )
        monitor.publish_retry(reason)
        retry_future(client, future)


WORKER_CHECK_SECONDS = 20.0  # between two checks whether there is any worker
LISTENER_CHECK_SECONDS = 0.5  # between two checks whether a listener has stopped the run
DISCONNECT_SETTLE_SECONDS = 0.5


def _wait_for_result(future: Future, monitor: PassMonitor, client: Client) -> Any:
    """Wait for the result; publish a retry event once there has been no worker for a while."""
    has_published, last_check = False, time.monotonic()
    while True:
        monitor.bus.check()
        try:
            # waits for the end without fetching the result, so that the short timeout does not
            # cut off the transfer
            future.exception(timeout=LISTENER_CHECK_SECONDS)
            return future.result(timeout=WORKER_CHECK_SECONDS)
        except TimeoutError:
            if future.status == "error":
                return future.result()  # raises what the task has raised, a TimeoutError or not
        except CANCELLED_ERRORS:
            # the client learns of a lost connection and of this error in any order
            time.sleep(DISCONNECT_SETTLE_SECONDS)
            raise
        if has_published or time.monotonic() - last_check < WORKER_CHECK_SECONDS:
            continue
        last_check = time.monotonic()
        if client.status == "running" and not client.nthreads():
            monitor.publish_retry("There is no worker. Waiting for one to join.")
            has_published = True


def _describe_failure(error: BaseException, monitor: PassMonitor, plan: Plan) -> str:
    """Describe what failed, and on which chunk or task."""
    if not isinstance(error, KilledWorker):
        return mask_secrets(f"{error}" if str(error) else type(error).__name__)
    task = error.task
    if isinstance(task, tuple) and "-fold-" in str(task[0]):
        place = monitor.describe_suspect(int(task[1]), plan)
    else:
        place = str(task[0] if isinstance(task, tuple) else task).rsplit("-", 1)[0]
    return (
        f"workers died repeatedly at {place}, the last of them {error.last_worker.address}. Read "
        "its log; the usual cause is too little memory."
    )
