"""What experiment trackers are told of a run: scalars by layer, its specs, and how it ended."""

from __future__ import annotations

import logging
import time
from typing import Any, Self

from rescnet_dist.dashboard.view import LayerView
from rescnet_dist.errors import RescnetError
from rescnet_dist.store import RunStore
from rescnet_dist.train import (
    Accuracy,
    Callback,
    PassDone,
    RunDone,
    RunStarted,
    event_to_dict,
)
from rescnet_dist.train.describe import describe_commits

TABLES = ("network", "run", "augment")  # the specs
FACTS = ("source", "images", "classes", "features")

logger = logging.getLogger(__name__)


class RunWriter(Callback):
    """A listener that writes a run to a tracker; each tracker has a class of its own.

    The run store is the truth: when a run starts or goes on, the layers that it holds are written,
    whether or not anybody listened to them, so that one may come late, stop, and come again.
    Use it as a context, or `close` it, where a run may be cut short.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()  # scalars and steps that the tracker has
        self._accuracies: dict[int, Accuracy] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close(error)

    def on_run_start(self, event: RunStarted) -> None:
        """Tell of the specs, and of the layers that there are."""
        found = _described(event.url)
        self._told, self._accuracies = set(), {a.layer: a for a in event.accuracies}
        self._begin(event.url, found)
        for facts in found.get("layers", ()):
            layer = LayerView.of(facts)
            self._tell(layer.layer, scalars(layer), facts["finished"] or time.time())
        self._flush()

    def on_layer_end(self, event: PassDone) -> None:
        """Tell what a layer took."""
        self._tell(event.layer, scalars(LayerView.of(event_to_dict(event))), time.time())
        self._flush()

    def on_pass_end(self, event: PassDone) -> None:
        """Tell the accuracy that a pass has found, of the layer before it or, at last, its own."""
        if found := event.accuracy:
            self._accuracies[found.layer] = found
            self._tell(found.layer, _accuracy(found.train, found.validation), time.time())
            self._flush()

    def on_run_end(self, event: RunDone) -> None:
        """Tell the chosen depth, how well it does, and why it was chosen."""
        chosen = {"chosen/depth": float(event.depth)}
        if found := self._accuracies.get(event.depth):
            held_out = {} if found.validation is None else {"chosen/validation": found.validation}
            chosen |= {"chosen/train": found.train, **held_out}
        self._tell(max(self._accuracies, default=event.depth), chosen, time.time())
        self._end(event)

    def close(self, error: BaseException | None = None) -> None:
        """Say that nothing more comes; error is what cut the run short, if anything did."""

    def _tell(self, step: int, values: dict[str, float], when: float) -> None:
        """Write those scalars of a step that the tracker has not got."""
        new = {name: value for name, value in values.items() if (name, step) not in self._told}
        if new:
            self._write(step, new, when)
            self._told |= {(name, step) for name in new}

    # what a tracker does its own way -------------------------------------------------------------

    def _begin(self, url: str, found: dict[str, Any]) -> None:
        """Take a run up; found is what its store says, or nothing."""
        raise NotImplementedError

    def _write(self, step: int, values: dict[str, float], when: float) -> None:
        raise NotImplementedError

    def _end(self, event: RunDone) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        """Let readers see what is written."""


def scalars(layer: LayerView) -> dict[str, float]:
    """What is known of a layer, each number by a name that trackers show in groups."""
    known = {} if layer.train is None else _accuracy(layer.train, layer.validation)
    if layer.residual:
        known |= {
            f"residual/{sign}": share
            for sign, share in zip(("positive", "negative"), layer.residual, strict=True)
        }
    known |= {f"seconds/{phase}": spent for phase, spent in layer.phases.items()}
    known["seconds/total"] = layer.seconds
    if layer.phases:  # commits of earlier releases say nothing of it
        known |= {"bytes/read": float(layer.read), "bytes/written": float(layer.written)}
    if layer.memory:
        known["bytes/worker_memory_max"] = float(max(layer.memory.values()))
    return known


def parameters(found: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """The specs of a run that `describe_run` describes, and a few facts, by dotted names."""
    flat = {f"{table}.{key}": value for table in TABLES for key, value in found[table].items()}
    flat |= {f"data.{key}": found[key] for key in FACTS}
    return {key: _plain(value) for key, value in flat.items()}


def _plain(value: Any) -> bool | int | float | str:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return "" if value is None else str(value)


def _accuracy(train: float, validation: float | None) -> dict[str, float]:
    held_out = {} if validation is None else {"accuracy/validation": validation}
    return {"accuracy/train": train, **held_out}


def _described(url: str) -> dict[str, Any]:
    """What the store of a run says; nothing where it cannot be opened by what events call it."""
    try:
        run = RunStore.open(url)
        return describe_commits(run, run.commits())
    except RescnetError as error:  # such as for a URL whose secrets events do not tell
        logger.warning("specs and earlier layers are not told to the tracker: %s", error)
        return {}
