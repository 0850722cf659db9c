"""The views of images that layers see: their normalized pixels, and their local contrast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rescnet_dist.kernels import local_contrast
from rescnet_dist.kernels.arrays import Array, get_array_module, on_gpu
from rescnet_dist.model.architecture import GPU_SLAB_BYTES, SLAB_BYTES, Architecture
from rescnet_dist.model.layer import ImageScale

CONTRAST_COPIES = 6  # copies of images in float32 while their local contrast is computed


def layer_pixels(images: Array, scale: ImageScale, architecture: Architecture) -> Array:
    """Compute the pixels that layers see of images, in addition to maps.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    scale : ImageScale
        Their normalization.
    architecture : Architecture
        The network. The channels of all its views follow each other.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d')
        The pixels.
    """
    return _make_views(images, scale, architecture)


def raw_pixels(images: Array, architecture: Architecture) -> Array:
    """Compute the pixels of `layer_pixels` before the normalization of images is known.

    Parameters
    ----------
    images : ndarray of shape (n, H, W, d)
        The images, as stored.
    architecture : Architecture
        The network.

    Returns
    -------
    ndarray of float32, shape (n, H, W, d')
        The pixels, of which the first d channels are not normalized.
    """
    return _make_views(images, lambda part: part.astype(np.float32, copy=False), architecture)


def _make_views(
    images: Array, rescale: Callable[[Array], Array], architecture: Architecture
) -> Array:
    """Return rescaled images (n, H, W, d), followed by their local contrast if it is a view."""
    if architecture.views == ("image",):
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
