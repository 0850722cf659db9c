"""Datasets as lazy xarray Datasets, and the split of one that is asked for.

A dataset may be the URL of any source, of a Zarr store or of a netCDF file, a name, an xarray
Dataset, a DataFrame of paths and labels, or a Dataset of PyTorch. If it has splits, networks are
fitted to `train` and evaluated on `test`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.data.digits import load_digits
from rescnet_dist.data.images import (
    Array,
    ArrayReference,
    Images,
    as_images,
)
from rescnet_dist.data.kinds import is_url_or_dataset, is_xarray_dataset
from rescnet_dist.data.labels import as_labels
from rescnet_dist.data.named import DATASETS, fetch_dataset
from rescnet_dist.data.normalize import decode_labels, find_images_name, normalize_dataset
from rescnet_dist.data.photos import PhotoDecoder
from rescnet_dist.data.sources import (
    DecodeOptions,
    ItemSource,
    Reader,
    Samples,
    Source,
    TableSource,
    find_source,
    is_item_dataset,
    is_table_of_paths,
)
from rescnet_dist.data.sources.source import NumberedNames
from rescnet_dist.data.stored import StoredImages, find_stored
from rescnet_dist.errors import (
    DataError,
    RescnetError,
    mask_secrets,
    suggest_name,
)
from rescnet_dist.store import IMAGE_DIMS

if TYPE_CHECKING:
    import xarray as xr

NETCDF_SUFFIXES = (".nc", ".nc4", ".h5")
Labels = Any  # (N,), NumPy or dask


@dataclass(frozen=True, slots=True)
class SplitData:
    """Images of one split, with labels, groups, file names and weights, (N,) each, if any.

    `options` are those that the images were decoded with, as far as they are known.
    """

    images: Images
    labels: Labels | None
    groups: Labels | None = None
    files: Array | None = None
    options: DecodeOptions = field(default_factory=DecodeOptions)
    sample_weight: Labels | None = None


def open_dataset(
    source: Any,
    *,
    resize: tuple[int, int] | int | None = None,
    channels: str | None = None,
) -> xr.Dataset:
    """Open a dataset as a lazy xarray Dataset.

    Parameters
    ----------
    source : str, path, xarray.Dataset, pandas.DataFrame or torch.utils.data.Dataset
        The URL of image folders, IDX, CIFAR, NumPy, Parquet, WebDataset or netCDF files, of a CSV
        file of paths and labels or of a Zarr store, at any location that fsspec supports; "digits",
        or a name of `rescnet data names`; a Dataset with images and labels; a DataFrame with
        columns `path` and `label`; or a map-style Dataset of items (image, label).
    resize : int or tuple of int, optional
        Side of a square, or height and width, to which images are resized. By default, they are
        not.
    channels : {"gray", "color"}, optional
        Whether images are converted to gray or to color. By default, they are not.

    Returns
    -------
    xarray.Dataset
        `images` of dimensions (image, y, x, channel) and, if there are labels, `labels` (image),
        which index the attribute `class_names`. The coordinate `split` (image) is train, val or
        test, if there are splits.

    Raises
    ------
    DataError
        If the dataset cannot be read.
    SpecError
        If `resize` or `channels` is invalid.

    Examples
    --------
    >>> open_dataset("digits").sizes
    Frozen({'image': 7000, 'y': 28, 'x': 28, 'channel': 1})
    """
    return open_for_network(source, None, DecodeOptions(resize, channels))  # type: ignore[arg-type]


def open_for_network(
    source: Any, decoder: PhotoDecoder | None, options: DecodeOptions | None = None
) -> xr.Dataset:
    """Open a dataset; image files are converted by the decoder of a network, arrays by options."""
    from rescnet_dist.data import lazy  # slow to import

    options = options or DecodeOptions()
    if is_table_of_paths(source):
        table = TableSource("The DataFrame", source, os.getcwd())
        return lazy.open_lazily(table, options, decoder)
    if is_item_dataset(source) and not is_xarray_dataset(source):
        return lazy.open_lazily(ItemSource(source), options)
    url = "" if is_xarray_dataset(source) else os.fspath(source)
    if is_xarray_dataset(source) or url.endswith(NETCDF_SUFFIXES):
        if options != DecodeOptions():
            raise DataError(
                "resize and channels cannot be applied to a Dataset. They are for files of images."
            )
        return normalize_dataset(source if is_xarray_dataset(source) else lazy.open_netcdf(url))
    stored = find_stored(url)
    if stored and options == DecodeOptions():
        return lazy.open_stored(stored)
    return lazy.open_lazily(open_source(url), options, decoder)


def as_dataset(source: Any, decoder: PhotoDecoder | None = None) -> Any:
    """Return a table of paths, or a dataset of items, as an xarray Dataset; others as they are."""
    if is_url_or_dataset(source):
        return source
    is_table = is_table_of_paths(source) or is_item_dataset(source)
    return open_for_network(source, decoder) if is_table else source


def open_source(url: str) -> Source:
    """Return the source at a URL, or of a name, which is downloaded first if needed."""
    if url == "digits":
        return DigitsSource()
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
        suggestion = suggest_name(url, ["digits", *DATASETS])
        raise DataError(
            f"{error} {url!r} is not the name of a dataset, either. {suggestion}",
            missing_path=error.missing_path,
        ) from None


def get_split(
    source: str | os.PathLike[str] | xr.Dataset, split: str, decoder: PhotoDecoder | None = None
) -> SplitData | None:
    """Return a split of a dataset, or all images if it has no splits; None if it has others."""
    if not is_xarray_dataset(source):
        url = os.fspath(source)
        if url == "digits":
            return None if split == "val" else _get_digits_split(split)
        stored = find_stored(url)
        if stored:
            return _get_stored_split(stored, split)
    dataset = open_for_network(source, decoder)
    rows = _find_rows(dataset, split)
    if rows is None:
        return None
    dataset = dataset.isel(image=rows)
    labels = dataset["labels"].data if "labels" in dataset else None
    groups, sample_weight = (
        dataset[name].data if name in dataset else None for name in ("groups", "sample_weight")
    )
    names = dataset.attrs.get("class_names")
    files = dataset["file"].to_numpy() if "file" in dataset.coords else None
    images, options = as_images(dataset["images"]), DecodeOptions.from_attributes(dataset.attrs)
    named_labels = decode_labels(labels, names)
    return SplitData(images, named_labels, groups, files, options, sample_weight)


def _find_rows(dataset: xr.Dataset, split: str) -> slice | Array | None:
    """Return which images are in a split; all if there are no splits, None if there are others."""
    if "split" not in dataset.coords:
        return None if split == "val" else slice(None)
    rows = np.flatnonzero(dataset["split"].to_numpy() == split)
    if not len(rows):
        return None
    is_contiguous = len(rows) == rows[-1] - rows[0] + 1
    return slice(rows[0], rows[-1] + 1) if is_contiguous else rows


def has_test_split(source: str | None) -> bool:
    """Return whether a dataset, at a URL or of a name, can be opened and has a test split."""
    try:
        return bool(source) and "test" in find_splits(source or "")
    except RescnetError:
        return False


def find_splits(source: str) -> list[str]:
    """Return the splits of the dataset at a URL or of a name.

    Raise DataError or StoreError if it cannot be opened.
    """
    if source.endswith(NETCDF_SUFFIXES):
        return _list_splits(open_for_network(source, None))
    return list(open_source(source).splits)


def _list_splits(dataset: xr.Dataset) -> list[str]:
    """Return the splits of a dataset, none if it is not divided."""
    if "split" not in dataset.coords:
        return []
    names: list[str] = np.unique(dataset["split"].to_numpy()).tolist()
    return names


def select_split(
    X: Any, y: Any, split: str, *, name: str = "X", decoder: PhotoDecoder | None = None
) -> SplitData:
    """Return images of an array or of the split of a dataset, with labels y or its own labels.

    Image files are converted by the decoder of a network, if it is given.
    """
    labels_name, X = name.replace("X", "y"), as_dataset(X, decoder)
    if not is_url_or_dataset(X):
        images = as_images(X, name=name)
        return SplitData(images, as_labels(y, images.shape[0], name=labels_name))
    data = _require_split(X, split, decoder, warn=not is_xarray_dataset(X))
    labels = data.labels if y is None else y
    if labels is None:
        raise DataError(
            f"{_describe_source(X)} has no labels. Name the variable labels, put image files into "
            "folders named after their classes, or give labels."
        )
    return replace(data, labels=as_labels(labels, data.images.shape[0], name=labels_name))


def select_held_out(X: Any, y: Any, *, decoder: PhotoDecoder | None = None) -> SplitData:
    """Return images of an array, or of the val split of a dataset or its only one, with labels."""
    X = as_dataset(X, decoder)
    if is_url_or_dataset(X):
        dataset = open_for_network(X, decoder)
        splits = _list_splits(dataset)
        if len(splits) > 1 and "val" not in splits:
            raise DataError(_describe_missing_split(X, "val", splits))
        X = open_split(dataset, "val", decoder) if len(splits) > 1 else dataset
    return select_split(X, y, "test", decoder=decoder)


def evaluation_images(X: Any, decoder: PhotoDecoder | None = None) -> Images:
    """Return images of an array, or of the evaluation split of a dataset, as `select_split`."""
    X = as_dataset(X, decoder)
    return _require_split(X, "test", decoder).images if is_url_or_dataset(X) else as_images(X)


def evaluation_coords(
    X: xr.DataArray | xr.Dataset,
) -> tuple[Hashable, dict[Hashable, xr.DataArray]]:
    """Return the dimension of the images of `evaluation_images`, and the coordinates along it."""
    images, rows = X, None
    if is_xarray_dataset(X):
        images, rows = X[find_images_name(X)], _find_rows(normalize_dataset(X), "test")
    rows = slice(None) if rows is None else rows  # A single split is also that for evaluation.
    dim = "image" if set(images.dims) <= set(IMAGE_DIMS) else images.dims[0]
    coords = {name: c[{dim: rows}] for name, c in X.coords.items() if c.dims == (dim,)}
    return dim, coords


def evaluation_split(source: str | os.PathLike[str] | xr.Dataset) -> SplitData:
    """Return the test split of a dataset, or all of it if it has no splits, or only one."""
    return _require_split(source, "test")


def open_split(
    source: str | os.PathLike[str] | xr.Dataset, split: str, decoder: PhotoDecoder | None = None
) -> xr.Dataset:
    """Open one split of a dataset as a dataset of its own."""
    dataset = open_for_network(source, decoder)
    names = dataset["split"].to_numpy() if "split" in dataset.coords else np.zeros(0, str)
    if split not in names:
        raise DataError(_describe_missing_split(source, split, np.unique(names).tolist()))
    return dataset.isel(image=np.flatnonzero(names == split))


def _require_split(
    X: Any, split: str, decoder: PhotoDecoder | None = None, *, warn: bool = False
) -> SplitData:
    """Return a split of a dataset; raise DataError if it is missing.

    If the dataset has a single split, that is also its test split; with a warning, if asked for,
    where it is the train split.
    """
    data = get_split(X, split, decoder)
    if data is not None:
        return data
    dataset = X if is_xarray_dataset(X) else open_for_network(X, decoder)
    splits = _list_splits(dataset)
    only = get_split(X, splits[0], decoder) if split == "test" and len(splits) == 1 else None
    if only is None:
        raise DataError(_describe_missing_split(X, split, splits))
    if warn and splits == ["train"]:
        warnings.warn(
            f"{_describe_source(X)} has no test split: its only split, train, is evaluated. If the "
            "network was trained on these images, this says little about new ones.",
            stacklevel=4,
        )
    return only


def _describe_missing_split(source: Any, split: str, splits: list[str]) -> str:
    """Return the message for a split that a dataset does not have."""
    found = (
        f"It has images in {', '.join(splits)}; name one of these splits."
        if splits
        else "It has no splits at all."
    )
    return f"{_describe_source(source)} has no images in {split}. {found}"


def _describe_source(source: Any) -> str:
    """Return the name of a dataset in error messages."""
    return "The dataset" if is_xarray_dataset(source) else mask_secrets(os.fspath(source))


# sources ----------------------------------------------------------------------------------------


class DigitsSource(Source):
    """The digits in the package."""

    def __init__(self) -> None:
        self.url, self.classes = "digits", tuple(range(10))
        labels = {split: load_digits(split)[1] for split in ("train", "test")}
        self.labels = {split: values.astype(np.int32) for split, values in labels.items()}
        self.splits = {split: len(values) for split, values in labels.items()}

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the images."""
        return partial(_read_digits, split, start, stop)


