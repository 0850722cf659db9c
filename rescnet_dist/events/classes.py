"""Events of a training run, and the base class of callbacks that receive them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from rescnet_dist.errors import mask_secrets
from rescnet_dist.events.metrics import Accuracy, PassMetrics
from rescnet_dist.planning.placement import Placement

EVENTS_VERSION = 2  # changes when a field is renamed, removed, or changes its meaning


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Training starts, or resumes after `layers` committed layers.

    Attributes
    ----------
    url : str
        URL of the run store.
    images : int
        Number of images, including the augmented copies of the training images.
    max_layers : int
        Largest number of layers that the run may grow.
    layers : int
        Number of committed layers.
    accuracies : tuple of Accuracy
        Accuracies known so far, one per layer.
    copies : int
        Number of augmented copies of each training image.
    leave_one_out : bool
        Whether training accuracies are those of layers that were fitted without the image.
    """

    url: str
    images: int
    max_layers: int
    layers: int
    accuracies: tuple[Accuracy, ...]
    copies: int = 0
    leave_one_out: bool = False


@dataclass(frozen=True, slots=True)
class MapsPlaced:
    """Where the maps are kept for the next layer, from this layer on.

    Published for the first layer that is grown, and whenever `in_memory` or `features` changes.

    Attributes
    ----------
    layer : int
        First layer that this applies to.
    in_memory : bool
        True if maps stay in the memory of the workers, False if they go through the store.
    features : bool
        True if the features stay in the memory of the workers, with the maps or alone.
    reason : str
        Where the maps are kept and why, as text.
    placement : Placement
        The same as a value.
    """

    layer: int
    in_memory: bool
    features: bool
    reason: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class PassStarted:
    """A pass over all images starts.

    Attributes
    ----------
    phase : {"views", "survey", "grow", "score", "save"}
        Kind of pass. "save" stores maps at the end of a run that had them in memory only.
    layer : int
        Layer that the pass works on; 0 for the survey.
    """

    phase: str
    layer: int


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A worker has finished a chunk of images.

    The event may arrive late, and again if a task is run again. In a pass with more than 400 chunks
    an event stands for several chunks.

    Attributes
    ----------
    phase : str
        Kind of pass, as in `PassStarted`.
    layer : int
        Layer that the pass works on.
    start : int
        Index of the first image of the chunk.
    images : int
        Number of images in the chunk, or in all that were finished since the last event.
    worker : str
        Address of the worker.
    memory : int
        Resident memory of the worker, in bytes.
    """

    phase: str
    layer: int
    start: int
    images: int
    worker: str
    memory: int


@dataclass(frozen=True, slots=True)
class ChunkRebuilt:
    """The maps and scores of a chunk were not available and have been computed again.

    Attributes
    ----------
    layer : int
        Layer whose maps and scores were rebuilt.
    start, stop : int
        Range of images, `stop` excluded.
    reason : str
        Why they had to be rebuilt.
    unexpected : bool, default True
        Whether the store should have had them, or they differ from what was committed. Otherwise
        they were in memory only, as planned, and the run was resumed or has lost a worker.
    """

    layer: int
    start: int
    stop: int
    reason: str
    unexpected: bool = True


@dataclass(frozen=True, slots=True)
class PassRetried:
    """A pass continues after a failure, such as the death of workers, or waits for the store.

    Attributes
    ----------
    phase : str
        Kind of pass, as in `PassStarted`.
    layer : int
        Layer that the pass works on.
    reason : str
        What failed.
    """

    phase: str
    layer: int
    reason: str


@dataclass(frozen=True, slots=True)
class SolverIteration:
    """The solver of a layer has finished an iteration, which is stored; see `solver="cg"`.

    Attributes
    ----------
    layer : int
        Layer that is fitted.
    iteration, max_iterations : int
        Number of the iteration, from 1, and the largest number of iterations.
    error : float
        Bound of the error of the weights, relative to their norm; at most 1.
    """

    layer: int
    iteration: int
    max_iterations: int
    error: float


@dataclass(frozen=True, slots=True)
class PassDone:
    """A pass is committed.

    Attributes
    ----------
    phase : str
        Kind of pass, as in `PassStarted`.
    layer : int
        Layer that the pass worked on.
    seconds : float
        Wall time of the pass.
    accuracy : Accuracy or None
        Accuracy of the layers before this one (of all layers, after "score"). None if there are
        none.
    residual : tuple of (float, float) or None
        Fractions of the training images whose largest error, with those layers, was positive and
        negative.
    observed : PassMetrics
        Time by phase, bytes read and written, and memory by worker.
    """

    phase: str
    layer: int
    seconds: float
    accuracy: Accuracy | None
    residual: tuple[float, float] | None = None
    observed: PassMetrics = field(default_factory=PassMetrics)


@dataclass(frozen=True, slots=True)
class AccuracyCollapsed:
    """The training accuracy has fallen by more than a fifth of its best; published once in a run.

    With leave-one-out scores, only if the validation accuracy has fallen as much.

    Attributes
    ----------
    layer : int
        Layer after which it was so low.
    train : float
        Fraction of the training images that are classified correctly.
    best : float
        Largest such fraction after an earlier layer.
    reason : str
        What happened and what to change, as text.
    """

    layer: int
    train: float
    best: float
    reason: str


@dataclass(frozen=True, slots=True)
class RunDone:
    """Training has ended with a chosen depth.

    Attributes
    ----------
    url : str
        URL of the run store.
    depth : int
        Number of layers of the final network.
    reason : str
        Why no further layer is added.
    """

    url: str
    depth: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunStopped:
    """Training was cut short by an error or by the user. The run can be resumed.

    Attributes
    ----------
    url : str
        URL of the run store.
    reason : str
        Error message, or "interrupted".
    """

    url: str
    reason: str


Event = (
    RunStarted
    | MapsPlaced
    | PassStarted
    | ChunkDone
    | ChunkRebuilt
    | PassRetried
    | SolverIteration
    | PassDone
    | AccuracyCollapsed
    | RunDone
    | RunStopped
)
Listener = Callable[[Event], None]


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return an event as a JSON-serializable dict.

    Parameters
    ----------
    event : Event
        Any of the event classes of this module.

    Returns
    -------
    dict
        "event" (the kind, such as "run_started"), "version" (of all events), "time" (seconds since
        1970), and the fields of the event.

    Examples
    --------
    >>> found = event_to_dict(PassStarted("grow", 3))
    >>> found["event"], found["phase"], found["layer"]
    ('pass_started', 'grow', 3)
    """
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    fields = asdict(event, dict_factory=_make_plain_dict)
    if "url" in fields:
        fields["url"] = mask_secrets(fields["url"])
    return {"event": kind, "version": EVENTS_VERSION, "time": time.time(), **fields}


