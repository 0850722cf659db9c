"""Verification of one chunk of a stored array."""

from __future__ import annotations

from rescnet_dist._compat import encode_chunk_key
from rescnet_dist.errors import StoreReadError
from rescnet_dist.store.arrays import read_region
from rescnet_dist.store.location import Location


def chunk_problem(location: Location, path: str, number: int, expected: int | None = None) -> str:
    """Return what is wrong with a chunk of whole rows of the array at `path`; "" if nothing is.

    The chunk must have the checksum `expected`. If that is None, the chunk must exist, as Zarr
    reads zeros for a missing one.
    """
    try:
        array = location.open_array(path)
        key = encode_chunk_key(array, (number, *(0 for _ in array.shape[1:])))
        if expected is None and not (location / path / key).exists():
            return f"{path}, chunk {number}: the chunk is missing."
        start = number * array.chunks[0]
        read_region(array, start, min(start + array.chunks[0], array.shape[0]), expected)
    except StoreReadError as error:
        return f"{path}, chunk {number}: {error}"
    return ""