def _read_digits(split: str, start: int, stop: int) -> Samples:
    """Read images start to stop of the digits."""
    images = load_digits(split)[0][start:stop]
    return Samples(images, NumberedNames(f"digits, {split}", start, stop))


def _get_digits_split(split: str) -> SplitData:
    """Return a split of the digits in memory, as they are small."""
    images, labels = load_digits(split)
    return SplitData(as_images(images), labels)


# stored arrays ----------------------------------------------------------------------------------


def _get_stored_split(stored: StoredImages, split: str) -> SplitData | None:
    """Return a split of a Zarr store, or all of it if it has no splits; None if it has others."""
    from rescnet_dist.data import lazy  # slow to import

    images = as_images(lazy.open_images(stored), name=stored.name).array
    rows = slice(0, images.shape[0])
    if stored.ranges:
        if split not in stored.ranges:
            return None
        rows = slice(*stored.ranges[split])
    elif split == "val":
        return None
    has_channels = len(stored.array().shape) == 4
    reference = (
        ArrayReference(stored.location.url, stored.images_path, rows.start)
        if has_channels
        else None
    )
    labels, groups, sample_weight = (
        lazy.open_column(stored, path, rows) if path else None
        for path in (stored.labels_path, stored.groups_path, stored.weights_path)
    )
    named_labels = decode_labels(labels, stored.class_names)
    return SplitData(
        Images(images[rows], reference),
        named_labels,
        groups,
        options=stored.options,
        sample_weight=sample_weight,
    )
