"""A fitted layer on arrays: computing its maps, updating the scores, running layers forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import (
    Array,
    asarray_like,
    contiguous_copy,
    get_array_module,
    on_gpu,
)
from rescnet_dist.kernels.contrast import local_contrast
from rescnet_dist.kernels.convolution import convolve, normalize
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.pooling import feature_count, second_order_features
from rescnet_dist.kernels.residual import probabilities
from rescnet_dist.spec import NetworkSpec

SLAB_BYTES = 4 * 2**20  # size of the maps and images in float32 processed at a time, for the cache
GPU_SLAB_BYTES = 2048 * 2**20  # the same on a GPU, enough to saturate it
CONTRAST_COPIES = 6  # copies of images in float32 while their local contrast is computed


@dataclass(frozen=True, slots=True)
class Bank:
    """The filters of a layer: normalize its input, convolve, add a bias.

    Attributes
    ----------
    low : ndarray of shape (c,)
        The offset of the min-max normalization of the input.
    scale : ndarray of shape (c,)
        The scale of the min-max normalization of the input.
    filters : ndarray of shape (k, k, c, f)
        The filters.
    bias : ndarray of shape (f,)
        The bias of each map.
    """

    low: Array
    scale: Array
    filters: Array
    bias: Array

    def maps(self, inputs: LayerInput, into: Array | None = None) -> Array:
        """Compute the maps of a layer.

        Parameters
        ----------
        inputs : LayerInput of n images of shape (H, W, c)
            The raw input of the layer.
        into : ndarray of shape (n, H, W, f), optional
            The array to write to, as for `convolve`.

        Returns
        -------
        ndarray of shape (n, H, W, f)
            The maps: `into` if given, else a new array.
        """
        return convolve(inputs, self.filters, self.bias, self.low, self.scale, into)


@dataclass(frozen=True, slots=True)
class Classifier:
    """The classifiers of a layer, whose outputs are added to the scores.

    S = 2 for residual="classify" (positive, negative), S = 1 for residual="regress".

    Attributes
    ----------
    weights : ndarray of float32, shape (S, C, D)
        Weights on the features.
    intercept : ndarray of shape (S, C)
        Intercepts.
    present : ndarray of bool, shape (S, C)
        The classes that have a classifier.
    share : ndarray of shape (S,)
        The fraction of training images of each sign, the weight of its probabilities.
    rate : float
        The learning rate α.
    """

    weights: Array
    intercept: Array
    present: Array
    share: Array
    rate: float

    def correction(self, features: Array, spec: NetworkSpec) -> Array:
        """Compute the update of the scores from the layer's features.

        Parameters
        ----------
        features : ndarray of shape (n, D)
            The features of the layer.
        spec : NetworkSpec
            The network.

        Returns
        -------
        ndarray of shape (n, C)
            The values to add to the scores, with the learning rate applied.
        """
        weights = self.weights.reshape(-1, self.weights.shape[2]).astype(features.dtype)
        outputs = features @ asarray_like(weights, features).T
        outputs = outputs.reshape(len(features), *self.intercept.shape)
        outputs = outputs + asarray_like(self.intercept, features)
        if spec.residual == "regress":
            return self.rate * outputs[:, 0]
        positive, negative = (
            float(share)
            * probabilities(
                outputs[:, sign],
                self.present[sign],
                probability=spec.probability,
                sigma=spec.sigma,
                beta=spec.beta,
            )
            for sign, share in enumerate(self.share)
        )
        return self.rate * (positive - negative)


@dataclass(frozen=True, slots=True)
class Layer:
    """A fitted layer.

    Attributes
    ----------
    bank : Bank
        Its filters.
    classifier : Classifier
        Its classifiers.
    """

    bank: Bank
    classifier: Classifier


@dataclass(frozen=True, slots=True)
class ImageScale:
    """The min-max normalization of the images.

    Attributes
    ----------
    low : ndarray of shape (d,)
        The offset of each channel.
    scale : ndarray of shape (d,)
        The scale of each channel.
    """

    low: Array
    scale: Array

    def __call__(self, images: Array) -> Array:
        """Return images (n, H, W, d) in float32, in [0, 1] over the training set."""
        return normalize(images, self.low, self.scale)


def layer_pixels(images: Array, image_scale: ImageScale, spec: NetworkSpec) -> Array:
    """Compute the pixels that layers see of images, in addition to maps.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    image_scale : ImageScale
        Their normalization.
    spec : NetworkSpec
        The network. With local_contrast, the local contrast is appended as further channels.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d')
        The pixels; d' = 2d with local_contrast, else d.
    """
    return _make_views(images, image_scale, spec)


def raw_pixels(images: Array, spec: NetworkSpec) -> Array:
    """Compute the pixels of `layer_pixels` before the normalization of images is known.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    spec : NetworkSpec
        The network.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d')
        The pixels, of which the first d channels are not normalized.
    """
    return _make_views(images, lambda part: part.astype(np.float32, copy=False), spec)


def _make_views(images: Array, rescale: Callable[[Array], Array], spec: NetworkSpec) -> Array:
    """Return rescaled images (n, H, W, d), followed by their local contrast if asked for."""
    if not spec.local_contrast:
        return rescale(images)
    n, height, width, channels = images.shape
    pixels = get_array_module(images).empty((n, height, width, 2 * channels), np.float32)
    size = GPU_SLAB_BYTES if on_gpu(images) else SLAB_BYTES
    step = max(1, size // (CONTRAST_COPIES * 4 * height * width * channels))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        pixels[rows, ..., :channels] = rescale(images[rows])
        pixels[rows, ..., channels:] = local_contrast(images[rows])
    return pixels


def layer_maps(
    bank: Bank, inputs: LayerInput, spec: NetworkSpec, into: Array | None = None
) -> Array:
    """Return the maps (n, H, W, f) of a layer in float32, written to `into` if given.

    They are rounded to spec.store_dtype, so that they equal those read from the store.
    """
    maps = bank.maps(inputs, into)
    if spec.rectify:
        np.maximum(maps, 0, out=maps)
    if spec.store_dtype != "float32":
        maps[...] = maps.astype(spec.store_dtype)
    return maps


def extract_features(maps: Array, spec: NetworkSpec) -> Array:
    """Compute the features of a layer from its maps.

    Parameters
    ----------
    maps : ndarray of shape (n, H, W, f)
        The maps of the layer.
    spec : NetworkSpec
        The network.

    Returns
    -------
    ndarray of shape (n, D)
        The features; D as of `features_per_layer`.
    """
    parts = [
        second_order_features(
            maps if len(group) == maps.shape[3] else maps[..., group.start : group.stop],
            spec.block,
            spec.stride,
            spec.levels,
            cells=spec.cells,
            pool=spec.pool,
            zscore=spec.zscore,
            power=spec.power,
        )
        for group in spec.pooling_groups
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def features_per_layer(height: int, width: int, spec: NetworkSpec) -> int:
    """Compute the number of features D of a layer.

    Parameters
    ----------
    height, width : int
        The size of the images, in pixels.
    spec : NetworkSpec
        The network.

    Returns
    -------
    int
        The number of features.
    """
    return sum(
        feature_count(
            height,
            width,
            len(group),
            block=spec.block,
            stride=spec.stride,
            levels=spec.levels,
            cells=spec.cells,
            zscore=spec.zscore,
        )
        for group in spec.pooling_groups
    )


def slabs(chunk: Array, channels: int, spec: NetworkSpec) -> Iterator[slice]:
    """Divide a chunk into the slabs of rows that are processed at a time.

    The number of rows can change the rounding of a matrix product, so a chunk is always divided in
    this way.

    Parameters
    ----------
    chunk : ndarray of shape (n, H, W, …)
        The maps or pixels of the chunk.
    channels : int
        The number of channels of its pixels, see `layer_pixels`.
    spec : NetworkSpec
        The network.

    Yields
    ------
    slice
        The rows of a slab.
    """
    n, height, width = chunk.shape[:3]
    size = GPU_SLAB_BYTES if on_gpu(chunk) else SLAB_BYTES
    step = max(1, size // (4 * height * width * (channels + spec.filters)))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def update_scores(
    classifier: Classifier,
    maps: Array,
    scores: Array,
    spec: NetworkSpec,
    features: Array | None = None,
) -> Array:
    """Compute the scores after a layer.

    Parameters
    ----------
    classifier : Classifier
        The classifiers of the layer.
    maps : ndarray of shape (n, H, W, f)
        The maps of the layer.
    scores : ndarray of shape (n, C)
        The scores that entered the layer.
    spec : NetworkSpec
        The network.
    features : ndarray of shape (n, D), optional
        The features of the layer; computed from `maps` by default.

    Returns
    -------
    ndarray of float32, shape (n, C)
        The scores after the layer.
    """
    features = extract_features(maps, spec) if features is None else contiguous_copy(features)
    return (scores + classifier.correction(features, spec)).astype(np.float32)


def chunk_scores(
    classifier: Classifier,
    maps: Array,
    scores: Array,
    spec: NetworkSpec,
    cut: Iterable[slice],
    features: Array | None = None,
) -> Array:
    """Compute the scores of a whole chunk after a layer, slab by slab.

    Parameters
    ----------
    classifier : Classifier
        The classifiers of the layer.
    maps : ndarray of shape (n, H, W, f)
        The maps of the layer.
    scores : ndarray of shape (n, C)
        The scores that entered the layer.
    spec : NetworkSpec
        The network.
    cut : iterable of slice
        The slabs of rows, as of `slabs`.
    features : ndarray of shape (n, D), optional
        The features of the layer; computed from `maps` by default.

    Returns
    -------
    ndarray of float32, shape (n, C)
        The scores after the layer.
    """
    updated = get_array_module(scores).empty_like(scores)
    for rows in cut:
        slab_features = None if features is None else features[rows]
        slab_maps = maps[rows].astype(np.float32, copy=False)
        updated[rows] = update_scores(classifier, slab_maps, scores[rows], spec, slab_features)
    return updated


def chunk_maps(bank: Bank, pixels: Array, maps: Array | None, spec: NetworkSpec) -> Array:
    """Return the `layer_maps` (n, H, W, f) of a whole chunk, computed slab by slab.

    pixels (n, H, W, d') as of `layer_pixels`; maps (n, H, W, f) are those of the layer before, None
    for the first layer.
    """
    new_maps = get_array_module(pixels).empty((*pixels.shape[:3], spec.filters), np.float32)
    for rows in slabs(pixels, pixels.shape[3], spec):
        old_maps = None if maps is None else maps[rows]
        layer_maps(bank, LayerInput.of(pixels[rows], old_maps), spec, new_maps[rows])
    return new_maps


def forward(
    images: Array, layers: Iterable[Layer], image_scale: ImageScale, spec: NetworkSpec, classes: int
) -> Iterator[tuple[Array, Array]]:
    """Run layers forward on images.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    layers : iterable of Layer
        The layers, from the first on.
    image_scale : ImageScale
        The normalization of the images.
    spec : NetworkSpec
        The network.
    classes : int
        The number of classes C.

    Yields
    ------
    maps : ndarray of float32, shape (n, H, W, f)
        The maps of a layer.
    scores : ndarray of float32, shape (n, C)
        The running scores after it.
    """
    pixels = layer_pixels(images, image_scale, spec)
    maps: Array | None = None
    scores = get_array_module(pixels).zeros((len(pixels), classes), np.float32)
    for layer in layers:
        maps = layer_maps(layer.bank, LayerInput.of(pixels, maps), spec)
        scores = update_scores(layer.classifier, maps, scores, spec)
        yield maps, scores


def replay_layers(
    images: Array,
    layers: Iterable[Layer],
    image_scale: ImageScale,
    spec: NetworkSpec,
    classes: int,
    initial: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Recompute the maps of the last of some layers, and the scores that entered it.

    Both are bit for bit those that the pass of that layer made of the chunk.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images of a chunk, as stored.
    layers : iterable of Layer
        The layers, from the network's first on unless `initial` is given.
    image_scale : ImageScale
        The normalization of the images.
    spec : NetworkSpec
        The network.
    classes : int
        The number of classes C.
    initial : tuple of ndarray, optional
        The maps of the first of the layers, and the scores that entered it. That layer need not be
        the network's first then.

    Returns
    -------
    maps : ndarray of float32, shape (n, H, W, f)
        The maps of the last layer.
    scores : ndarray of float32, shape (n, C)
        The scores that entered it.
    """
    pixels, rest = layer_pixels(images, image_scale, spec), iter(layers)
    layer = next(rest)
    maps, scores = initial or (
        chunk_maps(layer.bank, pixels, None, spec),
        get_array_module(images).zeros((len(images), classes), np.float32),
    )
    for next_layer in rest:
        cut = slabs(pixels, pixels.shape[3], spec)
        scores = chunk_scores(layer.classifier, maps, scores, spec, cut)
        maps, layer = chunk_maps(next_layer.bank, pixels, maps, spec), next_layer
    return maps, scores
