"""What tasks tell the driver while they run, by Dask's event log."""

from __future__ import annotations

from typing import Any

from dask.base import tokenize
from distributed import get_worker

from rescnet_dist.store import RunStore
from rescnet_dist.train.state import Task


def report(task: Task, kind: str, **facts: Any) -> None:
    """Tell the driver something; facts are numbers and strings."""
    worker = get_worker()
    worker.log_event(progress_topic(task.run), {"kind": kind, **facts})


def report_chunk(task: Task, phase: str, start: int, stop: int) -> None:
    """Tell the driver that the images start to stop are done."""
    memory = get_worker().monitor.get_process_memory()
    report(
        task,
        "chunk",
        phase=phase,
        layer=task.layer,
        start=start,
        images=stop - start,
        memory=memory,
    )


def progress_topic(run: RunStore) -> str:
    """The topic of Dask's event log that a run's progress goes to."""
    return f"rescnet-{tokenize(run.url)}"
