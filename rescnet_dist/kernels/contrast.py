"""Local contrast: what a pixel has beside its surroundings, whatever the light.

Networks are stored without these numbers and rely on them: another `SURROUNDINGS` or `FLOOR` needs
a new version of the stored form.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like

SURROUNDINGS = 2.0  # pixels: deviation of the Gaussian that weighs them
FLOOR = 0.25  # of the contrast of a whole image: less than that is noise, and not blown up
FLAT = 8 * float(np.finfo(np.float32).eps)  # of the largest value: differences that are rounding


def local_contrast(images: Array) -> Array:
    """Local contrast (n, H, W, d) in float32 of images (n, H, W, d), channel by channel.

    With d = x − blurred x: d / (√(blurred d²) + FLOOR·√(mean d² of the image)), which no change of
    brightness or scale of an image makes a difference to; 0 where an image is flat. Takes five
    times the memory of the result.
    """
    pixels = images.astype(np.float32)
    largest = abs(pixels).max(axis=(1, 2), keepdims=True)
    pixels -= pixels.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    height = abs(pixels).max(axis=(1, 2), keepdims=True)
    varied = height > FLAT * largest
    pixels *= np.where(varied, 1 / np.where(varied, height, 1), 0).astype(np.float32)
    pixels -= blur(pixels)
    squares = pixels * pixels
    overall = squares.mean(axis=(1, 2), keepdims=True)
    deviation = np.sqrt(blur(squares))
    deviation += FLOOR * np.sqrt(overall)
    pixels /= np.where(varied, deviation, np.float32(1))
    return pixels


def blur(images: Array) -> Array:
    """The mean (n, H, W, d) of each pixel's surroundings in images (n, H, W, d), weighed by a
    Gaussian; what is outside the image does not count."""
    n, height, width, channels = images.shape
    down, across = (asarray_like(_weights(side), images) for side in (height, width))
    lines = np.matmul(down, images.reshape(n, height, width * channels))
    columns = np.matmul(across, lines.reshape(n * height, width, channels))
    return columns.reshape(images.shape)


@cache
def _weights(side: int) -> Array:
    """How much each of a line of pixels counts (side, side) for each; rows sum up to 1."""
    apart = np.subtract.outer(np.arange(side), np.arange(side))
    weights = np.exp(-0.5 * (apart / SURROUNDINGS) ** 2)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
