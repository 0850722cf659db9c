"""What a filter learner sees: a chunk of images; and what it gathers: mergeable statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, runtime_checkable

import numpy as np

from rescnet_dist.kernels import (
    ClassSums,
    Draws,
    InputSums,
    LayerInput,
    PatchMoments,
    PatchSample,
    one_hot,
    patch_moments,
    rank_in_class,
    sample_patches,
    spread_evenly,
    to_host,
)
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.filter_group import FilterGroup

# Most copies at the same time, as measured: of a chunk and of the accumulator, two to merge and
# merged, rescaled and factorized
MOMENTS_COPIES = 6
SAMPLE_COPIES = 4  # two to merge, merged, rescaled


@runtime_checkable
class Statistics(Protocol):
    """What a learner gathers of all training images: an accumulator that merges in a tree.

    `merge` is associative, and what `FilterLearner.empty` returns is its identity. Statistics are
    of the raw input of a layer, as its normalization is known only after the pass; `rescale`
    returns those of the normalized input. They are frozen dataclasses: their arrays are moved from
    a GPU field by field.
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

    def transform(self, matrix: Array, offset: Array) -> NoStatistics:
        """Return no statistics.

        Parameters
        ----------
        matrix : ndarray of shape (k²c, k²c)
            The matrix of a linear transform of patches, which changes nothing.
        offset : ndarray of shape (k²c,)
            What is subtracted before.

        Returns
        -------
        NoStatistics
            The same.
        """
        return self


def moments_bytes(group: FilterGroup) -> int:
    """Return the bytes of the moments of all patches, as they are sent between workers."""
    return 8 * group.directions**2


def moments_workspace_bytes(group: FilterGroup) -> int:
    """Return the bytes of all copies of the moments of patches in a worker.

    Those of a chunk are of all channels of the layer, those of the group are of its own.
    """
    return MOMENTS_COPIES * 8 * group.directions * _observed_directions(group)


def sample_bytes(group: FilterGroup, patches: int) -> int:
    """Return the bytes of so many drawn patches, as they are sent between workers."""
    return 4 * patches * group.directions


def sample_workspace_bytes(group: FilterGroup, patches: int) -> int:
    """Return the bytes of all copies of so many drawn patches in a worker."""
    return SAMPLE_COPIES * 4 * patches * _observed_directions(group)


