"""The next action of a run and its final depth, as pure functions of what is committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rescnet_dist.spec import NetworkSpec


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy after a layer.

    Attributes
    ----------
    layer : int
        Number of layers of the network.
    train : float
        Fraction of the training images that are classified correctly.
    validation : float or None
        The same for the validation images; None if there are none.
    """

    layer: int
    train: float
    validation: float | None


@dataclass(frozen=True, slots=True)
class History:
    """What is committed: whether the data are surveyed, the number of layers, the accuracies."""

    surveyed: bool = False
    layers: int = 0
    accuracies: tuple[Accuracy, ...] = field(default=())

    @classmethod
    def of(cls, commits: list[dict[str, Any]], result: dict[str, Any] | None) -> History:
        """Build the history from the commit records and the result.

        The record of step i + 1 holds the accuracy after layer i, and the result that after the
        last layer.
        """
        accuracies = [record["accuracy"] for record in commits if record.get("accuracy")]
        layers = max(0, len(commits) - 1)
        if result and result["accuracies"] and len(accuracies) == layers - 1:
            last = result["accuracies"][-1]
            if last["layer"] == layers:
                accuracies.append(last)
        return cls(bool(commits), layers, tuple(Accuracy(**a) for a in accuracies))


def find_contradiction(layers: int, result: dict[str, Any] | None) -> str | None:
    """Return what is wrong if the result's depth exceeds the number of committed layers."""
    if not result or result["depth"] <= layers:
        return None
    return (
        f"result.json has a depth of {result['depth']}, but {layers} layers are committed. Records "
        "in commits/ are missing. Put them back, or resume the run, which computes them again."
    )


@dataclass(frozen=True, slots=True)
class Survey:
    """Read the images once and learn the first layer's filters."""


@dataclass(frozen=True, slots=True)
class Grow:
    """Add this layer."""

    layer: int


@dataclass(frozen=True, slots=True)
class Score:
    """Compute the accuracy after this layer, the last one."""

    layer: int


@dataclass(frozen=True, slots=True)
class Done:
    """End with this depth, for this reason."""

    depth: int
    reason: str


Action = Survey | Grow | Score | Done


def next_action(history: History, spec: NetworkSpec) -> Action:
    """Return the next action.

    The accuracy after a layer is known once the pass of the next layer has run, so a run that stops
    early has grown one layer more than it has evaluated.
    """
    if not history.surveyed:
        return Survey()
    accuracies = history.accuracies[: spec.max_layers]
    reason = stop_reason(accuracies, spec)
    if reason:
        return Done(chosen_depth(accuracies), reason)
    if history.layers < spec.max_layers:
        return Grow(history.layers + 1)
    if len(accuracies) < spec.max_layers:
        return Score(spec.max_layers)
    return Done(chosen_depth(accuracies), f"max_layers={spec.max_layers} reached")


def stop_reason(accuracies: tuple[Accuracy, ...], spec: NetworkSpec) -> str | None:
    """Return why no further layer is added, given the accuracies so far, or None."""
    if spec.stop_at_zero_error and accuracies and accuracies[-1].train == 1.0:
        return f"training error 0 after layer {accuracies[-1].layer}"
    if spec.patience is None or not accuracies or accuracies[-1].validation is None:
        return None
    best = chosen_depth(accuracies)
    if accuracies[-1].layer - best >= spec.patience:
        return f"no better validation accuracy in {spec.patience} layers"
    return None


def chosen_depth(accuracies: tuple[Accuracy, ...]) -> int:
    """Return the first depth with the best validation accuracy, or the last without validation."""
    if not accuracies:
        return 0
    if accuracies[-1].validation is None:
        return accuracies[-1].layer
    return max(accuracies, key=lambda a: (a.validation or 0.0, -a.layer)).layer
