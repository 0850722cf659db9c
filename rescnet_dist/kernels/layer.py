"""A fitted layer on arrays: how it makes maps, moves the scores, and is run forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.blas import Array
from rescnet_dist.kernels.convolution import convolve, normalise
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.pooling import feature_count, second_order_features
from rescnet_dist.kernels.residual import probabilities
from rescnet_dist.spec import NetworkSpec

SLAB_BYTES = 4 * 2**20  # of maps and images in float32 that are worked on at a time


@dataclass(frozen=True, slots=True)
class Bank:
    """How a layer makes maps: normalise its input with low and scale (c,), convolve with filters
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


def layer_maps(
    bank: Bank, inputs: LayerInput, spec: NetworkSpec, into: Array | None = None
) -> Array:
    """Maps (n, H, W, f) of a layer in float32, as whoever reads them from the store gets them;
    written to `into` where it is given."""
    maps = bank.maps(inputs, into)
    if spec.store_dtype != "float32":
        maps[...] = maps.astype(spec.store_dtype)
    return maps


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


def slabs(n: int, image_shape: tuple[int, int, int], spec: NetworkSpec) -> Iterator[slice]:
    """The rows of n images (H, W, d) that are worked on at a time. Their number can change the
    rounding of a matrix product, so a chunk is always cut in this way."""
    height, width, channels = image_shape
    step = max(1, SLAB_BYTES // (4 * height * width * (channels + spec.filters)))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


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


def chunk_scores(classifier: Classifier, maps: Array, scores: Array, spec: NetworkSpec) -> Array:
    """`updated_scores` (n, C) of a whole chunk, a slab at a time."""
    n, height, width, filters = maps.shape
    updated = np.empty_like(scores)
    for rows in slabs(n, (height, width, filters), spec):
        updated[rows] = updated_scores(
            classifier, maps[rows], scores[rows], spec, len(updated[rows]), scores.shape[1]
        )
    return updated


def forward(
    images: Array, layers: Iterable[Layer], image_scale: ImageScale, spec: NetworkSpec, classes: int
) -> Iterator[tuple[Array, Array]]:
    """Maps (n, H, W, f) and running scores (n, C) of images (n, H, W, d) after each layer."""
    images = image_scale(images)
    maps: Array | None = None
    scores = np.zeros((len(images), classes), np.float32)
    for layer in layers:
        maps = layer_maps(layer.bank, LayerInput.of(images, maps), spec)
        scores = updated_scores(layer.classifier, maps, scores, spec, len(images), classes)
        yield maps, scores


def replayed(
    images: Array, layers: Sequence[Layer], image_scale: ImageScale, spec: NetworkSpec, classes: int
) -> tuple[Array, Array]:
    """Maps (n, H, W, f) of the last of some layers, and the scores (n, C) that entered it, to the
    bit as the pass of that layer made them of a chunk of images (n, H, W, d)."""
    n, height, width, channels = images.shape
    maps = np.empty((n, height, width, spec.filters), np.float32)
    entering = np.zeros((n, classes), np.float32)
    for rows in slabs(n, (height, width, channels), spec):
        stages = forward(images[rows], layers[:-1], image_scale, spec, classes)
        before: Array | None = None
        for before, scores in stages:  # noqa: B007 (the last ones are wanted)
            entering[rows] = scores
        inputs = LayerInput.of(image_scale(images[rows]), before)
        layer_maps(layers[-1].bank, inputs, spec, maps[rows])
    return maps, entering
