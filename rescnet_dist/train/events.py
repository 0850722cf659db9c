"""What a run tells those who watch it: plain values, sent to listeners, which cannot break it."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Self

from rescnet_dist.errors import SpecError, mask_secrets
from rescnet_dist.train.decide import Accuracy
from rescnet_dist.train.metrics import PassMetrics

EVENTS_VERSION = 2  # changes when a field is renamed, removed, or means something else
FAILURES = 10  # of a listener, after which it is told nothing more
PATIENCE = 60.0  # seconds that a run waits for its listeners

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Training begins, or goes on after `layers` committed layers. images: with the copies made of
    those to train on, of which `copies` are made each."""

    url: str
    images: int
    max_layers: int
    layers: int
    accuracies: tuple[Accuracy, ...]
    copies: int = 0


@dataclass(frozen=True, slots=True)
class MapsPlaced:
    """From this layer on, maps wait for the next one in workers' memory, with their features or
    without, or in the store; `reason` says why. Told of the first layer that
    is grown, and where one of both changes."""

    layer: int
    in_memory: bool
    features: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PassStarted:
    """A pass over all images begins: "survey", "grow", "score", or "save" where maps that were in
    memory alone are stored at the end; layer 0 is the survey's."""

    phase: str
    layer: int


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A worker, which holds `memory` bytes, has finished `images` images of the pass, from image
    `start`.

    It comes late, or again if a task is redone.
    """

    phase: str
    layer: int
    start: int
    images: int
    worker: str
    memory: int


@dataclass(frozen=True, slots=True)
class ChunkRebuilt:
    """The maps and scores of images start to stop were lost and have been made again."""

    layer: int
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class PassRetried:
    """A pass goes on after a failure, such as that of workers that died."""

    phase: str
    layer: int
    reason: str


@dataclass(frozen=True, slots=True)
class PassDone:
    """A pass is committed; accuracy is that of the layers before it (of all, after "score"), if
    there are any, and residual the shares of training images whose largest error was positive and
    negative then; observed is what the pass took."""

    phase: str
    layer: int
    seconds: float
    accuracy: Accuracy | None
    residual: tuple[float, float] | None = None
    observed: PassMetrics = field(default_factory=PassMetrics)


@dataclass(frozen=True, slots=True)
class RunDone:
    """Training has ended with a chosen depth."""

    url: str
    depth: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunStopped:
    """Training has been cut short, by an error or by its user; it may be resumed."""

    url: str
    reason: str


Event = (
    RunStarted
    | MapsPlaced
    | PassStarted
    | ChunkDone
    | ChunkRebuilt
    | PassRetried
    | PassDone
    | RunDone
    | RunStopped
)
Listener = Callable[[Event], None]


def event_to_dict(event: Event) -> dict[str, Any]:
    """An event as plain values, for machines: its kind ("run_started", …), the version of all
    events, the time in seconds since 1970, and its fields.

    >>> found = event_to_dict(PassStarted("grow", 3))
    >>> found["event"], found["phase"], found["layer"]
    ('pass_started', 'grow', 3)
    """
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    fields = asdict(event)
    if "url" in fields:
        fields["url"] = mask_secrets(fields["url"])
    return {"event": kind, "version": EVENTS_VERSION, "time": time.time(), **fields}


class Callback:
    """Something that is told of a run, as one of its `listeners`: override what you care about.

    Each method gets the event, whose attributes are named below (the classes are in
    `rescnet_dist.train`), in the order in which they came, from a thread of the run's own. An
    exception in one is logged, and the run goes on; KeyboardInterrupt stops it as Ctrl-C does.
    """

    def on_run_start(self, event: RunStarted) -> None:
        """Training begins or goes on: url, images, max_layers, layers, accuracies, copies."""

    def on_maps_placed(self, event: MapsPlaced) -> None:
        """Maps are going to be in memory, with features or without, or in the store: layer,
        in_memory, features, reason."""

    def on_pass_start(self, event: PassStarted) -> None:
        """A pass begins: the survey, a layer's, or the final scores: phase, layer."""

    def on_chunk_done(self, event: ChunkDone) -> None:
        """A worker has done a chunk: phase, layer, start, images, worker, memory."""

    def on_chunk_rebuilt(self, event: ChunkRebuilt) -> None:
        """Maps that were lost have been made again: layer, start, stop, reason."""

    def on_pass_retried(self, event: PassRetried) -> None:
        """A pass goes on after a failure: phase, layer, reason."""

    def on_layer_end(self, event: PassDone) -> None:
        """A layer is committed: as for `on_pass_end`."""

    def on_pass_end(self, event: PassDone) -> None:
        """A pass is committed, of a layer or not: phase, layer, seconds, accuracy (layer, train,
        validation) of the layers before it, residual, observed (seconds by phase, bytes read and
        written, memory by worker)."""

    def on_run_end(self, event: RunDone) -> None:
        """Training has ended: url, depth, reason."""

    def on_run_stopped(self, event: RunStopped) -> None:
        """Training has been cut short: url, reason."""

    def __call__(self, event: Event) -> None:
        """Call the method that an event is for."""
        match event:
            case RunStarted():
                self.on_run_start(event)
            case MapsPlaced():
                self.on_maps_placed(event)
            case PassStarted():
                self.on_pass_start(event)
            case ChunkDone():
                self.on_chunk_done(event)
            case ChunkRebuilt():
                self.on_chunk_rebuilt(event)
            case PassRetried():
                self.on_pass_retried(event)
            case PassDone():
                self.on_pass_end(event)
                if event.phase == "grow":
                    self.on_layer_end(event)
            case RunDone():
                self.on_run_end(event)
            case RunStopped():
                self.on_run_stopped(event)


