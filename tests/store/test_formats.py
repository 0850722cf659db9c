"""Formats of stores: only the version of this release is read, and errors name both versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist.data.stored import find_stored, verify_dataset
from rescnet_dist.errors import StoreReadError
from rescnet_dist.store import (
    DATASET_FORMAT,
    DATASET_FORMAT_VERSION,
    FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    RunStore,
    check_format,
    write_region,
)

OPENERS: dict[str, tuple[str, int, Callable[[str], Any]]] = {
    "open run": (RUN_FORMAT, FORMAT_VERSION, RunStore.open),
    "read run": (RUN_FORMAT, FORMAT_VERSION, lambda url: RunStore(Location(url)).attributes()),
    "load run": (RUN_FORMAT, FORMAT_VERSION, rd.load),
    "resume run": (RUN_FORMAT, FORMAT_VERSION, rd.ResCNetClassifier.resume),
    "check run": (RUN_FORMAT, FORMAT_VERSION, lambda url: check_format(Location(url), RUN_FORMAT)),
    "load network": (NETWORK_FORMAT, FORMAT_VERSION, rd.load),
    "open dataset": (DATASET_FORMAT, DATASET_FORMAT_VERSION, rd.open_dataset),
    "find dataset": (DATASET_FORMAT, DATASET_FORMAT_VERSION, find_stored),
    "verify dataset": (DATASET_FORMAT, DATASET_FORMAT_VERSION, verify_dataset),
}


def make_store(url: str, kind: str, version: Any) -> None:
    """Create a store of a format and version, with the arrays of a dataset."""
    location = Location.of(url)
    for name, values in {"images": np.zeros((4, 5, 5, 1)), "labels": np.zeros(4, int)}.items():
        dims = ("image", "y", "x", "channel")[: values.ndim]
        location.create_array(name, values.shape, values.dtype, 4, dims, compress=True)
        write_region(location.open_array(name, write=True), 0, values)
    location.update_attributes({"format": kind, "format_version": version})


@pytest.mark.parametrize("change", [1, -1, None, "2"])
@pytest.mark.parametrize(("kind", "version", "open_store"), OPENERS.values(), ids=OPENERS.keys())
def test_other_versions_are_rejected(
    client: Client,
    tmp_path: Path,
    kind: str,
    version: int,
    open_store: Callable[[str], Any],
    change: Any,
) -> None:
    """The error has the URL, the version found, the supported one, and the remedy."""
    url = str(tmp_path / "store")
    found = version + change if isinstance(change, int) else change
    make_store(url, kind, found)
    with pytest.raises(StoreReadError) as caught:
        open_store(url)
    again = "import the dataset again" if kind == DATASET_FORMAT else "train again"
    older = f"use the release that made it, or {again}."
    remedy = older if change == -1 else "install a newer release."
    assert str(caught.value) == (
        f"{url} has format version {found}. This release of rescnet_dist reads version {version} "
        f"of {kind} stores; {remedy}"
    )


def test_dataset_of_todays_version_is_read(tmp_path: Path) -> None:
    """The version is compared, and the data are read."""
    make_store(str(tmp_path / "store"), DATASET_FORMAT, DATASET_FORMAT_VERSION)
    assert rd.open_dataset(tmp_path / "store").sizes["image"] == 4
    assert verify_dataset(tmp_path / "store") == []


def test_other_groups_need_no_version(tmp_path: Path) -> None:
    """The images of any Zarr group are read, whatever its attributes are."""
    make_store(str(tmp_path / "store"), "measurements", 7)
    assert rd.open_dataset(tmp_path / "store").sizes["image"] == 4
