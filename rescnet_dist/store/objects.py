"""Objects of a store: each is read and written in one request.

Zarr and s3fs make sure of everything before they read or write: they ask for the size of an object,
for groups above an array, and for names that could be folders. At an object store each question is
a request, and listing names is the slowest. Arrays are therefore encoded in memory, and the objects
are written as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import zarr
from zarr.abc.buffer import Buffer
from zarr.storage import FsspecStore, MemoryStore

from rescnet_dist.store.checksums import Array
from rescnet_dist.store.filesystem import client_options, leave_retries_to_us

ZARR_METADATA = "zarr.json"

Objects = dict[str, bytes]  # by key, below a location


class ObjectStore(FsspecStore):
    """The Zarr store of an fsspec URL, which reads whole objects in one request."""

    @classmethod
    def open_url(cls, url: str, *, read_only: bool) -> Self:
        """Return the store at a URL, whose client makes one attempt per request."""
        options = client_options(url)
        store = cls.from_url(url, options, read_only)
        if options:
            leave_retries_to_us(store.fs)
        return store  # type: ignore[return-value]

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        """Return the bytes of an object, or a range of them; None if there is none."""
        if byte_range is not None:
            return await super().get(key, prototype, byte_range)
        if not self._is_open:
            await self._open()
        path = f"{self.path}/{key}" if self.path else key
        try:
            value = await self.fs._cat_file(path, **_whole_read_options(self.fs))
        except self.allowed_exceptions:
            return None
        return prototype.buffer.from_bytes(value)


def read_object(fs: Any, path: str) -> bytes:
    """Read a whole object; raise FileNotFoundError if there is none."""
    return bytes(fs.cat_file(path, **_whole_read_options(fs)))


def _whole_read_options(fs: Any) -> Mapping[str, Any]:
    """Return the options with which a file system does not ask for the size of an object first.

    s3fs reads objects of more than 50 MB in concurrent parts, and asks for the size of all others
    too. Our chunks are about as large, and tasks read several of them ahead.
    """
    return {"max_concurrency": 1} if "s3" in fs.protocol else {}


def encode_arrays(
    group: str, arrays: Mapping[str, tuple[tuple[str, ...], Array, Mapping[str, Any]]]
) -> Objects:
    """Return the objects of whole arrays in a group: each has dims, values and attributes."""
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
    return _list_objects(encoded)


def encode_empty_array(path: str, **options: Any) -> Objects:
    """Return the objects of an array without chunks, which `zarr.create_array` would create."""
    encoded: dict[str, Buffer] = {}
    zarr.create_array(MemoryStore(encoded), name=path, **options)
    return _list_objects(encoded, is_array=not path)


def _list_objects(encoded: Mapping[str, Buffer], *, is_array: bool = False) -> Objects:
    """Return encoded objects without the group at the top, which has attributes in its store."""
    return {
        key: value.to_bytes() for key, value in encoded.items() if is_array or key != ZARR_METADATA
    }
