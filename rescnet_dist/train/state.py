"""What every task knows: the run, and what its attributes say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rescnet_dist.data import RowTable
from rescnet_dist.kernels import Backend, features_per_layer
from rescnet_dist.planning.plan import Group, Plan
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, translate_attribute_errors

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What every task of a pass knows: the run, the layer it works on (0: the survey), and how
    many training images of each class (C,) there are, and are before those it works on. One that
    works on no group of images has no counts (0,), and 0 before it (1,). stored is the last layer
    whose maps are in the store; keep and save: whether what is made of a chunk stays in the
    worker's memory, and whether it goes to the store; features: whether they stay beside maps that
    do. driver: which one asks, by a name that no other has; none where that does not matter."""

    run: RunStore
    layer: int
    stored: int = 0
    keep: bool = False
    save: bool = True
    features: bool = True
    driver: str = ""
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    before: Array = field(default_factory=lambda: np.zeros(1, np.int64))

    def split(self, groups: Sequence[Group], counts: Array) -> list[tuple[Task, Group]]:
        """The task for each group; counts (G, C) are the training images of each class in each."""
        if not counts.size:
            return [(self, group) for group in groups]
        before, total = np.cumsum(counts, axis=0) - counts, counts.sum(axis=0)
        return [
            (replace(self, counts=total, before=before[group.index].copy()), group)
            for group in groups
        ]


@dataclass(frozen=True, slots=True)
class RunState:
    """The attributes of a run, read once per task."""

    spec: NetworkSpec
    run_spec: RunSpec
    plan: Plan
    classes: int
    image_shape: tuple[int, int, int]
    rows: RowTable
    augment: AugmentSpec

    @classmethod
    def of(cls, run: RunStore) -> RunState:
        """Read the state off the run store."""
        return cls.from_attributes(run, run.attributes())

    @classmethod
    def from_attributes(cls, run: RunStore, attributes: dict[str, Any]) -> RunState:
        """The state that these attributes of a run tell."""
        with translate_attribute_errors(run.location):
            height, width, channels = attributes["image_shape"]
            return cls(
                NetworkSpec.from_stored(attributes["network"]),
                RunSpec.from_stored(attributes["run"]),
                Plan.from_dict(attributes["plan"]),
                len(attributes["classes"]["values"]),
                (height, width, channels),
                RowTable.from_dict(attributes["rows"]),
                AugmentSpec.from_stored(attributes["augment"]),
            )

    def problem(self, itemsize: int) -> Problem:
        """What is trained on, in numbers; pixels are of so many bytes."""
        return Problem(
            self.plan.images, self.image_shape, self.classes, itemsize, self.augment.copies
        )

    @property
    def backend(self) -> Backend:
        """Where arrays live while they are worked on."""
        return Backend.of(self.run_spec)

    @property
    def features(self) -> int:
        """Features D of a layer."""
        return features_per_layer(*self.image_shape[:2], self.spec)
