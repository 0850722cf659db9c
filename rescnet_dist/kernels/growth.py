"""Growing a layer: its pass over one chunk after another, and the fits at the end of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module, to_host
from rescnet_dist.kernels.convolution import min_max_scale
from rescnet_dist.kernels.discriminant import (
    FeatureMoments,
    Whitening,
    one_vs_rest_lda,
    ridge_regression,
)
from rescnet_dist.kernels.filters import (
    Draws,
    pca_filters,
    stacked_lda_draws,
    stacked_lda_filters,
)
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.layer import (
    Bank,
    Classifier,
    ImageScale,
    extract_features,
    features_per_layer,
    layer_maps,
    layer_pixels,
    slabs,
    update_scores,
)
from rescnet_dist.kernels.residual import layer_targets
from rescnet_dist.kernels.statistics import BankStatistics, GrownChunk, LayerStatistics, Tally
from rescnet_dist.spec import NetworkSpec, Tower


def targets_per_layer(classes: int, spec: NetworkSpec) -> int:
    """Number of targets K that a layer is fitted to."""
    return classes if spec.residual == "regress" else 2 * classes


@dataclass(frozen=True, slots=True)
class GrowingLayer:
    """A layer in the making: what its pass needs to know to work on one chunk after another.

    number counts from 1; previous is the layer before (None for the first); draws gives those of
    the *next* layer's stacked-LDA filters, and is called once there is time.
    """

    spec: NetworkSpec
    number: int
    classes: int
    image_scale: ImageScale
    bank: Bank
    previous: Classifier | None
    draws: Callable[[], Draws]

    def empty(
        self, height: int, width: int, channels: int, *, scatter: bool, xp: Any = np
    ) -> LayerStatistics:
        """The statistics of no image, in arrays of NumPy or CuPy; without `scatter` that of the
        features is left out."""
        return LayerStatistics(
            FeatureMoments.empty(
                features_per_layer(height, width, self.spec),
                targets_per_layer(self.classes, self.spec),
                scatter=scatter,
                xp=xp,
            ),
            BankStatistics.empty(
                self.spec.input_channels(self.number + 1, channels), self.spec.filter_size, xp
            ),
            Tally.empty(xp),
        )

    def step(
        self,
        images: Array,
        maps: Array | None,
        scores: Array | None,
        labels: Array,
        train: Array,
        before: Array,
        old_features: Array | None = None,
    ) -> GrownChunk:
        """One chunk of the layer's pass.

        images (n, H, W, d) and maps (n, H, W, f) of the layer before as stored, and scores (n, C)
        that entered it (None for the first layer); labels (n,); train (n,) bool; before (C,)
        training images of each class ahead of this chunk; features (n, D) of the layer before, if
        they are at hand. Works on one slab of images after another, so that little more than what
        comes in and goes out is held.
        """
        xp, (n, height, width, _) = get_array_module(images), images.shape
        new_maps = xp.empty((n, height, width, self.spec.filters), np.float32)
        features = xp.empty((n, features_per_layer(height, width, self.spec)), np.float32)
        entering = xp.zeros((n, self.classes), np.float32)
        pixels = layer_pixels(images, self.image_scale, self.spec)
        for rows in slabs(pixels, pixels.shape[3], self.spec):
            old = None if maps is None else maps[rows].astype(np.float32, copy=False)
            if self.previous is not None and old is not None and scores is not None:
                known = None if old_features is None else old_features[rows]
                entering[rows] = update_scores(self.previous, old, scores[rows], self.spec, known)
            layer_maps(self.bank, LayerInput.of(pixels[rows], old), self.spec, new_maps[rows])
            features[rows] = extract_features(new_maps[rows], self.spec)
        targets = layer_targets(
            entering, asarray_like(labels, entering), first=self.number == 1,
            residual=self.spec.residual, target=self.spec.target,
        )  # fmt: skip

        def gather() -> tuple[BankStatistics, Tally]:
            inputs = LayerInput.of(pixels, new_maps)
            size = self.spec.filter_size
            return (
                BankStatistics.of(inputs, labels, train, before, self.draws(), size),
                Tally.of(entering, labels, train, self.spec.target),
            )

        return GrownChunk(new_maps, entering, features, targets, train, gather)


def draw_layer_patches(
    spec: NetworkSpec, seed: int, layer: int, class_counts: Array, shape: tuple[int, int, int]
) -> Draws:
    """The stacked-LDA draws for the filters of `layer`, of images of shape (H, W, d)."""
    height, width, channels = shape
    size, towers = spec.filter_size_at(layer), spec.layer_towers(layer, channels)
    return stacked_lda_draws(
        seed, layer, spec.lda_draws * sum(tower.lda for tower in towers), class_counts,
        positives=spec.lda_positives, negatives=spec.lda_negatives,
        rows=height - size + 1, columns=width - size + 1,
    )  # fmt: skip


def fit_image_scale(statistics: BankStatistics, spec: NetworkSpec) -> ImageScale:
    """The normalization of the images from the statistics of their views."""
    own = slice(len(statistics.low) // spec.views)
    return ImageScale(*min_max_scale(statistics.low[own], statistics.high[own], spec.minmax))


def fit_first_bank(statistics: BankStatistics, scale: ImageScale, spec: NetworkSpec) -> Bank:
    """The filters of the first layer, from the statistics of the views of raw images."""
    others = len(statistics.low) - len(scale.low)  # channels that have their own scale
    low = np.concatenate([scale.low, np.zeros(others)])
    return fit_bank(
        statistics.rescale(low, np.concatenate([scale.scale, np.ones(others)])), spec, 1
    )


def fit_bank(statistics: BankStatistics, spec: NetworkSpec, layer: int) -> Bank:
    """The filters of a layer, PCA before stacked-LDA in each tower, from the statistics of its
    input."""
    size, channels = spec.filter_size_at(layer), len(statistics.low)
    maps = spec.filters if layer > 1 else 0
    low, scale = np.zeros(channels), np.zeros(channels)
    filters, bias = np.zeros((size, size, channels, spec.filters)), np.zeros(spec.filters)
    drawn = 0
    for tower in spec.layer_towers(layer, (channels - maps) // spec.views):
        draws = range(drawn, drawn := drawn + spec.lda_draws * tower.lda)
        seen = np.array(tower.channels)
        low[seen], scale[seen] = min_max_scale(
            statistics.low[seen], statistics.high[seen], spec.minmax
        )
        part = statistics.only(seen, draws, spec.lda_positives + spec.lda_negatives)
        made, bias[tower.filters] = _fit_tower(part.rescale(low[seen], scale[seen]), spec, tower)
        filters[:, :, seen[:, None], tower.filters] = made
    return Bank(low, scale, filters, bias)


def _fit_tower(statistics: BankStatistics, spec: NetworkSpec, tower: Tower) -> tuple[Array, Array]:
    """Filters (k, k, c, f) and bias (f,) of one tower from the statistics of what it sees."""
    size = math.isqrt(len(statistics.moments.mean) // len(statistics.low))
    pca = pca_filters(statistics.moments, size, tower.pca)
    if not tower.lda:
        return pca, np.zeros(tower.pca)
    m = spec.lda_positives + spec.lda_negatives
    lda, bias = stacked_lda_filters(
        statistics.sample.patches.reshape(-1, m, len(statistics.moments.mean)),
        spec.lda_positives, size, tower.lda, ridge=spec.lda_ridge, tolerance=spec.lda_tolerance,
    )  # fmt: skip
    return np.concatenate([pca, lda], axis=3), np.concatenate([np.zeros(tower.pca), bias])


def fit_classifier(
    moments: FeatureMoments,
    spec: NetworkSpec,
    layer: int,
    classes: int,
    whitening: Whitening | None = None,
) -> Classifier:
    """The weights of a layer from the moments of its features and targets; whitening is that of
    the features where it has been made elsewhere."""
    rate = spec.learning_rate_at(layer)
    if spec.residual == "regress":
        weights, intercept = ridge_regression(moments, spec.ridge, whitening)
        present, share = np.ones(classes, bool), np.ones(1)
    else:
        weights, intercept, present = one_vs_rest_lda(moments, spec.ridge, whitening)
        share = moments.target_sums.reshape(2, classes).sum(axis=1) / moments.count
    return to_host(
        Classifier(
            weights.reshape(-1, classes, weights.shape[1]).astype(np.float32),
            intercept.reshape(-1, classes),
            present.reshape(-1, classes),
            share,
            rate,
        )
    )
