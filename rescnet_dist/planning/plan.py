"""The plan of a run: chunks, accumulators, tiles and threads, which fix the order of every sum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from rescnet_dist.formatting import html_table


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive chunks that one task folds into one accumulator.

    Attributes
    ----------
    index : int
        Number of the group, from 0.
    start, stop : int
        First image of the group, and the one after its last.
    chunk_images : int
        Images per chunk.
    """

    index: int
    start: int
    stop: int
    chunk_images: int

    def __reduce__(self) -> tuple[Any, ...]:
        # faster than what dataclasses do, as a scheduler serializes thousands at once
        return Group, (self.index, self.start, self.stop, self.chunk_images)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the first image of each chunk and the one after its last."""
        for start in range(self.start, self.stop, self.chunk_images):
            yield start, min(start + self.chunk_images, self.stop)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run is divided into tasks; the same plan gives the same bits on any cluster.

    Attributes
    ----------
    images : int
        Number of images, copies included.
    chunk_images : int
        Images per chunk.
    accumulators : int
        Partial sums that the tree reduction starts from.
    split_every : int
        Fan-in of the tree reduction.
    solve_threads : int
        BLAS threads of the solve.
    tile_features : int or None, default None
        Width and height of the tiles of the features' scatter matrix; None keeps it whole.
    """

    images: int
    chunk_images: int
    accumulators: int
    split_every: int
    solve_threads: int
    tile_features: int | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return math.ceil(self.images / self.chunk_images)

    def groups(self) -> list[Group]:
        """Return all chunks in order, distributed evenly over the accumulators."""
        edges = [
            min(self.chunks * g // self.accumulators * self.chunk_images, self.images)
            for g in range(self.accumulators + 1)
        ]
        return [
            Group(index, start, stop, self.chunk_images)
            for index, (start, stop) in enumerate(pairwise(edges))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-serializable values."""
        return asdict(self)

    def _repr_html_(self) -> str:
        rows = (self.to_dict() | {"chunks": self.chunks}).items()
        return html_table("Plan", [(name, value, False) for name, value in rows])

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """Return the plan with these fields; the inverse of `to_dict`."""
        for name, value in values.items():
            if not isinstance(value, int) and not (name == "tile_features" and value is None):
                raise TypeError(f"{name}={value!r} is not a whole number")
        return cls(**values)


# Fields that are options of a RunSpec too.
PLAN_FIELDS = tuple(field.name for field in fields(Plan) if field.name != "images")
