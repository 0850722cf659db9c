"""Augmented copies of images on a GPU, with the bits of the CPU's."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from rescnet_dist.kernels.copy_parameters import LUMA, PADDINGS, CopyParameters
from rescnet_dist.kernels.gpu.device import Array, array_or_null, load_module

COPY_THREADS = 256  # threads of a block


def make_copies(pixels: Array, parameters: CopyParameters) -> Array:
    """Return the copies (n, H, W, d) of pixels (n, H, W, d), which may be overwritten."""
    n, height, width, channels = pixels.shape
    copies = cupy.ascontiguousarray(pixels)
    if not copies.size:
        return copies
    kernel, dtype = _load_kernels(pixels.dtype.name), pixels.dtype.type
    count, blocks = n * height * width, -(-n * height * width // COPY_THREADS)
    shape = [np.int32(side) for side in (height, width, channels)]
    if parameters.affine is not None:
        images, copies = copies, cupy.empty_like(copies)
        padding = np.int32(PADDINGS.index(parameters.padding))
        kernel("resample")(
            (blocks,),
            (COPY_THREADS,),
            (
                *(images, cupy.asarray(parameters.affine), copies, count, *shape),
                *(np.int32(parameters.rotates), padding),
            ),
        )
    if not parameters.changes_pixels:
        return copies
    brightness, contrast, saturation = (
        None if factors is None else cupy.asarray(factors.astype(dtype))
        for factors in (parameters.brightness, parameters.contrast, parameters.saturation)
    )
    if brightness is not None:
        kernel("brighten")(
            (-(-copies.size // COPY_THREADS),),
            (COPY_THREADS,),
            (copies, brightness, copies.size, copies.size // n),
        )
    corners, noise = (
        None if array is None else cupy.asarray(array)
        for array in (parameters.corners, parameters.noise)
    )
    low, high = parameters.limits or (0, 0)
    kernel("adjust")(
        (blocks,),
        (COPY_THREADS,),
        (
            copies,
            array_or_null(contrast),
            array_or_null(None if contrast is None else _average(kernel, copies)),
            *(array_or_null(saturation), array_or_null(corners), array_or_null(noise)),
            *(count, *shape, np.int32(parameters.cutout)),
            *(np.int32(parameters.limits is not None), dtype(low), dtype(high)),
        ),
    )
    return copies


def _average(kernel: Any, copies: Array) -> Array:
    """Return the means (n,) of the pixels of copies (n, H, W, d), in their dtype."""
    n, height, width, channels = copies.shape
    length = width * channels
    sums, means = cupy.empty((n, length)), cupy.empty(n, copies.dtype)
    kernel("average")(
        (n,), (COPY_THREADS,), (copies, sums, means, np.int32(height), np.int32(length))
    )
    return means


@cache
def _load_kernels(dtype: str) -> Any:
    """Return the function that gets the kernels for pixels of a dtype by name."""
    definitions: dict[str, object] = {
        "PIXEL": {"float32": "float", "float64": "double"}[dtype],
        "ZERO": PADDINGS.index("zero"),
        "REFLECT": PADDINGS.index("reflect"),
    }
    # in single precision, as exact decimals of the number in double precision
    weights = (repr(float(np.float32(weight))) for weight in LUMA)
    definitions |= zip(("LUMA_RED", "LUMA_GREEN", "LUMA_BLUE"), weights, strict=True)
    return load_module("copies", tuple(definitions.items())).get_function
