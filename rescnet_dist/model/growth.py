"""Growing a layer: its pass over chunks, and the fits at the end of the pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError, SpecError
from rescnet_dist.kernels import FeatureMoments, Whitening, min_max_scale, to_host
from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.kernels.solving import overflow_error
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.model.forward import State, TrainingRows, advance, layer_input, zero_scores
from rescnet_dist.model.head import SampleHead
from rescnet_dist.model.layer import Bank, FittedHead, ImageScale
from rescnet_dist.model.observation import Observation
from rescnet_dist.model.pixels import NO_ARRAYS, layer_pixels
from rescnet_dist.model.statistics import BankStatistics, GrownChunk, LayerStatistics, Tally
from rescnet_dist.model.view import PixelRange, ViewArrays


@dataclass(frozen=True, slots=True)
class GrowingLayer:
    """A layer whose pass over the chunks is in progress: its filters are fitted.

    Attributes
    ----------
    architecture : Architecture
        The network.
    number : int
        The number of the layer, from 1.
    image_scale : ImageScale
        The normalization of the images.
    bank : Bank
        The filters of the layer.
    previous : FittedHead or None
        The head of the layer before, None for the first layer and after one without a head.
    class_counts : ndarray of int, shape (C,)
        The number of training images of each class, in all chunks.
    """

    architecture: Architecture
    number: int
    image_scale: ImageScale
    bank: Bank
    previous: FittedHead | None
    class_counts: Array

    def empty(self, *, scatter: bool, xp: Any = np) -> LayerStatistics:
        """Return the statistics of no image.

        Parameters
        ----------
        scatter : bool
            Whether to gather the scatter of the features.
        xp : module, default numpy
            The array module of the statistics, numpy or cupy.

        Returns
        -------
        LayerStatistics
            The statistics that a pass starts with.
        """
        network, inputs = self.architecture, None
        moments: FeatureMoments | FeatureSamples | None = None
        if network.has_head(self.number):
            features = network.feature_count(self.number)
            if network.head.fits_samples:
                moments = FeatureSamples.empty(features, network.store_dtype, xp)
            else:
                moments = FeatureMoments.empty(
                    features,
                    network.targets,
                    scatter=scatter,
                    squares=network.head.iterative_solver is not None,
                    xp=xp,
                )
        if network.has_next(self.number):
            inputs = BankStatistics.empty(network, self.number + 1, xp)
        return LayerStatistics(moments, inputs, Tally.empty(xp))

    def step(
        self,
        images: Array,
        maps: Array | None,
        scores: Array | None,
        labels: Array,
        train: Array,
        class_offsets: Array,
        *,
        old_features: Array | None = None,
        weights: Array | None = None,
        repeats: Array | None = None,
        numbers: Array | None = None,
        first_row: int = 0,
    ) -> GrownChunk:
        """Run the layer's pass on one chunk.

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
        weights : ndarray of float64, shape (n,), optional
            As how many images each counts in moments; each counts once by default.
        repeats : ndarray of int, shape (n,), optional
            How many times each image is repeated for draws; once by default.
        numbers : ndarray of int, shape (n,), optional
            The numbers of the images in the data; that of a copy is that of its original. By
            default they are counted from 0.
        first_row : int, default 0
            The row of the first image in the run.

        Returns
        -------
        GrownChunk
            The results for the chunk.
        """
        network = self.architecture
        pixels = layer_pixels(images, self.image_scale, network)
        if scores is None:
            scores = zero_scores(images, network)
        images_in_data = np.arange(len(labels)) if numbers is None else numbers
        rows = TrainingRows(labels, train, images_in_data, first_row)
        state = State(pixels, maps, scores, old_features, self.number - 1, rows)
        has_head = network.has_head(self.number)
        state = advance(network, state, head=self.previous, bank=self.bank, features=has_head)
        assert state.maps is not None
        entering, new_maps, targets = state.scores, state.maps, None
        if has_head:
            first = self.number == 1 or not network.has_head(self.number - 1)
            targets = network.head.targets(entering, asarray_like(labels, entering), first=first)
            if network.head.probe_count:
                signs = asarray_like(rows.signs(network, self.number), targets)
                targets = get_array_module(targets).concatenate([targets, signs], axis=1)

        def gather() -> tuple[BankStatistics | None, Tally]:
            """Return the statistics of the next layer's input, and the tally of the scores."""
            target = network.head.target
            tally = Tally.of(entering, labels, train, target, weights)
            if not network.has_next(self.number):
                return None, tally
            chunk = Observation(
                layer_input(network, pixels, new_maps, weights),
                labels,
                train,
                class_offsets,
                self.class_counts,
                repeats,
                entering,
                target,
                network.filter_images,
            )
            return BankStatistics.of(chunk, network, self.number + 1), tally

        return GrownChunk(
            new_maps, entering, state.features, targets, train, gather, weights, first_row
        )


