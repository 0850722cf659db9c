"""Mergeable statistics of a pass over all images: for filters, heads and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.kernels import FeatureMoments, LossCurve, residual_labels, to_host
from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.model.observation import Observation


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
    groups : tuple of Statistics
        What the learner of each group of filters has gathered.
    chunks : int, default 1
        The number of chunks, 0 for the identity.
    """

    low: Array
    high: Array
    groups: tuple[Any, ...]
    chunks: int = 1

    @classmethod
    def empty(cls, architecture: Architecture, layer: int, xp: Any = np) -> BankStatistics:
        """Return the statistics of no image.

        Parameters
        ----------
        architecture : Architecture
            The network.
        layer : int
            The layer whose filters are to be learned, from 1.
        xp : module, default numpy
            The array module of the extremes, numpy or cupy.

        Returns
        -------
        BankStatistics of c channels
            The identity of `merge`.
        """
        channels = architecture.input_channels(layer)
        return cls(
            xp.full(channels, np.inf),
            xp.full(channels, -np.inf),
            tuple(learner.empty(group) for learner, group in architecture.groups(layer)),
            chunks=0,
        )

    @classmethod
    def of(cls, chunk: Observation, architecture: Architecture, layer: int) -> BankStatistics:
        """Compute the statistics of the training images of a chunk.

        Parameters
        ----------
        chunk : Observation
            The raw input of the layer, and the labels of its images.
        architecture : Architecture
            The network.
        layer : int
            The layer whose filters are to be learned, from 1.

        Returns
        -------
        BankStatistics of c channels
            The statistics of the chunk.
        """
        groups = tuple(
            learner.observe(chunk, group) for learner, group in architecture.groups(layer)
        )
        return cls(chunk.sums.low, chunk.sums.high, groups)

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
        if not (self.chunks and other.chunks):  # the identity is in the memory of the host
            groups = self.groups if self.chunks else other.groups
        else:
            pairs = zip(self.groups, other.groups, strict=True)
            groups = tuple(one.merge(two) for one, two in pairs)
        return BankStatistics(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            groups,
            self.chunks + other.chunks,
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts and losses of images by role, training (0) or validation (1). `merge` adds them.

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
    loss : LossCurve
        Log losses of the images, for `Calibration`.
    """

    seen: Array
    correct: Array
    positive: Array
    nonfinite: Array
    loss: LossCurve

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
        seen, correct, positive, nonfinite = xp.zeros((4, 2), np.int64)
        return cls(seen, correct, positive, nonfinite, LossCurve.empty(xp))

    @classmethod
    def of(
        cls,
        scores: Array,
        labels: Array,
        train: Array,
        target: float,
        weights: Array | None = None,
    ) -> Tally:
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
        weights : ndarray of shape (n,), optional
            The weights of training images in the losses; counts and the losses of validation images
            are never weighted.

        Returns
        -------
        Tally
            The counts.
        """
        labels, train = asarray_like(labels, scores), asarray_like(train, scores)
        correct = scores.argmax(axis=1) == labels
        positive = residual_labels(scores, labels, target)[1] > 0
        finite = np.isfinite(scores).all(axis=1)
        roles = np.stack([train, ~train])
        weighted_roles = roles
        if weights is not None:
            weighted_roles = np.stack([train * asarray_like(weights, scores), ~train])
        return cls(
            roles.sum(axis=1),
            (correct & finite & roles).sum(axis=1),
            (positive & roles).sum(axis=1),
            (~finite & roles).sum(axis=1),
            LossCurve.of(scores, labels, weighted_roles),
        )

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
            self.loss.merge(other.loss),
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
    features : ndarray of float32, shape (n, D), or None
        The features of the layer; None if it has no head.
    targets : ndarray of float32, shape (n, K), or None
        The targets that the layer is fitted to; None if it has no head.
    train : ndarray of bool, shape (n,)
        Which images are training images.
    gather : callable
        Returns the statistics of the next layer's input, None after the last layer, and the tally.
        It is called after all other work has been queued on a GPU.
    weights : ndarray of float64, shape (n,), optional
        As how many images each counts in what is learned; each counts once by default.
    first_row : int, default 0
        The row of the first image in the run.
    """

    maps: Array
    scores: Array
    features: Array | None
    targets: Array | None
    train: Array
    gather: Callable[[], tuple[BankStatistics | None, Tally]]
    weights: Array | None = None
    first_row: int = 0


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """All statistics that one pass gathers. `merge` is associative.

    Attributes
    ----------
    features : FeatureMoments, FeatureSamples or None
        The moments of the features, for this layer's head, or the features themselves if it
        compares images; None if it has none.
    inputs : BankStatistics or None
        The statistics of the next layer's input, for its filters; None if they are not learned.
    tally : Tally
        The counts for the accuracy of the layers before this one.
    """

    features: FeatureMoments | FeatureSamples | None
    inputs: BankStatistics | None
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
        moments = self._fold_features(chunk)
        inputs, tally = chunk.gather()
        return LayerStatistics(moments, _merge(self.inputs, inputs), self.tally.merge(tally))

    def _fold_features(self, chunk: GrownChunk) -> FeatureMoments | FeatureSamples | None:
        """Return the moments of the features with those of one more chunk."""
        features, targets, weights = chunk.features, chunk.targets, chunk.weights
        if self.features is None or features is None or targets is None:
            return None
        if isinstance(self.features, FeatureSamples):
            return self.features.fold(chunk.first_row, features, targets, chunk.train)
        if not chunk.train.all():
            train = asarray_like(np.flatnonzero(chunk.train), features)
            features, targets = features[train], targets[train]
            weights = None if weights is None else weights[chunk.train]
        return self.features.fold(features, targets, weights)

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
            _merge(self.features, other.features),
            _merge(self.inputs, other.inputs),
            self.tally.merge(other.tally),
        )


def _merge(one: Any, other: Any) -> Any:
    """Return two accumulators merged, None if there are none."""
    return None if one is None else one.merge(other)
