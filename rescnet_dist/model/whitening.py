"""Whitening of patches for any filter learner: it fits filters of whitened patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import PatchMoments
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.filters import check_patch_scatter
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import Observation, moments_bytes, moments_workspace_bytes
from rescnet_dist.options import option

TRANSFORM_COPIES = 2  # of the statistics of a learner: transformed, and while they are


@dataclass(frozen=True, slots=True)
class WhitenedStatistics:
    """The moments of all patches, and what the learner has gathered.

    Attributes
    ----------
    moments : PatchMoments of k²c elements
        The moments of all patches.
    gathered : Statistics
        The statistics of the learner, of patches that are not whitened.
    """

    moments: PatchMoments
    gathered: Any

    def merge(self, other: WhitenedStatistics) -> WhitenedStatistics:
        """Return the statistics of both sets of images."""
        return WhitenedStatistics(
            self.moments.merge(other.moments), self.gathered.merge(other.gathered)
        )

    def rescale(self, low: Array, scale: Array) -> WhitenedStatistics:
        """Return the statistics of (input − low)·scale."""
        return WhitenedStatistics(
            self.moments.rescale(low, scale), self.gathered.rescale(low, scale)
        )


@dataclass(frozen=True, slots=True)
class Whitened(FilterLearner):
    """A learner of filters of whitened patches W(x − μ), W = (Σ + ridge·mean(diag Σ)·I)^-½.

    The transform is part of the filters: those of the learner, w, become Ww with the bias
    b − (Ww)ᵀμ, so that a layer sees patches as they are. If the mean of each patch is subtracted,
    that comes first, and Σ is the covariance of patches without it. The option `whiten` of a part
    of the bank makes the learner; it is in no registry.
    """

    learner: FilterLearner = option(help="what fits the filters")
    ridge: float = option(
        0.1, help="ridge of the whitening, relative to the mean patch variance", above=0
    )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the learner."""
        return self.learner.name

    @property
    def label(self) -> str:  # type: ignore[override]
        """What pictures of the filters are called."""
        return self.learner.label

    def max_filters(self, directions: int) -> int | None:
        """Return the largest number of filters of the learner."""
        return self.learner.max_filters(directions)

    def streams(self, count: int) -> int:
        """Return the number of random streams of the learner."""
        return self.learner.streams(count)

    def check_group(self, group: FilterGroup) -> None:
        """Raise SpecError if the learner cannot fit the filters, or not of whitened patches."""
        self.learner.check_group(group)
        self.empty(group)

    def empty(self, group: FilterGroup) -> WhitenedStatistics:
        """Return the statistics of no image; raise SpecError if they cannot be transformed."""
        gathered = self.learner.empty(group)
        if not hasattr(gathered, "transform"):
            raise SpecError(
                f"whiten={self.ridge} is not possible for {self.learner.name!r} filters, whose "
                f"{type(gathered).__name__} has no method transform(matrix, offset). Add it, or "
                "leave whiten out."
            )
        return WhitenedStatistics(PatchMoments.empty(group.directions), gathered)

    def observe(self, chunk: Observation, group: FilterGroup) -> WhitenedStatistics:
        """Return the moments of all patches of a chunk, and what the learner gathers."""
        return WhitenedStatistics(chunk.patch_moments(group), self.learner.observe(chunk, group))

    def fit(self, statistics: WhitenedStatistics, group: FilterGroup) -> tuple[Array, Array]:
        """Return the filters (k, k, c, count) and biases (count,) of patches as they are."""
        moments = statistics.moments
        mean, covariance = moments.mean, moments.scatter / moments.count
        matrix = group.center(whitening_matrix(group.center_scatter(covariance), self.ridge))
        filters, bias = self.learner.fit(statistics.gathered.transform(matrix, mean), group)
        weights = matrix.T @ filters.reshape(group.directions, group.count)
        return weights.reshape(filters.shape), bias - mean @ weights

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the scatter matrix and of the learner's statistics."""
        return moments_bytes(group) + self.learner.statistics_bytes(group)

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the scatter matrix and of the learner's statistics."""
        transformed = TRANSFORM_COPIES * self.learner.statistics_bytes(group)
        return moments_workspace_bytes(group) + self.learner.workspace_bytes(group) + transformed


def whitening_matrix(covariance: Array, ridge: float) -> Array:
    """Return the symmetric (Σ + ridge·mean(diag Σ)·I)^-½ of the patch covariance Σ (p, p)."""
    check_patch_scatter(covariance)
    values, vectors = scipy.linalg.eigh(covariance)
    values = np.maximum(values, 0)
    values += ridge * (float(np.mean(values)) or 1.0)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)
