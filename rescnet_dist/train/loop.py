"""The driver: asks what comes next, runs it as one graph, commits it; until the run is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from distributed import Client

from rescnet_dist.errors import DataError
from rescnet_dist.kernels import Tally
from rescnet_dist.reduce import fold_graph
from rescnet_dist.store import RunStore
from rescnet_dist.train import passes
from rescnet_dist.train.decide import (
    Accuracy,
    Done,
    Grow,
    History,
    Score,
    Survey,
    chosen_depth,
    next_action,
)
from rescnet_dist.train.events import (
    ChunkDone,
    Event,
    Listener,
    PassDone,
    PassStarted,
    RunDone,
    RunStarted,
)
from rescnet_dist.train.passes import Pass, RunState, Task, progress_topic


def train(run: RunStore, client: Client, listeners: Sequence[Listener] = ()) -> Done:
    """Grow the run's network until it is done, on the client's cluster.

    Everything needed is in the run store, so this starts a run, resumes one, and leaves a
    finished one as it is.
    """
    driver = _Driver(run, client, listeners)
    driver.started()
    while True:
        match next_action(driver.history(), driver.state.spec):
            case Survey():
                driver.survey()
            case Grow(layer):
                driver.grow(layer)
            case Score(layer):
                driver.score(layer)
            case Done() as done:
                driver.done(done)
                return done


class _Driver:
    """Runs the passes of one run on a cluster and commits them; holds nothing of size N."""

    def __init__(self, run: RunStore, client: Client, listeners: Sequence[Listener]) -> None:
        self.run = run
        self.client = client
        self.listeners = listeners
        self.state = RunState.of(run)
        self.counts: tuple[tuple[int, ...], ...] = ()

    def history(self) -> History:
        """What is committed."""
        return History.of(self.run.commits(), self.run.result())

    def tell(self, event: Event) -> None:
        """Send an event to all listeners."""
        for listener in self.listeners:
            listener(event)

    def started(self) -> None:
        """Announce the run."""
        history, plan = self.history(), self.state.plan
        self.tell(
            RunStarted(
                self.run.url, plan.images, self.state.spec.max_layers, history.layers,
                history.accuracies,
            )
        )  # fmt: skip
        if history.surveyed:
            self.counts = _as_tuples(self.run.commits()[0]["counts"])

    def survey(self) -> None:
        """Count, split and survey the data; commits step 0."""
        began = time.perf_counter()
        self.tell(PassStarted("survey", 0))
        counts = self.compute(passes.COUNT, Task(self.run, 0))
        if self.state.run_spec.validation > 0:
            counts = self.compute(passes.SPLIT, Task(self.run, 0, _as_tuples(counts)))
            self.check_some_held_out(int(counts.sum()))
        self.counts = _as_tuples(counts)
        checksums = self.compute(passes.SURVEY, Task(self.run, 0, self.counts))
        seconds = time.perf_counter() - began
        record = {"counts": self.counts, "seconds": seconds, "checksums": checksums.chunks}
        self.run.commit(0, record)
        self.tell(PassDone("survey", 0, seconds, None))

    def check_some_held_out(self, left: int) -> None:
        """Refuse a split that came out empty, as it can with a few images of many classes."""
        if left == self.state.plan.images:
            raise DataError(
                f"validation={self.state.run_spec.validation} of {left} images holds none out: "
                "give a larger share, more images, or a validation set"
            )

    def grow(self, layer: int) -> None:
        """Add a layer; commits step `layer`."""
        state, began = self.state, time.perf_counter()
        self.tell(PassStarted("grow", layer))
        height, width, _ = state.image_shape
        images = state.plan.images
        self.run.create_layer(
            layer, (images, height, width, state.spec.filters), (images, state.classes),
            state.plan.chunk_images,
        )  # fmt: skip
        tally, checksums = self.compute(passes.GROW, Task(self.run, layer, self.counts))
        accuracy = _accuracy(layer - 1, tally) if layer > 1 else None
        seconds = time.perf_counter() - began
        record = {
            "accuracy": asdict(accuracy) if accuracy else None,
            "seconds": seconds,
            "checksums": checksums.chunks,
        }
        self.run.commit(layer, record)
        if state.run_spec.keep_maps == "last":
            self.run.remove_maps_but(layer)
        self.tell(PassDone("grow", layer, seconds, accuracy))

    def score(self, layer: int) -> None:
        """Find the accuracy after the last layer, and note it in the result."""
        began = time.perf_counter()
        self.tell(PassStarted("score", layer))
        tally = self.compute(passes.SCORE, Task(self.run, layer, self.counts))
        accuracy = _accuracy(layer, tally)
        self.write_result((*self.history().accuracies, accuracy), reason=None)
        self.tell(PassDone("score", layer, time.perf_counter() - began, accuracy))

    def done(self, done: Done) -> None:
        """Note the chosen depth."""
        self.write_result(self.history().accuracies, done.reason)
        self.tell(RunDone(self.run.url, done.depth, done.reason))

    def write_result(self, accuracies: tuple[Accuracy, ...], reason: str | None) -> None:
        """Write what is known of the run's outcome."""
        known = accuracies[: self.state.spec.max_layers]
        self.run.write_result(
            {
                "depth": chosen_depth(known),
                "reason": reason,
                "accuracies": [asdict(a) for a in accuracies],
            }
        )

    def compute(self, what: Pass, task: Task) -> Any:
        """Run one pass as one graph, passing its progress on to the listeners."""
        plan = self.state.plan
        graph = fold_graph(
            what.fold, plan.groups(), what.merge, what.finish, task,
            split_every=plan.split_every, name=what.name,
        )  # fmt: skip

        def on_progress(event: tuple[float, dict[str, Any]]) -> None:
            message = {field.name: event[1][field.name] for field in fields(ChunkDone)}
            if (message["phase"], message["layer"]) == (what.name, task.layer):
                self.tell(ChunkDone(**message))

        topic = progress_topic(self.run)
        self.client.subscribe_topic(topic, on_progress)
        future = self.client.compute(graph)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # on a cluster that outlives this run it would go on writing
            raise
        finally:
            self.client.unsubscribe_topic(topic)


def _accuracy(layer: int, tally: Tally) -> Accuracy:
    return Accuracy(layer, tally.accuracy(0) or 0.0, tally.accuracy(1))


def _as_tuples(counts: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(v) for v in row) for row in counts)
