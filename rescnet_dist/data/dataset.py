"""Data sets as people have them, as a lazy xarray Dataset; and the part of one that is asked for.

A data set may be the URL of any source, of a Zarr store or of a netCDF file, a name, or an xarray
Dataset. Where it has splits, networks are fitted to `train` and judged by `test`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.delayed import delayed

from rescnet_dist.data.digits import load_digits
from rescnet_dist.data.images import IMAGE_NAMES, LABEL_NAMES, Array, Images, Stored, as_images
from rescnet_dist.data.labels import as_labels, classes_array
from rescnet_dist.data.named import DATASETS, fetch_dataset
from rescnet_dist.data.sources import (
    Reader,
    Samples,
    Source,
    Wanted,
    decode,
    find_source,
    first_image,
)
from rescnet_dist.data.sources.files import reading
from rescnet_dist.data.sources.source import NumberedReader, split_named
from rescnet_dist.data.stored import GROUP_NAMES, StoredImages, find_stored
from rescnet_dist.errors import (
    CorruptDataError,
    DataError,
    RescnetError,
    mask_secrets,
    suggest_name,
)
from rescnet_dist.store import IMAGE_DIMS, Location, read_region

BLOCK_BYTES = 4 * 2**20  # of decoded images that are read at a time
NETCDF = (".nc", ".nc4", ".h5")
Labels = Any  # (N,), NumPy or dask


@dataclass(frozen=True, slots=True)
class SplitData:
    """Images of one split, their labels (N,) and, if they have any, groups (N,) and names of the
    files (N,) that they are."""

    images: Images
    labels: Labels | None
    groups: Labels | None = None
    files: Array | None = None


def open_dataset(
    source: str | os.PathLike[str] | xr.Dataset,
    *,
    resize: tuple[int, int] | None = None,
    channels: str | None = None,
) -> xr.Dataset:
    """Images as a lazy xarray Dataset: `images` (image, y, x, channel), `labels` (image), the place
    of each in the attribute `class_names`, and `split` (image): train, val or test.

    source: the URL of image folders, IDX, CIFAR, NumPy, Parquet, WebDataset or netCDF files or of a
    Zarr store, at any place that fsspec knows; "digits", or a name of `rescnet data names`. resize:
    height and width to make images of, channels: "gray" or "color" (images as they are by
    default).

    >>> open_dataset("digits").sizes
    Frozen({'image': 7000, 'y': 28, 'x': 28, 'channel': 1})
    """
    wanted = Wanted(resize, channels)  # type: ignore[arg-type]
    url = "" if isinstance(source, xr.Dataset) else os.fspath(source)
    if isinstance(source, xr.Dataset) or url.endswith(NETCDF):
        if wanted != Wanted():
            raise DataError("resize and channels are for files of images, not for a Dataset")
        return _checked(source if isinstance(source, xr.Dataset) else _netcdf(url))
    stored = find_stored(url)
    if stored and wanted == Wanted():
        return _of_stored(stored)
    return _of_source(open_source(url), wanted)


def _netcdf(url: str) -> xr.Dataset:
    with reading(url):
        return xr.open_dataset(url, chunks={})


def open_source(url: str) -> Source:
    """The source at a URL or of a name, which is fetched if it is not there yet."""
    if url == "digits":
        return Digits()
    if url in DATASETS:
        url = str(fetch_dataset(url))
    stored = find_stored(url)
    if stored:
        return stored
    try:
        return find_source(url)
    except DataError as error:
        if "/" in url or os.path.exists(url):
            raise
        known = suggest_name(url, ["digits", *DATASETS])
        raise DataError(f"{error}; or is it a name? {known}") from None


def get_split(source: str | os.PathLike[str] | xr.Dataset, split: str) -> SplitData | None:
    """The images of a split, or all of them where there are no splits; None where there are splits
    and this is none of them."""
    if not isinstance(source, xr.Dataset):
        url = os.fspath(source)
        if url == "digits":
            return None if split == "val" else _part_of_digits(split)
        stored = find_stored(url)
        if stored:
            return _part_of_stored(stored, split)
    dataset = open_dataset(source)
    if "split" in dataset.coords:
        rows = np.flatnonzero(dataset["split"].to_numpy() == split)
        if not len(rows):
            return None
        whole = len(rows) == rows[-1] - rows[0] + 1
        dataset = dataset.isel(image=slice(rows[0], rows[-1] + 1) if whole else rows)
    elif split == "val":
        return None
    labels = dataset["labels"].data if "labels" in dataset else None
    groups = dataset["groups"].data if "groups" in dataset else None
    names = dataset.attrs.get("class_names")
    files = dataset["file"].to_numpy() if "file" in dataset.coords else None
    return SplitData(as_images(dataset["images"]), _named(labels, names), groups, files)


def has_test_split(source: str | None) -> bool:
    """Whether there is a data set at a URL, or of a name, that has images to test with and others
    to train on."""
    try:
        return bool(source) and "test" in open_source(source or "").splits
    except RescnetError:
        return False


def select_split(X: Any, y: Any, split: str, *, name: str = "X") -> SplitData:
    """Images from an array or a data set, and their labels: those given, or of the data set."""
    labels_name = name.replace("X", "y")
    if not isinstance(X, str | os.PathLike | xr.Dataset):
        images = as_images(X, name=name)
        return SplitData(images, as_labels(y, images.shape[0], name=labels_name))
    part = _needed(X, split)
    labels = part.labels if y is None else y
    if labels is None:
        named = "the data set" if isinstance(X, xr.Dataset) else mask_secrets(os.fspath(X))
        raise DataError(
            f"{named} has no labels: name the variable labels, put image files into folders named "
            "after their classes, or give labels"
        )
    return replace(part, labels=as_labels(labels, part.images.shape[0], name=labels_name))


def images_of(X: Any) -> Images:
    """Images from an array, or from a data set its test split, or all if it has no splits."""
    return (
        evaluation_split(X).images
        if isinstance(X, str | os.PathLike | xr.Dataset)
        else as_images(X)
    )


def evaluation_split(source: str | os.PathLike[str] | xr.Dataset) -> SplitData:
    """The test split of a data set, or all of it where it has no splits, or but one."""
    return _needed(source, "test")


def split_of(source: str | os.PathLike[str] | xr.Dataset, split: str) -> xr.Dataset:
    """The images of one split as a data set of its own."""
    dataset = open_dataset(source)
    names = dataset["split"].to_numpy() if "split" in dataset.coords else np.zeros(0, str)
    if split not in names:
        raise DataError(_without(source, split, np.unique(names).tolist()))
    return dataset.isel(image=np.flatnonzero(names == split))


def _needed(X: Any, split: str) -> SplitData:
    """The part of a data set that networks are fitted to (train) or judged by (test): where there
    is but one split, that is what is judged by."""
    part = get_split(X, split)
    if part is not None:
        return part
    found = X if isinstance(X, xr.Dataset) else open_dataset(X)
    splits = np.unique(found["split"].to_numpy()).tolist()
    only = get_split(X, splits[0]) if split == "test" and len(splits) == 1 else None
    if only is None:
        raise DataError(_without(X, split, splits))
    return only


def _without(source: Any, split: str, splits: list[str]) -> str:
    name = "the data set" if isinstance(source, xr.Dataset) else mask_secrets(os.fspath(source))
    listed = ", ".join(splits)
    return f"{name} has no images to {split}, but " + (
        f"to {listed}: name a split that there is" if listed else "no splits at all"
    )


# sources ----------------------------------------------------------------------------------------


def _of_source(source: Source, wanted: Wanted) -> xr.Dataset:
    shape, dtype = first_image(source, wanted)
    block = max(1, BLOCK_BYTES // max(1, int(np.prod(shape)) * dtype.itemsize))
    read, blocks = delayed(_read_block, pure=False), []
    for split, count in source.splits.items():
        for start in range(0, count, block):
            stop = min(start + block, count)
            found = read(source.reader(split, start, stop), wanted, shape, dtype.str)
            blocks.append(da.from_delayed(found, (stop - start, *shape), dtype))
    return _dataset(da.concatenate(blocks), source)


def _read_block(reader: Reader, wanted: Wanted, shape: tuple[int, int, int], dtype: str) -> Array:
    """Images (n, H, W, d) of a source; what cannot be read is refused by name."""
    block = decode(reader(), wanted, shape, np.dtype(dtype))
    if block.bad:
        _, name, reason = block.bad[0]
        raise DataError(f"{name}: {reason}; `rescnet data import` can leave such images out")
    return block.images


def _dataset(images: da.Array, source: Source) -> xr.Dataset:
    """Lazy images with what a source tells of them."""
    variables: dict[str, Any] = {"images": (IMAGE_DIMS, images)}
    names = np.repeat(list(source.splits), list(source.splits.values()))
    coords: dict[str, Any] = {"split": ("image", names)}
    files = [source.files(split) for split in source.splits]
    if None not in files:
        coords["file"] = ("image", np.array([name for part in files for name in part or ()]))
    if not source.labels:
        return xr.Dataset(variables, coords)
    labels = np.concatenate([source.labels[split] for split in source.splits])
    variables["labels"] = ("image", labels)
    return xr.Dataset(variables, coords, attrs={"class_names": list(source.classes)})


class Digits(Source):
    """The digits in the package."""

    def __init__(self) -> None:
        self.url, self.classes = "digits", tuple(range(10))
        found = {split: load_digits(split)[1] for split in ("train", "test")}
        self.labels = {split: labels.astype(np.int32) for split, labels in found.items()}
        self.splits = {split: len(labels) for split, labels in found.items()}

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the images."""
        return partial(_read_digits, split, start, stop)


