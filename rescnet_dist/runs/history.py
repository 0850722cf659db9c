"""What is committed of a run: its layers, their accuracies, and the depth chosen by them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rescnet_dist.events.metrics import Accuracy
from rescnet_dist.model import Calibration
from rescnet_dist.store import calibration_records


@dataclass(frozen=True, slots=True)
class History:
    """What is committed: whether the data are surveyed, the number of layers, the accuracies.

    Calibrations are those of networks that end with a layer, by its number.
    """

    surveyed: bool = False
    layers: int = 0
    accuracies: tuple[Accuracy, ...] = field(default=())
    calibrations: dict[int, Calibration] = field(default_factory=dict)

    @classmethod
    def of(cls, commits: list[dict[str, Any]], result: dict[str, Any] | None) -> History:
        """Build the history from the commit records and the result.

        The record of step i + 1 holds accuracy and calibration after layer i, and the result those
        after the last layer.
        """
        accuracies = [record["accuracy"] for record in commits if record.get("accuracy")]
        layers = max(0, len(commits) - 1)
        if result and result["accuracies"]:
            last = result["accuracies"][-1]
            if last["layer"] == layers and last["layer"] not in [a["layer"] for a in accuracies]:
                accuracies.append(last)
        records, evaluated = calibration_records(commits, result), {a["layer"] for a in accuracies}
        known = {n: Calibration.from_dict(records[n]) for n in records if n in evaluated}
        return cls(bool(commits), layers, tuple(Accuracy(**a) for a in accuracies), known)


def find_contradiction(layers: int, result: dict[str, Any] | None) -> str | None:
    """Return what is wrong if the result's depth exceeds the number of committed layers."""
    if not result or result["depth"] <= layers:
        return None
    return (
        f"result.json has a depth of {result['depth']}, but {layers} layers are committed. Records "
        "in commits/ are missing. Put them back, or resume the run, which computes them again."
    )


def chosen_depth(accuracies: tuple[Accuracy, ...], max_layers: int | None = None) -> int:
    """Return the first depth with the best validation accuracy, or the last without validation.

    Only depths up to `max_layers` count.
    """
    if max_layers is not None:
        accuracies = tuple(a for a in accuracies if a.layer <= max_layers)
    if not accuracies:
        return 0
    if accuracies[-1].validation is None:
        return accuracies[-1].layer
    return max(accuracies, key=lambda a: (a.validation or 0.0, -a.layer)).layer
