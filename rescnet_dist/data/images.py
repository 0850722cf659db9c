"""Images from what users have in memory or lazily: NumPy, dask or xarray arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]

IMAGE_NAMES = ("images", "image", "X", "x")
LABEL_NAMES = ("labels", "label", "y")
LARGEST = float(np.finfo(np.float32).max)  # of a pixel, as all are in single precision in the end


@dataclass(frozen=True, slots=True)
class Stored:
    """Where images lie: from row `start` on in the Zarr array at a path under a URL."""

    url: str = field(repr=False)  # it may have a secret
    path: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class Images:
    """Images (N, H, W, d): the array itself, NumPy or dask, and where it lies if it is stored."""

    array: Array | da.Array
    stored: Stored | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, d)."""
        n, height, width, channels = self.array.shape
        return n, height, width, channels

    @property
    def is_lazy(self) -> bool:
        """Whether the array is a dask array."""
        return isinstance(self.array, da.Array)


def as_images(source: Any, *, name: str = "X") -> Images:
    """Images (N, H, W, d) from an array (N, H, W, d) or (N, H, W): NumPy, dask or xarray.

    Refuses, without computing anything lazy, what cannot be images. Pixels in memory are checked
    to be finite, lazy ones when they are computed.
    """
    array = _as_array(source, name)
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4:
        raise DataError(
            f"{name} has shape {array.shape}: images are (N, H, W) or (N, H, W, channels)"
        )
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} has dtype {array.dtype}: pixels must be numbers")
    if np.isnan(array.shape[0]):
        raise DataError(
            f"{name} has chunks of unknown length: call its compute_chunk_sizes() first"
        )
    if 0 in array.shape:
        raise DataError(f"{name} of shape {array.shape} is empty: give at least one image")
    if isinstance(array, da.Array):
        return Images(_finite_lazily(array, name))
    check_finite(array, 0, name)
    return Images(array)


def are_finite(images: Array) -> Array:
    """Which of images (n, …) have only pixels that are numbers of single precision, (n,) bool."""
    if images.dtype.kind != "f":
        return np.ones(len(images), bool)
    fine = np.isfinite(images) if images.dtype.itemsize <= 4 else np.abs(images) <= LARGEST
    return np.asarray(fine.reshape(len(images), -1).all(axis=1))


def check_finite(images: Array, numbers: Array | int, name: str = "X") -> None:
    """Refuse NaN or infinite pixels in images (n, …) of these numbers (n,), or from this one on,
    and those that single precision cannot hold."""
    finite = are_finite(images)
    if not finite.all():
        first = int(np.flatnonzero(~finite)[0])
        image = images[first].astype(np.float64)
        value = image[~(np.abs(image) <= LARGEST)].flat[0]
        number = numbers + first if isinstance(numbers, int) else numbers[first]
        if np.isfinite(value):
            raise DataError(
                f"image {number} of {name} has the pixel value {value:g}, and single precision "
                f"ends at {LARGEST:.2g}: divide all images by the same number"
            )
        raise DataError(
            f"image {number} of {name} has the pixel value {value}: pixels must be finite; "
            "replace or drop such images"
        )


def _finite_lazily(images: da.Array, name: str) -> da.Array:
    """The same lazy images, with `check_finite` on each chunk as it is computed."""
    if images.dtype.kind != "f":
        return images

    def checked(block: Array, block_info: Any = None) -> Array:
        start = block_info[0]["array-location"][0][0] if block_info else 0
        check_finite(block, start, name)
        return block

    return images.map_blocks(checked, dtype=images.dtype, meta=images._meta)


def _as_array(source: Any, name: str) -> Array | da.Array:
    if hasattr(source, "data_vars"):
        raise DataError(
            f"{name} is an xarray Dataset with the variables {list(source.data_vars)}: "
            "give the one that holds the images"
        )
    data = source.data if hasattr(source, "dims") else source
    if isinstance(data, da.Array | np.ndarray):
        return data
    try:
        return np.asarray(data)
    except ValueError as error:
        raise DataError(f"{name} is not an array of images: {error}") from error
