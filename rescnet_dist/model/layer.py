"""A fitted layer: its filter bank, and the arrays of its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rescnet_dist.kernels import LayerInput, convolve, convolve_each, normalize
from rescnet_dist.kernels.arrays import Array

# Stored arrays of a filter bank and their dimension names. The arrays of a head stand next to them.
BANK_ARRAYS: Mapping[str, tuple[str, ...]] = {
    "input_low": ("input_channel",),
    "input_scale": ("input_channel",),
    "filters": ("filter_y", "filter_x", "input_channel", "filter"),
    "bias": ("filter",),
}
RATE_ARRAY = "rate"  # of the learning rate


@dataclass(frozen=True, slots=True)
class Bank:
    """The filters of a layer: normalize its input, convolve, add a bias.

    Attributes
    ----------
    low : ndarray of shape (c,)
        The offset of the min-max normalization of the input.
    scale : ndarray of shape (c,)
        The scale of the min-max normalization of the input.
    filters : ndarray of shape (k, k, c, f)
        The filters.
    bias : ndarray of shape (f,)
        The bias of each map.
    """

    low: Array
    scale: Array
    filters: Array
    bias: Array

    def maps(self, inputs: LayerInput, into: Array | None = None) -> Array:
        """Compute the maps of a layer.

        Parameters
        ----------
        inputs : LayerInput of n images of shape (H, W, c)
            The raw input of the layer.
        into : ndarray of shape (n, H, W, f), optional
            The array to write to, as for `convolve`.

        Returns
        -------
        ndarray of shape (n, H, W, f)
            The maps: `into` if given, else a new array.
        """
        return convolve(inputs, self.filters, self.bias, self.low, self.scale, into)

    def select(self, filters: range) -> Bank:
        """Return the bank of some of the filters.

        Parameters
        ----------
        filters : range
            The indices of the filters.

        Returns
        -------
        Bank
            These filters, on the same input.
        """
        own = slice(filters.start, filters.stop)
        return replace(self, filters=self.filters[..., own], bias=self.bias[own])

    def each_maps(self, inputs: LayerInput, channels: tuple[int, ...]) -> Array:
        """Compute the maps of filters that are applied to each of some channels.

        Parameters
        ----------
        inputs : LayerInput of n images of shape (H, W, c)
            The raw input of the layer.
        channels : tuple of c' int
            The channels. The bank has the same filters for each of them, one after the other.

        Returns
        -------
        ndarray of shape (n, H, W, f)
            The maps.
        """
        count = self.filters.shape[3] // len(channels)
        filters = self.filters[:, :, channels[0], :count]
        return convolve_each(inputs, channels, filters, self.bias[:count], self.low, self.scale)


@dataclass(frozen=True, slots=True)
class FittedHead:
    """What a layer adds to the scores.

    Attributes
    ----------
    arrays : mapping of str to ndarray
        What `Head.fit` returned, by the names in `Head.arrays`.
    rate : float
        The learning rate α.
    """

    arrays: Mapping[str, Array]
    rate: float


@dataclass(frozen=True, slots=True)
class Layer:
    """A fitted layer.

    Attributes
    ----------
    bank : Bank
        Its filters.
    head : FittedHead or None
        Its update of the scores; None if it has none.
    """

    bank: Bank
    head: FittedHead | None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        bank = self.bank.low, self.bank.scale, self.bank.filters, self.bank.bias
        head = self.head.arrays.values() if self.head else ()
        return sum(array.nbytes for array in (*bank, *head))


@dataclass(frozen=True, slots=True)
class ImageScale:
    """What the views of a network have learned of the images: their range, and other arrays.

    Attributes
    ----------
    low : ndarray of shape (d,)
        The offset of each channel in the min-max normalization of the images.
    scale : ndarray of shape (d,)
        The scale of each channel in that.
    views : mapping of str to mapping of str to ndarray, default {}
        What `View.fit` returned, by the name of the view, for those that have learned something.
    """

    low: Array
    scale: Array
    views: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def __call__(self, images: Array) -> Array:
        """Return images (n, H, W, d) in float32, in [0, 1] over the training set."""
        return normalize(images, self.low, self.scale)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        views = (array for arrays in self.views.values() for array in arrays.values())
        return sum(array.nbytes for array in (self.low, self.scale, *views))

    @property
    def value_range(self) -> tuple[float, float]:
        """Smallest and largest value of the training images."""
        low = float(np.min(self.low))
        return low, low + 1 / float(np.max(self.scale) or 1)
