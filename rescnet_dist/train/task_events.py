"""What tasks tell the driver while they run, by Dask's event log."""

from __future__ import annotations

import threading
from typing import Any

from dask.base import tokenize
from distributed import Worker, get_worker

from rescnet_dist.store import RunStore
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.state import Task

_adopted = threading.local()


def adopt(worker: Worker) -> None:
    """Have this thread, which a task has started, report for the task's worker."""
    _adopted.worker = worker


def this_worker() -> Worker:
    """The worker that the task of this thread runs on."""
    return getattr(_adopted, "worker", None) or get_worker()


def report(task: Task, kind: str, **facts: Any) -> None:
    """Tell the driver something; facts are numbers and strings."""
    this_worker().log_event(progress_topic(task.run), {"kind": kind, **facts})


def log_chunk_started(task: Task, phase: str, start: int) -> None:
    """Tell the driver that the chunk from image `start` on is worked on from now."""
    report(task, "begun", phase=phase, layer=task.layer, start=start)


def log_chunk_done(task: Task, phase: str, start: int, stop: int) -> None:
    """Tell the driver that the images start to stop are done."""
    memory = this_worker().monitor.get_process_memory()
    report(
        task,
        "chunk",
        phase=phase,
        layer=task.layer,
        start=start,
        images=stop - start,
        memory=memory,
    )


def log_task_done(task: Task, phase: str, meter: TaskMeter) -> None:
    """Tell the driver what a task that has done all its chunks took."""
    report(task, "spent", phase=phase, layer=task.layer, **meter.facts())


def log_solving(task: Task, phase: str) -> None:
    """Tell the driver that all accumulators are merged, and the solve begins."""
    memory = this_worker().monitor.get_process_memory()
    report(task, "solving", phase=phase, layer=task.layer, memory=memory)


def log_io(task: Task, phase: str, meter: TaskMeter) -> None:
    """Tell the driver how many bytes a task that works on no chunks has moved."""
    moved = {"read": meter.read, "written": meter.written}
    report(task, "moved", phase=phase, layer=task.layer, **moved)


def progress_topic(run: RunStore) -> str:
    """The topic of Dask's event log that a run's progress goes to."""
    return f"rescnet-{tokenize(run.url)}"