def _read_digits(split: str, start: int, stop: int) -> Samples:
    images = load_digits(split)[0][start:stop]
    return Samples(images, NumberedReader(f"digits, {split}", start, stop))


def _part_of_digits(split: str) -> SplitData:
    """In memory, as they are small."""
    images, labels = load_digits(split)
    return SplitData(as_images(images), labels)


# what is stored as arrays already ---------------------------------------------------------------


def _of_stored(stored: StoredImages) -> xr.Dataset:
    images = as_images(_lazy(stored), name=stored.url).array
    variables: dict[str, Any] = {"images": (IMAGE_DIMS, images)}
    for name, path in (("labels", stored.labels_path), ("groups", stored.groups_path)):
        if path:
            variables[name] = ("image", da.from_zarr(stored.location.open_array(path)))
    coords = {}
    if stored.ranges:
        names = np.full(images.shape[0], "", "<U5")
        for split, (start, stop) in stored.ranges.items():
            names[start:stop] = split
        coords = {"split": ("image", names)}
    attrs = {"class_names": list(stored.class_names)} if stored.class_names else {}
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _lazy(stored: StoredImages) -> da.Array:
    """The images as a dask array; of an imported data set, damaged ones are refused by name."""
    array = stored.array()
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
    try:
        return read_region(location.open_array("images"), start, stop)
    except CorruptDataError as error:
        raise DataError(
            f"{location.url} is damaged ({error}): `rescnet check` lists all such chunks; import it "
            "again"
        ) from None


