"""The convolution of a layer on the CPU."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.loading import kernel
from rescnet_dist.kernels.cpu.pixels import write_patches
from rescnet_dist.kernels.inputs import LayerInput

PATCH_BYTES = 4 * 2**20  # size of the patch matrix (im2col) that is held at a time


def convolution_bytes(height: int, width: int, channels: int, size: int, filters: int) -> int:
    """Return the bytes that `convolve` uses in single precision, beyond inputs and maps."""
    padded = 4 * (height + size - 1) * (width + size - 1) * channels
    starts = 8 * height * width
    return padded + starts + 3 * 4 * size**2 * channels * filters  # filters: as given, two copies


def convolve(
    inputs: LayerInput, filters: Array, bias: Array, low: Array, scale: Array, into: Array | None
) -> Array:
    """Convolve (inputs − low)·scale with filters (k, k, c, f), plus bias (f,).

    Returns maps (n, H, W, f), written to `into` if given. Raises ValueError if `into` is not
    C-contiguous or has another dtype than the inputs.
    """
    height, width, _ = inputs.shape
    count, dtype = filters.shape[3], inputs.images.dtype
    maps = np.empty((len(inputs), height, width, count), dtype) if into is None else into
    if not maps.flags.c_contiguous or maps.dtype != dtype:
        raise ValueError(
            f"into is of {maps.dtype} with strides {maps.strides}. Pass a C-contiguous array of "
            f"{dtype}."
        )
    if dtype != np.float32:
        _convolve_patches(inputs, filters, bias, low, scale, maps)
        return maps
    kernel("convolve_images")(
        inputs.maps,
        inputs.images,
        inputs.rows,
        low.astype(dtype),
        scale.astype(dtype),
        len(filters),
        np.ascontiguousarray(filters.reshape(-1, count), dtype),
        bias.astype(dtype),
        maps,
    )
    return maps


def _convolve_patches(
    inputs: LayerInput, filters: Array, bias: Array, low: Array, scale: Array, maps: Array
) -> None:
    """Write the convolution to maps (n, H, W, f) in any precision: patch matrices times filters."""
    height, width, _ = inputs.shape
    size, count = filters.shape[0], filters.shape[3]
    weights = np.ascontiguousarray(filters.reshape(-1, count), dtype=maps.dtype)
    patch_values = height * width * len(weights)  # of one image
    step = max(1, PATCH_BYTES // (maps.itemsize * patch_values))
    buffer = np.empty(min(step, len(inputs)) * patch_values, maps.dtype)
    for start, batch in zip(range(0, len(inputs), step), inputs.batches(step), strict=True):
        patches = buffer[: len(batch) * patch_values].reshape(len(batch), height, width, -1)
        write_patches(batch, size, low, scale, patches)
        rows = maps[start : start + len(batch)].reshape(len(batch), height * width, count)
        np.matmul(patches.reshape(len(batch), height * width, -1), weights, out=rows)
        rows += bias.astype(maps.dtype)
