"""Augmented copies of images on the CPU."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.copy_parameters import LUMA, PADDINGS, CopyParameters
from rescnet_dist.kernels.cpu.loading import kernel


def make_copies(pixels: Array, parameters: CopyParameters) -> Array:
    """Return the copies (n, H, W, d) of pixels (n, H, W, d), which may be overwritten."""
    (n, height, width, channels), dtype = pixels.shape, pixels.dtype
    lines = np.ascontiguousarray(pixels).reshape(n, height, width * channels)
    if parameters.affine is not None:
        images, lines = lines, np.empty_like(lines)
        padding = PADDINGS.index(parameters.padding)
        kernel(f"resample_{dtype}")(
            images, channels, parameters.affine, parameters.rotates, padding, lines
        )
    if parameters.changes_pixels:
        factors = (parameters.brightness, parameters.contrast, parameters.saturation)
        brightness, contrast, saturation = (
            np.empty(0, dtype) if f is None else f.astype(dtype) for f in factors
        )
        corners, noise, limits = parameters.corners, parameters.noise, parameters.limits
        kernel(f"adjust_{dtype}")(
            lines,
            channels,
            brightness,
            contrast,
            saturation,
            np.array(LUMA, np.float32).astype(dtype),
            np.empty((0, 2), np.int64) if corners is None else corners,
            parameters.cutout,
            np.empty((0, 0, 0), np.float32) if noise is None else noise.reshape(lines.shape),
            np.array(() if limits is None else limits, dtype),
        )
    return lines.reshape(pixels.shape)
