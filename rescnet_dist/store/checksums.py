"""Checksums of array values, by which a missing, altered or stale chunk shows itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import zarr

from rescnet_dist.errors import CorruptDataError

Array = np.ndarray[Any, np.dtype[Any]]

UNDECODABLE = (RuntimeError, ValueError)  # what Zarr's codecs raise on damaged bytes
PIECE = 2**20  # bytes that are handed to the checksum at a time


def checksum(values: Array) -> int:
    """CRC-32C of the values of an array, in C order.

    >>> checksum(np.arange(3, dtype="uint8"))
    2466073594
    """
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, flat.size, PIECE):
        crc = google_crc32c.extend(crc, flat[start : start + PIECE].tobytes())
    return int(crc)


@dataclass(frozen=True, slots=True)
class Checksums:
    """Checksums of the chunks of arrays, by the array's path, in the order of the chunks.

    `merge` puts those of later chunks behind; it is associative and `Checksums()` is its identity.
    """

    chunks: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def merge(self, later: Checksums) -> Checksums:
        """Both together."""
        paths = [*self.chunks, *(path for path in later.chunks if path not in self.chunks)]
        return Checksums(
            {path: (*self.chunks.get(path, ()), *later.chunks.get(path, ())) for path in paths}
        )

    def plus(self, values: dict[str, Array]) -> Checksums:
        """With one more chunk of each of these arrays, by path."""
        return self.merge(Checksums({path: (checksum(v),) for path, v in values.items()}))


def read_region(
    array: zarr.Array[Any],
    start: int,
    stop: int,
    expected: int | None = None,
    change: Callable[[Array], Array] | None = None,
) -> Array:
    """Rows start to stop of an array; refused if they cannot be decoded, or if their checksum is
    known and another. change: what to make of them first."""
    return read_block(array, (slice(start, stop),), expected, change)


def read_block(
    array: zarr.Array[Any],
    block: tuple[slice, ...],
    expected: int | None = None,
    change: Callable[[Array], Array] | None = None,
) -> Array:
    """A block of an array by its rows, columns, …; refused like rows in `read_region`."""
    problem = "are not those that were committed"
    try:
        values = np.asarray(array[block])
    except UNDECODABLE as error:
        problem = f"cannot be decoded ({error})"
    else:
        values = change(values) if change else values
        if expected is None or checksum(values) == expected:
            return values
    where = ", columns ".join(f"{part.start} to {part.stop}" for part in block)
    raise CorruptDataError(f"rows {where} of {array.path} are missing or altered: they {problem}")


def read_verified(array: zarr.Array[Any]) -> Array:
    """A small array whole; refused if its values are not those of its own checksum attribute."""
    try:
        values = np.asarray(array[...])
        if checksum(values) == array.attrs["crc32c"]:
            return values
    except (*UNDECODABLE, KeyError):
        pass
    raise CorruptDataError(f"{array.path} is missing in part or altered")
