"""What a run does next, and which depth it ends with: pure functions of what is committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rescnet_dist.spec import NetworkSpec


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of images classified rightly after a layer; None where there are no such images."""

    layer: int
    train: float
    validation: float | None


@dataclass(frozen=True, slots=True)
class History:
    """What has been committed: whether the data are surveyed, layers grown, accuracies known."""

    surveyed: bool = False
    layers: int = 0
    accuracies: tuple[Accuracy, ...] = field(default=())

    @classmethod
    def of(cls, commits: list[dict[str, Any]], result: dict[str, Any] | None) -> History:
        """Read the history off the commit records: that of step i + 1 holds the accuracy after
        layer i, and the result that after the last layer."""
        found = [record["accuracy"] for record in commits if record.get("accuracy")]
        layers = max(0, len(commits) - 1)
        if result and result["accuracies"] and len(found) == layers - 1:
            last = result["accuracies"][-1]
            if last["layer"] == layers:
                found.append(last)
        return cls(bool(commits), layers, tuple(Accuracy(**a) for a in found))


def contradiction(layers: int, result: dict[str, Any] | None) -> str | None:
    """What is wrong where the result tells of a depth beyond the layers that are committed."""
    if not result or result["depth"] <= layers:
        return None
    return (
        f"result.json tells of a depth of {result['depth']}, and {layers} layers are committed: "
        "records in commits/ are missing; put them back, or resume the run, which makes them again"
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
    """Find the accuracy after this, the last, layer."""

    layer: int


@dataclass(frozen=True, slots=True)
class Done:
    """End with this depth, for this reason."""

    depth: int
    reason: str


Action = Survey | Grow | Score | Done


def next_action(history: History, spec: NetworkSpec) -> Action:
    """What to do next.

    The accuracy after a layer is known once the pass of the next one has run, so a run that
    stops early has grown one layer more than it has judged.
    """
    if not history.surveyed:
        return Survey()
    known = history.accuracies[: spec.max_layers]
    reason = stop_reason(known, spec)
    if reason:
        return Done(chosen_depth(known), reason)
    if history.layers < spec.max_layers:
        return Grow(history.layers + 1)
    if len(known) < spec.max_layers:
        return Score(spec.max_layers)
    return Done(chosen_depth(known), f"max_layers={spec.max_layers} reached")


def stop_reason(known: tuple[Accuracy, ...], spec: NetworkSpec) -> str | None:
    """Why no further layer is to be added, by the accuracies so far, or None."""
    if spec.stop_at_zero_error and known and known[-1].train == 1.0:
        return f"training error 0 after layer {known[-1].layer}"
    if spec.patience is None or not known or known[-1].validation is None:
        return None
    best = chosen_depth(known)
    if known[-1].layer - best >= spec.patience:
        return f"no better validation accuracy in {spec.patience} layers"
    return None


def chosen_depth(known: tuple[Accuracy, ...]) -> int:
    """The depth of the best validation accuracy, the first on ties; without any, the last."""
    if not known:
        return 0
    if known[-1].validation is None:
        return known[-1].layer
    return max(known, key=lambda a: (a.validation or 0.0, -a.layer)).layer
