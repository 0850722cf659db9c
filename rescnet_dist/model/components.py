"""What a network is composed of: filter learners, feature extractors and heads.

To add one, derive a frozen dataclass from one of the three base classes, give it a `name`, declare
its options with `option`, and put it into a module of its own in `filters/`, `features/` or
`heads/`, or into an entry point of another package. Everything else (specs, TOML, command-line
flags, plans, stores, reports) asks the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import (
    Draws,
    FeatureMoments,
    LayerInput,
    PatchMoments,
    PatchSample,
    Whitening,
    sample_patches,
)
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.patches import InputSums, patch_moments
from rescnet_dist.options import Options

MAX_COLOR_CHANNELS = 4  # of RGBA images; images with a height below it look channels-first


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
    seed : int
        The seed of the run. Random numbers come from `rng(i)` alone, so that they do not depend on
        chunks or workers.
    """

    layer: int
    filters: range
    channels: tuple[int, ...]
    input_channels: int
    size: int
    image_size: tuple[int, int]
    streams: range = range(0)
    seed: int = 0

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
    def positions(self) -> tuple[int, int]:
        """The number of places of a patch along the height and the width of an image."""
        height, width = self.image_size
        return height - self.size + 1, width - self.size + 1

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


@runtime_checkable
class Statistics(Protocol):
    """What a learner gathers of all training images: an accumulator that merges in a tree.

    `merge` is associative, and what `FilterLearner.empty` returns is its identity. Statistics are
    of the raw input of a layer, as its normalization is known only after the pass; `rescale`
    returns those of the normalized input.
    """

    def merge(self, other: Self) -> Self:
        """Return the statistics of both sets of images.

        Parameters
        ----------
        other : Statistics
            The statistics of other images.

        Returns
        -------
        Statistics
            The merged statistics.
        """

    def rescale(self, low: Array, scale: Array) -> Self:
        """Return the statistics of (input − low)·scale.

        Parameters
        ----------
        low : ndarray of shape (c,)
            The offset of each channel that the filters see.
        scale : ndarray of shape (c,)
            The scale of each of them.

        Returns
        -------
        Statistics
            The rescaled statistics.
        """


@dataclass(frozen=True, slots=True)
class NoStatistics:
    """The statistics of a learner that looks at no image."""

    def merge(self, other: NoStatistics) -> NoStatistics:
        """Return no statistics.

        Parameters
        ----------
        other : NoStatistics
            No statistics, too.

        Returns
        -------
        NoStatistics
            The same.
        """
        return other

    def rescale(self, low: Array, scale: Array) -> NoStatistics:
        """Return no statistics.

        Parameters
        ----------
        low, scale : ndarray of shape (c,)
            The normalization, which changes nothing.

        Returns
        -------
        NoStatistics
            The same.
        """
        return self


class Observation:
    """One chunk of images as learners see it; what several learners need is computed once.

    Parameters
    ----------
    inputs : LayerInput of n images of shape (H, W, c)
        The raw input of the layer.
    labels : ndarray of int, shape (n,)
        The labels of the images.
    train : ndarray of bool, shape (n,)
        Which of them are training images. Learners must use no others.
    class_offsets : ndarray of int, shape (C,)
        The number of training images of each class in all chunks before this one.
    class_counts : ndarray of int, shape (C,)
        The number of training images of each class in all chunks.
    """

    def __init__(
        self,
        inputs: LayerInput,
        labels: Array,
        train: Array,
        class_offsets: Array,
        class_counts: Array,
    ) -> None:
        self.inputs = inputs
        self.labels = labels
        self.train = train
        self.class_offsets = class_offsets
        self.class_counts = class_counts
        self._train_inputs = inputs.select(train)
        self._sums: InputSums | None = None
        self._moments: dict[int, PatchMoments] = {}

    @property
    def sums(self) -> InputSums:
        """The extremes of each channel, and the sums over the training images."""
        if self._sums is None:
            self._sums = InputSums.of(self._train_inputs)
        return self._sums

    def patch_moments(self, group: FilterGroup) -> PatchMoments:
        """Return the moments of all patches of the training images.

        Parameters
        ----------
        group : FilterGroup
            The filters: their size, and the channels that they see.

        Returns
        -------
        PatchMoments of k²c elements
            The moments of the patches, of the channels of the group.
        """
        if group.size not in self._moments:
            self._moments[group.size] = patch_moments(self._train_inputs, group.size, self.sums)
        moments = self._moments[group.size]
        return moments.select(_select_directions(group)) if group.is_partial else moments

    def patch_sample(self, draws: Draws, group: FilterGroup) -> PatchSample:
        """Return the patches that draws take from this chunk.

        Parameters
        ----------
        draws : Draws
            The draws, from the training images of all chunks.
        group : FilterGroup
            The filters: their size, and the channels that they see.

        Returns
        -------
        PatchSample of k²c elements
            The patches whose images are in this chunk, of the channels of the group.
        """
        sample = sample_patches(
            self.inputs, self.labels, self.train, self.class_offsets, draws, group.size
        )
        return sample.select(_select_directions(group)) if group.is_partial else sample


