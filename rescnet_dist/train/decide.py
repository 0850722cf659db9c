"""The next action of a run and its final depth, as pure functions of what is committed."""

from __future__ import annotations

from dataclasses import dataclass

from rescnet_dist.events.metrics import Accuracy
from rescnet_dist.runs.history import History, chosen_depth
from rescnet_dist.spec import NetworkSpec


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


COLLAPSED_FRACTION = 0.8  # of the best training accuracy before

Action = Survey | Grow | Score | Done


def next_action(history: History, spec: NetworkSpec) -> Action:
    """Return the next action.

    The accuracy after a layer is known once the pass of the next layer has run, so a run that stops
    early has grown one layer more than it has evaluated.
    """
    if not history.surveyed:
        return Survey()
    accuracies = tuple(a for a in history.accuracies if a.layer <= spec.max_layers)
    reason = stop_reason(accuracies, spec)
    if reason:
        return Done(chosen_depth(accuracies), reason)
    if history.layers < spec.max_layers:
        return Grow(history.layers + 1)
    if not accuracies or accuracies[-1].layer < spec.max_layers:
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


def find_collapse(
    accuracies: tuple[Accuracy, ...], spec: NetworkSpec
) -> tuple[Accuracy, Accuracy] | None:
    """Return the first training accuracy far below the best before it, and that best; else None.

    Leave-one-out accuracies fall without a fault, so the validation accuracy must have fallen, too.
    """
    best = None
    for accuracy in accuracies:
        if best is not None and _has_fallen(accuracy.train, best.train):
            is_reliable = not spec.head.leave_one_out_scores
            if is_reliable or _has_fallen(accuracy.validation, best.validation):
                return accuracy, best
        if best is None or accuracy.train > best.train:
            best = accuracy
    return None


def _has_fallen(share: float | None, best: float | None) -> bool:
    """Return whether an accuracy is far below another one; False if one is not known."""
    return share is not None and best is not None and share < COLLAPSED_FRACTION * best


def describe_collapse(fallen: Accuracy, best: Accuracy, spec: NetworkSpec) -> str:
    """Return what `find_collapse` has found as text, with the remedy."""
    text = (
        f"The training accuracy has fallen from {100 * best.train:.1f} % to "
        f"{100 * fallen.train:.1f} % after layer {fallen.layer}. "
    )
    smaller_step = f"Train with a learning_rate below {spec.learning_rate:g}, or a larger ridge."
    return text + (spec.head.collapse_advice or smaller_step)
