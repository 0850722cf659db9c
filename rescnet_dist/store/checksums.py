"""Checksums of array values, which reveal missing, altered and stale chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import zarr

from rescnet_dist.errors import CorruptDataError

Array = np.ndarray[Any, np.dtype[Any]]

DECODE_ERRORS = (RuntimeError, ValueError)  # what Zarr's codecs raise on damaged bytes
CHECKSUM_BLOCK_BYTES = 2**20  # passed to the checksum at a time


def checksum(values: Array) -> int:
    """Return the CRC-32C of the values of an array, in C order.

    >>> checksum(np.arange(3, dtype="uint8"))
    2466073594
    """
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, flat.size, CHECKSUM_BLOCK_BYTES):
        crc = google_crc32c.extend(crc, flat[start : start + CHECKSUM_BLOCK_BYTES].tobytes())
    return int(crc)


@dataclass(frozen=True, slots=True)
class Checksums:
    """Checksums of the chunks of arrays, by the path of the array, in the order of the chunks.

    `merge` appends the checksums of later chunks; it is associative and `Checksums()` is its
    identity.
    """

    chunks: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def merge(self, later: Checksums) -> Checksums:
        """Return these checksums followed by later ones."""
        paths = [*self.chunks, *(path for path in later.chunks if path not in self.chunks)]
        return Checksums(
            {path: (*self.chunks.get(path, ()), *later.chunks.get(path, ())) for path in paths}
        )

    def plus(self, values: dict[str, Array]) -> Checksums:
        """Return these checksums with one more chunk of each of the arrays, by path."""
        return self.merge(Checksums({path: (checksum(v),) for path, v in values.items()}))


def read_region(
    array: zarr.Array[Any],
    start: int,
    stop: int,
    expected: int | None = None,
    change: Callable[[Array], Array] | None = None,
) -> Array:
    """Read rows start to stop of an array.

    Raise CorruptDataError if they cannot be decoded, or if their checksum is not `expected`.
    `change` is applied to the rows before the checksum is computed.
    """
    return read_block(array, (slice(start, stop),), expected, change)


def read_block(
    array: zarr.Array[Any],
    block: tuple[slice, ...],
    expected: int | None = None,
    change: Callable[[Array], Array] | None = None,
) -> Array:
    """Read a block of an array, given as slices of rows, columns, …; see `read_region`."""
    problem = "are not those that were committed"
    try:
        values = np.asarray(array[block])
    except DECODE_ERRORS as error:
        problem = f"cannot be decoded ({error})"
    else:
        values = change(values) if change else values
        if expected is None or checksum(values) == expected:
            return values
    region = ", columns ".join(f"{part.start} to {part.stop}" for part in block)
    raise CorruptDataError(f"Rows {region} of {array.path} are missing or altered: they {problem}.")


def read_verified(array: zarr.Array[Any]) -> Array:
    """Read a small array whole; raise CorruptDataError if its checksum attribute does not match."""
    try:
        values = np.asarray(array[...])
        if checksum(values) == array.attrs["crc32c"]:
            return values
    except (*DECODE_ERRORS, KeyError):
        pass
    raise CorruptDataError(f"{array.path} is missing in part or altered.")
