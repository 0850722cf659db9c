"""Sums of the input of a layer over the images of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.patches import InputSums


@dataclass(frozen=True, slots=True)
class ClassSums:
    """Count and sum of the images of each class, in float64.

    A patch of the mean image of a class is the mean of its patches at that place. `merge` is
    associative and `empty` is its identity.

    Attributes
    ----------
    counts : ndarray of shape (C,)
        The number of images of each class, or the sum of their weights. A NumPy array.
    sums : ndarray of shape (C, H, W, c)
        The weighted sum of the images of each class.
    """

    counts: Array
    sums: Array

    @classmethod
    def empty(cls, classes: int, image_shape: tuple[int, int, int]) -> ClassSums:
        """Return the sums of no image.

        Parameters
        ----------
        classes : int
            The number of classes C.
        image_shape : tuple of int
            Height, width and channels (H, W, c).

        Returns
        -------
        ClassSums of images of shape (H, W, c)
            The identity of `merge`.
        """
        return cls(np.zeros(classes), np.zeros((classes, *image_shape)))

    @classmethod
    def of(cls, inputs: LayerInput, labels: Array, classes: int) -> ClassSums:
        """Compute the sums of the selected images.

        Parameters
        ----------
        inputs : LayerInput of m images of shape (H, W, c)
            The input of the layer.
        labels : ndarray of int, shape (m,)
            The labels of the selected images.
        classes : int
            The number of classes C.

        Returns
        -------
        ClassSums of images of shape (H, W, c)
            Their sums.
        """
        counts = np.zeros(classes)
        sums = get_array_module(inputs.images).zeros((classes, *inputs.shape))
        for label in np.unique(labels):
            members = inputs.select(labels == label)
            counts[label] = members.count
            sums[label] = InputSums.of(members).sums
        return cls(counts, sums)

    def merge(self, other: ClassSums) -> ClassSums:
        """Return the sums of both sets of images.

        Parameters
        ----------
        other : ClassSums of images of shape (H, W, c)
            The sums of other images.

        Returns
        -------
        ClassSums of images of shape (H, W, c)
            The merged sums.
        """
        return ClassSums(self.counts + other.counts, self.sums + other.sums)

    def select(self, channels: Array) -> ClassSums:
        """Return the sums of some channels.

        Parameters
        ----------
        channels : ndarray of int, shape (c',)
            The indices of the channels.

        Returns
        -------
        ClassSums of images of shape (H, W, c')
            The sums of these channels.
        """
        return ClassSums(self.counts, self.sums[..., asarray_like(channels, self.sums)])

    def rescale(self, low: Array, scale: Array) -> ClassSums:
        """Return the sums of (image − low)·scale.

        Parameters
        ----------
        low : ndarray of shape (c,)
            The offset of each channel.
        scale : ndarray of shape (c,)
            The scale of each channel.

        Returns
        -------
        ClassSums of images of shape (H, W, c)
            The sums after rescaling.
        """
        offsets = self.counts[:, None, None, None] * low
        return ClassSums(self.counts, (self.sums - offsets) * scale)
