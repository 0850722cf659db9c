"""One layer on arrays: the fitted parts, growing it chunk by chunk, and running it forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.convolution import convolve, min_max_scale, normalise
from rescnet_dist.kernels.discriminant import FeatureMoments, one_vs_rest_lda, ridge_regression
from rescnet_dist.kernels.filters import (
    Draws,
    PatchSample,
    pca_filters,
    sample_patches,
    stacked_lda_draws,
    stacked_lda_filters,
)
from rescnet_dist.kernels.patches import Array, PatchMoments, patch_scatter
from rescnet_dist.kernels.pooling import feature_count, second_order_features
from rescnet_dist.kernels.residual import layer_targets, probabilities
from rescnet_dist.spec import NetworkSpec


@dataclass(frozen=True, slots=True)
class Bank:
    """How a layer makes maps: normalise its input with low and scale (c,), convolve with filters
    (k, k, c, f), add bias (f,)."""

    low: Array
    scale: Array
    filters: Array
    bias: Array

    def maps(self, inputs: Array) -> Array:
        """Maps (n, H, W, f) of inputs (n, H, W, c)."""
        return convolve(normalise(inputs, self.low, self.scale), self.filters, self.bias)


@dataclass(frozen=True, slots=True)
class Classifier:
    """How a layer moves the scores: weights (S, C, D), intercept (S, C), present (S, C), share (S,)
    and rate α. S = 2 for "classify" (positive, negative), 1 for "regress"."""

    weights: Array
    intercept: Array
    present: Array
    share: Array
    rate: float

    def correction(self, features: Array, spec: NetworkSpec) -> Array:
        """What the layer adds to the scores, (n, C), from its features (n, D)."""
        weights = self.weights.reshape(-1, self.weights.shape[2]).astype(features.dtype)
        outputs = (features @ weights.T).reshape(len(features), *self.intercept.shape)
        outputs = outputs + self.intercept
        if spec.residual == "regress":
            return self.rate * outputs[:, 0]
        positive, negative = (
            share * probabilities(
                outputs[:, sign], self.present[sign],
                probability=spec.probability, sigma=spec.sigma, beta=spec.beta,
            )
            for sign, share in enumerate(self.share)
        )  # fmt: skip
        return self.rate * (positive - negative)


@dataclass(frozen=True, slots=True)
class Layer:
    """A fitted layer."""

    bank: Bank
    classifier: Classifier


@dataclass(frozen=True, slots=True)
class ImageScale:
    """The min-max normalisation of the images themselves: low and scale (d,)."""

    low: Array
    scale: Array

    def __call__(self, images: Array) -> Array:
        """Images (n, H, W, d) as float32, [0, 1] over the training set."""
        return normalise(images, self.low, self.scale)


def features_of(maps: Array, spec: NetworkSpec) -> Array:
    """Features (n, D) of maps (n, H, W, f)."""
    return second_order_features(
        maps, spec.block, spec.stride, spec.levels,
        cells=spec.cells, pool=spec.pool, zscore=spec.zscore, power=spec.power,
    )  # fmt: skip


def features_per_layer(height: int, width: int, spec: NetworkSpec) -> int:
    """Number of features D of a layer on images of height×width pixels."""
    return feature_count(
        height, width, spec.filters, block=spec.block, stride=spec.stride,
        levels=spec.levels, cells=spec.cells, zscore=spec.zscore,
    )  # fmt: skip


def targets_per_layer(classes: int, spec: NetworkSpec) -> int:
    """Number of targets K that a layer is fitted to."""
    return classes if spec.residual == "regress" else 2 * classes


def layer_input(maps: Array | None, images: Array) -> Array:
    """What a layer sees: the images (n, H, W, d), behind the maps of the layer before if any."""
    return images if maps is None else np.concatenate([maps, images], axis=3)


@dataclass(frozen=True, slots=True)
class BankStatistics:
    """What the filters of a layer are learnt from, gathered from its raw inputs (n, H, W, c).

    low and high (c,), patch moments, and the patches of the stacked-LDA draws. `merge` is
    associative and `empty` its identity.
    """

    low: Array
    high: Array
    moments: PatchMoments
    sample: PatchSample

    @classmethod
    def empty(cls, channels: int, size: int) -> BankStatistics:
        """The statistics of no image."""
        directions = size * size * channels
        return cls(
            np.full(channels, np.inf),
            np.full(channels, -np.inf),
            PatchMoments.empty(directions),
            PatchSample.empty(directions),
        )

    @classmethod
    def of(
        cls, inputs: Array, labels: Array, train: Array, before: Array, draws: Draws, size: int
    ) -> BankStatistics:
        """The statistics of the training images among the inputs (n, H, W, c) of a chunk."""
        inputs = np.asarray(inputs, dtype=np.float32)
        sample = sample_patches(inputs, labels, train, before, draws, size)
        learnt = inputs if train.all() else inputs[train]
        return cls(
            learnt.min(axis=(0, 1, 2), initial=np.inf).astype(np.float64),
            learnt.max(axis=(0, 1, 2), initial=-np.inf).astype(np.float64),
            patch_scatter(learnt, size),
            sample,
        )

    def merge(self, other: BankStatistics) -> BankStatistics:
        """The statistics of both sets of images."""
        return BankStatistics(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.moments.merge(other.moments),
            self.sample.merge(other.sample),
        )

    def rescale(self, low: Array, scale: Array) -> BankStatistics:
        """The statistics of (inputs − low)·scale, low and scale (c,)."""
        repeats = self.sample.patches.shape[1] // len(low)
        patches = (self.sample.patches - np.tile(low, repeats)) * np.tile(scale, repeats)
        return BankStatistics(
            (self.low - low) * scale,
            (self.high - low) * scale,
            self.moments.rescale(low, scale),
            PatchSample(self.sample.slots, patches),
        )


def draws_of_layer(
    spec: NetworkSpec, seed: int, layer: int, class_counts: Array, shape: tuple[int, int, int]
) -> Draws:
    """The stacked-LDA draws for the filters of `layer`, whose input is of shape (H, W, c)."""
    height, width, channels = shape
    size = spec.size_of_layer(layer)
    return stacked_lda_draws(
        seed, layer, spec.lda_draws * spec.bank_of_layer(layer, channels)[1], class_counts,
        positives=spec.lda_positives, negatives=spec.lda_negatives,
        rows=height - size + 1, columns=width - size + 1,
    )  # fmt: skip


def fit_image_scale(statistics: BankStatistics, spec: NetworkSpec) -> ImageScale:
    """The normalisation of the images from their statistics."""
    return ImageScale(*min_max_scale(statistics.low, statistics.high, spec.minmax))


def fit_bank(statistics: BankStatistics, spec: NetworkSpec, layer: int) -> Bank:
    """The filters of a layer, PCA before stacked-LDA, from the statistics of its input."""
    size = spec.size_of_layer(layer)
    low, scale = min_max_scale(statistics.low, statistics.high, spec.minmax)
    pca, lda = spec.bank_of_layer(layer, len(low))
    scaled = statistics.rescale(low, scale)
    filters, bias = [pca_filters(scaled.moments, size, pca)], [np.zeros(pca)]
    if lda:
        m = spec.lda_positives + spec.lda_negatives
        patches = scaled.sample.patches.reshape(spec.lda_draws * lda, m, -1)
        more, more_bias = stacked_lda_filters(
            patches, spec.lda_positives, size, lda,
            ridge=spec.lda_ridge, tolerance=spec.lda_tolerance,
        )  # fmt: skip
        filters.append(more)
        bias.append(more_bias)
    return Bank(low, scale, np.concatenate(filters, axis=3), np.concatenate(bias))


def fit_classifier(
    moments: FeatureMoments, spec: NetworkSpec, layer: int, classes: int
) -> Classifier:
    """The weights of a layer from the moments of its features and targets."""
    rate = spec.rate_of_layer(layer)
    if spec.residual == "regress":
        weights, intercept = ridge_regression(moments, spec.ridge)
        present, share = np.ones(classes, bool), np.ones(1)
    else:
        weights, intercept, present = one_vs_rest_lda(moments, spec.ridge)
        share = moments.target_sums.reshape(2, classes).sum(axis=1) / moments.count
    return Classifier(
        weights.reshape(-1, classes, weights.shape[1]).astype(np.float32),
        intercept.reshape(-1, classes),
        present.reshape(-1, classes),
        share,
        rate,
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """Images seen and classified rightly, by role; `merge` adds. seen and right are (2,): training
    images, validation images."""

    seen: Array
    right: Array

    @classmethod
    def empty(cls) -> Tally:
        """Nothing seen."""
        return cls(np.zeros(2, np.int64), np.zeros(2, np.int64))

    @classmethod
    def of(cls, scores: Array, labels: Array, train: Array) -> Tally:
        """Count the images whose largest score (n, C) is that of their label (n,)."""
        right = scores.argmax(axis=1) == labels
        roles = (train, ~train)
        return cls(
            np.array([role.sum() for role in roles]),
            np.array([(right & role).sum() for role in roles]),
        )

    def merge(self, other: Tally) -> Tally:
        """Both counts together."""
        return Tally(self.seen + other.seen, self.right + other.right)

    def accuracy(self, role: int) -> float | None:
        """The share classified rightly of the training (0) or validation (1) images."""
        return float(self.right[role] / self.seen[role]) if self.seen[role] else None


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """All that one pass gathers: the features' moments for this layer's classifier, the input
    statistics for the next layer's bank, and how well the layers before this one do."""

    features: FeatureMoments
    inputs: BankStatistics
    tally: Tally

    def merge(self, other: LayerStatistics) -> LayerStatistics:
        """The statistics of both sets of images."""
        return LayerStatistics(
            self.features.merge(other.features),
            self.inputs.merge(other.inputs),
            self.tally.merge(other.tally),
        )


