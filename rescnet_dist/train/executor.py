"""Running the graph of a pass to its end, whatever becomes of workers on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from distributed import Client, Future, KilledWorker

from rescnet_dist.cluster.connect import CANCELLED_ERRORS
from rescnet_dist.errors import ClusterLostError, PassError, RescnetError, mask_secrets
from rescnet_dist.planning.plan import Plan
from rescnet_dist.reduce import fold_graph
from rescnet_dist.train.events import ChunkDone, ChunkRebuilt, EventBus, PassRetried
from rescnet_dist.train.metrics import MetricsCollector, PassMetrics
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.state import Array, Task
from rescnet_dist.train.task_events import progress_topic

TRIES = 3  # failures in a row, without a chunk done between them, that end a pass
LOOK_EVERY = 20.0  # seconds between two looks at whether there is any worker
LISTEN_EVERY = 0.5  # and at whether a listener has stopped the run


def run_pass(
    what: Pass,
    task: Task,
    counts: Array,
    plan: Plan,
    client: Client,
    tell: EventBus,
    shelves: Sequence[Future] = (),
) -> tuple[Any, PassMetrics]:
    """The result of a pass, computed as one graph, and what it took; counts (G, C) are the
    training images of each class in each group, shelves those of the groups, if there are any.

    Workers may die without limit while chunks get done. What fails on its own account is tried
    again, and ends the pass as a `PassError` that names chunk and cause when it has failed
    `TRIES` times in a row. Errors that say what is wrong themselves end it at once.
    """
    parts: Sequence[tuple[Any, ...]] = task.split(plan.groups(), counts)
    if shelves:
        parts = [(*part, shelf) for part, shelf in zip(parts, shelves, strict=True)]
    graph = fold_graph(
        what.fold, parts, what.merge, what.finish, task,
        split_every=plan.split_every, name=what.name, spread=what.spread,
    )  # fmt: skip
    with _watching(what, task, client, tell) as watch:
        future = client.compute(graph)
        try:
            return _result(future, watch, plan, client), watch.observer.observed()
        except BaseException:
            if client.status == "running":
                future.cancel()  # on a cluster that outlives this run it would go on writing
            raise


class _Watch:
    """What tasks have reported of one pass."""

    def __init__(self, what: Pass, task: Task, tell: EventBus) -> None:
        self.phase, self.layer, self.tell = what.name, task.layer, tell
        self.done: set[int] = set()  # first images of the chunks done
        self.begun: set[int] = set()  # and of those that were begun
        self.observer = MetricsCollector()
        self.lock = threading.Lock()

    def __call__(self, event: tuple[float, dict[str, Any]]) -> None:
        """Take in an event of Dask's log."""
        message = event[1]
        if message["kind"] == "chunk":
            done = _of(ChunkDone, message)
            if self._is_mine(message):
                with self.lock:
                    again = done.start in self.done
                    self.done.add(done.start)
                self.observer.chunk_done(done.worker, done.memory, again=again)
                self.tell.later(done)
        elif message["kind"] == "begun" and self._is_mine(message):
            with self.lock:
                self.begun.add(message["start"])
        elif message["kind"] == "spent" and self._is_mine(message):
            self.observer.task_done(message)
        elif message["kind"] == "moved" and self._is_mine(message):
            self.observer.moved(message["read"], message["written"])
        elif message["kind"] == "solving" and self._is_mine(message):
            self.observer.solving(message["worker"], message["memory"])
        elif message["kind"] == "rebuilt":
            self.tell.later(_of(ChunkRebuilt, message))

    def _is_mine(self, message: dict[str, Any]) -> bool:
        """Whether a message is of this pass, not of one that was given up."""
        return (message["phase"], message["layer"]) == (self.phase, self.layer)

    def suspect(self, group: int, plan: Plan) -> str:
        """The chunk of a group that was worked on last, or comes next, in words."""
        with self.lock:
            left = [c for c in plan.groups()[group].chunks() if c[0] not in self.done]
            begun = [c for c in left if c[0] in self.begun]
        if not left:
            return f"group {group}"
        start, stop = begun[-1] if begun else left[0]
        return f"chunk {start // plan.chunk_images} (images {start} to {stop})"

    def retried(self, reason: str) -> None:
        """Tell the listeners that the pass goes on after a failure."""
        self.tell(PassRetried(self.phase, self.layer, reason))


