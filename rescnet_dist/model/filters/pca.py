"""PCA filters: the leading eigenvectors of the covariance of all patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels import PatchMoments, pca_filters
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import Observation, moments_bytes, moments_workspace_bytes


@dataclass(frozen=True, slots=True)
class PCA(FilterLearner):
    """Eigenvectors of the patch covariance with the largest eigenvalues, without a bias."""

    label: ClassVar[str] = "PCA"
    name: ClassVar[str] = "pca"

    def max_filters(self, directions: int) -> int:
        """Return the number of eigenvectors."""
        return directions

    def empty(self, group: FilterGroup) -> PatchMoments:
        """Return the moments of no patch."""
        return PatchMoments.empty(group.directions)

    def observe(self, chunk: Observation, group: FilterGroup) -> PatchMoments:
        """Return the moments of all patches of a chunk."""
        return chunk.patch_moments(group)

    def fit(self, statistics: PatchMoments, group: FilterGroup) -> tuple[Array, Array]:
        """Return the leading eigenvectors (k, k, c, count) and a bias (count,) of zero."""
        moments = replace(statistics, scatter=group.center_scatter(statistics.scatter))
        return pca_filters(moments, group.size, group.count), np.zeros(group.count)

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the scatter matrix."""
        return moments_bytes(group)

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the scatter matrix."""
        return moments_workspace_bytes(group)
