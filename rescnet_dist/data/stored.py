"""Images and labels in a Zarr store: that of an import, or any other with such variables."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import dask
import numpy as np
import zarr
from dask.delayed import delayed

from rescnet_dist.data.images import IMAGE_NAMES, LABEL_NAMES
from rescnet_dist.data.sources.source import (
    Array,
    NumberedReader,
    Reader,
    Samples,
    Source,
    coded,
    in_order,
    split_named,
)
from rescnet_dist.errors import DataError, StoreError
from rescnet_dist.store import IMAGE_DIMS, Location, chunk_problem, read_region, with_retries

GROUP_NAMES = ("groups", "group")
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
FORMAT = "rescnet-dataset"  # of an import
UNFINISHED = "import.json"  # there while a data set is being imported


class StoredImages(Source):
    """A Zarr group with images (n, H, W) or (n, H, W, d) and labels (n,), or an array of images.

    ranges: first row of each split and the one behind its last; empty where there are no splits.
    skipped: how many images its import has left out; skipped_images: name and reason of the first.
    """

    def __init__(self, location: Location) -> None:
        self.location, self.url = location, location.url
        self.labels_path = self.groups_path = ""
        attributes: dict[str, Any] = {}
        try:
            location.open_array()
            self.images_path = ""
        except StoreError:
            attributes = location.attributes()
            names = _arrays(location)
            self.images_path = _find(location, names, IMAGE_NAMES, "images")
            self.labels_path = next((name for name in LABEL_NAMES if name in names), "")
            self.groups_path = next((name for name in GROUP_NAMES if name in names), "")
            if "split" in names and "splits" not in attributes:
                attributes["splits"] = _ranges(location)
        _check_dims(self.name, self.array())
        self.is_imported = attributes.get("format") == FORMAT
        of_import = attributes if self.is_imported else {}
        self.skipped = int(of_import.get("skipped", 0))
        self.skipped_images: list[tuple[str, str]] = [
            (name, reason) for name, reason in of_import.get("skipped_images", ())
        ]
        self.class_names = tuple(attributes.get("class_names", ()))
        found = attributes.get("splits", {})
        self.ranges: dict[str, tuple[int, int]] = {s: tuple(found[s]) for s in in_order(found)}
        rows = self.array().shape[0] if self.array().shape else 0
        self.splits = {s: stop - start for s, (start, stop) in self.ranges.items()} or {
            "train": rows
        }

    @property
    def name(self) -> str:
        """Where the images lie."""
        return f"{self.url}/{self.images_path}".rstrip("/")

    def array(self) -> zarr.Array[Any]:
        """The images."""
        return self.location.open_array(self.images_path or None)

    @property
    def labels(self) -> dict[str, Array]:  # type: ignore[override]
        """Codes (n,) of each split."""
        return self._coded()[1]

    @property
    def classes(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The class names."""
        return self._coded()[0]

    def _coded(self) -> tuple[tuple[Any, ...], dict[str, Array]]:
        if not self.labels_path:
            raise DataError(f"{self.url} has no labels variable: name it labels")
        values = np.asarray(self.location.open_array(self.labels_path)[...])
        ranges = self.ranges or {"train": (0, len(values))}
        if values.dtype.kind not in "iu":
            names, values = np.unique(values, return_inverse=True)
            given: Any = names.tolist()
        else:
            given = self.class_names or None
        return coded({split: values[slice(*rows)] for split, rows in ranges.items()}, given)

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the images."""
        first = self.ranges[split][0] if self.ranges else 0
        names = NumberedReader(f"{self.name},", first + start, first + stop)
        return partial(_read, self.location, self.images_path, names)


def _read(location: Location, path: str, names: NumberedReader) -> Samples:
    array = location.open_array(path or None)
    images = read_region(array, names.start, names.stop)
    return Samples(images if images.ndim == 4 else images[..., np.newaxis], names)


def is_imported(url: str | os.PathLike[str]) -> bool:
    """Whether a data set was imported to a URL."""
    location = Location.of(url)
    return "zarr.json" in location.names() and location.attributes().get("format") == FORMAT


def verify_dataset(url: str | os.PathLike[str]) -> list[str]:
    """What is wrong with the imported data set at a URL, a sentence for each chunk that is missing
    or altered. They are read in parallel, on the current Dask client's cluster if there is one."""
    location = Location.of(url)
    tasks = [
        delayed(chunk_problem, pure=False)(location, path, number)
        for path in ("images", "labels")
        for number in range(location.open_array(path).cdata_shape[0])
    ]
    return [problem for problem in dask.compute(*tasks) if problem]


