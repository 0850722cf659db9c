"""The images that runs have held out from training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.errors import CorruptDataError, DataError, mask_secrets
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RUN_FORMAT, Location, RunStore, StoredArray, read_region

if TYPE_CHECKING:
    import dask.array as da

MASK_READ_ROWS = 2**20  # rows of the training mask read at a time
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class RunData:
    """The stored images, labels and training mask of a run.

    Raises CorruptDataError for what contradicts the attributes of the run.
    """

    run: RunStore
    state: RunState

    @classmethod
    def of(cls, run: RunStore) -> RunData:
        """Return the data of a run, which are opened when they are used."""
        return cls(run, RunState.of(run))

    def open_images(self) -> tuple[StoredArray, int]:
        """Open the array of the images (≥ N, H, W, d); also return the row of the first image."""
        array, first = self.run.images()
        rows = max(self.state.rows.images + first, array.shape[0] if array.shape else 0)
        return self._check(array, "images", (rows, *self.state.image_shape), "biuf"), first

    def find_rows(self, is_training: bool) -> Array:
        """Return the rows of the images (n,) to train on, or of those that are held out."""
        found, count = [np.arange(0)], self.state.rows.images
        mask = self._check(self.run.data_array("train"), "a training mask", (count,), "b")
        for start in range(0, count, MASK_READ_ROWS):
            part = read_region(mask, start, min(start + MASK_READ_ROWS, count))
            found.append(start + np.flatnonzero(part == is_training))
        return np.concatenate(found)

    def read_codes(self, rows: Array) -> Array:
        """Read the codes of the classes of rows (n,)."""
        count, classes = self.state.rows.images, self.state.classes
        labels = self._check(self.run.data_array("labels"), "labels", (count,), "iu")
        codes = np.asarray(labels.oindex[rows])
        if len(codes) and not 0 <= codes.min() <= codes.max() < classes:
            raise CorruptDataError(
                f"The run at {self.run} has labels from {codes.min()} to {codes.max()}, and "
                f"{classes} classes. `rescnet check` lists the damaged chunks; restore a copy of "
                "them, or train again."
            )
        return codes

    def _check(
        self, array: StoredArray, name: str, shape: tuple[int, ...], kinds: str
    ) -> StoredArray:
        """Return an array; raise CorruptDataError if it has another shape, or a type not of kinds.

        `kinds` are those of NumPy's dtypes.
        """
        if array.shape == shape and array.dtype.kind in kinds:
            return array
        raise CorruptDataError(
            f"The run at {self.run} has {name} of shape {array.shape} and type "
            f"{array.dtype}. Its attributes imply the shape {shape}. One of them is damaged; "
            "restore a copy of the run, or train again."
        )


def open_held_out(urls: Sequence[str]) -> tuple[da.Array, Array]:
    """Return the images (n, H, W, d) that all runs have held out, lazy, and their codes (n,).

    Raise DataError if a URL is not that of a run, a run held out no images, or other images than
    the first.
    """
    remedy = "Name held-out images, which no network was trained on, by --data."
    names, runs = [mask_secrets(url) for url in urls], []
    for url, name in zip(urls, names, strict=True):
        if Location.of(url).attributes().get("format") != RUN_FORMAT:
            raise DataError(f"{name} is a saved network, which has no held-out images. {remedy}")
        runs.append(RunStore.open(url))
    data = RunData.of(runs[0])
    rows = data.find_rows(False)
    if not len(rows):
        raise DataError(f"{names[0]} held out no images. {remedy}")
    images, codes = _open_rows(data, rows)
    for name, run in zip(names[1:], runs[1:], strict=True):
        if not _has_same(run, runs[0], rows, images, codes):
            raise DataError(f"{name} held out other images than {names[0]}. {remedy}")
    return images, codes


def _open_rows(data: RunData, rows: Array) -> tuple[da.Array, Array]:
    """Return images of a run, lazy, and their codes."""
    import dask.array as da  # slow to import, and workers do not need it

    array, first = data.open_images()
    return da.from_zarr(array)[rows + first], data.read_codes(rows)


def _has_same(run: RunStore, other: RunStore, rows: Array, images: da.Array, codes: Array) -> bool:
    """Return whether a run held out the images of another one, in these rows."""
    data = RunData.of(run)
    if not np.array_equal(data.find_rows(False), rows):
        return False
    own_images, own_codes = _open_rows(data, rows)
    if own_images.shape != images.shape or not np.array_equal(own_codes, codes):
        return False
    reference = run.attributes().get("images")
    if reference and reference == other.attributes().get("images"):
        return True
    return bool((own_images == images).all().compute())