def fit_image_scale(
    extremes: PixelRange,
    architecture: Architecture,
    views: Mapping[str, ViewArrays] = NO_ARRAYS,
) -> ImageScale:
    """Fit the normalization of the images.

    Parameters
    ----------
    extremes : PixelRange of d channels
        The extremes of the training images.
    architecture : Architecture
        The network.
    views : mapping of str to mapping of str to ndarray, default {}
        What `View.fit` returned, by the name of the view.

    Returns
    -------
    ImageScale of d channels
        The normalization.

    Raises
    ------
    DataError
        If all pixels of all images have the same value.
    """
    low, high = extremes.low, extremes.high
    if float(low.min()) == float(high.max()):
        raise DataError(
            f"All pixels of all training images have the value {float(low.min()):g}. A network "
            "needs images that differ; check how they are loaded."
        )
    return ImageScale(*min_max_scale(low, high, architecture.minmax), dict(views))


def fit_first_bank(
    statistics: BankStatistics, scale: ImageScale, architecture: Architecture
) -> Bank:
    """Fit the filters of the first layer.

    Parameters
    ----------
    statistics : BankStatistics of d' channels
        The statistics of `raw_pixels`.
    scale : ImageScale of d channels
        The normalization of the images.
    architecture : Architecture
        The network.

    Returns
    -------
    Bank
        The filters.
    """
    image_channels = architecture.image_shape[2]
    offsets, factors = [], []
    for view in architecture.views:  # the pixels of most are final
        count = view.channels(image_channels)
        offsets.append(scale.low if view.uses_image_scale else np.zeros(count))
        factors.append(scale.scale if view.uses_image_scale else np.ones(count))
    low, factor = np.concatenate(offsets), np.concatenate(factors)
    channels = [np.array(group.channels) for _, group in architecture.groups(1)]
    rescaled = BankStatistics(
        (statistics.low - low) * factor,
        (statistics.high - low) * factor,
        tuple(
            gathered.rescale(low[own], factor[own])
            for gathered, own in zip(statistics.groups, channels, strict=True)
        ),
    )
    return fit_bank(rescaled, architecture, 1)


def fit_bank(statistics: BankStatistics, architecture: Architecture, layer: int) -> Bank:
    """Fit the filters of a layer, in the order of the parts of the bank.

    Parameters
    ----------
    statistics : BankStatistics of c channels
        The statistics of the layer's input.
    architecture : Architecture
        The network.
    layer : int
        The number of the layer, from 1.

    Returns
    -------
    Bank
        The filters.
    """
    size, channels = architecture.filter_size(layer), len(statistics.low)
    count = architecture.map_count(layer)
    low, scale = np.zeros(channels), np.ones(channels)
    filters, bias = np.zeros((size, size, channels, count)), np.zeros(count)
    gathered = iter(statistics.groups)
    for tower in architecture.towers(layer):
        own = np.array(tower.channels)
        extremes = statistics.low[own], statistics.high[own]
        if layer == 1 or architecture.minmax != "images":
            low[own], scale[own] = min_max_scale(*extremes, architecture.minmax)
        for learner, group in tower.groups:
            rescaled = next(gathered).rescale(low[own], scale[own])
            fitted, bias[group.filters] = learner.fit(rescaled, group)
            if group.centered:
                fitted = fitted - fitted.mean(axis=(0, 1), keepdims=True)
            filters[:, :, own[:, None], group.filters] = fitted
    return Bank(low, scale, filters, bias)


def check_features(moments: FeatureMoments, architecture: Architecture) -> None:
    """Raise DataError if features were too large for the precision that they are rounded to.

    On the processor, `Architecture.extract` finds them earlier.

    Parameters
    ----------
    moments : FeatureMoments of D features
        The moments of the features of all training images.
    architecture : Architecture
        The network.

    Raises
    ------
    DataError
        If a feature was infinite in half precision.
    """
    dtype = architecture.feature_dtype
    if dtype == np.float16 and not bool(np.isfinite(moments.mean).all()):
        raise overflow_error(dtype, "feature_dtype")


def fit_head(
    moments: FeatureMoments | FeatureSamples,
    architecture: Architecture,
    rate: float,
    whitening: Whitening | None = None,
) -> FittedHead:
    """Fit the head of a layer.

    Parameters
    ----------
    moments : FeatureMoments or FeatureSamples of D features and K targets
        The moments of the layer's features and targets, or, for heads with `fits_samples`, those of
        all images.
    architecture : Architecture
        The network.
    rate : float
        The learning rate of the layer.
    whitening : Whitening, optional
        The factorized covariance of the features; computed from `moments` by default.

    Returns
    -------
    FittedHead
        The head, in the memory of the host.

    Raises
    ------
    DataError
        If features were too large for their precision.
    SingularError
        If the covariance of the features cannot be factorized with the head's ridge.
    """
    head = architecture.head
    if isinstance(moments, FeatureSamples):
        assert isinstance(head, SampleHead)
        arrays = head.fit_samples(moments, architecture.classes)
    else:
        check_features(moments, architecture)
        arrays = head.fit(moments, architecture.classes, whitening)
    if arrays.keys() != head.arrays.keys():
        raise SpecError(
            f"The head {head.name!r} has fitted the arrays {sorted(arrays)}, but it declares "
            f"{sorted(head.arrays)}. Make `fit` return what `arrays` names."
        )
    return FittedHead(to_host(arrays), rate)
