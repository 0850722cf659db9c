"""The state of a run as dashboards show it: read from its store and updated by events."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rescnet_dist.events.metrics import Accuracy
from rescnet_dist.formatting import train_suffix, url_name
from rescnet_dist.runs.describe import describe_commits
from rescnet_dist.runs.history import chosen_depth
from rescnet_dist.store import RunStore

RECENT_LAYERS = 5  # whose times estimate how long the next layers take
MAX_NOTES = 10  # that a view keeps
VIEW_STATES = ("running", "done", "unfinished")
Number = TypeVar("Number", int, float)
Value = TypeVar("Value")


def _optional(kind: Callable[[Any], Value], value: Any) -> Value | None:
    """Return a value as one of a type, such as a float; None stays None."""
    return None if value is None else kind(value)


def _numbers(values: Any, kind: Callable[[Any], Number]) -> dict[str, Number]:
    """Return the values of a dict as numbers, by name.

    All layers share their names: a scheduler keeps those of every layer.
    """
    return {sys.intern(str(name)): kind(value) for name, value in dict(values).items()}


@dataclass(slots=True)
class LayerView:
    """One committed layer.

    Attributes
    ----------
    layer : int
        Layer, counted from 1.
    seconds : float
        Time of the layer in all.
    train, validation : float or None
        Accuracies after the layer.
    residual : tuple of float or None
        Shares of training images whose largest error was positive and negative before the layer.
    phases : dict of str to float
        Seconds by phase.
    read, written : int
        Bytes moved from and to the store.
    memory : dict of str to int
        Bytes resident in each worker.
    """

    layer: int
    seconds: float
    train: float | None = None
    validation: float | None = None
    residual: tuple[float, float] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    memory: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, description: dict[str, Any]) -> LayerView:
        """Return the view of a layer that `describe_run` or a PassDone event describes."""
        observed, residual = description.get("observed") or {}, description.get("residual")
        return cls(
            layer=int(description["layer"]),
            seconds=float(description["seconds"]),
            train=_optional(float, description.get("train")),
            validation=_optional(float, description.get("validation")),
            residual=(float(residual[0]), float(residual[1])) if residual else None,
            phases=_numbers(observed.get("seconds", {}), float),
            read=int(observed.get("read", 0)),
            written=int(observed.get("written", 0)),
            memory=_numbers(observed.get("memory", {}), int),
        )


@dataclass(slots=True)
class PassView:
    """The pass in progress.

    `started` is in seconds since 1970. `chunk_images` has the number of images of each finished
    chunk by its first image, so that a chunk that is computed twice counts once.
    """

    phase: str
    layer: int
    started: float
    chunk_images: dict[int, int] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Number of finished images."""
        return sum(self.chunk_images.values())


