"""Mergeable statistics of a pass over all images: for filters, classifiers and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, to_host
from rescnet_dist.kernels.discriminant import FeatureMoments
from rescnet_dist.kernels.filters import Draws, PatchSample, sample_patches
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.patches import PatchMoments, patch_statistics
from rescnet_dist.kernels.residual import residual_labels


@dataclass(frozen=True, slots=True)
class BankStatistics:
    """Statistics that the filters of a layer are learned from, of its raw inputs (n, H, W, c).

    `merge` is associative and `empty` is its identity.

    Attributes
    ----------
    low : ndarray of shape (c,)
        The minimum of each channel.
    high : ndarray of shape (c,)
        The maximum of each channel.
    moments : PatchMoments of k²c elements
        The moments of all patches.
    sample : PatchSample of k²c elements
        The patches of the stacked-LDA draws.
    """

    low: Array
    high: Array
    moments: PatchMoments
    sample: PatchSample

    @classmethod
    def empty(cls, channels: int, size: int, xp: Any = np) -> BankStatistics:
        """Return the statistics of no image.

        Parameters
        ----------
        channels : int
            The number c of channels.
        size : int
            The side k of the patches, in pixels.
        xp : module, default numpy
            The array module of the extremes, numpy or cupy.

        Returns
        -------
        BankStatistics of c channels
            The identity of `merge`.
        """
        directions = size * size * channels
        return cls(
            xp.full(channels, np.inf),
            xp.full(channels, -np.inf),
            PatchMoments.empty(directions),
            PatchSample.empty(directions),
        )

    @classmethod
    def of(
        cls,
        inputs: LayerInput,
        labels: Array,
        train: Array,
        class_offsets: Array,
        draws: Draws,
        size: int,
    ) -> BankStatistics:
        """Compute the statistics of the training images of a chunk.

        Parameters
        ----------
        inputs : LayerInput of n images
            The raw input of the layer.
        labels : ndarray of int, shape (n,)
            The labels of the images.
        train : ndarray of bool, shape (n,)
            Which of them are training images.
        class_offsets : ndarray of int, shape (C,)
            The number of training images of each class in all chunks before this one.
        draws : Draws
            The draws of the layer.
        size : int
            The side k of the patches, in pixels.

        Returns
        -------
        BankStatistics of c channels
            The statistics of the chunk.
        """
        sample = sample_patches(inputs, labels, train, class_offsets, draws, size)
        return cls(*patch_statistics(inputs.select(train), size), sample)

    def merge(self, other: BankStatistics) -> BankStatistics:
        """Return the statistics of both sets of images.

        Parameters
        ----------
        other : BankStatistics of c channels
            The statistics of other images.

        Returns
        -------
        BankStatistics of c channels
            The merged statistics.
        """
        return BankStatistics(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.moments.merge(other.moments),
            self.sample.merge(other.sample),
        )

    def select(self, channels: Array, draws: range, patches: int) -> BankStatistics:
        """Return the statistics of some channels and some draws.

        Parameters
        ----------
        channels : ndarray of int, shape (c',)
            The indices of the channels. If they are all channels, all draws are returned too.
        draws : range
            The draws.
        patches : int
            The number of patches per draw.

        Returns
        -------
        BankStatistics of c' channels
            The selected statistics.

        Raises
        ------
        ValueError
            If patches of these draws are missing.
        """
        if len(channels) == len(self.low):  # a single tower has all channels and draws
            return self
        size = len(self.moments.mean) // len(self.low)
        directions = np.add.outer(np.arange(size) * len(self.low), channels).ravel()
        slots = slice(draws.start * patches, draws.stop * patches)
        if not np.array_equal(self.sample.slots[slots], range(slots.start, slots.stop)):
            raise ValueError(
                f"Patches of draws {draws.start} to {draws.stop - 1} are missing. Merge the "
                "statistics of all chunks first."
            )
        return BankStatistics(
            self.low[channels],
            self.high[channels],
            self.moments.select(directions),
            PatchSample(self.sample.slots[slots], self.sample.patches[slots][:, directions]),
        )

    def rescale(self, low: Array, scale: Array) -> BankStatistics:
        """Return the statistics of (inputs − low)·scale.

        Parameters
        ----------
        low : ndarray of shape (c,)
            The offset of each channel.
        scale : ndarray of shape (c,)
            The scale of each channel.

        Returns
        -------
        BankStatistics of c channels
            The statistics after rescaling.
        """
        return BankStatistics(
            (self.low - low) * scale,
            (self.high - low) * scale,
            self.moments.rescale(low, scale),
            self.sample.rescale(low, scale),
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of images by role, training (0) or validation (1). `merge` adds them.

    Attributes
    ----------
    seen : ndarray of int, shape (2,)
        All images.
    correct : ndarray of int, shape (2,)
        Images that are classified correctly.
    positive : ndarray of int, shape (2,)
        Images whose largest error is positive, see `residual_labels`.
    nonfinite : ndarray of int, shape (2,)
        Images with scores that are infinite or NaN.
    """

    seen: Array
    correct: Array
    positive: Array
    nonfinite: Array

    @classmethod
    def empty(cls, xp: Any = np) -> Tally:
        """Return the counts of no image.

        Parameters
        ----------
        xp : module, default numpy
            The array module of the counts, numpy or cupy.

        Returns
        -------
        Tally
            The identity of `merge`.
        """
        return cls(*xp.zeros((4, 2), np.int64))

    @classmethod
    def of(cls, scores: Array, labels: Array, train: Array, target: float) -> Tally:
        """Count images by their scores.

        An image is correct if its largest score is that of its label. Its largest error of λY − Ŷ,
        λ = target, is positive if the score of a class is too small.

        Parameters
        ----------
        scores : ndarray of shape (n, C)
            The scores.
        labels : ndarray of int, shape (n,)
            The labels.
        train : ndarray of bool, shape (n,)
            Which images are training images.
        target : float
            The target λ of the score of an image's class.

        Returns
        -------
        Tally
            The counts.
        """
        labels, train = asarray_like(labels, scores), asarray_like(train, scores)
        correct = scores.argmax(axis=1) == labels
        positive = residual_labels(scores, labels, target)[1] > 0
        finite = np.isfinite(scores).all(axis=1)
        kinds = (np.ones_like(correct), correct & finite, positive, ~finite)
        roles = np.stack([train, ~train])
        return cls(*((kind & roles).sum(axis=1) for kind in kinds))

    def merge(self, other: Tally) -> Tally:
        """Return the counts of both sets of images.

        Parameters
        ----------
        other : Tally
            The counts of other images.

        Returns
        -------
        Tally
            The sums of the counts.
        """
        return Tally(
            self.seen + other.seen,
            self.correct + other.correct,
            self.positive + other.positive,
            self.nonfinite + other.nonfinite,
        )

    def accuracy(self, role: int) -> float | None:
        """Return the fraction of images that are classified correctly.

        Parameters
        ----------
        role : int
            0 for training images, 1 for validation images.

        Returns
        -------
        float or None
            The fraction; None if there are no such images.
        """
        return float(self.correct[role] / self.seen[role]) if self.seen[role] else None

    @property
    def residual(self) -> tuple[float, float]:
        """The fractions of training images whose largest error is positive, and negative."""
        share = float(self.positive[0] / self.seen[0]) if self.seen[0] else 0.0
        return share, 1 - share


@dataclass(frozen=True, slots=True)
class GrownChunk:
    """The result of a layer's pass over one chunk of n images.

    Attributes
    ----------
    maps : ndarray of float32, shape (n, H, W, f)
        The maps of the layer.
    scores : ndarray of float32, shape (n, C)
        The scores that enter the layer.
    features : ndarray of float32, shape (n, D)
        The features of the layer.
    targets : ndarray of float32, shape (n, K)
        The targets that the layer is fitted to.
    train : ndarray of bool, shape (n,)
        Which images are training images.
    gather : callable
        Returns the statistics of the next layer's input, and the tally. It is called after all
        other work has been queued on a GPU.
    """

    maps: Array
    scores: Array
    features: Array
    targets: Array
    train: Array
    gather: Callable[[], tuple[BankStatistics, Tally]]


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """All statistics that one pass gathers. `merge` is associative.

    Attributes
    ----------
    features : FeatureMoments
        The moments of the features, for this layer's classifier.
    inputs : BankStatistics
        The statistics of the next layer's input, for its filters.
    tally : Tally
        The counts for the accuracy of the layers before this one.
    """

    features: FeatureMoments
    inputs: BankStatistics
    tally: Tally

    def fold(self, chunk: GrownChunk) -> LayerStatistics:
        """Return these statistics with one more chunk.

        The memory of `self.features` is reused: `self` must not be used afterwards.

        Parameters
        ----------
        chunk : GrownChunk
            The result of the layer's pass over the chunk.

        Returns
        -------
        LayerStatistics
            The statistics including the chunk.
        """
        features, targets = chunk.features, chunk.targets
        if not chunk.train.all():
            train = asarray_like(np.flatnonzero(chunk.train), features)
            features, targets = features[train], targets[train]
        moments = self.features.fold(features, targets)
        inputs, tally = chunk.gather()
        return LayerStatistics(moments, self.inputs.merge(inputs), self.tally.merge(tally))

    def copy_small_to_host(self) -> LayerStatistics:
        """Copy all but the features' moments to the host's memory.

        The features' moments, which are large, stay where they are. Waits for a GPU.

        Returns
        -------
        LayerStatistics
            The same statistics.
        """
        return LayerStatistics(self.features, to_host(self.inputs), to_host(self.tally))

    def merge(self, other: LayerStatistics) -> LayerStatistics:
        """Return the statistics of both sets of images.

        Parameters
        ----------
        other : LayerStatistics
            The statistics of other images.

        Returns
        -------
        LayerStatistics
            The merged statistics.
        """
        return LayerStatistics(
            self.features.merge(other.features),
            self.inputs.merge(other.inputs),
            self.tally.merge(other.tally),
        )
