"""The images that runs have held out from training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.errors import DataError, mask_secrets
from rescnet_dist.store import RUN_FORMAT, Location, RunStore, read_region

if TYPE_CHECKING:
    import dask.array as da

MASK_READ_ROWS = 2**20  # rows of the training mask read at a time
Array = np.ndarray[Any, np.dtype[Any]]


def find_rows(mask: Any, value: bool) -> Array:
    """Return the rows of a stored boolean mask of shape (N,) that equal a value."""
    found = []
    for start in range(0, mask.shape[0], MASK_READ_ROWS):
        part = read_region(mask, start, min(start + MASK_READ_ROWS, mask.shape[0]))
        found.append(start + np.flatnonzero(part == value))
    return np.concatenate(found)


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
    rows = find_rows(runs[0].data_array("train"), False)
    if not len(rows):
        raise DataError(f"{names[0]} held out no images. {remedy}")
    images, codes = _open_rows(runs[0], rows)
    for name, run in zip(names[1:], runs[1:], strict=True):
        if not _has_same(run, runs[0], rows, images, codes):
            raise DataError(f"{name} held out other images than {names[0]}. {remedy}")
    return images, codes


def _open_rows(run: RunStore, rows: Array) -> tuple[da.Array, Array]:
    """Return images of a run, lazy, and their codes."""
    import dask.array as da  # slow to import, and workers do not need it

    array, first = run.images()
    codes = np.asarray(run.data_array("labels").oindex[rows])
    return da.from_zarr(array)[rows + first], codes


def _has_same(run: RunStore, other: RunStore, rows: Array, images: da.Array, codes: Array) -> bool:
    """Return whether a run held out the images of another one, in these rows."""
    if not np.array_equal(find_rows(run.data_array("train"), False), rows):
        return False
    own_images, own_codes = _open_rows(run, rows)
    if own_images.shape != images.shape or not np.array_equal(own_codes, codes):
        return False
    reference = run.attributes().get("images")
    if reference and reference == other.attributes().get("images"):
        return True
    return bool((own_images == images).all().compute())
