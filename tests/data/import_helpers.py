"""Helpers for the tests of imports."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from click.testing import CliRunner, Result
from distributed import Client
from PIL import Image

from rescnet_dist.cli import main
from rescnet_dist.data import importing

CHUNK = 4  # images
ACTIVE_STATES = ("ready", "executing", "cancelled")  # cancelled tasks run to their end
WRITE_ROWS = importing._write_rows
Files = dict[str, bytes]


def run_command(*arguments: Any) -> Result:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def save_image(path: Path, pixels: Any) -> None:
    """Write an image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def read_pixels(folder: Path) -> Any:
    """Return the images of a folder in the order of an import, read by Pillow alone."""
    files = [path for split in ("train", "test") for path in sorted(folder.glob(f"{split}/*/*"))]
    return np.stack([np.asarray(Image.open(path)) for path in files])


def read_tree(folder: Path) -> Files:
    """Return all files below a folder, except claims."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "claims")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def read_arrays(folder: Path) -> Files:
    """Return all files of an import except its attributes, which name the source."""
    return {name: content for name, content in read_tree(folder).items() if name != "zarr.json"}


def count_worker_tasks(dask_worker: Any) -> int:
    """Return the number of tasks of a worker; their futures may be cancelled already."""
    return sum(task.state in ACTIVE_STATES for task in dask_worker.state.tasks.values())


def wait_until_idle(client: Client) -> None:
    """Wait until no task of an interrupted import runs or waits.

    A cancelled task may be on its way to a worker, and is invisible for a moment.
    """
    idle_checks = 0
    while idle_checks < 20:
        is_busy = client.run_on_scheduler(count_scheduler_tasks) or any(
            client.run(count_worker_tasks).values()
        )
        idle_checks = 0 if is_busy else idle_checks + 1
        time.sleep(0.01)


def count_scheduler_tasks(dask_scheduler: Any) -> int:
    """Return the number of unfinished tasks of a scheduler."""
    done = {"memory", "erred", "released", "forgotten"}
    return sum(task.state not in done for task in dask_scheduler.tasks.values())


BAD_IMAGES = ["train/cat/02.png", "train/dog/03.png", "train/dog/19.png", "test/dog/09.png"]


class TaskBudget:
    """The number of tasks that may still run, and the first rows of those that did."""

    lock = threading.Lock()
    starts: ClassVar[list[int]] = []  # first rows of the tasks that ran
    remaining = 0


def write_within_budget(job: Any, pieces: Any, start: int) -> Any:
    """Call `_write_rows`, or raise once the budget is used up."""
    with TaskBudget.lock:
        if not TaskBudget.remaining:
            raise RuntimeError("killed")
        TaskBudget.remaining -= 1
        TaskBudget.starts.append(start)
    return WRITE_ROWS(job, pieces, start)
