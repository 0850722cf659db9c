"""Filters of a supervised metric: directions along which the errors of the scores change most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels import PatchMoments
from rescnet_dist.kernels.arrays import Array, get_array_module
from rescnet_dist.kernels.cpu.eigen import leading_eigenvectors
from rescnet_dist.kernels.filters import check_patch_scatter, orient_filters
from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.observation import Observation, moments_bytes, moments_workspace_bytes
from rescnet_dist.options import option

PRODUCT_COPIES = 5  # of a chunk, two to merge, merged, rescaled


@dataclass(frozen=True, slots=True)
class ResidualMoments:
    """The moments of all patches x, and sums weighted by J errors r of their images, in float64.

    Attributes
    ----------
    moments : PatchMoments of p = k²c elements
        The moments of all patches.
    counts : ndarray of shape (J,)
        Σ r over all patches. A NumPy array.
    sums : ndarray of shape (J, p)
        Σ r x.
    products : ndarray of shape (J, p, p)
        Σ r x xᵀ.
    """

    moments: PatchMoments
    counts: Array
    sums: Array
    products: Array

    def merge(self, other: ResidualMoments) -> ResidualMoments:
        """Return the moments of both sets of images."""
        return ResidualMoments(
            self.moments.merge(other.moments),
            self.counts + other.counts,
            self.sums + other.sums,
            self.products + other.products,
        )

    def rescale(self, low: Array, scale: Array) -> ResidualMoments:
        """Return the moments of (input − low)·scale."""
        repeats = len(self.moments.mean) // len(low)
        factor, centered = np.tile(scale, repeats), self.center(np.tile(low, repeats))
        return ResidualMoments(
            self.moments.rescale(low, scale),
            self.counts,
            centered.sums * factor,
            centered.products * np.outer(factor, factor),
        )

    def transform(self, matrix: Array, offset: Array) -> ResidualMoments:
        """Return the moments of matrix·(x − offset)."""
        centered = self.center(offset)
        return ResidualMoments(
            self.moments.transform(matrix, offset),
            self.counts,
            centered.sums @ matrix.T,
            matrix @ centered.products @ matrix.T,
        )

    def center(self, offset: Array) -> ResidualMoments:
        """Return the moments of x − offset (p,)."""
        mixed = self.sums[:, :, None] * offset
        square = self.counts[:, None, None] * np.outer(offset, offset)
        return ResidualMoments(
            replace(self.moments, mean=self.moments.mean - offset),
            self.counts,
            self.sums - self.counts[:, None] * offset,
            self.products - mixed - mixed.transpose(0, 2, 1) + square,
        )


@dataclass(frozen=True, slots=True)
class ResidualMetric(FilterLearner):
    """Leading eigenvectors of the average outer product of gradients of the errors.

    A quadratic function of a patch, fitted to the error r of each class by least squares as if
    patches were normally distributed, is xᵀBx with B = Σ⁻¹MΣ⁻¹, where Σ is the covariance of all
    patches and M that of r and xxᵀ. Its gradient at x is 2Bx, so the average outer product of the
    gradients of all classes is proportional to the sum of BΣB. The errors are those of the scores
    that entered the layer before; the first layer has the classes themselves.
    """

    label: ClassVar[str] = "metric"
    name: ClassVar[str] = "residual-metric"
    prefix: ClassVar[str] = "metric_"

    ridge: float = option(
        3.0, help="ridge of the patch covariance, relative to its mean diagonal", above=0
    )
    combinations: int = option(
        8,
        help="largest number of errors per layer: classes, or sums of classes with random signs",
        doc="Largest number of errors that a layer takes patch products of. With more classes, "
        "these are sums of the errors of all classes with random signs.",
        low=1,
    )

    def max_filters(self, directions: int) -> int:
        """Return the number of eigenvectors."""
        return directions

    def streams(self, count: int) -> int:
        """Return one random stream, of the signs."""
        return 1

    def empty(self, group: FilterGroup) -> ResidualMoments:
        """Return the moments of no patch."""
        p, errors = group.directions, self._count_errors(group)
        return ResidualMoments(
            PatchMoments.empty(p), np.zeros(errors), np.zeros((errors, p)), np.zeros((errors, p, p))
        )

    def observe(self, chunk: Observation, group: FilterGroup) -> ResidualMoments:
        """Return the moments of a chunk, weighted by its errors."""
        moments = chunk.patch_moments(group)
        errors = chunk.errors @ self._signs(group)
        parts = [_gather(chunk, group, moments, column) for column in errors.T]
        xp = get_array_module(chunk.inputs.images)
        counts, sums, products = zip(*parts, strict=True)
        return ResidualMoments(moments, np.array(counts), xp.stack(sums), xp.stack(products))

    def fit(self, statistics: ResidualMoments, group: FilterGroup) -> tuple[Array, Array]:
        """Return the leading eigenvectors (k, k, c, count) and a bias (count,) of zero."""
        moments = statistics.moments
        check_patch_scatter(moments.scatter)
        covariance = group.center_scatter(moments.scatter / moments.count)
        variance = float(np.mean(np.diagonal(covariance)))
        shift = self.ridge * (variance if variance > 0 else 1.0)
        inverse = np.linalg.inv(covariance + shift * np.eye(group.directions))
        centered = statistics.center(moments.mean)
        inner, total = inverse @ covariance @ inverse, np.zeros_like(covariance)
        for count, products in zip(centered.counts, centered.products, strict=True):
            form = group.center_scatter(products) - count * covariance
            total += form @ inner @ form
        total = inverse @ total @ inverse  # the sum of BΣB, B = inverse·form·inverse
        check_patch_scatter(total)
        filters = orient_filters(leading_eigenvectors(total, group.count), group.size)
        return filters, np.zeros(group.count)

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of the scatter matrix and of the products of all errors."""
        p = group.directions
        return moments_bytes(group) + 8 * self._count_errors(group) * p * (p + 1)

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the bytes of all copies of the scatter matrix and of the products."""
        return moments_workspace_bytes(group) + PRODUCT_COPIES * self.statistics_bytes(group)

    def _count_errors(self, group: FilterGroup) -> int:
        """Return the number J of errors."""
        return min(group.classes, self.combinations)

    def _signs(self, group: FilterGroup) -> Array:
        """Return the factors (C, J) by which the errors of classes are summed."""
        if group.classes <= self.combinations:
            return np.eye(group.classes)
        return group.rng(0).choice([-1.0, 1.0], size=(group.classes, self.combinations))


def _gather(
    chunk: Observation, group: FilterGroup, moments: PatchMoments, errors: Array
) -> tuple[float, Array, Array]:
    """Return Σ r, Σ r x (p,) and Σ r x xᵀ (p, p) for the errors r (n,) of the images of a chunk.

    `moments` are those of the chunk without errors. Weights of patches must not be negative, so
    errors are raised by c, and c times the sums without errors is subtracted.
    """
    raised = -float(errors.min(initial=0))
    count, mean = -raised * moments.count, moments.mean
    total, products = count * mean, -raised * moments.scatter + count * np.outer(mean, mean)
    part = chunk.weighted_moments(group, errors + raised)
    if part.count:
        count += part.count
        total += part.count * part.mean
        products += part.scatter + part.count * np.outer(part.mean, part.mean)
    return count, total, products
