"""Growing a layer: its pass over chunks, and the fits at the end of the pass."""

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
    """Compute the number of targets K that a layer is fitted to.

    Parameters
    ----------
    classes : int
        The number of classes C.
    spec : NetworkSpec
        The network.

    Returns
    -------
    int
        C for residual="regress", 2C for residual="classify".
    """
    return classes if spec.residual == "regress" else 2 * classes


@dataclass(frozen=True, slots=True)
class GrowingLayer:
    """A layer whose pass over the chunks is in progress: its filters are fitted.

    Attributes
    ----------
    spec : NetworkSpec
        The network.
    number : int
        The number of the layer, from 1.
    classes : int
        The number of classes C.
    image_scale : ImageScale
        The normalization of the images.
    bank : Bank
        The filters of the layer.
    previous : Classifier or None
        The classifiers of the layer before, None for the first layer.
    draws : callable
        Returns the draws of the *next* layer's stacked-LDA filters. It is called after all other
        work has been queued on a GPU.
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
        """Return the statistics of no image.

        Parameters
        ----------
        height : int
            The height H of an image.
        width : int
            The width W of an image.
        channels : int
            The number d of channels of an image.
        scatter : bool
            Whether to gather the scatter of the features.
        xp : module, default numpy
            The array module of the statistics, numpy or cupy.

        Returns
        -------
        LayerStatistics
            The statistics that a pass starts with.
        """
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
        class_offsets: Array,
        old_features: Array | None = None,
    ) -> GrownChunk:
        """Run the layer's pass on one chunk.

        It processes one slab of images after another, so that little more than its inputs and
        outputs is in memory.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            The images, as stored.
        maps : ndarray of shape (n, H, W, f) or None
            The maps of the layer before, as stored; None for the first layer.
        scores : ndarray of shape (n, C) or None
            The scores that entered the layer before; None for the first layer.
        labels : ndarray of int, shape (n,)
            The labels.
        train : ndarray of bool, shape (n,)
            Which images are training images.
        class_offsets : ndarray of int, shape (C,)
            The number of training images of each class in all chunks before this one.
        old_features : ndarray of shape (n, D), optional
            The features of the layer before; computed from `maps` by default.

        Returns
        -------
        GrownChunk
            The results for the chunk.
        """
        xp, (n, height, width, _) = get_array_module(images), images.shape
        new_maps = xp.empty((n, height, width, self.spec.filters), np.float32)
        features = xp.empty((n, features_per_layer(height, width, self.spec)), np.float32)
        entering = xp.zeros((n, self.classes), np.float32)
        pixels = layer_pixels(images, self.image_scale, self.spec)
        for rows in slabs(pixels, pixels.shape[3], self.spec):
            old_maps = None if maps is None else maps[rows].astype(np.float32, copy=False)
            if self.previous is not None and old_maps is not None and scores is not None:
                slab_features = None if old_features is None else old_features[rows]
                entering[rows] = update_scores(
                    self.previous, old_maps, scores[rows], self.spec, slab_features
                )
            layer_maps(self.bank, LayerInput.of(pixels[rows], old_maps), self.spec, new_maps[rows])
            features[rows] = extract_features(new_maps[rows], self.spec)
        targets = layer_targets(
            entering,
            asarray_like(labels, entering),
            first=self.number == 1,
            residual=self.spec.residual,
            target=self.spec.target,
        )

        def gather() -> tuple[BankStatistics, Tally]:
            """Return the statistics of the next layer's input, and the tally of the scores."""
            inputs = LayerInput.of(pixels, new_maps)
            size = self.spec.filter_size
            return (
                BankStatistics.of(inputs, labels, train, class_offsets, self.draws(), size),
                Tally.of(entering, labels, train, self.spec.target),
            )

        return GrownChunk(new_maps, entering, features, targets, train, gather)


def draw_layer_patches(
    spec: NetworkSpec, seed: int, layer: int, class_counts: Array, shape: tuple[int, int, int]
) -> Draws:
    """Draw the patches for the stacked-LDA filters of a layer.

    Parameters
    ----------
    spec : NetworkSpec
        The network.
    seed : int
        The seed of the run.
    layer : int
        The number of the layer, from 1.
    class_counts : ndarray of int, shape (C,)
        The number of training images of each class.
    shape : tuple of int
        The shape (H, W, d) of an image.

    Returns
    -------
    Draws
        The draws of all towers of the layer.
    """
    height, width, channels = shape
    size, towers = spec.filter_size_at(layer), spec.layer_towers(layer, channels)
    return stacked_lda_draws(
        seed,
        layer,
        spec.lda_draws * sum(tower.lda for tower in towers),
        class_counts,
        positives=spec.lda_positives,
        negatives=spec.lda_negatives,
        rows=height - size + 1,
        columns=width - size + 1,
    )


