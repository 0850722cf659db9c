"""Images from what users have: NumPy, dask, xarray, or the URL of a Zarr store."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np
import zarr

from rescnet_dist.errors import DataError, StoreError
from rescnet_dist.store import Location

Array = np.ndarray[Any, np.dtype[Any]]

IMAGE_NAMES = ("images", "image", "X", "x")
LABEL_NAMES = ("labels", "label", "y")


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
    """Images (N, H, W, d) from an array (N, H, W, d) or (N, H, W), or from a Zarr URL.

    Refuses, without computing anything lazy, what cannot be images. Pixels in memory are checked
    to be finite, lazy ones when they are computed.
    """
    if isinstance(source, str | os.PathLike):
        return _from_url(source)
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


def check_finite(images: Array, start: int, name: str = "X") -> None:
    """Refuse NaN or infinite pixels in images (n, …), of which the first has index `start`."""
    if images.dtype.kind != "f":
        return
    bad = ~np.isfinite(images).all(axis=tuple(range(1, images.ndim)))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        value = images[first][~np.isfinite(images[first])].flat[0]
        raise DataError(
            f"image {start + first} of {name} has the pixel value {value}: pixels must be finite; "
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


def labels_at(url: str | os.PathLike[str]) -> Any:
    """The labels stored beside the images at a Zarr URL, as a lazy array (N,)."""
    place = Location.of(url)
    name = _find(place, LABEL_NAMES, "labels")
    return da.from_zarr(place.open_array(name))


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


def _from_url(url: str | os.PathLike[str]) -> Images:
    place = Location.of(url)
    try:
        array, path = place.open_array(), ""
    except StoreError:
        path = _find(place, IMAGE_NAMES, "images")
        array = place.open_array(path)
    images = as_images(da.from_zarr(array), name=f"{place.url}/{path}".rstrip("/"))
    has_channels = len(array.shape) == 4
    return Images(images.array, Stored(place.url, path) if has_channels else None)


def _find(place: Location, names: tuple[str, ...], what: str) -> str:
    place.attributes()  # names the URL if there is no group
    group = zarr.open_group(place.zarr_store(read_only=True), mode="r")
    for name in names:
        try:
            if name in group and isinstance(group[name], zarr.Array):
                return name
        except ValueError as error:  # of a data type or codec that there is not
            raise DataError(f"{place.url}/{name} cannot be read: {error}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what in there is not Zarr's
        found = sorted(group.array_keys())
    raise DataError(
        f"{place.url} has no {what} variable: it should be named {' or '.join(names[:2])}, "
        f"and the store has {found}"
    )
