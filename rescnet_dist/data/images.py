"""Images from NumPy, dask or xarray arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist._compat import array_meta
from rescnet_dist.data.finite import check_finite
from rescnet_dist.data.kinds import is_dask_array, is_xarray_array
from rescnet_dist.errors import DataError
from rescnet_dist.store import IMAGE_DIMS

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]

IMAGE_NAMES = ("images", "image", "X", "x")
LABEL_NAMES = ("labels", "label", "y")
COLOR_CHANNELS = (1, 3, 4)  # of gray, RGB and RGBA images


@dataclass(frozen=True, slots=True)
class ArrayReference:
    """A reference to stored images: those from row `start` of the Zarr array at `url`/`path`."""

    url: str = field(repr=False)  # It may have a secret.
    path: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class Images:
    """Images (N, H, W, d) as a NumPy or dask array, with a reference to them if they are stored."""

    array: Array | da.Array
    stored: ArrayReference | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, H, W, d)."""
        n, height, width, channels = self.array.shape
        return n, height, width, channels

    @property
    def is_lazy(self) -> bool:
        """Whether the array is a dask array."""
        return is_dask_array(self.array)


def as_images(source: Any, *, name: str = "X") -> Images:
    """Return images (N, H, W, d) from a NumPy, dask or xarray array (N, H, W, d) or (N, H, W).

    Raise DataError if the array cannot be images, without computing lazy arrays. Pixels in memory
    are checked to be finite; lazy ones are checked when they are computed. Images are returned as
    they are.
    """
    if isinstance(source, Images):
        return source
    array = _as_array(source, name)
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4:
        remedy = " If it is one image, add an axis, as in X[None]." if array.ndim == 2 else ""
        raise DataError(
            f"{name} has shape {array.shape}. Images must be (N, H, W) or (N, H, W, channels)."
            + remedy
        )
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} has dtype {array.dtype}. Pixels must be numbers.")
    if np.isnan(array.shape[0]):
        raise DataError(
            f"{name} has chunks of unknown length. Call its compute_chunk_sizes() first."
        )
    if 0 in array.shape:
        raise DataError(f"{name} of shape {array.shape} is empty. Give at least one image.")
    if is_dask_array(array):
        return Images(_check_finite_lazily(array, name))
    check_finite(array, 0, name)
    return Images(array)


def looks_channels_first(shape: Sequence[int]) -> bool:
    """Return whether images of shape (N, H, W, d) are more likely (N, channels, H, W).

    >>> looks_channels_first((10, 3, 32, 32)), looks_channels_first((10, 3, 32, 3))
    (True, False)
    """
    _, height, width, channels = shape
    return height in COLOR_CHANNELS and min(width, channels) > max(COLOR_CHANNELS)


def _check_finite_lazily(images: da.Array, name: str) -> da.Array:
    """Return the same lazy images, with `check_finite` on each chunk when it is computed."""
    if images.dtype.kind != "f":
        return images

    def check(block: Array, block_info: Any = None) -> Array:
        start = block_info[0]["array-location"][0][0] if block_info else 0
        check_finite(block, start, name)
        return block

    return images.map_blocks(check, dtype=images.dtype, meta=array_meta(images))


def _as_array(source: Any, name: str) -> Array | da.Array:
    """Return the NumPy or dask array in a source; raise DataError if there is none."""
    if hasattr(source, "data_vars"):
        raise DataError(
            f"{name} is an xarray Dataset with the variables {list(source.data_vars)}. Give the "
            "one that holds the images."
        )
    if is_xarray_array(source) and set(source.dims) <= set(IMAGE_DIMS):
        source = source.transpose(*(dim for dim in IMAGE_DIMS if dim in source.dims))
    data = source.data if is_xarray_array(source) else source
    if isinstance(data, np.ndarray) or is_dask_array(data):
        return data
    try:
        return np.asarray(data)
    except ValueError as error:
        raise DataError(f"{name} is not an array of images: {error}.") from error
