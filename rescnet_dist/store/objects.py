"""Arrays as objects of a store: each is written in one request.

Zarr and s3fs make sure of everything before they read or write: they ask for the size of an object,
for groups above an array, and for names that could be folders. At an object store each question is
a request, and listing names is the slowest. Arrays are therefore encoded in memory, and the objects
are written as they are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
import zarr
from numcodecs import zstd
from zarr.abc.buffer import Buffer
from zarr.storage import MemoryStore

from rescnet_dist._compat import encode_chunk_key
from rescnet_dist.store.checksums import Array

ZARR_METADATA = "zarr.json"
JSON_INDENT = 2  # of metadata, as Zarr writes them

Objects = dict[str, bytes]  # by key, below a location


def encode_arrays(
    group: str,
    arrays: Mapping[str, tuple[tuple[str, ...], Array, Mapping[str, Any]]],
    new_groups: Collection[str] | None = None,
) -> Objects:
    """Return the objects of whole arrays in a group: each has dims, values and attributes.

    They include those of the groups in `new_groups`; by default of `group` and all above it.
    """
    objects = {f"{path}/{ZARR_METADATA}": _encode_group() for path in _list_groups(group)}
    if new_groups is not None:
        objects = {key: value for key, value in objects.items() if _parent(key) in new_groups}
    for name, (dims, values, attributes) in arrays.items():
        encoded = _encode_array(dims, np.asarray(values), attributes)
        objects |= {f"{group}/{name}/{key}": value for key, value in encoded.items()}
    return objects


def _list_groups(path: str) -> list[str]:
    """Return the paths of a group and of those above it, without the one at the top."""
    names = path.split("/")
    return ["/".join(names[: count + 1]) for count in range(len(names))]


def _parent(key: str) -> str:
    """Return the path of the group or array that an object belongs to."""
    return key.rpartition("/")[0]


@cache
def _encode_group() -> bytes:
    """Return the metadata of a group without attributes."""
    encoded: dict[str, Buffer] = {}
    zarr.create_group(MemoryStore(encoded), zarr_format=3)
    return encoded[ZARR_METADATA].to_bytes()


def _encode_array(dims: tuple[str, ...], values: Array, attributes: Mapping[str, Any]) -> Objects:
    """Return the objects of an array at the top, as Zarr writes it.

    Zarr takes some milliseconds for each array, most of them to wait for its own thread. Layers
    have arrays of the same shapes, so the metadata of an array without attributes are kept, and its
    chunks are encoded here, with the codecs that Zarr has chosen.
    """
    metadata, keys = _encode_metadata(dims, values.shape, values.dtype.str)
    level = _zstd_level(metadata)
    if level is None or values.dtype.kind not in "biufc":
        encoded: dict[str, Buffer] = {}
        _create_array(encoded, dims, attributes, data=values)
        return {name: value.to_bytes() for name, value in encoded.items()}
    described = {**metadata, "attributes": dict(attributes)}
    objects = {ZARR_METADATA: json.dumps(described, indent=JSON_INDENT).encode()}
    shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    dtype = values.dtype.newbyteorder("<")
    for index, key in keys.items():
        starts = [number * side for number, side in zip(index, shape, strict=True)]
        part = values[tuple(slice(a, a + side) for a, side in zip(starts, shape, strict=True))]
        if part.shape == tuple(shape):
            chunk = np.ascontiguousarray(part, dtype)
        else:  # at an edge, where chunks are padded
            chunk = np.zeros(shape, dtype)
            chunk[tuple(map(slice, part.shape))] = part
        objects[key] = zstd.compress(chunk.tobytes(), level)
    return objects


@lru_cache(maxsize=256)
def _encode_metadata(
    dims: tuple[str, ...], shape: tuple[int, ...], dtype: str
) -> tuple[dict[str, Any], dict[tuple[int, ...], str]]:
    """Return the metadata of an array without attributes, and the keys of its chunks by index.

    They are kept: a change of Zarr's configuration has no effect on arrays like earlier ones.
    """
    encoded: dict[str, Buffer] = {}
    array = _create_array(encoded, dims, {}, shape=shape, dtype=dtype)
    keys = {index: encode_chunk_key(array, index) for index in np.ndindex(array.cdata_shape)}
    return json.loads(encoded[ZARR_METADATA].to_bytes()), keys


def _create_array(
    encoded: dict[str, Buffer], dims: tuple[str, ...], attributes: Mapping[str, Any], **options: Any
) -> zarr.Array[Any]:
    """Create an array at the top of a store in memory, by its shape or by its data."""
    return zarr.create_array(
        MemoryStore(encoded),
        dimension_names=dims,
        attributes=dict(attributes),
        config={"write_empty_chunks": True},
        **options,
    )


def _zstd_level(metadata: Mapping[str, Any]) -> int | None:
    """Return the level if chunks are little-endian bytes compressed by Zstandard, else None."""
    codecs = metadata["codecs"]
    if [codec["name"] for codec in codecs] != ["bytes", "zstd"]:
        return None
    order, compression = (codec.get("configuration", {}) for codec in codecs)
    if order.get("endian", "little") != "little" or compression["checksum"]:
        return None
    return int(compression["level"])


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
