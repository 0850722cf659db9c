"""A fitted layer on arrays: how it makes maps, moves the scores, and is run forward."""

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

SLAB_BYTES = 4 * 2**20  # of maps and images in float32 that are worked on at a time: a cache's
GPU_SLAB_BYTES = 2048 * 2**20  # more than keeps all of a GPU busy
CONTRAST_COPIES = 6  # of images in float32, while their local contrast is found


@dataclass(frozen=True, slots=True)
class Bank:
    """How a layer makes maps: normalize its input with low and scale (c,), convolve with filters
    (k, k, c, f), add bias (f,)."""

    low: Array
    scale: Array
    filters: Array
    bias: Array

    def maps(self, inputs: LayerInput, into: Array | None = None) -> Array:
        """Maps (n, H, W, f) of inputs; written to `into` where it is given."""
        return convolve(inputs, self.filters, self.bias, self.low, self.scale, into)


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
        outputs = features @ asarray_like(weights, features).T
        outputs = outputs.reshape(len(features), *self.intercept.shape)
        outputs = outputs + asarray_like(self.intercept, features)
        if spec.residual == "regress":
            return self.rate * outputs[:, 0]
        positive, negative = (
            float(share) * probabilities(
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
    """The min-max normalization of the images themselves: low and scale (d,)."""

    low: Array
    scale: Array

    def __call__(self, images: Array) -> Array:
        """Images (n, H, W, d) as float32, [0, 1] over the training set."""
        return normalize(images, self.low, self.scale)


def layer_pixels(images: Array, image_scale: ImageScale, spec: NetworkSpec) -> Array:
    """What layers see of images (n, H, W, d) as stored, beside maps: (n, H, W, d') in float32."""
    return _views(images, image_scale, spec)


def raw_pixels(images: Array, spec: NetworkSpec) -> Array:
    """The same, of images that are not normalized, as it is not known how to yet."""
    return _views(images, lambda some: some.astype(np.float32, copy=False), spec)


def _views(images: Array, scaled: Callable[[Array], Array], spec: NetworkSpec) -> Array:
    if not spec.local_contrast:
        return scaled(images)
    n, height, width, channels = images.shape
    pixels = get_array_module(images).empty((n, height, width, 2 * channels), np.float32)
    size = GPU_SLAB_BYTES if on_gpu(images) else SLAB_BYTES
    step = max(1, size // (CONTRAST_COPIES * 4 * height * width * channels))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        pixels[rows, ..., :channels] = scaled(images[rows])
        pixels[rows, ..., channels:] = local_contrast(images[rows])
    return pixels


def layer_maps(
    bank: Bank, inputs: LayerInput, spec: NetworkSpec, into: Array | None = None
) -> Array:
    """Maps (n, H, W, f) of a layer in float32, as whoever reads them from the store gets them;
    written to `into` where it is given."""
    maps = bank.maps(inputs, into)
    if spec.rectify:
        np.maximum(maps, 0, out=maps)
    if spec.store_dtype != "float32":
        maps[...] = maps.astype(spec.store_dtype)
    return maps


def extract_features(maps: Array, spec: NetworkSpec) -> Array:
    """Features (n, D) of maps (n, H, W, f)."""
    parts = [
        second_order_features(
            maps if len(some) == maps.shape[3] else maps[..., some.start : some.stop],
            spec.block, spec.stride, spec.levels,
            cells=spec.cells, pool=spec.pool, zscore=spec.zscore, power=spec.power,
        )
        for some in spec.pooling_groups
    ]  # fmt: skip
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def features_per_layer(height: int, width: int, spec: NetworkSpec) -> int:
    """Number of features D of a layer on images of height×width pixels."""
    return sum(
        feature_count(
            height, width, len(some), block=spec.block, stride=spec.stride,
            levels=spec.levels, cells=spec.cells, zscore=spec.zscore,
        )
        for some in spec.pooling_groups
    )  # fmt: skip


def slabs(chunk: Array, channels: int, spec: NetworkSpec) -> Iterator[slice]:
    """The rows of a chunk, its maps or pixels (n, H, W, …), that are worked on at a time, where
    pixels have so many channels. Their number can change the rounding of a matrix product, so a
    chunk is always cut in this way."""
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
    """Scores (n, C) after a layer, from its maps (n, H, W, f) and the scores that entered it; from
    its features (n, D) where they are at hand."""
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
    """`update_scores` (n, C) of a whole chunk, cut into these slabs."""
    updated = get_array_module(scores).empty_like(scores)
    for rows in cut:
        given = None if features is None else features[rows]
        some = maps[rows].astype(np.float32, copy=False)
        updated[rows] = update_scores(classifier, some, scores[rows], spec, given)
    return updated


def chunk_maps(bank: Bank, pixels: Array, maps: Array | None, spec: NetworkSpec) -> Array:
    """`layer_maps` (n, H, W, f) of a whole chunk, a slab at a time; pixels (n, H, W, d') are what
    layers see of images, maps (n, H, W, f) those of the layer before, if there is one."""
    made = get_array_module(pixels).empty((*pixels.shape[:3], spec.filters), np.float32)
    for rows in slabs(pixels, pixels.shape[3], spec):
        old = None if maps is None else maps[rows]
        layer_maps(bank, LayerInput.of(pixels[rows], old), spec, made[rows])
    return made


def forward(
    images: Array, layers: Iterable[Layer], image_scale: ImageScale, spec: NetworkSpec, classes: int
) -> Iterator[tuple[Array, Array]]:
    """Maps (n, H, W, f) and running scores (n, C) of images (n, H, W, d) after each layer."""
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
    begun: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Maps (n, H, W, f) of the last of some layers, and the scores (n, C) that entered it, to the
    bit as the pass of that layer made them of a chunk of images (n, H, W, d).

    begun: those of the first of the layers, which need not be the network's first then.
    """
    pixels, rest = layer_pixels(images, image_scale, spec), iter(layers)
    layer = next(rest)
    maps, scores = begun or (
        chunk_maps(layer.bank, pixels, None, spec),
        get_array_module(images).zeros((len(images), classes), np.float32),
    )
    for following in rest:
        cut = slabs(pixels, pixels.shape[3], spec)
        scores = chunk_scores(layer.classifier, maps, scores, spec, cut)
        maps, layer = chunk_maps(following.bank, pixels, maps, spec), following
    return maps, scores
