"""What a run store contains: hashes of its arrays, records without times, and names of objects."""

from __future__ import annotations

import hashlib
from typing import Any

import zarr

from rescnet_dist import load_digits
from rescnet_dist.store import RunStore

TIME_FIELDS = ("seconds", "finished", "observed")  # of a record, which differ between runs


def write_data(url: str, images: int) -> None:
    """Write a Zarr store of small digits."""
    pixels, labels = (array[:images] for array in load_digits())
    pixels = pixels[:, ::2, ::2]
    group = zarr.open_group(url, mode="w")
    group.create_array("images", data=pixels, chunks=(50, *pixels.shape[1:]))
    group.create_array("labels", data=labels, chunks=(images,))


def read_contents(url: str) -> dict[str, Any]:
    """Read the hash of every array of a run by its path, and the records without times."""
    run = RunStore.open(url)
    folders = ["data", "image_scale", "maps", "scores"]
    folders += [f"layers/{name}" for name in list_names(run, "layers")]
    found: dict[str, Any] = {}
    for folder in folders:
        for name in list_names(run, folder):
            array = run.location.open_array(f"{folder}/{name}")
            content = hashlib.sha256(array[...].tobytes()).hexdigest()
            found[f"{folder}/{name}"] = array.shape, array.dtype.str, content
    for record in run.commits():
        record_fields = {key: value for key, value in record.items() if key not in TIME_FIELDS}
        found[f"commit {record['step']}"] = record_fields
    return found | {"result": run.result()}


def list_names(run: RunStore, folder: str) -> list[str]:
    """List the contents of a folder of a run, without its metadata and empty folders.

    SeaweedFS keeps empty folders.
    """
    location = run.location / folder
    return [name for name in location.names() if name != "zarr.json" and (location / name).size()]


def find_differences(contents: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the names of what differs between the contents of two runs."""
    names = contents.keys() | expected
    return sorted(name for name in names if contents.get(name) != expected.get(name))
