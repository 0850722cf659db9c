"""Min-max normalisation and the convolution of a layer."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.patches import BATCH_BYTES, Array, unfold


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

    out[y, x] = Σ padded[y + dy, x + dx, c]·filters[dy, dx, c] + bias with filters (k, k, c, f).
    """
    n, height, width, channels = images.shape
    size, count = filters.shape[0], filters.shape[3]
    before, after = (size - 1) // 2, size // 2
    weights = filters.reshape(-1, count).astype(images.dtype)
    maps = np.empty((n, height, width, count), images.dtype)
    step = max(1, BATCH_BYTES // (height * width * size * size * channels * 4))
    for start in range(0, n, step):
        batch = images[start : start + step]
        padded = np.pad(batch, ((0, 0), (before, after), (before, after), (0, 0)))
        patches = unfold(padded, size).reshape(-1, size * size * channels)
        np.matmul(patches, weights, out=maps[start : start + step].reshape(-1, count))
    maps += bias.astype(images.dtype)
    return maps