@dataclass(frozen=True, slots=True)
class GrowingLayer:
    """A layer in the making: what its pass needs to know to work on one chunk after another.

    number counts from 1; previous is the layer before (None for the first); draws are those of
    the *next* layer's stacked-LDA filters.
    """

    spec: NetworkSpec
    number: int
    classes: int
    image_scale: ImageScale
    bank: Bank
    previous: Classifier | None
    draws: Draws

    def empty(self, height: int, width: int, channels: int) -> LayerStatistics:
        """The statistics of no image."""
        return LayerStatistics(
            FeatureMoments.empty(
                features_per_layer(height, width, self.spec),
                targets_per_layer(self.classes, self.spec),
            ),
            BankStatistics.empty(channels + self.spec.filters, self.spec.filter_size),
            Tally.empty(),
        )

    def grow(
        self,
        statistics: LayerStatistics,
        images: Array,
        maps: Array | None,
        scores: Array | None,
        labels: Array,
        train: Array,
        before: Array,
    ) -> tuple[Array, Array, LayerStatistics]:
        """One chunk of the layer's pass; takes over the memory of `statistics`.

        images (n, H, W, d) as stored; maps (n, H, W, f) of the layer before and scores (n, C) that
        entered it (None for the first layer); labels (n,); train (n,) bool; before (C,) training
        images of each class ahead of this chunk. Returns this layer's maps, the scores that enter
        it, and the statistics with this chunk in.
        """
        images = self.image_scale(images)
        scores = updated_scores(self.previous, maps, scores, self.spec, len(images), self.classes)
        targets = layer_targets(
            scores, labels, first=self.number == 1,
            residual=self.spec.residual, target=self.spec.target,
        )  # fmt: skip
        new_maps = self.bank.maps(layer_input(maps, images))
        features = features_of(new_maps, self.spec)
        more = BankStatistics.of(
            layer_input(new_maps, images), labels, train, before, self.draws, self.spec.filter_size
        )
        if not train.all():
            features, targets = features[train], targets[train]
        return (
            new_maps,
            scores,
            LayerStatistics(
                statistics.features.fold(features, targets),
                statistics.inputs.merge(more),
                statistics.tally.merge(Tally.of(scores, labels, train)),
            ),
        )


def updated_scores(
    classifier: Classifier | None,
    maps: Array | None,
    scores: Array | None,
    spec: NetworkSpec,
    n: int,
    classes: int,
) -> Array:
    """Scores (n, C) after a layer, from its maps (n, H, W, f) and the scores that entered it."""
    if classifier is None or maps is None or scores is None:
        return np.zeros((n, classes), np.float32)
    correction = classifier.correction(features_of(maps, spec), spec)
    return (scores + correction).astype(np.float32)


def forward(
    images: Array, layers: Iterable[Layer], image_scale: ImageScale, spec: NetworkSpec, classes: int
) -> Iterator[tuple[Array, Array]]:
    """Maps (n, H, W, f) and running scores (n, C) of images (n, H, W, d) after each layer."""
    images = image_scale(images)
    maps: Array | None = None
    scores = np.zeros((len(images), classes), np.float32)
    for layer in layers:
        maps = layer.bank.maps(layer_input(maps, images))
        scores = updated_scores(layer.classifier, maps, scores, spec, len(images), classes)
        yield maps, scores
