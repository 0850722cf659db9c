"""Contrast: pixels relative to their surroundings or to the whole image, at any lighting.

Networks of earlier releases do not store sigma and floor: their defaults must not change.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like

# Fraction of the largest value, below which differences are rounding errors
ROUNDING_FRACTION = 8 * float(np.finfo(np.float32).eps)


def local_contrast(images: Array, sigma: float = 2.0, floor: float = 0.25) -> Array:
    """Compute the local contrast of images, channel by channel.

    With d = x − blur(x), it is d / (√blur(d²) + floor·√(mean d² of the image)). It does not change
    with the brightness or the scale of an image.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    sigma : float, default 2.0
        Standard deviation of the Gaussian that weights the surroundings, in pixels.
    floor : float, default 0.25
        Fraction of the contrast of the whole image; less is noise, which must not be amplified.

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
    pixels -= blur(pixels, sigma)
    squares = pixels * pixels
    overall = squares.mean(axis=(1, 2), keepdims=True)
    deviation = np.sqrt(blur(squares, sigma))
    deviation += floor * np.sqrt(overall)
    pixels /= np.where(varies, deviation, np.float32(1))
    return pixels


def blur(images: Array, sigma: float) -> Array:
    """Return the Gaussian-weighted mean (n, H, W, d) around each pixel of images (n, H, W, d).

    Weights are normalized over the pixels inside the image.
    """
    n, height, width, channels = images.shape
    down, across = (asarray_like(blur_matrix(side, sigma), images) for side in (height, width))
    lines = np.matmul(down, images.reshape(n, height, width * channels))
    columns = np.matmul(across, lines.reshape(n * height, width, channels))
    return columns.reshape(images.shape)


@cache
def blur_matrix(side: int, sigma: float) -> Array:
    """Return the weights (side, side) of a line of pixels for each of them; rows sum to 1."""
    distance = np.subtract.outer(np.arange(side), np.arange(side))
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def global_contrast(images: Array, value_range: float, floor: float) -> Array:
    """Compute the global contrast of images: each with mean 0 and a standard deviation of about 1.

    With x in units of the value range, m its mean and v its variance over all pixels and channels
    of an image, it is (x − m) / √(v + floor²).

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    value_range : float
        The difference between the largest and the smallest value of images, 255 for most.
    floor : float
        The standard deviation of noise, as a fraction of the range; above 0. Images with less are
        not amplified to a standard deviation of 1.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d)
        The global contrast, 0 where an image is constant.
    """
    pixels = images.astype(np.float32) * np.float32(1 / value_range)
    axes = (1, 2, 3)
    pixels -= pixels.mean(axis=axes, keepdims=True, dtype=np.float64).astype(np.float32)
    variance = (pixels * pixels).mean(axis=axes, keepdims=True, dtype=np.float64)
    pixels *= (1 / np.sqrt(variance + floor**2)).astype(np.float32)
    return pixels
