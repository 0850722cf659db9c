"""The pixels of a layer's input on the CPU: patch matrices (im2col), sums."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.loading import kernel
from rescnet_dist.kernels.inputs import LayerInput

WEIGHTED_SUM_BYTES = 4 * 2**20  # size of the pixels, in single precision, weighted at a time


def write_patches(inputs: LayerInput, size: int, low: Array, scale: Array, into: Array) -> None:
    """Write the patch matrix (im2col) of (inputs − low)·scale to `into` (m, H, W, size²·c).

    It holds the size×size patch around every pixel, 0 outside the image. low and scale (c,).
    """
    low, scale = low.astype(into.dtype), scale.astype(into.dtype)
    kernel("write_patches")(inputs.maps, inputs.images, inputs.rows, low, scale, size, into)


def gather_sums(inputs: LayerInput) -> tuple[Array, Array, Array]:
    """Return minimum and maximum (c,) of each channel, and the sum (H, W, c) over images."""
    parts = [_gather(images, inputs.rows) for images in (inputs.maps, inputs.images)]
    low, high, sums = (np.concatenate(own, axis=-1) for own in zip(*parts, strict=True))
    if inputs.weights is not None:
        sums = _weighted_sums(inputs, inputs.weights)
    return low, high, sums


def _gather(images: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Return minimum and maximum (c,), and sum (H, W, c), of the rows (m,) of images."""
    n, height, width, channels = images.shape
    length = width * channels
    low, high = np.full(length, np.inf, images.dtype), np.full(length, -np.inf, images.dtype)
    sums = np.zeros((height, length))
    kernel("gather_sums")(images.reshape(n, height, length), rows, low, high, sums)
    low = low.reshape(width, channels).min(axis=0).astype(np.float64)
    high = high.reshape(width, channels).max(axis=0).astype(np.float64)
    return low, high, sums.reshape(height, width, channels)


def _weighted_sums(inputs: LayerInput, weights: Array) -> Array:
    """Return the sum (H, W, c) over images, weighted by weights (n,), in float64."""
    sums, split = np.zeros(inputs.shape), inputs.maps.shape[3]
    for batch in inputs.batches(max(1, WEIGHTED_SUM_BYTES // (4 * sums.size))):
        maps, images = batch.select_arrays()
        sums[..., :split] += np.tensordot(weights[batch.rows], maps, axes=1)
        sums[..., split:] += np.tensordot(weights[batch.rows], images, axes=1)
    return sums
