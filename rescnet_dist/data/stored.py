"""Images and labels in a Zarr store, imported or any other with such variables."""

from __future__ import annotations

import os
from functools import partial
from operator import index
from typing import Any

import numpy as np
import zarr

from rescnet_dist.data.images import IMAGE_NAMES, LABEL_NAMES
from rescnet_dist.data.sources.decode import DecodeOptions
from rescnet_dist.data.sources.source import (
    Array,
    NumberedNames,
    Reader,
    Samples,
    Source,
    encode_labels,
    parse_split_name,
    sort_splits,
)
from rescnet_dist.errors import DataError, RescnetError, StoreReadError
from rescnet_dist.store import (
    DATASET_FORMAT,
    FUSED_FORMAT,
    IMAGE_DIMS,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    StoredArray,
    check_format,
    check_version,
    chunk_problem,
    limit_retries,
    read_format_name,
    read_region,
)

GROUP_NAMES = ("groups", "group")
WEIGHT_NAMES = ("sample_weight",)
METADATA_FILES = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
UNFINISHED_FILE = "import.json"  # exists while a dataset is being imported


class StoredImages(Source):
    """A Zarr group with images (n, H, W) or (n, H, W, d) and labels (n,), or an array of images.

    `ranges` has the first row of each split and the one after its last; it is empty if there are
    no splits. `skipped` is the number of images that the import has left out, and `skipped_images`
    has name and reason of the first of them. `options` are those that it has decoded images with.
    """

    def __init__(self, location: Location) -> None:
        self.location, self.url = location, location.url
        self.labels_path = self.groups_path = self.weights_path = ""
        attributes: dict[str, Any] = {}
        try:
            location.open_array()
            self.images_path = ""
        except StoreReadError:
            attributes = location.attributes()
            if attributes.get("format") == DATASET_FORMAT:
                check_version(location, attributes)
            names = _list_arrays(location)
            self.images_path = _find_array(location, names, IMAGE_NAMES, "images")
            self.labels_path = next((name for name in LABEL_NAMES if name in names), "")
            self.groups_path = next((name for name in GROUP_NAMES if name in names), "")
            self.weights_path = next((name for name in WEIGHT_NAMES if name in names), "")
            if "split" in names and "splits" not in attributes:
                attributes["splits"] = _read_split_ranges(location)
        _check_dims(self.name, self.array())
        try:
            self._set_attributes(attributes)
        except RescnetError:
            raise
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"The attributes of {self.url} are damaged ({type(error).__name__}: {error}). "
                "Restore a copy of its zarr.json, or import the images again."
            ) from None

    def _set_attributes(self, attributes: dict[str, Any]) -> None:
        """Set what the attributes of the store say."""
        self.is_imported = attributes.get("format") == DATASET_FORMAT
        import_attributes = attributes if self.is_imported else {}
        self.skipped = int(import_attributes.get("skipped", 0))
        self.skipped_images: list[tuple[str, str]] = [
            (name, reason) for name, reason in import_attributes.get("skipped_images", ())
        ]
        self.options = DecodeOptions.from_attributes(import_attributes)
        self.class_names = tuple(attributes.get("class_names", ()))
        ranges = attributes.get("splits", {})
        self.ranges: dict[str, tuple[int, int]] = {}
        for split in sort_splits(ranges):
            start, stop = map(index, ranges[split])
            self.ranges[split] = start, stop
        rows = self.array().shape[0] if self.array().shape else 0
        self.splits = {s: stop - start for s, (start, stop) in self.ranges.items()} or {
            "train": rows
        }

    @property
    def name(self) -> str:
        """The URL of the array of images."""
        return f"{self.url}/{self.images_path}".rstrip("/")

    def array(self) -> StoredArray:
        """Open the array of images."""
        return self.location.open_array(self.images_path or None)

    @property
    def labels(self) -> dict[str, Array]:  # type: ignore[override]
        """The codes (n,) of each split."""
        return self._read_labels()[1]

    @property
    def classes(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The class names."""
        return self._read_labels()[0]

    def _read_labels(self) -> tuple[tuple[Any, ...], dict[str, Array]]:
        """Read the class names, and the codes (n,) of each split."""
        if not self.labels_path:
            raise DataError(f"{self.url} has no variable with labels. Name it labels.")
        values = np.asarray(self.location.open_array(self.labels_path)[...])
        ranges = self.ranges or {"train": (0, len(values))}
        if values.dtype.kind not in "iu":
            distinct, values = np.unique(values, return_inverse=True)
            names: Any = distinct.tolist()
        else:
            names = self.class_names or None
        return encode_labels({split: values[slice(*rows)] for split, rows in ranges.items()}, names)

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the images."""
        first = self.ranges[split][0] if self.ranges else 0
        names = NumberedNames(f"{self.name},", first + start, first + stop)
        return partial(_read, self.location, self.images_path, names)


def _read(location: Location, path: str, names: NumberedNames) -> Samples:
    """Read images (n, H, W) or (n, H, W, d) of an array."""
    array = location.open_array(path or None)
    images = read_region(array, names.start, names.stop)
    return Samples(images if images.ndim == 4 else images[..., np.newaxis], names)


def verify_dataset(url: str | os.PathLike[str]) -> list[str]:
    """Return the problems of the imported dataset at a URL, one for each damaged chunk.

    Chunks are read in parallel, on the cluster of the current Dask client if there is one.
    """
    from rescnet_dist.cluster.tasks import call_each  # imports Dask, which a path does not need

    location = Location.of(url)
    check_format(location, DATASET_FORMAT)
    chunks = [
        (location, path, number)
        for path in ("images", "labels")
        for number in range(location.open_array(path).cdata_shape[0])
    ]
    return [problem for problem in call_each(chunk_problem, chunks) if problem]


@limit_retries(0)
def find_stored(url: str | os.PathLike[str]) -> StoredImages | None:
    """Return the Zarr store at a URL; None if there is none."""
    location = Location.of(url)
    names = location.names()
    if UNFINISHED_FILE in names:
        raise DataError(
            f"{location.url} is an unfinished import. Run the same `rescnet data import` again to "
            "resume it."
        )
    if not any(name in METADATA_FILES for name in names):
        return None
    stored = StoredImages(location)
    if stored.is_imported:
        _check_complete(location, stored.array())
    return stored


def _check_complete(location: Location, images: zarr.Array[Any]) -> None:
    """Raise DataError if a chunk of imported images is missing, as it would be read as zeros.

    Damage to existing chunks is found by the checksum in each of them.
    """
    existing = images.nchunks_initialized
    if existing < images.nchunks:
        raise DataError(
            f"{location.url} has lost {images.nchunks - existing:,} of its {images.nchunks:,} "
            "chunks of images. Import it again."
        )


def _read_split_ranges(location: Location) -> dict[str, tuple[int, int]]:
    """Read the first row of each split and the one after its last, from the variable `split`."""
    names = np.asarray(location.open_array("split")[...]).astype(str)
    ranges = {}
    for name in np.unique(names).tolist():
        rows, split = np.flatnonzero(names == name), parse_split_name(name)
        if split is None or split in ranges or rows[-1] - rows[0] + 1 != len(rows):
            raise DataError(
                f"{location.url}/split has {name!r}. It should have train, val or test, each in "
                "contiguous rows."
            )
        ranges[split] = (int(rows[0]), int(rows[-1]) + 1)
    return ranges


def _check_dims(name: str, array: zarr.Array[Any]) -> None:
    """Raise DataError if images have named dimensions in another order than `IMAGE_DIMS`."""
    stored = getattr(array.metadata, "dimension_names", None)
    dims: Any = stored or array.attrs.get("_ARRAY_DIMENSIONS", ())
    if set(dims) <= set(IMAGE_DIMS) and list(dims) != [dim for dim in IMAGE_DIMS if dim in dims]:
        raise DataError(
            f"{name} has the dimensions {', '.join(dims)}. Store it as {', '.join(IMAGE_DIMS)}, or "
            "open it with xarray and give the Dataset."
        )


def _list_arrays(location: Location) -> list[str]:
    """Return the names of the arrays in the group at a location, those of known names first."""
    try:
        return location.array_names(first=(*IMAGE_NAMES, *LABEL_NAMES, *GROUP_NAMES))
    except StoreReadError as error:
        raise DataError(str(error)) from None


def _find_array(
    location: Location, names: list[str], candidates: tuple[str, ...], purpose: str
) -> str:
    """Return the first of the candidates that is the name of an array; DataError if none is."""
    for name in candidates:
        if name in names:
            return name
    kind = read_format_name(location)
    if kind in (RUN_FORMAT, NETWORK_FORMAT, FUSED_FORMAT):
        raise DataError(
            f"{location.url} is a {kind} store, not a dataset. Give the data that it was trained "
            "on, or other images."
        )
    raise DataError(
        f"{location.url} has the variables {names}, and none with {purpose}. Name it "
        f"{' or '.join(candidates[:2])}."
    )
