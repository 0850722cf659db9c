"""Moments of image patches: count, mean and scatter of every valid k×k×c patch of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.products import patch_products


@dataclass(frozen=True, slots=True)
class PatchMoments:
    """Count, mean (p,) and centered scatter (p, p) of a set of patches, p = k²c, in float64.

    `merge` is associative and `empty` is its identity.
    """

    count: int
    mean: Array
    scatter: Array

    @classmethod
    def empty(cls, directions: int) -> PatchMoments:
        """The moments of no patch."""
        return cls(0, np.zeros(directions), np.zeros((directions, directions)))

    def merge(self, other: PatchMoments) -> PatchMoments:
        """Moments of both sets together: S = S₁ + S₂ + n₁n₂/(n₁+n₂) δδᵀ, δ = m₂ − m₁."""
        count = self.count + other.count
        if not (self.count and other.count):
            return self if self.count else other
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        between = np.outer(delta, delta) * (self.count * other.count / count)
        return PatchMoments(count, mean, self.scatter + other.scatter + between)

    def only(self, directions: Array) -> PatchMoments:
        """Moments of some directions (p',) of the patches."""
        scatter = self.scatter[np.ix_(directions, directions)]
        return PatchMoments(self.count, self.mean[directions], scatter)

    def rescale(self, low: Array, scale: Array) -> PatchMoments:
        """Moments of the patches of (image − low)·scale, both (c,): min-max after the fact."""
        repeats = len(self.mean) // len(low)
        low, scale = np.tile(low, repeats), np.tile(scale, repeats)
        return PatchMoments(
            self.count, (self.mean - low) * scale, self.scatter * np.outer(scale, scale)
        )


def patch_scatter(images: Array, size: int) -> PatchMoments:
    """Moments of all valid size×size patches of images (n, H, W, c), at stride 1.

    A patch is flattened in the order row, column, channel.
    """
    return patch_statistics(LayerInput.of(images), size)[2]


def patch_statistics(inputs: LayerInput, size: int) -> tuple[Array, Array, PatchMoments]:
    """The least and largest value of each channel, (c,) each, and the moments of all patches."""
    height, width, channels = inputs.shape
    low, high, sums = inputs.sums()
    count = len(inputs) * max(0, height - size + 1) * max(0, width - size + 1)
    if not count:
        return low, high, PatchMoments.empty(size * size * channels)
    shift = (sums.sum(axis=(0, 1)) / (len(inputs) * height * width)).astype(np.float32)
    products = patch_products(inputs, size, shift, np.maximum(high - shift, shift - low))
    offset = np.tile(shift.astype(np.float64), size * size)
    mean = _offset_sums(sums, size) / count - offset
    moments = PatchMoments(count, mean + offset, products - np.outer(mean, mean) * count)
    return low, high, moments


def _offset_sums(sums: Array, size: int) -> Array:
    """Σ over all patches, (k²c,), from that over all images (H, W, c): of the rectangle that each
    offset sweeps over."""
    height, width, _ = sums.shape
    table = np.pad(sums.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0), (0, 0)))
    rows, columns = height - size + 1, width - size + 1
    first = table[:size, :size]
    return (
        table[rows : rows + size, columns : columns + size]
        - table[rows : rows + size, :size]
        - table[:size, columns : columns + size]
        + first
    ).reshape(-1)
