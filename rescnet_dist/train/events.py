"""What a run tells those who watch it: plain values, sent to listeners, which cannot break it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rescnet_dist.errors import masked
from rescnet_dist.train.decide import Accuracy
from rescnet_dist.train.observed import Observed

EVENTS_VERSION = 1  # changes when a field is renamed, removed, or means something else
FAILURES = 10  # of a listener, after which it is told nothing more

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
class PassStarted:
    """A pass over all images begins: "survey", "grow" or "score"; layer 0 is the survey's."""

    phase: str
    layer: int


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A worker, which holds `memory` bytes, has finished `images` images of the pass, from image
    `start`.

    Listeners get this one from another thread than the rest, and late or again if a task is redone.
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
    observed: Observed = field(default_factory=Observed)


@dataclass(frozen=True, slots=True)
class RunDone:
    """Training has ended with a chosen depth."""

    url: str
    depth: int
    reason: str


Event = RunStarted | PassStarted | ChunkDone | ChunkRebuilt | PassRetried | PassDone | RunDone
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
        fields["url"] = masked(fields["url"])
    return {"event": kind, "version": EVENTS_VERSION, "time": time.time(), **fields}


class Callback:
    """Something that is told of a run, as one of its `listeners`: override what you care about.

    Each method gets the event. An exception in one is logged, and the run goes on;
    KeyboardInterrupt stops the run as Ctrl-C does. `on_chunk_done` is called from another thread
    than the rest.
    """

    def on_run_start(self, event: RunStarted) -> None:
        """Training begins or goes on."""

    def on_pass_start(self, event: PassStarted) -> None:
        """A pass begins: the survey, a layer's, or the final scores."""

    def on_chunk_done(self, event: ChunkDone) -> None:
        """A worker has done a chunk."""

    def on_chunk_rebuilt(self, event: ChunkRebuilt) -> None:
        """Maps that were lost have been made again."""

    def on_pass_retried(self, event: PassRetried) -> None:
        """A pass goes on after a failure."""

    def on_layer_end(self, event: PassDone) -> None:
        """A layer is committed."""

    def on_pass_end(self, event: PassDone) -> None:
        """A pass is committed, of a layer or not."""

    def on_run_end(self, event: RunDone) -> None:
        """Training has ended."""

    def __call__(self, event: Event) -> None:
        """Call the method that an event is for."""
        match event:
            case RunStarted():
                self.on_run_start(event)
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


class Announcer:
    """Tells listeners of events. One that fails is logged, and after `FAILURES` times left out."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._failures = [(listener, [0]) for listener in listeners]

    def __call__(self, event: Event) -> None:
        """Send an event to all listeners."""
        for listener, failures in self._failures:
            if failures[0] == FAILURES:
                continue
            try:
                listener(event)
            except Exception:
                failures[0] += 1
                left_out = f"; it is left out after {FAILURES} failures"
                logger.exception(
                    "listener %r failed on %s, and the run goes on%s", listener,
                    type(event).__name__, left_out if failures[0] == FAILURES else "",
                )  # fmt: skip
