"""What events report of a pass: accuracies, times by phase, bytes and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

PHASES = ("read", "compute", "write", "reduce", "solve")


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
class PassMetrics:
    """Metrics of a pass.

    Attributes
    ----------
    seconds : dict of str to float
        Wall time by phase. While chunks are processed, tasks wait to read ("read"), compute
        ("compute"), and wait to write ("write"); then accumulators are merged ("reduce"), and the
        layer is fitted ("solve"). The sum is the time of the pass, except for what the driver does
        before and after it.
    read, written : int
        Bytes read from and written to the store by tasks that ended, uncompressed.
    memory : dict of str to int
        Largest resident memory of each worker, in bytes, measured after each chunk and after the
        merge.
    redone : int
        Number of chunks that were processed more than once.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    redone: int = 0

    def plus_solve(self, later: PassMetrics) -> PassMetrics:
        """Return these metrics with those of a later part of the same pass, which solves."""
        seconds = dict(self.seconds)
        seconds["solve"] = seconds.get("solve", 0.0) + sum(later.seconds.values())
        workers = self.memory.keys() | later.memory.keys()
        return PassMetrics(
            seconds,
            self.read + later.read,
            self.written + later.written,
            {w: max(self.memory.get(w, 0), later.memory.get(w, 0)) for w in sorted(workers)},
            self.redone + later.redone,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """Return the metrics of a record; entries that are none of them are ignored."""
        return cls(**{entry.name: record[entry.name] for entry in fields(cls)})
