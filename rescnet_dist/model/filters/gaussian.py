"""Random Gaussian filters: a baseline that learns nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import NoStatistics


@dataclass(frozen=True, slots=True)
class Gaussian(FilterLearner):
    """Independent normal weights, scaled to unit norm, without a bias."""

    label: ClassVar[str] = "Gaussian"
    name: ClassVar[str] = "gaussian"

    def streams(self, count: int) -> int:
        """Return one random stream per filter."""
        return count

    def fit(self, statistics: NoStatistics, group: FilterGroup) -> tuple[Array, Array]:
        """Return random filters (k, k, c, count) and a bias (count,) of zero."""
        shape = group.size, group.size, len(group.channels)
        filters = np.stack(
            [group.rng(index).standard_normal(shape) for index in range(group.count)], axis=3
        )
        return filters / np.sqrt(np.square(filters).sum(axis=(0, 1, 2))), np.zeros(group.count)
