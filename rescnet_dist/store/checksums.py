"""Checksums of array values, which reveal missing, altered and stale chunks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

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


def checksum_json(value: Any, *, sort_keys: bool = False) -> int:
    """Return the checksum of the JSON text of a value; with `sort_keys` in any order of entries.

    >>> checksum_json({"a": 1, "b": 2}, sort_keys=True)
    708794268
    """
    text = json.dumps(value, sort_keys=sort_keys).encode()
    return checksum(np.frombuffer(text, np.uint8))


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

    def split(self, prefix: str) -> tuple[Checksums, Checksums]:
        """Return the checksums of the arrays whose path has a prefix, and those of the others."""
        found = {path: sums for path, sums in self.chunks.items() if path.startswith(prefix)}
        others = {path: sums for path, sums in self.chunks.items() if path not in found}
        return Checksums(found), Checksums(others)
