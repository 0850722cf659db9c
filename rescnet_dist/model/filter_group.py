"""Filters of one layer that one learner fits: what they see, and their random streams."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rescnet_dist.kernels import center_patches
from rescnet_dist.kernels.arrays import Array


@dataclass(frozen=True, slots=True)
class FilterGroup:
    """Filters of one layer that one learner fits.

    Attributes
    ----------
    layer : int
        The number of the layer, from 1.
    filters : range
        The indices of the filters in the bank of the layer.
    channels : tuple of int
        The input channels that the filters see.
    input_channels : int
        The number of input channels of the layer; those not in `channels` belong to other towers.
    size : int
        The width and height k of the filters, in pixels.
    image_size : tuple of int
        Height and width (H, W) of the images.
    streams : range
        The random streams of the group: no other group of the layer has them.
    classes : int
        The number of classes C.
    seed : int
        The seed of the run. Random numbers come from `rng(i)` alone, so that they do not depend on
        chunks or workers.
    centered : bool
        Whether the mean of each patch and channel is subtracted; see `center`.
    sharing : tuple of (int, tuple of int) or None
        For a group of one channel that shares its filters with other channels: its index among
        them, and all these channels; see `each_channel`. None if the filters see their channels
        together.
    """

    layer: int
    filters: range
    channels: tuple[int, ...]
    input_channels: int
    size: int
    image_size: tuple[int, int]
    streams: range = range(0)
    classes: int = 1
    seed: int = 0
    centered: bool = False
    sharing: tuple[int, tuple[int, ...]] | None = None

    @property
    def count(self) -> int:
        """The number of filters."""
        return len(self.filters)

    @property
    def directions(self) -> int:
        """The number k²c of elements of a patch."""
        return self.size**2 * len(self.channels)

    @property
    def is_partial(self) -> bool:
        """Whether the filters see only some of the input channels of the layer."""
        return len(self.channels) < self.input_channels

    @property
    def input_directions(self) -> int:
        """The number of elements of a patch of all input channels of the layer."""
        return self.size**2 * self.input_channels

    @property
    def elements(self) -> Array:
        """The indices (k²c,) of the elements that the filters see, of all those of a patch."""
        starts = np.arange(self.size**2) * self.input_channels
        return np.add.outer(starts, np.array(self.channels)).ravel()

    @property
    def positions(self) -> tuple[int, int]:
        """The number of places of a patch along the height and the width of an image."""
        height, width = self.image_size
        return height - self.size + 1, width - self.size + 1

    def each_channel(self) -> tuple[FilterGroup, ...]:
        """Return the group of each channel, for filters that are applied to each.

        Returns
        -------
        tuple of FilterGroup
            Groups with one channel and the same filters, of which each map of this group has one.
        """
        filters = self.filters[: self.count // len(self.channels)]
        return tuple(
            replace(self, filters=filters, channels=(channel,), sharing=(index, self.channels))
            for index, channel in enumerate(self.channels)
        )

    def center(self, patches: Array) -> Array:
        """Subtract the mean of each patch and channel if the group is centered.

        Parameters
        ----------
        patches : ndarray of shape (..., k²c)
            Patches, or other vectors of the same elements.

        Returns
        -------
        ndarray of shape (..., k²c)
            The centered patches, or `patches` if the group is not centered.
        """
        return center_patches(patches, self.size) if self.centered else patches

    def center_scatter(self, scatter: Array) -> Array:
        """Return the scatter of centered patches if the group is centered.

        Parameters
        ----------
        scatter : ndarray of shape (k²c, k²c)
            A scatter or covariance matrix of patches.

        Returns
        -------
        ndarray of shape (k²c, k²c)
            The same of centered patches, or `scatter` if the group is not centered.
        """
        return self.center(self.center(scatter).T).T if self.centered else scatter

    def rng(self, index: int) -> np.random.Generator:
        """Return the generator of a random stream of the group.

        Parameters
        ----------
        index : int
            The number of the stream in the group, from 0.

        Returns
        -------
        numpy.random.Generator
            The generator, in its initial state.
        """
        return np.random.default_rng([self.seed, self.layer, self.streams[index]])
