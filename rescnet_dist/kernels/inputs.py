"""The input of a layer: the maps of the layer before it and the image, not concatenated.

The channels of a pixel are those of the maps and then those of the image, as if both were
concatenated; but a concatenation would cost one more pass through memory for each use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module


@dataclass(frozen=True, slots=True)
class LayerInput:
    """The input of a layer for selected images, with c = f + d channels.

    Attributes
    ----------
    maps : ndarray of shape (n, H, W, f)
        The maps of the layer before, f = 0 for the first layer.
    images : ndarray of shape (n, H, W, d)
        The images, of the same dtype. Both are C-contiguous, in single or double precision.
    rows : ndarray of int, shape (m,)
        The indices of the selected images.
    weights : ndarray of float64, shape (n,), optional
        As how many images each counts in sums; each counts once by default. A NumPy array.
    """

    maps: Array
    images: Array
    rows: Array
    weights: Array | None = None

    @classmethod
    def of(
        cls, images: Array, maps: Array | None = None, weights: Array | None = None
    ) -> LayerInput:
        """Return the input of all images.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            The images, which are converted to float32 unless they are float64.
        maps : ndarray of shape (n, H, W, f), optional
            The maps of the layer before; none by default.
        weights : ndarray of shape (n,), optional
            As how many images each counts in sums; each counts once by default.

        Returns
        -------
        LayerInput of n images
            The input, of the dtype of the converted images.
        """
        xp = get_array_module(images)
        images = xp.ascontiguousarray(images, np.float64 if images.dtype == "f8" else np.float32)
        if maps is None:
            maps = xp.empty((*images.shape[:3], 0), images.dtype)
        rows = np.arange(len(images))
        return cls(xp.ascontiguousarray(maps, images.dtype), images, rows, weights)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_weights(self) -> Array | None:
        """The weights (m,) of the selected images; None if each counts once."""
        return None if self.weights is None else self.weights[self.rows]

    @property
    def count(self) -> float:
        """The number of selected images, or the sum of their weights."""
        return len(self) if self.weights is None else float(self.weights[self.rows].sum())

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (H, W, c) of one image."""
        _, height, width, channels = self.images.shape
        return height, width, self.maps.shape[3] + channels

    def select(self, selection: Array | slice) -> LayerInput:
        """Return the input of some of the selected images.

        Parameters
        ----------
        selection : ndarray of int or bool, or slice
            Indices or a mask of the selected images, or a slice of them.

        Returns
        -------
        LayerInput
            The input of those images, which shares the arrays.
        """
        return replace(self, rows=self.rows[selection])

    def select_arrays(self) -> tuple[Array, Array]:
        """Return the maps and the pixels of the selected images.

        Returns
        -------
        maps : ndarray of shape (m, H, W, f)
            Their maps, not copied if all images are selected.
        images : ndarray of shape (m, H, W, d)
            The images, likewise.
        """
        if np.array_equal(self.rows, np.arange(len(self.images))):
            return self.maps, self.images
        rows = asarray_like(self.rows, self.images)
        return self.maps[rows], self.images[rows]

    def take(self, channels: Sequence[int]) -> LayerInput:
        """Return the input with some of its channels only.

        Parameters
        ----------
        channels : sequence of int
            The indices of the channels, those of the maps first.

        Returns
        -------
        LayerInput
            The same images and weights, copied.
        """
        maps, images = self.select_arrays()
        first, indices = maps.shape[3], np.asarray(channels)
        own, others = indices[indices < first], indices[indices >= first] - first
        taken = np.concatenate([maps[..., own], images[..., others]], axis=3)
        return LayerInput.of(taken, None, self.row_weights)

    def batches(self, step: int) -> Iterator[LayerInput]:
        """Yield the input in batches.

        Parameters
        ----------
        step : int
            The largest number of images in a batch.

        Yields
        ------
        LayerInput of at most `step` images
            The next batch.
        """
        if 0 < len(self) <= step:
            yield self
            return
        for start in range(0, len(self), step):
            yield self.select(slice(start, start + step))

    def extract_patches(self, size: int, row: Array, y: Array, x: Array) -> Array:
        """Extract p patches at given places.

        Parameters
        ----------
        size : int
            The side of the patches, in pixels.
        row : ndarray of int, shape (p,)
            The image of each patch, as its index among the selected images.
        y : ndarray of int, shape (p,)
            The row of the first pixel of each patch.
        x : ndarray of int, shape (p,)
            The column of the first pixel of each patch.

        Returns
        -------
        ndarray of shape (p, size²·c)
            The patches, flattened in the order row, column, channel.
        """
        down, right = np.arange(size)[:, None], np.arange(size)
        indices = (self.rows[row][:, None, None], y[:, None, None] + down, x[:, None, None] + right)
        location = tuple(asarray_like(index, self.images) for index in indices)
        patches = np.concatenate([self.maps[location], self.images[location]], axis=3)
        return patches.reshape(len(row), size * size * self.shape[2])
