"""Progress messages from tasks to the driver, sent through Dask's event log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import psutil
from dask.base import tokenize

from rescnet_dist.cluster.current import find_worker
from rescnet_dist.store import RunStore, report_retries
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.task import Task

if TYPE_CHECKING:
    from distributed import Worker

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_thread_worker = threading.local()


def set_thread_worker(worker: Worker) -> None:
    """Make this thread, which a task has started, send messages for the task's worker."""
    _thread_worker.worker = worker


def this_worker() -> Worker:
    """Return the worker that the task of this thread runs on; ValueError if there is none."""
    worker: Worker | None = getattr(_thread_worker, "worker", None) or find_worker()
    if worker is None:
        raise ValueError("This thread has no Dask worker. Call this in a task.")
    return worker


def send(task: Task, kind: str, **fields: Any) -> None:
    """Send a message to the driver; fields are numbers, strings, or dicts of them."""
    this_worker().log_event(progress_topic(task.run), {"kind": kind, **fields})


def reports_retries(
    function: Callable[Concatenate[Task, Parameters], Result],
) -> Callable[Concatenate[Task, Parameters], Result]:
    """Let a function of tasks tell the driver if the store does not answer and is retried."""

    @wraps(function)
    def call(task: Task, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with report_retries(partial(_log_retry, task)):
            return function(task, *args, **kwargs)

    return call


def _log_retry(task: Task, reason: str) -> None:
    """Report that requests to the store are repeated."""
    send(task, "store_retried", reason=reason)


def log_chunk_started(task: Task, phase: str, start: int) -> None:
    """Report that work on the chunk that begins at image `start` has started."""
    send(task, "started", phase=phase, layer=task.layer, start=start)


def log_chunk_done(task: Task, phase: str, start: int, stop: int) -> None:
    """Report that images start to stop are done, and the worker's resident memory."""
    memory = psutil.Process().memory_info().rss
    send(
        task,
        "chunk",
        phase=phase,
        layer=task.layer,
        start=start,
        images=stop - start,
        memory=memory,
    )


def log_task_done(task: Task, phase: str, meter: TaskMeter) -> None:
    """Report that a task has done all its chunks, with its times and bytes."""
    send(task, "task_done", phase=phase, layer=task.layer, **meter.to_dict())


def log_solving(task: Task, phase: str) -> None:
    """Report that all accumulators are merged and that the solve starts."""
    memory = psutil.Process().memory_info().rss
    send(task, "solving", phase=phase, layer=task.layer, memory=memory)


def log_io(task: Task, phase: str, meter: TaskMeter) -> None:
    """Report the bytes that a task without chunks has moved, and the worker's resident memory."""
    send(
        task,
        "io",
        phase=phase,
        layer=task.layer,
        read=meter.read,
        written=meter.written,
        memory=psutil.Process().memory_info().rss,
    )


def progress_topic(run: RunStore) -> str:
    """Return the topic of Dask's event log that carries a run's progress."""
    return f"rescnet-{tokenize(run.url)}"
