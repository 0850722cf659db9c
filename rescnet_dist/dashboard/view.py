"""What is shown of a run, however it is shown: from its store, and kept up to date by events."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from rescnet_dist.errors import CorruptDataError
from rescnet_dist.formatting import url_name
from rescnet_dist.store import RunStore
from rescnet_dist.train.decide import Accuracy, chosen_depth
from rescnet_dist.train.describe import describe_commits

RECENT = 5  # layers whose times tell how long the next ones take
MOST_NOTES = 10


@dataclass(slots=True)
class LayerView:
    """One layer that is committed: shares of images classified rightly after it, shares of training
    images whose largest error was positive and negative when they entered it, its seconds, in all
    and by phase, bytes moved, and bytes resident in each worker."""

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
    def of(cls, facts: dict[str, Any]) -> LayerView:
        """From what `describe_run` or the event of its pass says of a layer."""
        observed, residual = facts.get("observed") or {}, facts.get("residual")
        return cls(
            layer=facts["layer"],
            seconds=facts["seconds"],
            train=facts.get("train"),
            validation=facts.get("validation"),
            residual=tuple(residual) if residual else None,
            phases=observed.get("seconds", {}),
            read=observed.get("read", 0),
            written=observed.get("written", 0),
            memory=observed.get("memory", {}),
        )


@dataclass(slots=True)
class PassView:
    """The pass that goes on: images done by the first of their chunk, and since when (seconds since
    1970)."""

    phase: str
    layer: int
    began: float
    done: dict[int, int] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Images done, each once."""
        return sum(self.done.values())


@dataclass(slots=True)
class RunView:
    """A run as it is shown. state is "running", "done" or "unfinished"; planned and allowed are
    bytes of memory per worker, planned_read and planned_written those that a layer moves from and
    to the store if it moves each thing once, all None for runs of earlier releases."""

    url: str
    state: str
    images: int
    max_layers: int
    reason: str | None = None
    depth: int | None = None
    planned: int | None = None
    allowed: int | None = None
    planned_read: int | None = None
    planned_written: int | None = None
    layers: list[LayerView] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    current: PassView | None = None
    in_memory: bool = False  # where maps are, as far as it was told

    @classmethod
    def of(cls, found: dict[str, Any]) -> RunView:
        """From what `describe_run` gives."""
        expected = found.get("expected") or {}
        traffic, workers = expected.get("traffic", {}), expected.get("workers", {})
        layers = [LayerView.of(layer) for layer in found["layers"]]
        return cls(
            url=found["url"],
            state=found["state"],
            images=found["rows"],
            max_layers=found["network"]["max_layers"],
            reason=found["reason"],
            depth=(found["depth"] if found["state"] == "done" else None) or _best(layers),
            planned=expected.get("peak_memory"),
            allowed=workers.get("memory"),
            planned_read=traffic.get("read"),
            planned_written=traffic.get("written"),
            layers=layers,
            memory=dict(layers[-1].memory) if layers else {},
        )

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return url_name(self.url)

    def hear(self, event: dict[str, Any]) -> None:
        """Take in an event, as `event_to_dict` gives it."""
        match event["event"]:
            case "pass_started":
                self.state, self.reason = "running", None
                self.current = PassView(event["phase"], event["layer"], event["time"])
            case "chunk_done":
                before = self.memory.get(event["worker"], 0)
                self.memory[event["worker"]] = max(event["memory"], before)
                current = self.current
                if current and (current.phase, current.layer) == (event["phase"], event["layer"]):
                    current.done[event["start"]] = event["images"]
            case "pass_done":
                self._pass_done(event)
            case "pass_retried":
                self.note(event["reason"])
            case "maps_placed":
                if self.in_memory and not event["in_memory"]:
                    self.note(f"layer {event['layer']}: maps go {event['why']}, from now on")
                self.in_memory = event["in_memory"]
            case "chunk_rebuilt":
                self.note(f"layer {event['layer']}: lost maps were rebuilt")
            case "run_stopped":
                self.state, self.reason, self.current = "unfinished", event["reason"], None
            case "run_done":
                self.state, self.reason, self.depth = "done", event["reason"], event["depth"]
                self.current = None

    def note(self, text: str) -> None:
        """Keep in mind that something went wrong, once and not for ever."""
        self.notes = [*(note for note in self.notes if note != text), text][-MOST_NOTES:]

    def _pass_done(self, event: dict[str, Any]) -> None:
        self.current = None
        self.memory = dict(event["observed"]["memory"])  # not of workers that are gone
        if accuracy := event["accuracy"]:
            for layer in self.layers:
                if layer.layer == accuracy["layer"]:
                    layer.train, layer.validation = accuracy["train"], accuracy["validation"]
        if event["phase"] == "grow":
            self.layers = [layer for layer in self.layers if layer.layer < event["layer"]]
            self.layers.append(LayerView.of(event))
        self.depth = _best(self.layers)

    def layer_seconds(self) -> float | None:
        """About how long a layer takes, by the last ones."""
        recent = [layer.seconds for layer in self.layers[1:]][-RECENT:]
        return statistics.median(recent) if recent else None

    def seconds_left(self, now: float | None = None) -> float | None:
        """About how long the run still goes on, if it grows all layers; None where nothing is known
        of it, or it does not go on."""
        each = self.layer_seconds()
        if self.state != "running" or each is None:
            return None
        left = (self.max_layers - len(self.layers)) * each
        if self.current and self.current.phase == "grow":
            left -= min((now or time.time()) - self.current.began, each)
        return max(left, 0.0)


def _best(layers: list[LayerView]) -> int | None:
    """The depth that would be chosen of these layers, if the accuracy of any is known."""
    known = (
        Accuracy(layer.layer, layer.train, layer.validation)
        for layer in layers
        if layer.train is not None
    )
    return chosen_depth(tuple(known)) or None


class StoredRun:
    """The run at a URL, looked at again and again; what is committed is read once."""

    def __init__(self, url: str) -> None:
        self.store = RunStore.open(url)
        self._commits: list[dict[str, Any]] = []

    def description(self) -> dict[str, Any]:
        """What there is to tell of the run now, but for sizes, as plain values."""
        self._commits = self.store.commits(self._commits)
        return describe_commits(self.store, self._commits)

    def view(self) -> RunView:
        """The run as it is now."""
        found = self.description()
        try:
            return RunView.of(found)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(
                f"what the run at {self.store} tells of its layers is damaged "
                f"({type(error).__name__}: {error}): `rescnet check` says where"
            ) from None