def find_stored(url: str | os.PathLike[str]) -> StoredImages | None:
    """The Zarr store at a URL, or None where there is something else or nothing."""
    location = Location.of(url)
    names = location.names()
    if UNFINISHED in names:
        raise DataError(
            f"{location.url} has not been imported to the end: run the same `rescnet data import` "
            "again, which goes on with it"
        )
    if not any(name in METADATA for name in names):
        return None
    stored = StoredImages(location)
    if stored.is_imported:
        _check_whole(location, stored.array())
    return stored


def _check_whole(location: Location, images: zarr.Array[Any]) -> None:
    """Refuse imported images of which a chunk is lost, as it would be read as black ones; in those
    that are there, damage is found by the checksum in each."""
    there = with_retries(lambda: images.nchunks_initialized, f"reading {location}")
    if there < images.nchunks:
        raise DataError(
            f"{location.url} has lost {images.nchunks - there:,} of its {images.nchunks:,} chunks of "
            "images: import it again"
        )


def _ranges(location: Location) -> dict[str, tuple[int, int]]:
    """First row and the one behind the last of each split, from a variable that names them."""
    named = np.asarray(location.open_array("split")[...]).astype(str)
    found = {}
    for name in np.unique(named).tolist():
        rows, split = np.flatnonzero(named == name), split_named(name)
        if split is None or split in found or rows[-1] - rows[0] + 1 != len(rows):
            raise DataError(
                f"{location.url}/split has {name!r}: it should have train, val or test, and each in "
                "one row after the other"
            )
        found[split] = (int(rows[0]), int(rows[-1]) + 1)
    return found


def _check_dims(name: str, array: zarr.Array[Any]) -> None:
    """Refuse images whose dimensions are known, and in another order than they are read in."""
    stored = getattr(array.metadata, "dimension_names", None)
    dims: Any = stored or array.attrs.get("_ARRAY_DIMENSIONS", ())
    if set(dims) <= set(IMAGE_DIMS) and list(dims) != [dim for dim in IMAGE_DIMS if dim in dims]:
        raise DataError(
            f"{name} has the dimensions {', '.join(dims)}: store it as {', '.join(IMAGE_DIMS)}, or "
            "open it by xarray and give the Dataset"
        )


def _arrays(location: Location) -> list[str]:
    """The names of the arrays in the group at a place."""
    group = zarr.open_group(location.zarr_store(read_only=True), mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what in there is not Zarr's
        known = (*IMAGE_NAMES, *LABEL_NAMES, *GROUP_NAMES)
        found = []
        for name in known:
            try:
                if name in group and isinstance(group[name], zarr.Array):
                    found.append(name)
            except ValueError as error:  # of a data type or codec that there is not
                raise DataError(f"{location.url}/{name} cannot be read: {error}") from None
        return found + [name for name in sorted(group.array_keys()) if name not in found]


def _find(location: Location, found: list[str], names: tuple[str, ...], what: str) -> str:
    for name in names:
        if name in found:
            return name
    raise DataError(
        f"{location.url} has no {what} variable: it should be named {' or '.join(names[:2])}, "
        f"and the store has {found}"
    )
