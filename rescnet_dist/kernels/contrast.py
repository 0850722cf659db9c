"""Local contrast: what a pixel has beside its surroundings, whatever the light."""

from __future__ import annotations

from functools import cache

import numpy as np

from rescnet_dist.kernels.arrays import Array, like, module_of

SURROUNDINGS = 2.0  # pixels: deviation of the Gaussian that weighs them
FLOOR = 0.25  # of the contrast of a whole image: less than that is noise, and not blown up
AT_ONCE = 2048  # images


def local_contrast(images: Array) -> Array:
    """Local contrast (n, H, W, d) in float32 of images (n, H, W, d), channel by channel.

    With d = x − blurred x: d / (√(blurred d²) + FLOOR·√(mean d² of the image)), which no change of
    brightness or scale of an image makes a difference to; 0 where an image is flat.
    """
    xp = module_of(images)
    contrast = xp.empty(images.shape, np.float32)
    for start in range(0, len(images), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        pixels = images[some].astype(np.float32)
        pixels -= pixels.mean(axis=(1, 2), keepdims=True)  # a large mean would cost digits
        pixels -= blurred(pixels)
        squares = pixels * pixels
        overall = squares.mean(axis=(1, 2), keepdims=True)
        deviation = np.sqrt(blurred(squares)) + FLOOR * np.sqrt(overall)
        contrast[some] = pixels / np.where(deviation > 0, deviation, np.float32(1))
    return contrast


def blurred(images: Array) -> Array:
    """The mean (n, H, W, d) of each pixel's surroundings in images (n, H, W, d), weighed by a
    Gaussian; what is outside the image does not count."""
    n, height, width, channels = images.shape
    down, across = (like(_weights(side), images) for side in (height, width))
    lines = np.matmul(down, images.reshape(n, height, width * channels))
    columns = np.matmul(across, lines.reshape(n * height, width, channels))
    return columns.reshape(images.shape)


@cache
def _weights(side: int) -> Array:
    """How much each of a line of pixels counts (side, side) for each; rows sum up to 1."""
    apart = np.subtract.outer(np.arange(side), np.arange(side))
    weights = np.exp(-0.5 * (apart / SURROUNDINGS) ** 2)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
