"""Every wait of a driver for its cluster ends with a sentence if the scheduler dies in it.

A real scheduler process is killed before and within each call that waits for it. A command exits
with 75, and prints no traceback.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, cluster
from rescnet_dist.cli import main

MESSAGE = "The connection to the Dask scheduler was lost"
SHORT_TIMEOUT = {"distributed.comm.timeouts.connect": "5s"}
SECONDS_TO_FAIL = 60.0  # for a driver that has lost its scheduler
IMAGES, CLASSES = 24, 2
SPEC = NetworkSpec(filters=2, first_filter_size=3, block=4, stride=4, head="regress", max_layers=1)
RUN = RunSpec(validation=0, chunk_images=12, accumulators=2, solve_threads=1)
TRAIN = ("train", "{data}", "--store", "{store}", "--config", "{config}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a dataset of noise, a configuration and a trained run."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (IMAGES, 8, 8, 1), np.uint8)
    labels = np.arange(IMAGES) % CLASSES
    np.savez(folder / "data.npz", images=images, labels=labels)
    (folder / "config.toml").write_text(SPEC.to_toml() + RUN.to_toml())
    made = {"data": folder / "data.npz", "config": folder / "config.toml", "run": folder / "run"}
    ResCNetClassifier(SPEC, store=made["run"], run=RUN).fit(images, labels)
    return made


def run_command(*arguments: Any) -> Any:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def is_sentence(result: Any) -> bool:
    """Return whether a command has ended as one that can be repeated, with a sentence."""
    text = result.output
    return result.exit_code == 75 and f"error: {MESSAGE}" in text and "Traceback" not in text


def test_scheduler_lost_while_waiting_for_a_first_worker(
    started: Any, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no run yet, and the same command can be repeated."""
    scheduler, file = started.scheduler()
    killer = threading.Timer(0.2, started.kill, [scheduler])

    wait = cluster.wait_for_worker

    def wait_for_worker(*arguments: Any) -> None:
        killer.start()
        wait(*arguments)

    monkeypatch.setattr(cluster, "wait_for_worker", wait_for_worker)
    arguments = (part.format(**made, store=tmp_path / "run") for part in TRAIN)
    with dask.config.set(SHORT_TIMEOUT):
        result = run_command(*arguments, "--scheduler-file", file)
    assert is_sentence(result), (result.output, result.exception)
    killer.join()
    assert not (tmp_path / "run").exists()


# Commands that wait for a cluster; a training run copies its images, and its data have weights.
COMMANDS = {
    "train": TRAIN,
    "resume": ("resume", "{run}", "--max-layers", "{layers}"),
    "plan": ("plan", "{data}", "--store", "{store}", "--config", "{config}"),
    "import": ("data", "import", "{data}", "{store}"),
    "predict": ("predict", "{run}", "{data}"),
    "evaluate": ("evaluate", "{run}", "{data}", "--split", "train"),
    "check": ("check", "{run}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("within", [False, True], ids=["before", "within"])
@pytest.mark.parametrize("name", COMMANDS)
def test_scheduler_lost_at_every_wait_of_a_command(
    name: str,
    within: bool,
    processes_in: Any,
    made: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler is killed at call 1, 2, 3 … of the client's `sync`, until none is left."""
    number, finished, problems = 0, 0, list[str]()
    while finished < 2:  # the number of calls of two runs may differ by those of background tasks
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copytree(made["run"], folder / "trained")
        places = {**made, "run": folder / "trained", "store": folder / "run", "layers": 2}
        with processes_in(folder) as started, dask.config.set(SHORT_TIMEOUT):
            scheduler, file = started.scheduler()
            started.worker(file)
            wait_for_one_worker(file)
            with monkeypatch.context() as patch:
                kill = partial(started.kill, scheduler)
                killed = kill_at_call(patch, number, kill, within=within)
                began = time.monotonic()
                arguments = [part.format(**places) for part in COMMANDS[name]]
                result = run_command(*arguments, "--scheduler-file", file)
                seconds = time.monotonic() - began
        line = f"call {number}, {killed}: {seconds:.1f} s, exit code {result.exit_code}"
        print(line, flush=True)
        assert killed or result.exit_code == 0, f"without a kill: {result.output[-2000:]}"
        if result.exit_code == 0:  # the call was the last that it needed, or was not reached
            finished += 1
        elif not is_sentence(result) or seconds > SECONDS_TO_FAIL:
            problems.append(f"{line}, {result.exception!r}\n{result.output[-2000:]}")
    assert number > 2
    assert problems == []


def wait_for_one_worker(file: Path) -> None:
    """Wait until the scheduler has a worker."""
    with Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)


def kill_at_call(
    patch: pytest.MonkeyPatch, number: int, kill: Callable[[], None], *, within: bool
) -> list[str]:
    """Have the scheduler killed at a call of `Client.sync`; return the callers of that call."""
    sync, calls, killed = Client.sync, itertools.count(1), list[str]()

    def wrapper(self: Client, *args: Any, **kwargs: Any) -> Any:
        if self.asynchronous or next(calls) != number:
            return sync(self, *args, **kwargs)
        stack = traceback.extract_stack()
        killed.extend(f"{frame.name}:{frame.lineno}" for frame in stack[-6:-1])
        if within:
            threading.Timer(0.02, kill).start()
        else:
            kill()
        return sync(self, *args, **kwargs)

    patch.setattr(Client, "sync", wrapper)
    return killed