def _select_directions(group: FilterGroup) -> Array:
    """Return the indices (k²c,) of the elements of a patch that a group sees."""
    starts = np.arange(group.size**2) * group.input_channels
    return np.add.outer(starts, np.array(group.channels)).ravel()


class Component(Options):
    """Base class of all components: a frozen dataclass of options with a name.

    Attributes
    ----------
    name : str
        The name in specs, TOML and on the command line, such as "stacked-lda".
    prefix : str
        What the options are prefixed with where they stand next to those of other components: on
        the command line and as flat options of `NetworkSpec`.
    """

    name: ClassVar[str]
    prefix: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the options of the component.

        Returns
        -------
        dict
            Values by name, JSON-serializable.
        """
        return {"name": self.name, **super().to_dict()}


class FilterLearner(Component, ABC):
    """Learns filters of a layer from its input, without gradients."""

    label: ClassVar[str] = "filter"  # what pictures of the filters are called

    def max_filters(self, directions: int) -> int | None:
        """Return the largest number of filters that can be fitted.

        Other learners of the same tower fit those that are left.

        Parameters
        ----------
        directions : int
            The number k²c of elements of a patch.

        Returns
        -------
        int or None
            The largest number; None if there is no limit.
        """
        return None

    def streams(self, count: int) -> int:
        """Return the number of random streams of a group.

        Parameters
        ----------
        count : int
            The number of filters.

        Returns
        -------
        int
            The number of streams, for `FilterGroup.rng`.
        """
        return 0

    def empty(self, group: FilterGroup) -> Any:
        """Return the `Statistics` of no image.

        Parameters
        ----------
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        Statistics
            The identity of `merge`. The default gathers nothing.
        """
        return NoStatistics()

    def observe(self, chunk: Observation, group: FilterGroup) -> Any:
        """Return the `Statistics` of the training images of a chunk.

        Parameters
        ----------
        chunk : Observation
            The chunk.
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        Statistics
            The statistics of the chunk, which may be on a GPU if its arrays are.
        """
        return NoStatistics()

    @abstractmethod
    def fit(self, statistics: Any, group: FilterGroup) -> tuple[Array, Array]:
        """Fit the filters.

        Parameters
        ----------
        statistics : Statistics
            Those of all training images, rescaled to the normalized input, in NumPy arrays.
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        filters : ndarray of shape (k, k, c, count)
            The filters.
        bias : ndarray of shape (count,)
            The bias of each.
        """

    def statistics_bytes(self, group: FilterGroup) -> int:
        """Return the size of the statistics as they are sent between workers.

        Parameters
        ----------
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        int
            Bytes.
        """
        return 0

    def workspace_bytes(self, group: FilterGroup) -> int:
        """Return the most memory that gathering, merging and fitting need in a worker.

        Parameters
        ----------
        group : FilterGroup
            The filters to fit.

        Returns
        -------
        int
            Bytes.
        """
        return 0


class FeatureExtractor(Component, ABC):
    """Computes the features of a layer from its maps, each image for itself.

    Features must not depend on other images of the array: chunks are recomputed one by one.
    `towers` are the numbers of filters of each tower, which follow each other in the maps.
    """

    def check_network(self, towers: tuple[int, ...]) -> None:
        """Raise SpecError if maps of these towers give no features.

        Parameters
        ----------
        towers : tuple of int
            The number of filters of each tower.

        Raises
        ------
        SpecError
            If there are no features, or the options do not fit the towers.
        """

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise SpecError if images of this shape give no features.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.

        Raises
        ------
        SpecError
            If the images are too small.
        """

    @abstractmethod
    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the number of features of an image.

        Parameters
        ----------
        height, width : int
            Size of the images in pixels.
        towers : tuple of int
            The number of filters of each tower.

        Returns
        -------
        int
            The number of features D.
        """

    @abstractmethod
    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        """Compute the features.

        Parameters
        ----------
        maps : ndarray of float32, shape (n, H, W, f)
            The maps of a layer, in NumPy or CuPy.
        towers : tuple of int
            The number of filters of each tower; they add up to f.

        Returns
        -------
        ndarray of float32, shape (n, D)
            The features, in the same array library.
        """

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        """Return the memory that is needed in addition to maps and features.

        Parameters
        ----------
        images : int
            The number of images in an array.
        height, width : int
            Size of the images in pixels.
        towers : tuple of int
            The number of filters of each tower.

        Returns
        -------
        int
            Bytes.
        """
        return 0


class Head(Component, ABC):
    """Fits a layer's update of the scores to what the layers before it have left.

    `ridge` is the ridge with which the covariance of the features is factorized, and `target` the
    score λ that the true class should reach, for the reported signs of the errors.
    """

    arrays: ClassVar[Mapping[str, tuple[str, ...]]]  # stored arrays and their dimension names
    ridge: float
    target: float

    @abstractmethod
    def target_count(self, classes: int) -> int:
        """Return the number of targets of a layer.

        Parameters
        ----------
        classes : int
            The number of classes C.

        Returns
        -------
        int
            The number of targets K.
        """

    @abstractmethod
    def targets(self, scores: Array, labels: Array, *, first: bool) -> Array:
        """Compute the targets that a layer is fitted to.

        Parameters
        ----------
        scores : ndarray of shape (n, C)
            The running scores that enter the layer.
        labels : ndarray of int, shape (n,)
            The labels.
        first : bool
            Whether it is the first layer.

        Returns
        -------
        ndarray of float32, shape (n, K)
            The targets.
        """

    @abstractmethod
    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Fit the head to the moments of features and targets.

        Parameters
        ----------
        moments : FeatureMoments of D features and K targets
            The moments of the training images.
        classes : int
            The number of classes C.
        whitening : Whitening, optional
            The factorized covariance of the features; computed from `moments` by default. Use
            it: with tiles, `moments` have no scatter matrix.

        Returns
        -------
        dict of str to ndarray
            The arrays that `arrays` names.

        Raises
        ------
        SingularError
            If the covariance of the features cannot be factorized.
        """

    @abstractmethod
    def correction(self, arrays: Mapping[str, Array], features: Array) -> Array:
        """Compute the update of the scores, before the learning rate is applied.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What `fit` returned.
        features : ndarray of shape (n, D)
            The features of the layer, in NumPy or CuPy.

        Returns
        -------
        ndarray of shape (n, C)
            The values to add to the scores.
        """

    def workspace_bytes(self, features: int, classes: int) -> int:
        """Return the memory that `fit` needs in addition to the factorization.

        Parameters
        ----------
        features : int
            The number of features D.
        classes : int
            The number of classes C.

        Returns
        -------
        int
            Bytes.
        """
        return 0


def check_side(name: str, size: int, image_shape: tuple[int, int, int]) -> None:
    """Raise SpecError if option `name`, a side in pixels, is larger than images (H, W, d)."""
    height, width, channels = image_shape
    side = min(height, width)
    if size > side:
        remedy = f"Use {name} of at most {side}."
        if height <= MAX_COLOR_CHANNELS < min(width, channels):
            remedy = "The array looks channels-first; pass images.transpose(0, 2, 3, 1)."
        raise SpecError(
            f"{name}={size} is larger than the image ({height}×{width} pixels). {remedy}"
        )
