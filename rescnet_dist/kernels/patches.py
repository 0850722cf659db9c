"""Moments of image patches: count, mean and scatter of every valid k×k×c patch of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rescnet_dist.kernels.products import patch_products

Array = np.ndarray[Any, np.dtype[Any]]

BATCH_BYTES = 4 * 2**20  # of unfolded patches held at a time


@dataclass(frozen=True, slots=True)
class PatchMoments:
    """Count, mean (p,) and centred scatter (p, p) of a set of patches, p = k²c, in float64.

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

    def rescale(self, low: Array, scale: Array) -> PatchMoments:
        """Moments of the patches of (image − low)·scale, both (c,): min-max after the fact."""
        repeats = len(self.mean) // len(low)
        low, scale = np.tile(low, repeats), np.tile(scale, repeats)
        return PatchMoments(
            self.count, (self.mean - low) * scale, self.scatter * np.outer(scale, scale)
        )


def unfold(images: Array, size: int) -> Array:
    """All valid size×size patches of images (n, H, W, c), as a view (n, H', W', size, size, c)."""
    windows = sliding_window_view(images, (size, size), axis=(1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3)


def patch_scatter(images: Array, size: int) -> PatchMoments:
    """Moments of all valid size×size patches of images (n, H, W, c), at stride 1.

    A patch is flattened in the order row, column, channel.
    """
    n, height, width, channels = images.shape
    directions = size * size * channels
    rows, columns = height - size + 1, width - size + 1
    if n == 0 or rows < 1 or columns < 1:
        return PatchMoments.empty(directions)
    shift = images.mean(axis=(0, 1, 2), dtype=np.float64)
    centred = np.asarray(images - shift.astype(np.float32), dtype=np.float32)
    shift = shift.astype(np.float32).astype(np.float64)
    count = n * rows * columns
    sums = _offset_sums(centred, size)
    products = patch_products(centred, size)
    mean = sums / count
    return PatchMoments(
        count, mean + np.tile(shift, size * size), products - np.outer(mean, mean) * count
    )


def _offset_sums(images: Array, size: int) -> Array:
    """Σ over all patches, (k²c,): the sum of the image over the rectangle each offset sweeps."""
    height, width, channels = images.shape[1:]
    table = np.zeros((height + 1, width + 1, channels))
    table[1:, 1:] = images.sum(axis=0, dtype=np.float64).cumsum(axis=0).cumsum(axis=1)
    rows, columns = height - size + 1, width - size + 1
    first = table[:size, :size]
    return (
        table[rows : rows + size, columns : columns + size]
        - table[rows : rows + size, :size]
        - table[:size, columns : columns + size]
        + first
    ).reshape(-1)