def _observed_directions(group: FilterGroup) -> int:
    """Return the number of elements of the patches of a chunk that a group is observed from."""
    return group.directions if group.sharing else group.input_directions


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
        The number of training images of each class in all chunks before this one, repetitions
        included.
    class_counts : ndarray of int, shape (C,)
        The number of training images of each class in all chunks, repetitions included.
    repeats : ndarray of int, shape (n,), optional
        How many times each image is repeated for draws, in proportion to its weight; once by
        default. Moments have the weights of `inputs`.
    scores : ndarray of shape (n, C), optional
        The scores Ŷ of the layers so far; 0 by default.
    target : float, default 1.0
        The score λ that the class of an image should reach.
    filter_images : int, optional
        About how many training images of all chunks moments of patches are gathered from,
        repetitions included; from all by default.
    """

    def __init__(
        self,
        inputs: LayerInput,
        labels: Array,
        train: Array,
        class_offsets: Array,
        class_counts: Array,
        repeats: Array | None = None,
        scores: Array | None = None,
        target: float = 1.0,
        filter_images: int | None = None,
    ) -> None:
        self.inputs = inputs
        self.labels = labels
        self.train = train
        self.class_offsets = class_offsets
        self.class_counts = class_counts
        self.repeats = repeats
        self.scores = scores
        self.target = target
        self._train_inputs = inputs.select(train)
        self._observed = self._select_images(filter_images)
        self._observed_inputs = inputs.select(self._observed)
        self._sums: InputSums | None = None
        self._class_sums: ClassSums | None = None
        self._moments: dict[int, PatchMoments] = {}
        self._taken: dict[tuple[int, ...], LayerInput] = {}

    @property
    def sums(self) -> InputSums:
        """The extremes of each channel, and the sums over the training images."""
        if self._sums is None:
            self._sums = InputSums.of(self._train_inputs)
        return self._sums

    def _select_images(self, filter_images: int | None) -> Array:
        """Return a mask (n,) of the training images whose patches are observed."""
        total = int(self.class_counts.sum())
        if filter_images is None or filter_images >= total:
            return self.train
        ranks = rank_in_class(self.labels, self.train, self.class_offsets, self.repeats)
        return self.train & spread_evenly(ranks, filter_images / total)

    @cached_property
    def _observed_sums(self) -> InputSums:
        """The sums over the training images whose patches are observed."""
        return self.sums if self._observed is self.train else InputSums.of(self._observed_inputs)

    @property
    def errors(self) -> Array:
        """The errors λY − Ŷ of the scores, (n, C) in a NumPy array."""
        expected = self.target * one_hot(self.labels, len(self.class_counts)).astype(np.float64)
        return expected if self.scores is None else expected - to_host(self.scores)

    def class_sums(self, group: FilterGroup) -> ClassSums:
        """Return the sums of the observed training images of each class.

        Parameters
        ----------
        group : FilterGroup
            The filters: the channels that they see.

        Returns
        -------
        ClassSums of images of shape (H, W, c)
            The sums, of the channels of the group.
        """
        if self._class_sums is None:
            labels, classes = self.labels[self._observed], len(self.class_counts)
            self._class_sums = ClassSums.of(self._observed_inputs, labels, classes)
        return self._class_sums.select(np.array(group.channels))

    def patch_moments(self, group: FilterGroup) -> PatchMoments:
        """Return the moments of all patches of the observed training images.

        Parameters
        ----------
        group : FilterGroup
            The filters: their size, and the channels that they see.

        Returns
        -------
        PatchMoments of k²c elements
            The moments of the patches, of the channels of the group.
        """
        if group.sharing:
            inputs, sums = self._take_observed(group), self._observed_sums
            return patch_moments(inputs, group.size, sums.take(group.channels))
        if group.size not in self._moments:
            observed = self._observed_inputs, group.size, self._observed_sums
            self._moments[group.size] = patch_moments(*observed)
        moments = self._moments[group.size]
        return moments.select(group.elements) if group.is_partial else moments

    def weighted_moments(self, group: FilterGroup, weights: Array) -> PatchMoments:
        """Return the moments of all patches of the observed training images, weighted once more.

        Parameters
        ----------
        group : FilterGroup
            The filters: their size, and the channels that they see.
        weights : ndarray of float64, shape (n,)
            What the weight of each image is multiplied by. It must not be negative.

        Returns
        -------
        PatchMoments of k²c elements
            The moments of the patches, of the channels of the group.
        """
        inputs = self._observed_inputs
        if group.is_partial:
            inputs, weights = self._take_observed(group), weights[self._observed]
        own = inputs.weights
        inputs = replace(inputs, weights=weights if own is None else weights * own)
        inputs = inputs.select(weights[inputs.rows] > 0)
        if not len(inputs):
            return PatchMoments.empty(group.directions)
        return patch_moments(inputs, group.size, InputSums.of(inputs))

    def _take_observed(self, group: FilterGroup) -> LayerInput:
        """Return the observed training images, of the channels of a group.

        The copy is kept until another group is observed, as learners ask for it many times.
        """
        if group.channels not in self._taken:
            self._taken.clear()
            self._taken[group.channels] = self._observed_inputs.take(group.channels)
        return self._taken[group.channels]

    def joint_moments(self, group: FilterGroup) -> PatchMoments:
        """Return the moments of all patches of the observed training images, of all channels.

        Parameters
        ----------
        group : FilterGroup
            The filters: their size, and the channels that they see.

        Returns
        -------
        PatchMoments of k²C elements
            The k²c elements that the filters see come first, those of other towers follow. For
            filters on each channel, these are the k² elements of the channel of the other towers
            with the same index.
        """
        if group.sharing:
            index, own = group.sharing
            others = np.setdiff1d(np.arange(group.input_channels), own)
            pair = (group.channels[0], int(others[index]))
            inputs, sums = self._observed_inputs.take(pair), self._observed_sums.take(pair)
            order = np.arange(2 * group.size**2).reshape(-1, 2).T.ravel()
            return patch_moments(inputs, group.size, sums).select(order)
        whole = replace(group, channels=tuple(range(group.input_channels)))
        others = np.setdiff1d(whole.elements, group.elements)
        return self.patch_moments(whole).select(np.concatenate([group.elements, others]))

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
        inputs = self.inputs.take(group.channels) if group.sharing else self.inputs
        sample = sample_patches(
            inputs,
            self.labels,
            self.train,
            self.class_offsets,
            draws,
            group.size,
            self.repeats,
        )
        if group.sharing:
            index, total = group.sharing[0], len(group.sharing[1])
            return sample.take(np.flatnonzero(sample.slots % total == index))
        return sample.select(group.elements) if group.is_partial else sample