def _part_of_stored(stored: StoredImages, split: str) -> SplitData | None:
    images = as_images(_lazy(stored), name=stored.name).array
    rows = slice(0, images.shape[0])
    if stored.ranges:
        if split not in stored.ranges:
            return None
        rows = slice(*stored.ranges[split])
    elif split == "val":
        return None
    has_channels = len(stored.array().shape) == 4
    lies = Stored(stored.location.url, stored.images_path, rows.start) if has_channels else None
    labels, groups = (
        da.from_zarr(stored.location.open_array(path))[rows] if path else None
        for path in (stored.labels_path, stored.groups_path)
    )
    return SplitData(Images(images[rows], lies), _named(labels, stored.class_names), groups)


def _checked(dataset: xr.Dataset) -> xr.Dataset:
    """An xarray Dataset with the names that are used here for its variables and dimensions."""
    names = {}
    for name, known in (("images", IMAGE_NAMES), ("labels", LABEL_NAMES), ("groups", GROUP_NAMES)):
        given = next((found for found in known if found in dataset.data_vars), None)
        if given:
            names[given] = name
    if "images" not in names.values():
        raise DataError(
            f"the Dataset has the variables {list(dataset.data_vars)}: name the one with the "
            "images images, and that with their labels labels"
        )
    variables = {name: dataset[given] for given, name in names.items()}
    images = variables.pop("images")
    if images.ndim not in (3, 4):
        raise DataError(
            f"images has the dimensions {images.dims}: images are (image, y, x, channel)"
        )
    if set(images.dims) <= set(IMAGE_DIMS):
        images = images.transpose(*(dim for dim in IMAGE_DIMS if dim in images.dims))
    pixels = images.data if images.ndim == 4 else images.data[..., np.newaxis]
    coords = {"split": ("image", _splits(dataset["split"]))} if "split" in dataset else {}
    return xr.Dataset(
        {
            "images": (IMAGE_DIMS, pixels),
            **{name: ("image", v.data) for name, v in variables.items()},
        },
        coords=coords,
        attrs=dataset.attrs,
    )


def _splits(given: xr.DataArray) -> Array:
    """The names that are used here for splits (N,)."""
    found, location = np.unique(given.to_numpy().astype(str), return_inverse=True)
    names = [split_named(name) or "" for name in found.tolist()]
    if not all(names):
        raise DataError(
            f"the Dataset has the splits {found.tolist()}: name them train, val or test"
        )
    return np.asarray(np.array(names)[location])


def _named(labels: Any, names: Any) -> Any:
    """Labels (N,) by their class names, where they are places in these."""
    if labels is None or names is None or not len(names):
        return labels
    classes = classes_array(list(names))

    def name(codes: Array) -> Array:
        if len(codes) and not (codes.min() >= 0 and codes.max() < len(classes)):
            raise DataError(
                f"labels go from {codes.min()} to {codes.max()}, and there are {len(classes)} "
                "class names"
            )
        return np.asarray(classes[codes])

    if isinstance(labels, da.Array):
        return labels.map_blocks(name, dtype=classes.dtype, meta=np.empty(0, classes.dtype))
    return name(labels)
