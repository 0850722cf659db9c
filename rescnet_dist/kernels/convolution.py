"""Min-max normalisation and the convolution of a layer."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.blas import add_product
from rescnet_dist.kernels.patches import Array


def min_max_scale(low: Array, high: Array, mode: str) -> tuple[Array, Array]:
    """Offset and scale (c,) that map [low, high] (c,) to [0, 1], per channel or over all of them.

    A range without width gets scale 0, so that a constant tensor or channel maps to 0.
    """
    if mode == "global":
        low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    width = high - low
    scale = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)
    return low, scale


def normalise(images: Array, low: Array, scale: Array) -> Array:
    """(images − low)·scale in float32; images (n, H, W, c), low and scale (c,)."""
    shifted = np.asarray(images, dtype=np.float32) - low.astype(np.float32)
    shifted *= scale.astype(np.float32)
    return shifted


def convolve(images: Array, filters: Array, bias: Array) -> Array:
    """Maps (n, H, W, f) of images (n, H, W, c): stride 1, zero padding, plus bias (f,).

    out[y, x] = Σ padded[y + dy, x + dx, c]·filters[dy, dx, c] + bias with filters (k, k, c, f). Of
    each pixel only its neighbours in the row are laid out beside it; the rows of a filter are
    multiplied one after the other.
    """
    n, height, width, channels = images.shape
    size, count = filters.shape[0], filters.shape[3]
    before = (size - 1) // 2
    weights = np.ascontiguousarray(
        filters.reshape(size, size * channels, count), dtype=images.dtype
    )
    maps = np.empty((n, height, width, count), images.dtype)
    maps[...] = bias.astype(images.dtype)
    padded = np.zeros((n, height + size - 1, width + size - 1, channels), images.dtype)
    padded[:, before : before + height, before : before + width] = images
    strips = np.empty((height + size - 1, width, size, channels), images.dtype)
    for image, image_maps in zip(padded, maps.reshape(n, height * width, count), strict=True):
        for column in range(size):
            strips[:, :, column] = image[:, column : column + width]
        flat = strips.reshape(-1, size * channels)
        for row in range(size):
            add_product(image_maps, flat[row * width : (row + height) * width], weights[row])
    return maps
