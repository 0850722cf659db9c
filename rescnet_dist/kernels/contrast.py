"""Local contrast: pixels relative to their surroundings, independent of the lighting.

Stored networks depend on `BLUR_SIGMA_PIXELS` and `CONTRAST_FLOOR_FRACTION` but do not store them:
changing either needs a new version of the stored format.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like

BLUR_SIGMA_PIXELS = 2.0  # standard deviation of the Gaussian that weights the surroundings
# Fraction of the contrast of the whole image; less is noise, which must not be amplified
CONTRAST_FLOOR_FRACTION = 0.25
# Fraction of the largest value, below which differences are rounding errors
ROUNDING_FRACTION = 8 * float(np.finfo(np.float32).eps)


def local_contrast(images: Array) -> Array:
    """Compute the local contrast of images, channel by channel.

    With d = x − blur(x), it is d / (√blur(d²) + CONTRAST_FLOOR_FRACTION·√(mean d² of the image)).
    It does not change with the brightness or the scale of an image.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d)
        The local contrast, 0 where an image is constant.

    Notes
    -----
    Needs five times the memory of the result.
    """
    pixels = images.astype(np.float32)
    largest = abs(pixels).max(axis=(1, 2), keepdims=True)
    pixels -= pixels.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    amplitude = abs(pixels).max(axis=(1, 2), keepdims=True)
    varies = amplitude > ROUNDING_FRACTION * largest
    pixels *= np.where(varies, 1 / np.where(varies, amplitude, 1), 0).astype(np.float32)
    pixels -= blur(pixels)
    squares = pixels * pixels
    overall = squares.mean(axis=(1, 2), keepdims=True)
    deviation = np.sqrt(blur(squares))
    deviation += CONTRAST_FLOOR_FRACTION * np.sqrt(overall)
    pixels /= np.where(varies, deviation, np.float32(1))
    return pixels


def blur(images: Array) -> Array:
    """Return the Gaussian-weighted mean (n, H, W, d) around each pixel of images (n, H, W, d).

    Weights are normalized over the pixels inside the image.
    """
    n, height, width, channels = images.shape
    down, across = (asarray_like(blur_matrix(side), images) for side in (height, width))
    lines = np.matmul(down, images.reshape(n, height, width * channels))
    columns = np.matmul(across, lines.reshape(n * height, width, channels))
    return columns.reshape(images.shape)


@cache
def blur_matrix(side: int) -> Array:
    """Return the weights (side, side) of a line of pixels for each of them; rows sum to 1."""
    distance = np.subtract.outer(np.arange(side), np.arange(side))
    weights = np.exp(-0.5 * (distance / BLUR_SIGMA_PIXELS) ** 2)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
