"""Lazy arrays and xarray Datasets of sources, Zarr stores and netCDF files.

Importing this takes a second, for dask.array and xarray: `dataset` does so when it opens one.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.delayed import delayed

from rescnet_dist.data.images import Array, as_images
from rescnet_dist.data.photos import PhotoDecoder, has_photos
from rescnet_dist.data.sources import (
    DecodeOptions,
    Reader,
    Source,
    decode,
    infer_image_format,
)
from rescnet_dist.data.sources.decode import CHANNELS_REMEDY, RESIZE_REMEDY
from rescnet_dist.data.sources.files import translate_read_errors
from rescnet_dist.data.stored import StoredImages
from rescnet_dist.errors import CorruptDataError, DataError, mask_secrets, url_word
from rescnet_dist.store import IMAGE_DIMS, Location, read_region

READ_BLOCK_BYTES = 4 * 2**20  # of decoded images that are read at a time


def open_netcdf(url: str) -> xr.Dataset:
    """Open a netCDF file lazily."""
    with translate_read_errors(url):
        return xr.open_dataset(url, chunks={})


def open_lazily(
    source: Source, options: DecodeOptions, decoder: PhotoDecoder | None = None
) -> xr.Dataset:
    """Open the images of a source lazily; image files by the decoder, if it is given."""
    if decoder is not None and not (decoder.has_options and has_photos(source)):
        decoder = None
    options = (decoder.options if decoder else options).for_source(source)
    shape, dtype = infer_image_format(source, options)
    shared = delayed(source, pure=False, traverse=False) if source.holds_data else None
    block = max(1, READ_BLOCK_BYTES // max(1, int(np.prod(shape)) * dtype.itemsize))
    read, blocks = delayed(_read_block, pure=False), []
    for split, count in source.splits.items():
        for start in range(0, count, block):
            stop = min(start + block, count)
            if shared is None:
                reader = source.reader(split, start, stop)
                images = read(reader, options, shape, dtype.str, source.url)
            else:
                rows = split, start, stop
                images = delayed(_read_shared, pure=False)(shared, rows, options, shape, dtype.str)
            blocks.append(da.from_delayed(images, (stop - start, *shape), dtype))
    array = da.concatenate(blocks)
    if decoder:
        array = array.map_blocks(
            decoder.convert_values,
            dtype=decoder.pixel_type,
            meta=np.empty((0, 0, 0, 0), decoder.pixel_type),
        )
    return _make_dataset(array, source).assign_attrs(options.to_attributes())


def _read_block(
    reader: Reader, options: DecodeOptions, shape: tuple[int, int, int], dtype: str, url: str
) -> Array:
    """Read images (n, H, W, d) of a source; raise DataError that names the first bad one."""
    block = decode(reader(), options, shape, np.dtype(dtype))
    if block.bad:
        _, name, reason = block.bad[0]
        raise DataError(f"{name}: {reason} {_advise_import(url, reason)}")
    return block.images


def _advise_import(url: str, reason: str) -> str:
    """Return the command that imports the images at a URL although one is bad for this reason."""
    flag, option, outcome = "--on-error skip", 'on_error="skip"', "leaves such images out"
    if reason.endswith(RESIZE_REMEDY):
        flag, option, outcome = "--resize 32", "resize=32", "makes all sizes equal"
    elif reason.endswith(CHANNELS_REMEDY):
        flag, option, outcome = "--channels color", 'channels="color"', "makes all images color"
    if "/" not in url:  # a DataFrame, or a Dataset of PyTorch
        is_bad = outcome.startswith("leaves")
        return "Leave it out." if is_bad else f"rd.open_dataset(..., {option}) {outcome}."
    source = shlex.quote(mask_secrets(url))
    target = shlex.quote(url.rstrip("/").rsplit("/", 1)[-1].split(".")[0] + ".zarr")
    return (
        f"`rescnet data import {source} {target} {flag}` {outcome}, as does "
        f"rd.import_dataset(..., {option}). Then use {target}."
    )


def _read_shared(
    source: Source,
    rows: tuple[str, int, int],
    options: DecodeOptions,
    shape: tuple[int, int, int],
    dtype: str,
) -> Array:
    """Read images (n, H, W, d), given as split, start and stop, of a source that holds its data."""
    return _read_block(source.reader(*rows), options, shape, dtype, source.url)


def _make_dataset(images: da.Array, source: Source) -> xr.Dataset:
    """Return lazy images with the labels, splits and file names of their source."""
    variables: dict[str, Any] = {"images": (IMAGE_DIMS, images)}
    splits = np.repeat(list(source.splits), list(source.splits.values()))
    coords: dict[str, Any] = {"split": ("image", splits)}
    files = [source.files(split) for split in source.splits]
    if None not in files:
        coords["file"] = ("image", np.array([name for names in files for name in names or ()]))
    if not source.labels:
        return xr.Dataset(variables, coords)
    labels = np.concatenate([source.labels[split] for split in source.splits])
    variables["labels"] = ("image", labels)
    return xr.Dataset(variables, coords, attrs={"class_names": list(source.classes)})


def open_stored(stored: StoredImages) -> xr.Dataset:
    """Open a Zarr store lazily."""
    images = as_images(open_images(stored), name=stored.url).array
    variables: dict[str, Any] = {"images": (IMAGE_DIMS, images)}
    for name, path in (
        ("labels", stored.labels_path),
        ("groups", stored.groups_path),
        ("sample_weight", stored.weights_path),
    ):
        if path:
            array = stored.location.open_array(path)
            if array.shape != images.shape[:1]:
                raise DataError(
                    f"{stored.url}/{path} has the shape {array.shape}. There are {len(images)} "
                    "images, each of which needs one value."
                )
            variables[name] = ("image", da.from_zarr(array))
    coords = {}
    if stored.ranges:
        names = np.full(images.shape[0], "", "<U5")
        for split, (start, stop) in stored.ranges.items():
            names[start:stop] = split
        coords = {"split": ("image", names)}
    attrs = {"class_names": list(stored.class_names)} if stored.class_names else {}
    return xr.Dataset(variables, coords=coords, attrs=attrs | stored.options.to_attributes())


def open_images(stored: StoredImages) -> da.Array:
    """Return the images as a dask array; damage to imported ones is reported when computed."""
    array = stored.array()
    if not (array.shape and array.shape[0]):
        raise DataError(
            f"{stored.name} of shape {array.shape} has no images. "
            f"Check the {url_word(stored.name)}."
        )
    if not stored.is_imported:
        return da.from_zarr(array)
    read, step = delayed(_read_rows, pure=False), array.chunks[0]
    edges = [*range(0, array.shape[0], step), array.shape[0]]
    return da.concatenate(
        [
            da.from_delayed(
                read(stored.location, start, stop), (stop - start, *array.shape[1:]), array.dtype
            )
            for start, stop in pairwise(edges)
        ]
    )


def _read_rows(location: Location, start: int, stop: int) -> Array:
    """Read rows of imported images; raise DataError if they are damaged."""
    array = location.open_array("images")
    try:
        return read_region(array, start, stop)
    except CorruptDataError as error:
        raise DataError(
            f"{location.url} is damaged. {error} `rescnet check` lists all such chunks; import the "
            "dataset again."
        ) from None


def open_photos(
    source: Source, split: str, decoder: PhotoDecoder, chunk_images: int
) -> tuple[da.Array, da.Array]:
    """Return lazy images (n, H, W, d) of a split and their problems (n,), as `decode_samples`.

    Both have chunks of `chunk_images`, which are decoded together.
    """
    images, problems, count = [], [], source.splits[split]
    decode = delayed(decoder.decode_samples, pure=False, nout=2, traverse=False)
    for start in range(0, count, chunk_images):
        stop = min(start + chunk_images, count)
        decoded = decode(source.reader(split, start, stop))
        shape = (stop - start, *decoder.image_shape)
        images.append(da.from_delayed(decoded[0], shape, decoder.pixel_type))
        problems.append(da.from_delayed(decoded[1], shape[:1], np.dtype(object)))
    return da.concatenate(images), da.concatenate(problems)


def open_column(stored: StoredImages, path: str, rows: slice) -> da.Array:
    """Return rows of a variable (n,) of a Zarr store, such as its labels, as a dask array."""
    return da.from_zarr(stored.location.open_array(path))[rows]
