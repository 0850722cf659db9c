"""Arrays as objects of a store: each is written in one request.

Zarr and s3fs make sure of everything before they read or write: they ask for the size of an object,
for groups above an array, and for names that could be folders. At an object store each question is
a request, and listing names is the slowest. Arrays are therefore encoded in memory, and the objects
are written as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import zarr
from zarr.abc.buffer import Buffer
from zarr.storage import MemoryStore

from rescnet_dist.store.checksums import Array

ZARR_METADATA = "zarr.json"

Objects = dict[str, bytes]  # by key, below a location


def encode_arrays(
    group: str,
    arrays: Mapping[str, tuple[tuple[str, ...], Array, Mapping[str, Any]]],
    new_groups: Collection[str] | None = None,
) -> Objects:
    """Return the objects of whole arrays in a group: each has dims, values and attributes.

    They include those of the groups in `new_groups`; by default of `group` and all above it.
    """
    encoded: dict[str, Buffer] = {}
    store = MemoryStore(encoded)
    zarr.create_group(store, path=group, zarr_format=3)
    for name, (dims, values, attributes) in arrays.items():
        zarr.create_array(
            store,
            name=f"{group}/{name}",
            data=values,
            dimension_names=dims,
            attributes=dict(attributes),
            config={"write_empty_chunks": True},
        )
    objects = _list_objects(encoded)
    if new_groups is None:
        return objects
    return {key: value for key, value in objects.items() if not _is_known(key, group, new_groups)}


def _is_known(key: str, group: str, new_groups: Collection[str]) -> bool:
    """Return whether a key is of a group at or above `group` that is not new."""
    folder, _, name = key.rpartition("/")
    is_above = group == folder or group.startswith(f"{folder}/")
    return is_above and name == ZARR_METADATA and folder not in new_groups


def encode_empty_array(path: str, *, with_groups: bool = True, **options: Any) -> Objects:
    """Return the objects of an array without chunks, which `zarr.create_array` would create.

    They include the groups above it, unless these exist (`with_groups`).
    """
    encoded: dict[str, Buffer] = {}
    zarr.create_array(MemoryStore(encoded), name=path, **options)
    if not with_groups:
        key = f"{path}/{ZARR_METADATA}"
        return {key: encoded[key].to_bytes()}
    return _list_objects(encoded, is_array=not path)


def _list_objects(encoded: Mapping[str, Buffer], *, is_array: bool = False) -> Objects:
    """Return encoded objects without the group at the top, which has attributes in its store."""
    return {
        key: value.to_bytes() for key, value in encoded.items() if is_array or key != ZARR_METADATA
    }