def fit_image_scale(statistics: BankStatistics, spec: NetworkSpec) -> ImageScale:
    """Fit the normalization of the images.

    Parameters
    ----------
    statistics : BankStatistics of d' channels
        The statistics of `raw_pixels`.
    spec : NetworkSpec
        The network.

    Returns
    -------
    ImageScale of d channels
        The normalization.
    """
    image = slice(len(statistics.low) // spec.views)  # the channels of the image itself
    return ImageScale(*min_max_scale(statistics.low[image], statistics.high[image], spec.minmax))


def fit_first_bank(statistics: BankStatistics, scale: ImageScale, spec: NetworkSpec) -> Bank:
    """Fit the filters of the first layer.

    Parameters
    ----------
    statistics : BankStatistics of d' channels
        The statistics of `raw_pixels`.
    scale : ImageScale of d channels
        The normalization of the images.
    spec : NetworkSpec
        The network.

    Returns
    -------
    Bank
        The filters.
    """
    others = len(statistics.low) - len(scale.low)  # channels of local contrast: scaled already
    low = np.concatenate([scale.low, np.zeros(others)])
    return fit_bank(
        statistics.rescale(low, np.concatenate([scale.scale, np.ones(others)])), spec, 1
    )


def fit_bank(statistics: BankStatistics, spec: NetworkSpec, layer: int) -> Bank:
    """Fit the filters of a layer; PCA filters come before stacked-LDA filters in each tower.

    Parameters
    ----------
    statistics : BankStatistics of c channels
        The statistics of the layer's input.
    spec : NetworkSpec
        The network.
    layer : int
        The number of the layer, from 1.

    Returns
    -------
    Bank
        The filters.
    """
    size, channels = spec.filter_size_at(layer), len(statistics.low)
    maps = spec.filters if layer > 1 else 0
    low, scale = np.zeros(channels), np.zeros(channels)
    filters, bias = np.zeros((size, size, channels, spec.filters)), np.zeros(spec.filters)
    drawn = 0
    for tower in spec.layer_towers(layer, (channels - maps) // spec.views):
        draws = range(drawn, drawn := drawn + spec.lda_draws * tower.lda)
        own = np.array(tower.channels)
        low[own], scale[own] = min_max_scale(statistics.low[own], statistics.high[own], spec.minmax)
        part = statistics.select(own, draws, spec.lda_positives + spec.lda_negatives)
        fitted, bias[tower.filters] = _fit_tower(part.rescale(low[own], scale[own]), spec, tower)
        filters[:, :, own[:, None], tower.filters] = fitted
    return Bank(low, scale, filters, bias)


def _fit_tower(statistics: BankStatistics, spec: NetworkSpec, tower: Tower) -> tuple[Array, Array]:
    """Return filters (k, k, c, f) and bias (f,) of a tower from the statistics of its input."""
    size = math.isqrt(len(statistics.moments.mean) // len(statistics.low))
    pca = pca_filters(statistics.moments, size, tower.pca)
    if not tower.lda:
        return pca, np.zeros(tower.pca)
    m = spec.lda_positives + spec.lda_negatives
    lda, bias = stacked_lda_filters(
        statistics.sample.patches.reshape(-1, m, len(statistics.moments.mean)),
        spec.lda_positives,
        size,
        tower.lda,
        ridge=spec.lda_ridge,
        tolerance=spec.lda_tolerance,
    )
    return np.concatenate([pca, lda], axis=3), np.concatenate([np.zeros(tower.pca), bias])


def fit_classifier(
    moments: FeatureMoments,
    spec: NetworkSpec,
    layer: int,
    classes: int,
    whitening: Whitening | None = None,
) -> Classifier:
    """Fit the classifiers of a layer.

    Parameters
    ----------
    moments : FeatureMoments of D features and K targets
        The moments of the layer's features and targets.
    spec : NetworkSpec
        The network.
    layer : int
        The number of the layer, from 1.
    classes : int
        The number of classes C.
    whitening : Whitening, optional
        The factorized covariance of the features; computed from `moments` by default.

    Returns
    -------
    Classifier
        The classifiers, in the memory of the host.

    Raises
    ------
    SingularError
        If the covariance of the features cannot be factorized with spec.ridge.
    """
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
