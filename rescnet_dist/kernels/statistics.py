"""What a pass gathers of all images, as mergeable values: for filters, classifiers, accuracy."""

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
    """What the filters of a layer are learned from, gathered from its raw inputs (n, H, W, c).

    low and high (c,), patch moments, and the patches of the stacked-LDA draws. `merge` is
    associative and `empty` its identity.
    """

    low: Array
    high: Array
    moments: PatchMoments
    sample: PatchSample

    @classmethod
    def empty(cls, channels: int, size: int, xp: Any = np) -> BankStatistics:
        """The statistics of no image, to be merged with arrays of NumPy or CuPy."""
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
        before: Array,
        draws: Draws,
        size: int,
    ) -> BankStatistics:
        """The statistics of the training images, train (n,), among the inputs of a chunk."""
        sample = sample_patches(inputs, labels, train, before, draws, size)
        return cls(*patch_statistics(inputs.only(train), size), sample)

    def merge(self, other: BankStatistics) -> BankStatistics:
        """The statistics of both sets of images."""
        return BankStatistics(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.moments.merge(other.moments),
            self.sample.merge(other.sample),
        )

    def only(self, channels: Array, draws: range, patches: int) -> BankStatistics:
        """The statistics of some channels (c',), and of some of the draws of so many patches."""
        if len(channels) == len(self.low):  # of all, as there is one tower
            return self
        size = len(self.moments.mean) // len(self.low)
        directions = np.add.outer(np.arange(size) * len(self.low), channels).ravel()
        slots = slice(draws.start * patches, draws.stop * patches)
        if not np.array_equal(self.sample.slots[slots], range(slots.start, slots.stop)):
            raise ValueError(f"patches of draws {draws.start} to {draws.stop} are missing")
        return BankStatistics(
            self.low[channels],
            self.high[channels],
            self.moments.only(directions),
            PatchSample(self.sample.slots[slots], self.sample.patches[slots][:, directions]),
        )

    def rescale(self, low: Array, scale: Array) -> BankStatistics:
        """The statistics of (inputs − low)·scale, low and scale (c,)."""
        return BankStatistics(
            (self.low - low) * scale,
            (self.high - low) * scale,
            self.moments.rescale(low, scale),
            self.sample.rescale(low, scale),
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """Images seen, classified rightly, with a positive largest error, and with scores that are no
    numbers any more, by role; `merge` adds. All are (2,): training images, validation images."""

    seen: Array
    right: Array
    positive: Array
    beyond: Array

    @classmethod
    def empty(cls, xp: Any = np) -> Tally:
        """Nothing seen, in arrays of NumPy or CuPy."""
        return cls(*xp.zeros((4, 2), np.int64))

    @classmethod
    def of(cls, scores: Array, labels: Array, train: Array, target: float) -> Tally:
        """Count the images whose largest score (n, C) is that of their label (n,), and those whose
        largest error of λY − Ŷ, λ = target, is positive: too little for their own class."""
        labels, train = asarray_like(labels, scores), asarray_like(train, scores)
        right = scores.argmax(axis=1) == labels
        positive = residual_labels(scores, labels, target)[1] > 0
        finite = np.isfinite(scores).all(axis=1)
        kinds = (np.ones_like(right), right & finite, positive, ~finite)
        roles = np.stack([train, ~train])
        return cls(*((kind & roles).sum(axis=1) for kind in kinds))

    def merge(self, other: Tally) -> Tally:
        """Both counts together."""
        return Tally(
            self.seen + other.seen,
            self.right + other.right,
            self.positive + other.positive,
            self.beyond + other.beyond,
        )

    def accuracy(self, role: int) -> float | None:
        """The share classified rightly of the training (0) or validation (1) images."""
        return float(self.right[role] / self.seen[role]) if self.seen[role] else None

    @property
    def residual(self) -> tuple[float, float]:
        """The shares of the training images whose largest error is positive, and negative."""
        share = float(self.positive[0] / self.seen[0]) if self.seen[0] else 0.0
        return share, 1 - share


@dataclass(frozen=True, slots=True)
class GrownChunk:
    """What a layer's pass makes of one chunk of n images: maps (n, H, W, f), the scores (n, C) that
    enter the layer, features (n, D), targets (n, K), train (n,) bool; and what gathers statistics
    of the next layer's input and a tally, which is to be called once a GPU has all else to do."""

    maps: Array
    scores: Array
    features: Array
    targets: Array
    train: Array
    gather: Callable[[], tuple[BankStatistics, Tally]]


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """All that one pass gathers: the features' moments for this layer's classifier, the input
    statistics for the next layer's bank, and how well the layers before this one do."""

    features: FeatureMoments
    inputs: BankStatistics
    tally: Tally

    def fold(self, chunk: GrownChunk) -> LayerStatistics:
        """These statistics with one more chunk; takes over the memory of `self.features`."""
        features, targets = chunk.features, chunk.targets
        if not chunk.train.all():
            train = asarray_like(np.flatnonzero(chunk.train), features)
            features, targets = features[train], targets[train]
        moments = self.features.fold(features, targets)
        inputs, tally = chunk.gather()
        return LayerStatistics(moments, self.inputs.merge(inputs), self.tally.merge(tally))

    def settled(self) -> LayerStatistics:
        """These statistics with all of it that is small, which is all but the features' moments, in
        the memory of the machine itself; a GPU is waited for."""
        return LayerStatistics(self.features, to_host(self.inputs), to_host(self.tally))

    def merge(self, other: LayerStatistics) -> LayerStatistics:
        """The statistics of both sets of images."""
        return LayerStatistics(
            self.features.merge(other.features),
            self.inputs.merge(other.inputs),
            self.tally.merge(other.tally),
        )
