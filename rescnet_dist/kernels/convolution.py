"""Min-max normalization and the convolution of a layer."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module, gpu_kernels, on_gpu
from rescnet_dist.kernels.inputs import LayerInput

PATCH_BYTES = 4 * 2**20  # of patches that are laid out at a time


def min_max_scale(low: Array, high: Array, mode: str) -> tuple[Array, Array]:
    """Offset and scale (c,) that map [low, high] (c,) to [0, 1], per channel or over all of them.

    A range without width gets scale 0, so that a constant tensor or channel maps to 0.
    """
    if mode == "global":
        low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    width = high - low
    scale = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)
    return low, scale


def normalize(images: Array, low: Array, scale: Array) -> Array:
    """(images − low)·scale in float32; images (n, H, W, c), low and scale (c,)."""
    shifted = get_array_module(images).asarray(images, dtype=np.float32)
    shifted = shifted - asarray_like(low, images).astype(np.float32)
    shifted *= asarray_like(scale, images).astype(np.float32)
    return shifted


def convolve(
    inputs: LayerInput,
    filters: Array,
    bias: Array,
    low: Array | None = None,
    scale: Array | None = None,
    into: Array | None = None,
) -> Array:
    """Maps (n, H, W, f) of (inputs − low)·scale: stride 1, zero padding, plus bias (f,).

    out[y, x] = Σ padded[y + dy, x + dx, c]·filters[dy, dx, c] + bias with filters (k, k, c, f) and
    low, scale (c,). Written to `into` where it is given.
    """
    height, width, channels = inputs.shape
    low = np.zeros(channels) if low is None else low
    scale = np.ones(channels) if scale is None else scale
    if on_gpu(inputs.images):
        return gpu_kernels().convolve(inputs.chosen(), filters, bias, low, scale, into)
    size, count = filters.shape[0], filters.shape[3]
    kind = inputs.images.dtype
    weights = np.ascontiguousarray(filters.reshape(-1, count), dtype=kind)
    maps = np.empty((len(inputs), height, width, count), kind) if into is None else into
    if not maps.flags.c_contiguous or maps.dtype != kind:
        raise ValueError(f"maps are written to arrays of {kind} in C order")
    each = height * width * len(weights)
    step = max(1, PATCH_BYTES // (kind.itemsize * each))
    memory = np.empty(min(step, len(inputs)) * each, kind)
    for start, part in zip(range(0, len(inputs), step), inputs.parts(step), strict=True):
        patches = memory[: len(part) * each].reshape(len(part), height, width, -1)
        part.patches(size, low, scale, patches)
        rows = maps[start : start + len(part)].reshape(len(part), height * width, count)
        np.matmul(patches.reshape(len(part), height * width, -1), weights, out=rows)
        rows += bias.astype(kind)
    return maps
