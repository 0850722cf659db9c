"""CCA filters: directions in which two views of the same patch correlate most, as in CCANet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import PatchMoments
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.eigen import leading_eigenvectors
from rescnet_dist.kernels.filters import check_patch_scatter, orient_filters
from rescnet_dist.kernels.solving import inverse_deviations
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import MOMENTS_COPIES, Observation
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class TwoViewMoments:
    """The joint moments of patches as the tower sees them and as the others see them.

    Attributes
    ----------
    own : int
        The number k²c of elements that the tower sees. They come first.
    moments : PatchMoments of k²C elements
        The moments of all elements.
    """

    own: int
    moments: PatchMoments

    def merge(self, other: TwoViewMoments) -> TwoViewMoments:
        """Return the moments of both sets of images."""
        return TwoViewMoments(self.own, self.moments.merge(other.moments))

    def rescale(self, low: Array, scale: Array) -> TwoViewMoments:
        """Return the moments of (input − low)·scale; what other towers see is left as it is."""
        others, repeats = len(self.moments.mean) - self.own, self.own // len(low)
        low = np.concatenate([np.tile(low, repeats), np.zeros(others)])
        scale = np.concatenate([np.tile(scale, repeats), np.ones(others)])
        return TwoViewMoments(self.own, self.moments.rescale(low, scale))

    def transform(self, matrix: Array, offset: Array) -> TwoViewMoments:
        """Return the moments of matrix·(x − offset) of the patches x of the tower."""
        others = len(self.moments.mean) - self.own
        offset = np.concatenate([offset, np.zeros(others)])
        matrix = scipy.linalg.block_diag(matrix, np.eye(others))
        return TwoViewMoments(self.own, self.moments.transform(matrix, offset))


@dataclass(frozen=True, slots=True)
class CCA(FilterLearner):
    """Canonical directions of the patches of a tower with those of the other towers.

    CCANet (Yang et al., 2017) is for images that come in two views. Here the views are those of the
    towers at the same place: the image and its local contrast in layer 1, and also the maps of each
    tower in later layers. The leading correlations come first. The ridge is relative to the
    variance of each element, so that no scale of a view changes the directions.
    """

    label: ClassVar[str] = "CCA"
    min_towers: ClassVar[int] = 2
    name: ClassVar[str] = "cca"
    prefix: ClassVar[str] = "cca_"

    ridge: float = option(
        0.1, help="ridge of the covariance of each view, relative to its diagonal", above=0
    )

    def max_filters(self, directions: int) -> int:
        """Return the number of directions."""
        return directions

    def check_group(self, group: FilterGroup) -> None:
        """Raise SpecError for filters on each channel if channels do not make pairs."""
        if not group.sharing:
            return
        own = len(group.sharing[1])
        others = group.input_channels - own
        if own != others:
            raise SpecError(
                f"cca filters on each channel (+each) compare each channel of a view with one of "
                f"another view, but layer {group.layer} has {own} channels of a view and {others} "
                "of all others. Use two views with the same share, or leave +each out."
            )

    def empty(self, group: FilterGroup) -> TwoViewMoments:
        """Return the moments of no patch."""
        return TwoViewMoments(group.directions, PatchMoments.empty(_count_elements(group)))

    def observe(self, chunk: Observation, group: FilterGroup) -> TwoViewMoments:
        """Return the joint moments of all patches of a chunk."""
        return TwoViewMoments(group.directions, chunk.joint_moments(group))

    def fit(self, statistics: TwoViewMoments, group: FilterGroup) -> tuple[Array, Array]:
        """Return the canonical directions (k, k, c, count), of unit norm, and a bias of zero."""
        moments, own = statistics.moments, statistics.own
        check_patch_scatter(moments.scatter)
        covariance = _center(moments.scatter / moments.count, own, group)
        scale = inverse_deviations(np.diagonal(covariance), moments.mean)
        correlation = covariance * np.outer(scale, scale)
        values, axes = _ridged_eigen(correlation[own:, own:], self.ridge)
        other = axes.T @ correlation[own:, :own] / np.sqrt(values)[:, None]
        values, axes = _ridged_eigen(correlation[:own, :own], self.ridge)
        metric = (axes * values) @ axes.T
        vectors = leading_eigenvectors(other.T @ other, group.count, metric)
        vectors *= scale[:own, None]
        norm = np.linalg.norm(vectors, axis=0)
        vectors /= np.where(norm > 0, norm, 1)
        return orient_filters(vectors, group.size), np.zeros(group.count)

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the joint scatter matrix."""
        return 8 * _count_elements(group) ** 2

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the joint scatter matrix."""
        return MOMENTS_COPIES * self.statistics_bytes(group)


def _ridged_eigen(correlation: Array, ridge: float) -> tuple[Array, Array]:
    """Return eigenvalues (p,) plus ridge and eigenvectors (p, p) of a correlation matrix (p, p).

    Rounding makes eigenvalues negative where maps hardly vary; they count as 0.
    """
    values, vectors = scipy.linalg.eigh(correlation)
    return np.maximum(values, 0) + ridge, vectors


def _count_elements(group: FilterGroup) -> int:
    """Return the number of elements of a patch in all views."""
    return 2 * group.directions if group.sharing else group.input_directions


def _center(covariance: Array, own: int, group: FilterGroup) -> Array:
    """Return the joint covariance of patches, of centered patches if the group is centered."""
    if group.centered:
        for _ in range(2):  # rows, then columns
            views = np.split(covariance, [own], axis=1)
            covariance = np.concatenate([group.center(view) for view in views], axis=1).T
    return covariance
