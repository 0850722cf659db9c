"""LDA filters: directions in which the patches of classes differ most, as in LDANet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels import (
    ClassSums,
    InputSums,
    LayerInput,
    PatchMoments,
    patch_moments,
    patch_scatter,
)
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.eigen import leading_eigenvectors
from rescnet_dist.kernels.filters import check_patch_scatter, orient_filters
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import Observation, moments_bytes, moments_workspace_bytes
from rescnet_dist.options import option

CLASS_SUMS_COPIES = 5  # of a chunk, two to merge, merged, rescaled


@dataclass(frozen=True, slots=True)
class ClassPatchStatistics:
    """The moments of all patches, and the sums of the images of each class.

    Attributes
    ----------
    moments : PatchMoments of k²c elements
        The moments of all patches.
    classes : ClassSums of images of shape (H, W, c)
        The sums of the images of each class.
    transforms : tuple of ndarray of shape (k²c, k²c)
        Transforms of patches that scatters are multiplied by, one after the other. Mean images
        cannot be transformed, as the patches of an image share pixels.
    """

    moments: PatchMoments
    classes: ClassSums
    transforms: tuple[Array, ...] = ()

    def merge(self, other: ClassPatchStatistics) -> ClassPatchStatistics:
        """Return the statistics of both sets of images."""
        return ClassPatchStatistics(
            self.moments.merge(other.moments), self.classes.merge(other.classes)
        )

    def rescale(self, low: Array, scale: Array) -> ClassPatchStatistics:
        """Return the statistics of (input − low)·scale."""
        return ClassPatchStatistics(
            self.moments.rescale(low, scale), self.classes.rescale(low, scale)
        )

    def transform(self, matrix: Array, offset: Array) -> ClassPatchStatistics:
        """Return the statistics of matrix·(x − offset) of the patches x."""
        return replace(self, transforms=(*self.transforms, matrix))

    def scatters(self, size: int) -> tuple[Array, Array]:
        """Return the between-class and within-class scatter (k²c, k²c) of patches of side k.

        The mean of a class is that of its patches at the same place: a patch of the mean image.
        """
        present = self.classes.counts > 0
        counts, sums = self.classes.counts[present], self.classes.sums[present]
        mean = sums.sum(axis=0) / counts.sum()
        deviations = LayerInput.of(sums / counts[:, None, None, None] - mean, weights=counts)
        between = patch_moments(deviations, size, InputSums.of(deviations)).scatter
        places = patch_scatter(mean[None], size).scatter * counts.sum()  # of the mean patches
        within = self.moments.scatter - places - between
        for matrix in self.transforms:
            between, within = matrix @ between @ matrix.T, matrix @ within @ matrix.T
        return between, within


@dataclass(frozen=True, slots=True)
class LDA(FilterLearner):
    """Directions with the largest ratio of between-class to within-class scatter of patches.

    As in LDANet (Chan et al., 2015), the mean patch of a class is taken at each place of the images
    for itself. This gives as many directions as a patch has elements, where means over all places
    would give one less than there are classes. Classes count by their images, and a ridge stands
    in place of LDANet's pseudo-inverse.
    """

    label: ClassVar[str] = "discriminant"
    name: ClassVar[str] = "lda"
    prefix: ClassVar[str] = "discriminant_"

    ridge: float = option(
        0.1, help="ridge of the within-class scatter, relative to its mean diagonal", above=0
    )

    def max_filters(self, directions: int) -> int:
        """Return the number of directions."""
        return directions

    def empty(self, group: FilterGroup) -> ClassPatchStatistics:
        """Return the statistics of no image."""
        shape = (*group.image_size, len(group.channels))
        return ClassPatchStatistics(
            PatchMoments.empty(group.directions), ClassSums.empty(group.classes, shape)
        )

    def observe(self, chunk: Observation, group: FilterGroup) -> ClassPatchStatistics:
        """Return the moments of all patches of a chunk, and the sums of its classes."""
        return ClassPatchStatistics(chunk.patch_moments(group), chunk.class_sums(group))

    def fit(self, statistics: ClassPatchStatistics, group: FilterGroup) -> tuple[Array, Array]:
        """Return the leading directions (k, k, c, count), of unit norm, and a bias of zero."""
        check_patch_scatter(statistics.moments.scatter)
        between, within = map(group.center_scatter, statistics.scatters(group.size))
        variance = float(np.mean(np.diagonal(within)))
        within[np.diag_indices(len(within))] += self.ridge * (variance if variance > 0 else 1.0)
        vectors = leading_eigenvectors(between, group.count, within)
        vectors /= np.linalg.norm(vectors, axis=0)
        return orient_filters(vectors, group.size), np.zeros(group.count)

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the scatter matrix and of the sums of all classes."""
        return moments_bytes(group) + _class_sums_bytes(group, len(group.channels))

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the scatter matrix and of the sums of all classes."""
        sharing = len(group.sharing[1]) if group.sharing else 1  # one of these sums all channels
        channels = math.ceil(group.input_channels / sharing)
        sums = CLASS_SUMS_COPIES * _class_sums_bytes(group, channels)
        return moments_workspace_bytes(group) + sums


def _class_sums_bytes(group: FilterGroup, channels: int) -> int:
    """Return the bytes of the sums of all classes of so many channels."""
    height, width = group.image_size
    return 8 * group.classes * height * width * channels
