"""Pixels that are finite in single precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]

MAX_PIXEL_VALUE = float(np.finfo(np.float32).max)  # Pixels are converted to float32.


def are_finite(images: Array) -> Array:
    """Return which of images (n, …) have only pixels that are finite in float32, (n,) bool."""
    if images.dtype.kind != "f":
        return np.ones(len(images), bool)
    finite = (
        np.isfinite(images) if images.dtype.itemsize <= 4 else np.abs(images) <= MAX_PIXEL_VALUE
    )
    return np.asarray(finite.reshape(len(images), -1).all(axis=1))


def check_finite(images: Array, numbers: Array | int, name: str = "X") -> None:
    """Raise DataError if images (n, …) have pixels that are NaN, infinite or too large for float32.

    `numbers` are those of the images in the dataset, (n,), or the number of the first one.
    """
    finite = are_finite(images)
    if not finite.all():
        first = int(np.flatnonzero(~finite)[0])
        image = images[first].astype(np.float64)
        value = image[~(np.abs(image) <= MAX_PIXEL_VALUE)].flat[0]
        number = numbers + first if isinstance(numbers, int) else numbers[first]
        if np.isfinite(value):
            raise DataError(
                f"Image {number} of {name} has the pixel value {value:g}. The largest value in "
                f"single precision is {MAX_PIXEL_VALUE:.2g}; divide all images by the same number."
            )
        raise DataError(
            f"Image {number} of {name} has the pixel value {value}. Pixels must be finite; replace "
            "or drop such images."
        )
