"""Description of a pass that is sent to each of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rescnet_dist.planning.plan import Group
from rescnet_dist.store import RunStore

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Description of a pass that is sent to each of its tasks.

    Attributes
    ----------
    run : RunStore
        Store of the run.
    layer : int
        Layer that the pass works on; 0 for the survey.
    stored_layer : int
        Last layer whose maps are in the store.
    cache_maps : bool
        Whether the state of a chunk stays in the worker's memory.
    save_maps : bool
        Whether the maps and scores of a chunk are written to the store.
    cache_features : bool
        Whether features are cached together with the maps.
    driver : str
        Unique name of the driver; empty to bypass the worker's cache of small objects.
    counts : ndarray of shape (C,)
        Number of training images of each class, repeated in proportion to their weights, if any;
        shape (0,) for a task without a group of images.
    class_offsets : ndarray of shape (C,)
        Number of training images of each class before those of the task, in the same way; zeros of
        shape (1,) for a task without a group of images.
    """

    run: RunStore
    layer: int
    stored_layer: int = 0
    cache_maps: bool = False
    save_maps: bool = True
    cache_features: bool = True
    driver: str = ""
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    class_offsets: Array = field(default_factory=lambda: np.zeros(1, np.int64))

    def split(self, groups: Sequence[Group], counts: Array) -> list[tuple[Task, Group]]:
        """Return the task for each group, given the training images of each class (G, C)."""
        if not counts.size:
            return [(self, group) for group in groups]
        offsets, total = np.cumsum(counts, axis=0) - counts, counts.sum(axis=0)
        return [
            (replace(self, counts=total, class_offsets=offsets[group.index].copy()), group)
            for group in groups
        ]
