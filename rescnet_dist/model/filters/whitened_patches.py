"""Filters that are random training patches, whitened by the covariance of all patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import scipy

from rescnet_dist.kernels import Draws, PatchMoments, PatchSample
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import (
    Observation,
    moments_bytes,
    moments_workspace_bytes,
    sample_bytes,
    sample_workspace_bytes,
)
from rescnet_dist.options import option

TINY = float(np.finfo(np.float64).tiny)  # in place of the variance of patches that are all equal
CANDIDATES = 2  # patches drawn per filter: constant ones give no filter


@dataclass(frozen=True, slots=True)
class WhitenedPatchStatistics:
    """The moments of all patches, and those that were drawn.

    Attributes
    ----------
    moments : PatchMoments of k²c elements
        The moments of all patches.
    sample : PatchSample of k²c elements
        The drawn patches.
    """

    moments: PatchMoments
    sample: PatchSample

    def merge(self, other: WhitenedPatchStatistics) -> WhitenedPatchStatistics:
        """Return the statistics of both sets of images."""
        return WhitenedPatchStatistics(
            self.moments.merge(other.moments), self.sample.merge(other.sample)
        )

    def rescale(self, low: Array, scale: Array) -> WhitenedPatchStatistics:
        """Return the statistics of (input − low)·scale."""
        return WhitenedPatchStatistics(
            self.moments.rescale(low, scale), self.sample.rescale(low, scale)
        )

    def transform(self, matrix: Array, offset: Array) -> WhitenedPatchStatistics:
        """Return the statistics of matrix·(x − offset) of the patches x."""
        return WhitenedPatchStatistics(
            self.moments.transform(matrix, offset), self.sample.transform(matrix, offset)
        )


@dataclass(frozen=True, slots=True)
class WhitenedPatches(FilterLearner):
    """Random patches x as filters Σ⁻¹(x − μ), which compare whitened patches (Coates and Ng)."""

    label: ClassVar[str] = "patch"
    name: ClassVar[str] = "whitened-patches"
    prefix: ClassVar[str] = "whitened_"

    ridge: float = option(
        0.1, help="ridge of the whitening, relative to the mean patch variance", above=0
    )

    def streams(self, count: int) -> int:
        """Return one random stream per drawn patch."""
        return CANDIDATES * count

    def empty(self, group: FilterGroup) -> WhitenedPatchStatistics:
        """Return the statistics of no image."""
        return WhitenedPatchStatistics(
            PatchMoments.empty(group.directions), PatchSample.empty(group.directions)
        )

    def observe(self, chunk: Observation, group: FilterGroup) -> WhitenedPatchStatistics:
        """Return the moments of all patches of a chunk, and the drawn patches that are in it."""
        draws = _draw(group, tuple(chunk.class_counts.tolist()))
        return WhitenedPatchStatistics(chunk.patch_moments(group), chunk.patch_sample(draws, group))

    def fit(self, statistics: WhitenedPatchStatistics, group: FilterGroup) -> tuple[Array, Array]:
        """Return filters (k, k, c, count) of unit norm and biases −wᵀμ (count,).

        The patches of largest whitened contrast come first, of two drawn per filter.
        """
        moments = statistics.moments
        values, vectors = scipy.linalg.eigh(group.center_scatter(moments.scatter) / moments.count)
        values = np.maximum(values, 0) + self.ridge * max(float(np.mean(values)), TINY)
        centered = group.center(statistics.sample.patches.astype(np.float64) - moments.mean)
        coordinates = centered @ vectors / np.sqrt(values)
        contrast = np.square(coordinates).sum(axis=1)
        chosen = np.sort(np.argsort(-contrast, kind="stable")[: group.count])
        weights = (coordinates[chosen] / np.sqrt(values)) @ vectors.T
        norm = np.sqrt(np.square(weights).sum(axis=1, keepdims=True))
        weights /= np.where(norm > 0, norm, 1)
        filters = weights.T.reshape(group.size, group.size, len(group.channels), group.count)
        return filters, -(weights @ moments.mean)

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the scatter matrix and of the drawn patches."""
        return moments_bytes(group) + sample_bytes(group, len(group.streams))

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the scatter matrix and of the drawn patches."""
        drawn = sample_workspace_bytes(group, len(group.streams))
        return moments_workspace_bytes(group) + drawn


@lru_cache(maxsize=8)
def _draw(group: FilterGroup, class_counts: tuple[int, ...]) -> Draws:
    """Return one random patch per stream, of all training images with equal probability."""
    ends, count = np.cumsum(class_counts), len(group.streams)
    classes, rank, row, column = (np.zeros(count, np.int64) for _ in range(4))
    rows, columns = group.positions
    for index in range(count):
        rng = group.rng(index)
        image = rng.integers(ends[-1])
        classes[index] = np.searchsorted(ends, image, side="right")
        rank[index] = image - (ends[classes[index]] - class_counts[classes[index]])
        row[index], column[index] = rng.integers(rows), rng.integers(columns)
    return Draws(1, classes, rank[:, None], row[:, None], column[:, None])
