"""The base class of views: what filters see of the images, such as their local contrast.

To add a view, derive a class from `View`, give it a `name`, declare its options with `option`, and
put it into a module of its own in `views/`, or into an entry point of another package. Parts of a
bank then name it, as in `pca:0.5@contrast`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.components import Component
from rescnet_dist.model.graph import OnnxGraph


class View(Component, ABC):
    """Computes pixels from images, each image for itself.

    Attributes
    ----------
    uses_image_scale : bool
        Whether `ImageScale` normalizes the pixels. It is known after the first pass over the
        images, so such a view must return the images themselves, in float32.
    copies : int
        How many copies of the images in float32 are in memory while the pixels are computed, the
        pixels included.
    """

    __slots__ = ()

    uses_image_scale: ClassVar[bool] = False
    copies: ClassVar[int] = 2

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

    @abstractmethod
    def __call__(self, images: Array) -> Array:
        """Compute the pixels.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            The images, as stored, in NumPy or CuPy.

        Returns
        -------
        ndarray of float32, shape (n, H, W, d')
            The pixels, in the same array library.
        """

    def to_onnx(self, graph: OnnxGraph, images: str, image_shape: tuple[int, int, int]) -> str:
        """Add the computation of the pixels to an ONNX graph.

        Parameters
        ----------
        graph : OnnxGraph
            The graph to add operators to.
        images : str
            The name of a tensor of float32, shape (n, d, H, W): the images, channels first.
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
        raise self._refuse_export("to_onnx(graph, images, image_shape)")
