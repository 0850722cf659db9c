"""Moments of image patches: count, mean and scatter of all valid k×k×c patches of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.inputs import LayerInput


@dataclass(frozen=True, slots=True)
class PatchMoments:
    """Count, mean and centered scatter of a set of patches of p = k²c elements, in float64.

    `merge` is associative and `empty` is its identity.

    Attributes
    ----------
    count : int or float
        The number of patches, or the sum of their weights.
    mean : ndarray of shape (p,)
        Their mean.
    scatter : ndarray of shape (p, p)
        Σ(x − mean)(x − mean)ᵀ.
    """

    count: float
    mean: Array
    scatter: Array

    @classmethod
    def empty(cls, directions: int) -> PatchMoments:
        """Return the moments of no patch.

        Parameters
        ----------
        directions : int
            The number p of elements of a patch.

        Returns
        -------
        PatchMoments of p elements
            The identity of `merge`.
        """
        return cls(0, np.zeros(directions), np.zeros((directions, directions)))

    def merge(self, other: PatchMoments) -> PatchMoments:
        """Return the moments of both sets: S = S₁ + S₂ + n₁n₂/(n₁+n₂) δδᵀ, δ = m₂ − m₁.

        Parameters
        ----------
        other : PatchMoments of p elements
            The moments of other patches.

        Returns
        -------
        PatchMoments of p elements
            The merged moments.
        """
        count = self.count + other.count
        if not (self.count and other.count):
            return self if self.count else other
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        between = np.outer(delta, delta) * (self.count * other.count / count)
        return PatchMoments(count, mean, self.scatter + other.scatter + between)

    def select(self, directions: Array) -> PatchMoments:
        """Return the moments of some elements of the patches.

        Parameters
        ----------
        directions : ndarray of int, shape (p',)
            The indices of the elements.

        Returns
        -------
        PatchMoments of p' elements
            The moments of these elements.
        """
        scatter = self.scatter[np.ix_(directions, directions)]
        return PatchMoments(self.count, self.mean[directions], scatter)

    def rescale(self, low: Array, scale: Array) -> PatchMoments:
        """Return the moments of the patches of (image − low)·scale.

        Parameters
        ----------
        low : ndarray of shape (c,)
            The offset of each channel.
        scale : ndarray of shape (c,)
            The scale of each channel.

        Returns
        -------
        PatchMoments of p elements
            The moments after rescaling.
        """
        repeats = len(self.mean) // len(low)
        low, scale = np.tile(low, repeats), np.tile(scale, repeats)
        return PatchMoments(
            self.count, (self.mean - low) * scale, self.scatter * np.outer(scale, scale)
        )

    def transform(self, matrix: Array, offset: Array) -> PatchMoments:
        """Return the moments of A(x − offset) of the patches x.

        Parameters
        ----------
        matrix : ndarray of shape (p, p)
            A.
        offset : ndarray of shape (p,)
            The offset.

        Returns
        -------
        PatchMoments of p elements
            The moments after the transform.
        """
        return PatchMoments(
            self.count, matrix @ (self.mean - offset), matrix @ self.scatter @ matrix.T
        )


@dataclass(frozen=True, slots=True)
class InputSums:
    """Extremes and sums of the input of a layer, gathered in one sweep over memory.

    Attributes
    ----------
    low : ndarray of shape (c,)
        The minimum of each channel.
    high : ndarray of shape (c,)
        The maximum of each channel.
    sums : ndarray of float64, shape (H, W, c)
        The sum over all images, weighted if the input has weights.
    """

    low: Array
    high: Array
    sums: Array

    @classmethod
    def of(cls, inputs: LayerInput) -> InputSums:
        """Compute the extremes and sums of the selected images.

        Parameters
        ----------
        inputs : LayerInput of n images of shape (H, W, c)
            The input of the layer.

        Returns
        -------
        InputSums
            Its extremes and sums.
        """
        return cls(*get_operations(inputs.images).gather_sums(inputs))

    def take(self, channels: Sequence[int]) -> InputSums:
        """Return the extremes and sums of some channels.

        Parameters
        ----------
        channels : sequence of int
            The indices of the channels.

        Returns
        -------
        InputSums
            Those of an input with these channels only.
        """
        own = asarray_like(np.array(channels), self.low)
        return InputSums(self.low[own], self.high[own], self.sums[:, :, own])


def center_patches(patches: Array, size: int) -> Array:
    """Subtract the mean of each patch, channel by channel.

    Parameters
    ----------
    patches : ndarray of shape (..., k²c)
        Patches, flattened in the order row, column, channel.
    size : int
        The side k of the patches, in pixels.

    Returns
    -------
    ndarray of shape (..., k²c)
        The patches, in which each channel has the mean 0.
    """
    split = patches.reshape(*patches.shape[:-1], size * size, -1)
    return (split - split.mean(axis=-2, keepdims=True)).reshape(patches.shape)


def patch_scatter(images: Array, size: int) -> PatchMoments:
    """Compute the moments of all valid patches of images, at stride 1.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, c)
        The images.
    size : int
        The side k of the patches, in pixels.

    Returns
    -------
    PatchMoments of k²c elements
        A patch is flattened in the order row, column, channel.
    """
    inputs = LayerInput.of(images)
    return patch_moments(inputs, size, InputSums.of(inputs))


def patch_moments(inputs: LayerInput, size: int, input_sums: InputSums) -> PatchMoments:
    """Compute the moments of all valid patches of the input of a layer, at stride 1.

    The patches of an image have the weight of the image.

    Parameters
    ----------
    inputs : LayerInput of n images of shape (H, W, c)
        The input of the layer.
    size : int
        The side k of the patches, in pixels.
    input_sums : InputSums
        Its extremes and sums.

    Returns
    -------
    PatchMoments of k²c elements
        A patch is flattened in the order row, column, channel.
    """
    height, width, channels = inputs.shape
    operations = get_operations(inputs.images)
    low, high, sums = input_sums.low, input_sums.high, input_sums.sums
    images = inputs.count
    count = images * max(0, height - size + 1) * max(0, width - size + 1)
    if not count:
        return PatchMoments.empty(size * size * channels)
    shift = (sums.sum(axis=(0, 1)) / (images * height * width)).astype(np.float32)
    extent = np.maximum(high - shift, shift - low)
    products = operations.patch_products(inputs, size, shift, extent)
    offset = np.tile(shift.astype(np.float64), size * size)
    mean = _sum_patches(sums, size) / count - offset
    between = np.outer(mean, mean)
    between *= count
    products -= between
    return PatchMoments(count, mean + offset, products)


def _sum_patches(sums: Array, size: int) -> Array:
    """Return the sum (k²c,) over all patches from the sum (H, W, c) over all images.

    Each offset in a patch visits a rectangle of pixels, summed by a summed-area table.
    """
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
