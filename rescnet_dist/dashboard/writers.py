"""Base class of writers for experiment trackers: scalars by layer, specs and the outcome."""

from __future__ import annotations

import logging
import time
from typing import Any, Self

from rescnet_dist.dashboard.view import LayerView
from rescnet_dist.errors import RescnetError
from rescnet_dist.events import Accuracy, Callback, PassDone, RunDone, RunStarted, event_to_dict
from rescnet_dist.runs.describe import describe_commits
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore

DATA_FIELDS = ("source", "images", "classes", "features")

logger = logging.getLogger(__name__)


class RunWriter(Callback):
    """A callback that writes a run to a tracker; each tracker has a subclass.

    The run store is the source of truth: when a run starts or is resumed, all layers in its store
    are written, whether or not a writer was attached when they were trained. So a writer can be
    attached late, removed, and attached again. Use it as a context manager, or call `close`, if a
    run may be interrupted.
    """

    def __init__(self) -> None:
        self._written: set[tuple[str, int]] = set()  # (name, step) of scalars the tracker has
        self._accuracies: dict[int, Accuracy] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close(error)

    def on_run_start(self, event: RunStarted) -> None:
        """Write the specs and the layers that are already committed.

        Parameters
        ----------
        event : RunStarted
            With url, accuracies.
        """
        description = _describe_run(event.url)
        self._written, self._accuracies = set(), {a.layer: a for a in event.accuracies}
        self._begin(event.url, description)
        for entry in description.get("layers", ()):
            layer = LayerView.of(entry)
            self._write_new(layer.layer, layer_scalars(layer), entry["finished"] or time.time())
        self._flush()

    def on_layer_end(self, event: PassDone) -> None:
        """Write the time, traffic and memory of a layer.

        Parameters
        ----------
        event : PassDone
            With layer, seconds, residual, observed.
        """
        layer = LayerView.of(event_to_dict(event))
        self._write_new(event.layer, layer_scalars(layer), time.time())
        self._flush()

    def on_pass_end(self, event: PassDone) -> None:
        """Write the accuracy that a pass measured: of the layer before it, or the last one.

        Parameters
        ----------
        event : PassDone
            With accuracy (layer, train, validation), None if none was measured.
        """
        if accuracy := event.accuracy:
            self._accuracies[accuracy.layer] = accuracy
            scalars = _accuracy_scalars(accuracy.train, accuracy.validation)
            self._write_new(accuracy.layer, scalars, time.time())
            self._flush()

    def on_run_end(self, event: RunDone) -> None:
        """Write the chosen depth, its accuracy, and why it was chosen.

        Parameters
        ----------
        event : RunDone
            With depth, reason.
        """
        chosen = {"chosen/depth": float(event.depth)}
        if found := self._accuracies.get(event.depth):
            held_out = {} if found.validation is None else {"chosen/validation": found.validation}
            chosen |= {"chosen/train": found.train, **held_out}
        self._write_new(max(self._accuracies, default=event.depth), chosen, time.time())
        self._end(event)

    def close(self, error: BaseException | None = None) -> None:
        """Release the tracker.

        Parameters
        ----------
        error : BaseException, optional
            What interrupted the run.
        """

    def _write_new(self, step: int, values: dict[str, float], when: float) -> None:
        """Write those scalars of a step that the tracker does not have yet."""
        new = {name: value for name, value in values.items() if (name, step) not in self._written}
        if new:
            self._write(step, new, when)
            self._written |= {(name, step) for name in new}

    # implemented for each tracker ----------------------------------------------------------------

    def _begin(self, url: str, description: dict[str, Any]) -> None:
        """Start or continue a run; description is from its store, or empty if it is unreadable."""
        raise NotImplementedError

    def _write(self, step: int, values: dict[str, float], when: float) -> None:
        """Write scalars of a step at a time in seconds since 1970."""
        raise NotImplementedError

    def _end(self, event: RunDone) -> None:
        """Write the outcome of a run."""
        raise NotImplementedError

    def _flush(self) -> None:
        """Make what was written visible to readers."""


def layer_scalars(layer: LayerView) -> dict[str, float]:
    """Return the known scalars of a layer, by names that trackers show in groups."""
    scalars = {} if layer.train is None else _accuracy_scalars(layer.train, layer.validation)
    if layer.residual:
        scalars |= {
            f"residual/{sign}": share
            for sign, share in zip(("positive", "negative"), layer.residual, strict=True)
        }
    scalars |= {f"seconds/{phase}": spent for phase, spent in layer.phases.items()}
    scalars["seconds/total"] = layer.seconds
    if layer.phases:  # commits of earlier releases have neither phases nor traffic
        scalars |= {"bytes/read": float(layer.read), "bytes/written": float(layer.written)}
    if layer.memory:
        scalars["bytes/worker_memory_max"] = float(max(layer.memory.values()))
    return scalars


def spec_parameters(description: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the specs and data fields of a run that `describe_run` describes, by dotted names."""
    flat = {
        f"{kind.table}.{name}": value
        for kind in (NetworkSpec, RunSpec, AugmentSpec)
        for name, value, _ in kind.from_stored(description[kind.table]).rows()
    }
    flat |= {f"data.{key}": description[key] for key in DATA_FIELDS}
    return {key: _to_scalar(value) for key, value in flat.items()}


def _to_scalar(value: Any) -> bool | int | float | str:
    """Return a value as a number or as text."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return "" if value is None else str(value)


def _accuracy_scalars(train: float, validation: float | None) -> dict[str, float]:
    """Return the accuracies by the names of their scalars."""
    held_out = {} if validation is None else {"accuracy/validation": validation}
    return {"accuracy/train": train, **held_out}


def _describe_run(url: str) -> dict[str, Any]:
    """Return the description of a run, or an empty dict if its store cannot be opened by `url`.

    That is so for a URL with credentials, which events mask.
    """
    try:
        run = RunStore.open(url)
        return describe_commits(run, run.commits())
    except RescnetError as error:
        logger.warning("Specs and earlier layers are not written to the tracker: %s", error)
        return {}