def _make_plain_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict without enums, which Dask's event log rejects."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}


class Callback:
    """Base class for listeners of a run. Override the methods of the events that you need.

    Pass instances as `listeners`. Each method receives one event; the event classes, which list
    their attributes, are in `rescnet_dist.events`. Events arrive in the order in which they were
    published, in a thread that belongs to the run. An exception in a method is logged and the run
    continues; KeyboardInterrupt stops the run as Ctrl-C does.

    Examples
    --------
    >>> class PrintLayers(Callback):
    ...     def on_layer_end(self, event):
    ...         print("layer", event.layer, "is committed")
    >>> PrintLayers()(PassDone("grow", 2, seconds=1.5, accuracy=None))
    layer 2 is committed
    """

    def on_run_start(self, event: RunStarted) -> None:
        """Handle the start or the resumption of training.

        Parameters
        ----------
        event : RunStarted
            With url, images, max_layers, layers, accuracies, copies, leave_one_out.
        """

    def on_maps_placed(self, event: MapsPlaced) -> None:
        """Handle the decision whether maps stay in memory or go through the store.

        Parameters
        ----------
        event : MapsPlaced
            With layer, in_memory, features, reason, placement.
        """

    def on_pass_start(self, event: PassStarted) -> None:
        """Handle the start of a pass: the survey, a layer, the final scores, or the final save.

        Parameters
        ----------
        event : PassStarted
            With phase, layer.
        """

    def on_chunk_done(self, event: ChunkDone) -> None:
        """Handle a chunk that a worker has finished.

        Parameters
        ----------
        event : ChunkDone
            With phase, layer, start, images, worker, memory.
        """

    def on_chunk_rebuilt(self, event: ChunkRebuilt) -> None:
        """Handle maps that were not available and have been computed again.

        Parameters
        ----------
        event : ChunkRebuilt
            With layer, start, stop, reason, unexpected.
        """

    def on_pass_retried(self, event: PassRetried) -> None:
        """Handle a pass that continues after a failure.

        Parameters
        ----------
        event : PassRetried
            With phase, layer, reason.
        """

    def on_solver_iteration(self, event: SolverIteration) -> None:
        """Handle a step of the solver of a layer.

        Parameters
        ----------
        event : SolverIteration
            With layer, iteration, max_iterations, error.
        """

    def on_layer_end(self, event: PassDone) -> None:
        """Handle a committed layer; called after `on_pass_end`, with the same event.

        Parameters
        ----------
        event : PassDone
            As for `on_pass_end`.
        """

    def on_pass_end(self, event: PassDone) -> None:
        """Handle a committed pass, of a layer or not.

        Parameters
        ----------
        event : PassDone
            With phase, layer, seconds, accuracy (layer, train, validation) of the layers before it,
            residual, and observed (seconds by phase, bytes read and written, memory by worker).
        """

    def on_accuracy_collapsed(self, event: AccuracyCollapsed) -> None:
        """Handle a training accuracy that has fallen far below its best.

        Parameters
        ----------
        event : AccuracyCollapsed
            With layer, train, best, reason.
        """

    def on_run_end(self, event: RunDone) -> None:
        """Handle the end of training.

        Parameters
        ----------
        event : RunDone
            With url, depth, reason.
        """

    def on_run_stopped(self, event: RunStopped) -> None:
        """Handle training that was cut short.

        Parameters
        ----------
        event : RunStopped
            With url, reason.
        """

    def __call__(self, event: Event) -> None:
        """Call the method that handles an event."""
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
            case SolverIteration():
                self.on_solver_iteration(event)
            case PassDone():
                self.on_pass_end(event)
                if event.phase == "grow":
                    self.on_layer_end(event)
            case AccuracyCollapsed():
                self.on_accuracy_collapsed(event)
            case RunDone():
                self.on_run_end(event)
            case RunStopped():
                self.on_run_stopped(event)
