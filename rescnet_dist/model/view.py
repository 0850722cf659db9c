"""The base class of views: what filters see of the images, such as their local contrast.

To add a view, derive a class from `View`, give it a `name`, declare its options with `option`, and
put it into a module of its own in `views/`, or into an entry point of another package. Parts of a
bank then name it, as in `pca:0.5@contrast`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rescnet_dist.kernels.arrays import Array, to_host
from rescnet_dist.model.components import Component
from rescnet_dist.model.graph import OnnxGraph

ViewArrays = Mapping[str, Array]  # what a view has learned from the training images


class View(Component, ABC):
    """Computes pixels from images, each image for itself.

    A view may learn from the training images, in one or more passes over them. It has the methods
    `empty`, `observe` and `fit` then, and `arrays` names what is stored.

    Attributes
    ----------
    arrays : mapping of str to tuple of str
        The names of the learned arrays, and those of their dimensions in the store.
    uses_image_scale : bool
        Whether `ImageScale` normalizes the pixels. It is known after the first pass over the
        images, so such a view must return the images themselves, in float32.
    copies : int
        How many copies of the images in float32 are in memory while the pixels are computed, the
        pixels included.
    """

    __slots__ = ()

    arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    uses_image_scale: ClassVar[bool] = False
    copies: ClassVar[int] = 2

    @property
    def passes(self) -> int:
        """The number of passes over the training images in which the view learns."""
        return 0

    def channels(self, image_channels: int) -> int:
        """Return the number of channels of the pixels.

        Parameters
        ----------
        image_channels : int
            The number of channels d of the images.

        Returns
        -------
        int
            The number of channels, d by default.
        """
        return image_channels

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if images of this shape cannot be viewed.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Raises
        ------
        SpecError
            If the images are too small or too large.
        """

    def empty(self, image_shape: tuple[int, int, int], known: ViewArrays, xp: Any = np) -> Any:
        """Return the statistics of no image.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.
        known : mapping of str to ndarray
            The arrays of earlier passes; none in the first pass.
        xp : module, default numpy
            The array module of the images, numpy or cupy.

        Returns
        -------
        Statistics
            An accumulator with an associative `merge`, whose identity this is.
        """
        raise NotImplementedError

    def observe(
        self, statistics: Any, images: Array, known: ViewArrays, weights: Array | None = None
    ) -> Any:
        """Return statistics with more images.

        Parameters
        ----------
        statistics : Statistics
            Those of earlier images, whose memory may be reused.
        images : ndarray of shape (n, H, W, d)
            Training images, as stored, in NumPy or CuPy.
        known : mapping of str to ndarray
            The arrays of earlier passes.
        weights : ndarray of float64, shape (n,), optional
            As how many images each counts, a NumPy array; each counts once by default.

        Returns
        -------
        Statistics
            The statistics including the images.
        """
        raise NotImplementedError

    def fit(self, statistics: Any, known: ViewArrays) -> dict[str, Array]:
        """Compute what a pass has learned.

        Parameters
        ----------
        statistics : Statistics
            Those of all training images, which may be on a GPU.
        known : mapping of str to ndarray
            The arrays of earlier passes.

        Returns
        -------
        dict of str to ndarray
            The arrays of this and of earlier passes. Those of all passes but the last go through
            the driver and must be small.
        """
        raise NotImplementedError

    def untrained(self, image_shape: tuple[int, int, int]) -> dict[str, Array]:
        """Return arrays that a view could have learned, to measure how fast it is.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Returns
        -------
        dict of str to ndarray
            The arrays that `arrays` names.
        """
        return {}

    @abstractmethod
    def __call__(self, images: Array, known: ViewArrays) -> Array:
        """Compute the pixels.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            The images, as stored, in NumPy or CuPy.
        known : mapping of str to ndarray
            What `fit` returned in the last pass; numbers are in NumPy.

        Returns
        -------
        ndarray of float32, shape (n, H, W, d')
            The pixels, in the same array library.
        """

    def to_onnx(
        self, graph: OnnxGraph, images: str, known: ViewArrays, image_shape: tuple[int, int, int]
    ) -> str:
        """Add the computation of the pixels to an ONNX graph.

        Parameters
        ----------
        graph : OnnxGraph
            The graph to add operators to.
        images : str
            The name of a tensor of float32, shape (n, d, H, W): the images, channels first.
        known : mapping of str to ndarray
            What `fit` returned in the last pass.
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Returns
        -------
        str
            The name of a tensor of float32, shape (n, d', H, W): what `__call__` returns.

        Raises
        ------
        SpecError
            If the class does not implement it.
        """
        raise self._refuse_export("to_onnx(graph, images, known, image_shape)")

    def fitted_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the size of the learned arrays.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Returns
        -------
        int
            Bytes.
        """
        return 0

    def statistics_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the size of the statistics of a pass as they are sent between workers.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Returns
        -------
        int
            Bytes.
        """
        return 0

    def workspace_bytes(self, image_shape: tuple[int, int, int]) -> int:
        """Return the most memory that `fit` needs in addition to the statistics.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Returns
        -------
        int
            Bytes.
        """
        return 0


@dataclass(frozen=True, slots=True)
class PixelRange:
    """The extremes of the pixels of images; `merge` is associative and `empty` its identity.

    Attributes
    ----------
    low : ndarray of float64, shape (d,)
        The smallest value of each channel.
    high : ndarray of float64, shape (d,)
        The largest value of each channel.
    """

    low: Array
    high: Array

    @classmethod
    def empty(cls, channels: int) -> PixelRange:
        """Return the extremes of no image with so many channels."""
        return cls(np.full(channels, np.inf), np.full(channels, -np.inf))

    @classmethod
    def of(cls, images: Array) -> PixelRange:
        """Return the extremes of images (n, H, W, d) in single precision."""
        channels = images.shape[3]
        if len(images) == 0:
            return cls.empty(channels)
        rows = images.reshape(len(images), -1)  # whole images at a time: channels are too few
        extremes = (
            rows.min(axis=0).reshape(-1, channels).min(axis=0),
            rows.max(axis=0).reshape(-1, channels).max(axis=0),
        )
        return cls(*(to_host(e.astype(np.float32)).astype(np.float64) for e in extremes))

    def merge(self, other: PixelRange) -> PixelRange:
        """Return the extremes of both sets of images."""
        return PixelRange(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    @property
    def width(self) -> float:
        """The difference between the largest and the smallest value, 1 if there is none."""
        return float(self.high.max() - self.low.min()) or 1.0