def check_listeners(listeners: Any) -> None:
    """Refuse what cannot be told of events."""
    if not isinstance(listeners, Sequence):
        raise SpecError(f"listeners={listeners!r} is no list: give [{listeners!r}]")
    for listener in listeners:
        if not callable(listener):
            raise SpecError(
                f"{listener!r} among the listeners is no function of an event: give a function, or "
                "an object of a subclass of rescnet_dist.Callback"
            )


class EventBus:
    """Tells listeners of events, one after another, in a thread of its own: Dask's client must not
    wait for them. Used as a context.

    A listener that fails is logged, and after `FAILURES` times left out. Only what is meant to stop
    a run, such as KeyboardInterrupt, does: it is raised where the driver tells or looks next.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._failures = [(listener, [0]) for listener in listeners]
        self._events: SimpleQueue[tuple[Event, threading.Event] | None] = SimpleQueue()
        self._interrupts: SimpleQueue[BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rescnet-events", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._events.put(None)
        self._thread.join(PATIENCE)

    def __call__(self, event: Event) -> None:
        """Tell of an event, and wait until all listeners know; raises what stops the run."""
        told = self.later(event)
        if not told.wait(PATIENCE):
            logger.warning(
                "listeners have not taken %s in after %s s, and the run goes on",
                type(event).__name__, PATIENCE,
            )  # fmt: skip
        self.check()

    def later(self, event: Event) -> threading.Event:
        """Tell of an event behind all those before it, without waiting."""
        told = threading.Event()
        self._events.put((event, told))
        return told

    def check(self) -> None:
        """Raise what a listener has stopped the run with, if one has."""
        with suppress(Empty):
            raise self._interrupts.get_nowait()

    def _work(self) -> None:
        while (entry := self._events.get()) is not None:
            event, told = entry
            for listener, failures in self._failures:
                if failures[0] < FAILURES:
                    self._tell(listener, failures, event)
            told.set()

    def _tell(self, listener: Listener, failures: list[int], event: Event) -> None:
        try:
            listener(event)
        except (Exception, SystemExit):
            failures[0] += 1
            left_out = f"; it is left out after {FAILURES} failures"
            logger.exception(
                "listener %r failed on %s, and the run goes on%s", listener, type(event).__name__,
                left_out if failures[0] == FAILURES else "",
            )  # fmt: skip
        except BaseException as interrupt:
            self._interrupts.put(interrupt)
