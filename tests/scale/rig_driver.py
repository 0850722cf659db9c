"""The drivers of the rig: the package's own training loop, and a bare client of Dask.

Run as `python rig_driver.py train|bare SCHEDULER STORE LAYERS`. Prints a line of JSON at the end of
each pass. A line of standard input lets it go on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

import dask
import psutil
import rig_messages
from dask.delayed import Delayed, delayed
from distributed import Client

from rescnet_dist import NetworkSpec, RunSpec
from rescnet_dist.cluster import CheckedWorkers
from rescnet_dist.cluster import workers as cluster_workers
from rescnet_dist.data import RowTable
from rescnet_dist.events import PassDone, PassStarted
from rescnet_dist.planning import Plan, Problem, make_plan
from rescnet_dist.runs.state import RunState
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.store import Claim, RunStore
from rescnet_dist.train import passes, train

IMAGES_PER_WORKER = 2_500
IMAGE_SHAPE, CLASSES = (32, 32, 3), 10


class Meter:
    """Prints what a pass took: CPU seconds of this process, its memory, and the time of day."""

    def __init__(self) -> None:
        self.process, self.started = psutil.Process(), 0.0
        self.cpu = time.process_time()

    def start(self, name: str) -> None:
        """Begin a pass. What it takes is counted since the end of the one before."""
        self.started = time.time()
        say(event="start", name=name)

    def stop(self, name: str, tasks: int) -> None:
        """End a pass."""
        cpu = time.process_time()
        say(
            event="pass",
            name=name,
            tasks=tasks,
            cpu=cpu - self.cpu,
            started=self.started,
            ended=time.time(),
            rss=self.process.memory_info().rss,
            messages=self.messages.take() if self.messages else {},
        )
        self.cpu = cpu

    def __call__(self, event: Any) -> None:
        """Listen to the events of a run."""
        match event:
            case PassStarted(phase=phase, layer=layer):
                self.start(f"{phase} {layer}")
            case PassDone(phase=phase, layer=layer):
                self.stop(f"{phase} {layer}", self.tasks)

    tasks = 0  # of a pass
    messages: rig_messages.MessageCounter | None = None  # if they are counted


def say(**values: Any) -> None:
    """Print a line of JSON and wait for a line of standard input."""
    print(json.dumps(values), flush=True)
    sys.stdin.readline()


def run_train(client: Client, store: str, layers: int, workers: int) -> None:
    """Train on images that nobody reads, with the package's loop and the tasks of the rig."""
    import rig_tasks

    cluster_workers._prepare_worker = rig_tasks.prepare_worker
    for name in ("COUNT", "SURVEY", "GROW", "SCORE"):
        setattr(passes, name, getattr(rig_tasks, name))
    spec = NetworkSpec.preset("cifar10").replace(max_layers=layers)
    run_spec = RunSpec(validation=0.0, checkpoint_every=1)
    images = IMAGES_PER_WORKER * workers
    problem = Problem(images, IMAGE_SHAPE, CLASSES)
    meter = Meter()
    meter.start("prepare")
    checked = CheckedWorkers.from_client(client)
    planned = replace(checked.workers, count=workers, slots=workers, machine_threads=1)
    plan = make_plan(problem, spec, run_spec, planned)
    meter.tasks = count_tasks(plan)
    meter.stop("prepare", checked.workers.count)
    run = RunStore.create(store, {})
    run.create_images((images, *IMAGE_SHAPE), "uint8", plan.chunk_images)
    attributes = {
        "network": spec.to_dict(),
        "run": run_spec.to_dict(),
        "plan": plan.to_dict(),
        "classes": {"dtype": "int64", "values": list(range(CLASSES))},
        "image_shape": list(IMAGE_SHAPE),
        "rows": RowTable(images, 0, images, (0, images)).to_dict(),
        "augment": AugmentSpec().to_dict(),
    }
    run.update_attributes(**attributes)
    say(event="plan", plan=plan.to_dict(), chunks=plan.chunks)
    claim = Claim.take(run.location, take_over=True)
    with claim.hold():
        train(claim, RunState.of(run), client, [meter], checked)


def count_tasks(plan: Plan) -> int:
    """Return the tasks of a pass: folds, merges of pairs, and the last."""
    return 2 * plan.accumulators


def nothing(*_: Any) -> None:
    """Do nothing."""


def build_noops(plan: Plan, token: str) -> Delayed:
    """Build the graph of a pass out of tasks that do nothing."""
    parts = [
        delayed(nothing, pure=False)(index, dask_key_name=(f"noop-fold-{token}", index))
        for index in range(plan.accumulators)
    ]
    level = 0
    while len(parts) > 1:
        parts = [
            delayed(nothing, pure=False)(
                parts[i : i + plan.split_every], dask_key_name=(f"noop-merge-{token}", level, i)
            )
            for i in range(0, len(parts), plan.split_every)
        ]
        level += 1
    return delayed(nothing, pure=False)(parts[0], dask_key_name=f"noop-finish-{token}")


def run_bare(client: Client, store: str, layers: int) -> None:
    """Compute the graph of a pass out of tasks that do nothing, once per layer."""
    plan = RunState.of(RunStore.open(store)).plan
    meter = Meter()
    for layer in range(layers):
        meter.start(f"bare {layer + 1}")
        client.compute(build_noops(plan, str(layer))).result()
        meter.stop(f"bare {layer + 1}", count_tasks(plan))


def main(kind: str, address: str, store: str, layers: str, workers: str) -> None:
    """Run a driver."""
    if os.environ.get("RIG_MESSAGES"):
        Meter.messages = rig_messages.count_messages()
    with Client(address) as client:
        if kind == "train":
            run_train(client, store, int(layers), int(workers))
        else:
            run_bare(client, store, int(layers))


if __name__ == "__main__":
    dask.config.set({"distributed.comm.timeouts.connect": "60s"})
    main(*sys.argv[1:])