@dataclass(slots=True)
class RunView:
    """A run as dashboards show it.

    Attributes
    ----------
    url : str
    state : {"running", "done", "unfinished"}
    images : int
        Number of images, with augmented copies.
    max_layers : int
    reason : str or None
        Why the run ended.
    depth : int or None
        Chosen depth, or the best so far.
    planned_memory, memory_limit : int or None
        Bytes per worker. None for runs of earlier releases, as the next two.
    planned_read, planned_written : int or None
        Bytes that a layer reads and writes if it moves each array once.
    layers : list of LayerView
    memory : dict of str to int
        Bytes resident in each worker.
    notes : list of str
        Recent problems.
    current : PassView or None
        Pass in progress.
    maps_in_memory : bool
        Whether maps are in workers' memory, by the last event.
    train_suffix : str
        Suffix of the name of training accuracies: whether they count copies, or images left out.
    """

    url: str
    state: str
    images: int
    max_layers: int
    reason: str | None = None
    depth: int | None = None
    planned_memory: int | None = None
    memory_limit: int | None = None
    planned_read: int | None = None
    planned_written: int | None = None
    layers: list[LayerView] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    current: PassView | None = None
    maps_in_memory: bool = False
    train_suffix: str = ""

    @classmethod
    def of(cls, description: dict[str, Any]) -> RunView:
        """Return the view of a run that `describe_run` describes."""
        expected = description.get("expected") or {}
        traffic, workers = expected.get("traffic", {}), expected.get("workers") or {}
        layers = [LayerView.of(layer) for layer in description["layers"]]
        if (state := description["state"]) not in VIEW_STATES:
            raise ValueError(f"{state!r} is no state of a run")
        depth = _optional(int, description["depth"]) if state == "done" else None
        return cls(
            url=str(description["url"]),
            state=state,
            images=int(description["rows"]),
            max_layers=int(description["network"]["max_layers"]),
            reason=_optional(str, description["reason"]),
            depth=depth or _best_depth(layers),
            planned_memory=_optional(int, expected.get("peak_memory")),
            memory_limit=_optional(int, workers.get("memory")),
            planned_read=_optional(int, traffic.get("read")),
            planned_written=_optional(int, traffic.get("written")),
            layers=layers,
            memory=dict(layers[-1].memory) if layers else {},
            train_suffix=train_suffix(description["copies"], description["leave_one_out"]),
        )

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return url_name(self.url)

    def handle_event(self, event: dict[str, Any]) -> None:
        """Update the view by an event in the form of `event_to_dict`."""
        match event["event"]:
            case "pass_started":
                begun = PassView(str(event["phase"]), int(event["layer"]), float(event["time"]))
                self.state, self.reason, self.current = "running", None, begun
            case "chunk_done":
                worker, memory = str(event["worker"]), int(event["memory"])
                self.memory[worker] = max(memory, self.memory.get(worker, 0))
                current = self.current
                if current and (current.phase, current.layer) == (event["phase"], event["layer"]):
                    current.chunk_images[int(event["start"])] = int(event["images"])
            case "pass_done":
                self._finish_pass(event)
            case "pass_retried":
                self.add_note(str(event["reason"]))
            case "maps_placed":
                if self.maps_in_memory and not event["in_memory"]:
                    self.add_note(f"layer {event['layer']}: maps are now {event['reason']}")
                self.maps_in_memory = bool(event["in_memory"])
            case "accuracy_collapsed":
                self.add_note(str(event["reason"]))
            case "chunk_rebuilt" if event.get("unexpected", True):
                self.add_note(f"layer {event['layer']}: maps were computed again")
            case "run_stopped":
                self.reason = _optional(str, event["reason"])
                self.state, self.current = "unfinished", None
            case "run_done":
                reason, depth = _optional(str, event["reason"]), _optional(int, event["depth"])
                self.state, self.reason, self.depth, self.current = "done", reason, depth, None

    def add_note(self, text: str) -> None:
        """Add a problem to the notes, once; only the last `MAX_NOTES` are kept."""
        self.notes = [*(note for note in self.notes if note != text), text][-MAX_NOTES:]

    def _finish_pass(self, event: dict[str, Any]) -> None:
        """Update layers, memory and depth by the end of a pass."""
        self.current = None
        self.memory = _numbers(event["observed"]["memory"], int)  # drops workers that are gone
        if accuracy := event["accuracy"]:
            train, validation = (_optional(float, accuracy[key]) for key in ("train", "validation"))
            for layer in self.layers:
                if layer.layer == accuracy["layer"]:
                    layer.train, layer.validation = train, validation
        if event["phase"] == "grow":
            grown = LayerView.of(event)
            self.layers = [layer for layer in self.layers if layer.layer < grown.layer]
            self.layers.append(grown)
        self.depth = _best_depth(self.layers)

    def layer_seconds(self) -> float | None:
        """Estimate the seconds of a layer from the last ones, without the first layer."""
        recent = [layer.seconds for layer in self.layers[1:]][-RECENT_LAYERS:]
        return statistics.median(recent) if recent else None

    def seconds_left(self, now: float | None = None) -> float | None:
        """Estimate the seconds until the run has grown all layers.

        None if the run is not running, or no layer times are known.
        """
        layer_seconds = self.layer_seconds()
        if self.state != "running" or layer_seconds is None:
            return None
        left = (self.max_layers - len(self.layers)) * layer_seconds
        if self.current and self.current.phase == "grow":
            left -= min((now or time.time()) - self.current.started, layer_seconds)
        return max(left, 0.0)


def _best_depth(layers: list[LayerView]) -> int | None:
    """Return the depth that would be chosen of these layers, or None if no accuracy is known."""
    accuracies = (
        Accuracy(layer.layer, layer.train, layer.validation)
        for layer in layers
        if layer.train is not None
    )
    return chosen_depth(tuple(accuracies)) or None


class StoredRun:
    """The run at a URL, for repeated reads; each commit record is read once."""

    def __init__(self, url: str) -> None:
        self.store = RunStore.open(url)
        self._commits: list[dict[str, Any]] = []

    def description(self) -> dict[str, Any]:
        """Read the current state of the run as plain values, without sizes."""
        self._commits = self.store.commits(self._commits)
        return describe_commits(self.store, self._commits)

    def view(self) -> RunView:
        """Read the current state of the run as a view."""
        return RunView.of(self.description())
