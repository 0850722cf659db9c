"""What a run tells those who watch it: plain values, sent to listeners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rescnet_dist.train.decide import Accuracy


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
    """A pass is committed; accuracy is that of the layers before it, if there are any."""

    phase: str
    layer: int
    seconds: float
    accuracy: Accuracy | None


@dataclass(frozen=True, slots=True)
class RunDone:
    """Training has ended with a chosen depth."""

    url: str
    depth: int
    reason: str


Event = RunStarted | PassStarted | ChunkDone | ChunkRebuilt | PassRetried | PassDone | RunDone
Listener = Callable[[Event], None]