def _of(kind: Any, message: dict[str, Any]) -> Any:
    """An event from the message of a task."""
    return kind(**{field.name: message[field.name] for field in fields(kind)})


@contextmanager
def _watching(what: Pass, task: Task, client: Client, tell: EventBus) -> Iterator[_Watch]:
    watch, topic = _Watch(what, task, tell), progress_topic(task.run)
    client.subscribe_topic(topic, watch)
    try:
        yield watch
    finally:
        if client.status == "running":
            client.unsubscribe_topic(topic)


def _result(future: Future, watch: _Watch, plan: Plan, client: Client) -> Any:
    """The future's result, through failures that may pass."""
    failures, known = 0, 0
    while True:
        try:
            return _wait_for(future, watch, client)
        except RescnetError:
            raise
        except (Exception, *CANCELLED_ERRORS) as error:
            lost = client.status != "running" or isinstance(error, CANCELLED_ERRORS)
            reason = _describe(error, watch, plan)
        where = f"the pass of layer {watch.layer}" if watch.layer else "the survey"
        if lost:
            raise ClusterLostError(
                f"the connection to the Dask scheduler was lost during {where}: what is committed "
                "is kept; resume the run on a cluster that runs"
            )
        with watch.lock:
            failures, known = (1 if len(watch.done) > known else failures + 1), len(watch.done)
        if failures == TRIES:
            raise PassError(
                f"{where} has failed {TRIES} times without a chunk done in between: {reason}; what "
                "is committed is kept; mend the cause, then resume the run"
            )
        watch.retried(reason)
        _retry(future, client)


def _retry(future: Future, client: Client) -> None:
    """`Future.retry`, which raises a KeyError unless all that failed are themselves futures."""

    async def retry() -> None:
        client.futures[future.key].retry()
        await client.scheduler.retry(keys=[future.key], client=client.id)

    client.sync(retry)


def _wait_for(future: Future, watch: _Watch, client: Client) -> Any:
    """Wait for the result, and tell the listeners when there has been no worker for a while."""
    told, looked = False, time.monotonic()
    while True:
        watch.tell.check()
        try:
            future.exception(timeout=LISTEN_EVERY)  # waits for the end, and fetches nothing, as
            return future.result(timeout=LOOK_EVERY)  # that takes its time, and is not to be cut
        except TimeoutError:
            if future.status == "error":
                return future.result()  # raises what the task has raised, a TimeoutError or not
        except CANCELLED_ERRORS:
            time.sleep(0.5)  # the client learns of a lost connection and of this in any order
            raise
        if told or time.monotonic() - looked < LOOK_EVERY:
            continue
        looked = time.monotonic()
        if client.status == "running" and not client.nthreads():
            watch.retried("there is no worker: waiting for one to join")
            told = True


def _describe(error: BaseException, watch: _Watch, plan: Plan) -> str:
    """What failed, and on what."""
    if not isinstance(error, KilledWorker):
        return mask_secrets(f"{error}" if str(error) else type(error).__name__)
    task = error.task
    if isinstance(task, tuple) and "-fold-" in str(task[0]):
        at = watch.suspect(int(task[1]), plan)
    else:
        at = str(task[0] if isinstance(task, tuple) else task).rsplit("-", 1)[0]
    return (
        f"workers died again and again at {at}, the last of them {error.last_worker.address}; "
        "its log says why, and too little memory is what it mostly is"
    )
