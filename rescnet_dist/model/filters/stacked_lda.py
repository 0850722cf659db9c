"""Stacked-LDA filters: linear discriminants of drawn patches, one class against the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels import Draws, PatchSample, stacked_lda_draws, stacked_lda_filters
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import Observation, sample_bytes, sample_workspace_bytes
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class StackedLDA(FilterLearner):
    """The best of many two-class discriminants, each of a few patches drawn at random."""

    label: ClassVar[str] = "LDA"
    name: ClassVar[str] = "stacked-lda"
    prefix: ClassVar[str] = "lda_"

    positives: int = option(2, help="patches of the class in each stacked-LDA draw", low=1)
    negatives: int = option(32, help="patches of other classes in each stacked-LDA draw", low=1)
    tolerance: float = option(0.0, help="largest training error of a draw that is accepted", low=0)
    ridge: float = option(1e-2, help="ridge added to the covariance of a draw", above=0)
    draws: int = option(
        8,
        help="draws per stacked-LDA filter",
        doc="Draws per stacked-LDA filter. If too few are accepted, the bank is filled with the "
        "draws of lowest error.",
        low=1,
    )

    def streams(self, count: int) -> int:
        """Return the number of draws; each has a random stream of its own."""
        return self.draws * count

    def empty(self, group: FilterGroup) -> PatchSample:
        """Return no patches."""
        return PatchSample.empty(group.directions)

    def observe(self, chunk: Observation, group: FilterGroup) -> PatchSample:
        """Return the drawn patches that are in a chunk."""
        counts = tuple(chunk.class_counts.tolist())
        return chunk.patch_sample(_draw(self.positives, self.negatives, group, counts), group)

    def fit(self, statistics: PatchSample, group: FilterGroup) -> tuple[Array, Array]:
        """Return the filters (k, k, c, count) and biases (count,) of the best draws."""
        # The memory layout decides how products are rounded: this is that of earlier releases.
        patches = np.asarray(statistics.patches, order="F" if group.is_partial else "C")
        patches = group.center(patches)
        return stacked_lda_filters(
            patches.reshape(-1, self.positives + self.negatives, group.directions),
            self.positives,
            group.size,
            group.count,
            ridge=self.ridge,
            tolerance=self.tolerance,
        )

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the drawn patches."""
        return sample_bytes(group, self._count_patches(group))

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the drawn patches."""
        return sample_workspace_bytes(group, self._count_patches(group))

    def _count_patches(self, group: FilterGroup) -> int:
        """Return the number of patches of all draws."""
        return len(group.streams) * (self.positives + self.negatives)


@lru_cache(maxsize=8)  # the groups of two layers: all chunks of a pass ask for the same draws
def _draw(
    positives: int, negatives: int, group: FilterGroup, class_counts: tuple[int, ...]
) -> Draws:
    """Return the draws of a group, from training images of which `class_counts` are of each class.

    Draw t depends on the seed, the layer and t only.
    """
    rows, columns = group.positions
    return stacked_lda_draws(
        [group.rng(index) for index in range(len(group.streams))],
        class_counts,
        positives=positives,
        negatives=negatives,
        rows=rows,
        columns=columns,
    )
