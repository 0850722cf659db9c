"""What the pass of a layer over the images has found: all that its commit record needs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rescnet_dist.events.metrics import Accuracy, PassMetrics
from rescnet_dist.model import Calibration, Tally
from rescnet_dist.store import Checksums

WORK_PREFIX = "work/"  # of the checksum paths of arrays in the work area


@dataclass(frozen=True, slots=True)
class GrownLayer:
    """The result of the pass of a layer over the images.

    Attributes
    ----------
    layer : int
        Number of the layer.
    checksums, work_checksums : dict of str to sequence of int
        Checksums by path, to commit, and those of the work area.
    accuracy : Accuracy or None
        Accuracy after the layer before; None if no layer before has a head.
    residual : tuple of float
        Fractions of positive and negative errors.
    calibration : dict or None
        Calibration after the layer before; None if no layer before has a head.
    metrics : PassMetrics
        Metrics of the pass.
    """

    layer: int
    checksums: Mapping[str, Sequence[int]]
    work_checksums: Mapping[str, Sequence[int]]
    accuracy: Accuracy | None
    residual: tuple[float, float]
    calibration: dict[str, Any] | None
    metrics: PassMetrics

    @classmethod
    def of(
        cls,
        layer: int,
        tally: Tally,
        checksums: Checksums,
        metrics: PassMetrics,
        *,
        has_scores: bool,
    ) -> GrownLayer:
        """Return what the pass of a layer has found; has_scores: a layer before it has a head."""
        work, lasting = checksums.split(WORK_PREFIX)
        return cls(
            layer,
            lasting.chunks,
            work.chunks,
            get_accuracy(layer - 1, tally) if has_scores else None,
            tally.residual,
            Calibration.of(tally).to_dict() if has_scores else None,
            metrics,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a record of the work area."""
        values = asdict(self)
        return values | {"observed": values.pop("metrics")}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> GrownLayer:
        """Return what a record of the work area has; the inverse of `to_dict`."""
        accuracy, (positive, negative) = record["accuracy"], record["residual"]
        return cls(
            record["layer"],
            record["checksums"],
            record["work_checksums"],
            None if accuracy is None else Accuracy(**accuracy),
            (positive, negative),
            record["calibration"],
            PassMetrics.from_dict(record["observed"]),
        )


def get_accuracy(layer: int, tally: Tally) -> Accuracy:
    """Return the accuracies of a tally as those after a layer."""
    return Accuracy(layer, tally.accuracy(0) or 0.0, tally.accuracy(1))
