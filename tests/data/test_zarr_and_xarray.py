"""Zarr stores, xarray Datasets and netCDF files as datasets."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from distributed import Client
from source_cases import fail_on_compute
from source_files import CLASS_NAMES, COLOR, LABELS, make_zarr_store

import rescnet_dist as rd
from rescnet_dist.data import find_splits
from rescnet_dist.errors import DataError, RescnetError
from rescnet_dist.store import Location


def test_open_zarr_group(tmp_path: Path) -> None:
    """A Zarr group is opened lazily; class names and splits are optional."""
    make_zarr_store(tmp_path, groups=np.arange(10) // 2)
    with dask.config.set(scheduler=fail_on_compute):
        data = rd.open_dataset(tmp_path)
    assert "split" not in data.coords
    assert "class_names" not in data.attrs
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, COLOR)
        np.testing.assert_array_equal(data.labels, LABELS)
        np.testing.assert_array_equal(data.groups, np.arange(10) // 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("skipped_images", [["a.png"]]),
        ("skipped", "many"),
        ("splits", {"train": 3}),
        ("splits", {"train": [0, "9"]}),
    ],
)
def test_open_imported_dataset_with_damaged_attributes(
    client: Client, tmp_path: Path, name: str, value: object
) -> None:
    """The error says which and what to do."""
    make_zarr_store(tmp_path / "source")
    url = str(tmp_path / "data.zarr")
    rd.import_dataset(tmp_path / "source", url)
    Location(url).update_attributes({name: value})
    with pytest.raises(DataError, match=r"The attributes of .* are damaged .* import the images"):
        rd.open_dataset(url)


@pytest.mark.parametrize(
    ("path", "rows", "words"),
    [
        (
            "labels",
            9,
            r"labels has the shape \(9,\)\. There are 10 images, each of which",
        ),
        ("images", 0, r"images of shape \(0, .* has no images"),
        ("images", 2**63, r"Zarr array at .*images of shape \(9223372036854775808, .* are damaged"),
    ],
)
def test_open_dataset_with_damaged_shape(
    client: Client, tmp_path: Path, path: str, rows: int, words: str
) -> None:
    """Also one that has more chunks than can be counted."""
    make_zarr_store(tmp_path / "source")
    rd.import_dataset(tmp_path / "source", tmp_path / "data.zarr")
    file = tmp_path / "data.zarr" / path / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["shape"][0] = rows
    file.write_text(json.dumps(metadata))
    with pytest.raises(RescnetError, match=words):
        rd.open_dataset(tmp_path / "data.zarr")


@pytest.mark.parametrize("size", [0, 10**30])
def test_open_dataset_with_damaged_chunk_size(client: Client, tmp_path: Path, size: int) -> None:
    """Chunks of no rows, or of more than NumPy can count."""
    make_zarr_store(tmp_path / "source")
    rd.import_dataset(tmp_path / "source", tmp_path / "data.zarr")
    file = tmp_path / "data.zarr" / "labels" / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [size]
    file.write_text(json.dumps(metadata))
    with pytest.raises(RescnetError, match=r"Zarr array at .*labels"):
        rd.open_dataset(tmp_path / "data.zarr")


def make_dataset(**more: Any) -> xr.Dataset:
    """Return a lazy Dataset with other names, and dimensions in another order."""
    return xr.Dataset(
        {
            "X": (("channel", "image", "x", "y"), COLOR.transpose(3, 0, 2, 1)),
            "label": ("image", LABELS),
        },
        attrs={"class_names": list(CLASS_NAMES)},
        **more,
    ).chunk(image=4)


def test_open_xarray_dataset(tmp_path: Path) -> None:
    """A Dataset is normalized by the names of its variables and dimensions, lazily."""
    splits = ["training"] * 4 + ["valid"] * 3 + ["test"] * 3
    given = make_dataset().assign_coords(split=("image", splits))
    with dask.config.set(scheduler=fail_on_compute):
        data = rd.open_dataset(given)
    assert data.images.dims == ("image", "y", "x", "channel")
    assert data.split.to_numpy().tolist() == ["train"] * 4 + ["val"] * 3 + ["test"] * 3
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, COLOR)
        np.testing.assert_array_equal(data.labels, LABELS)
    assert data.attrs["class_names"] == list(CLASS_NAMES)
    with pytest.raises(DataError, match=r"splits \['fold1'\]\. Name them train, val or test"):
        rd.open_dataset(make_dataset(coords={"split": ("image", ["fold1"] * 10)}))
    with pytest.raises(DataError, match=r"variables \['pixels'\]\. Name"):
        rd.open_dataset(xr.Dataset({"pixels": ("image", [1])}))
    with pytest.raises(DataError, match=r"Images must be \(image, y, x, channel\)"):
        rd.open_dataset(xr.Dataset({"images": ("image", [1])}))


def test_splits_in_zarr_written_by_xarray(tmp_path: Path) -> None:
    """The variable `split` of a Zarr store is read if each split is contiguous."""
    splits = np.array(["train"] * 7 + ["test"] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Zarr's, about strings
        for name, values in (("a", splits), ("b", splits[::-1]), ("c", np.roll(splits, 1))):
            data = make_dataset(coords={"split": ("image", values)})
            data = data.transpose("image", "y", "x", "channel")
            data.to_zarr(tmp_path / name, consolidated=False)
        first, second = (rd.open_dataset(tmp_path / name) for name in "ab")
        with pytest.raises(DataError, match=r"c/split has 't.*each in contiguous rows"):
            rd.open_dataset(tmp_path / "c")
    assert first.split.to_numpy().tolist() == splits.tolist()
    assert second.split.to_numpy().tolist() == splits[::-1].tolist()
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(second.images, COLOR)


def test_zarr_dimensions_in_wrong_order(tmp_path: Path) -> None:
    """Named dimensions in another order are rejected, as they would be misread."""
    make_dataset().to_zarr(tmp_path / "a", consolidated=False)
    with pytest.raises(DataError, match=r"X has the dimensions channel, image, x, y\. Store it as"):
        rd.open_dataset(tmp_path / "a")


def test_open_netcdf(tmp_path: Path) -> None:
    """A netCDF file is read by xarray; the error names a file that is none."""
    data = make_dataset().transpose("image", "y", "x", "channel").astype(np.int32)
    data["X"] = data["X"].astype(np.float32)
    data.drop_attrs().to_netcdf(tmp_path / "a.nc")
    found = rd.open_dataset(tmp_path / "a.nc")
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(found.images, COLOR)
        np.testing.assert_array_equal(found.labels, LABELS)
    found.close()
    assert find_splits(str(tmp_path / "a.nc")) == []
    data.assign_coords(split=("image", ["train"] * 7 + ["test"] * 3)).drop_attrs().to_netcdf(
        tmp_path / "d.nc"
    )
    assert find_splits(str(tmp_path / "d.nc")) == ["test", "train"]
    (tmp_path / "b.nc").write_bytes(b"nothing of the kind")
    for name, reason in (("b.nc", "cannot be read"), ("c.nc", "There is no file at")):
        with pytest.raises(DataError, match=f"{reason}.*{name}|{name} {reason}"):
            rd.open_dataset(tmp_path / name)
