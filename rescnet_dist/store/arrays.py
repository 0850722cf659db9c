"""Arrays of a store: reads and writes are retried, and reads compared with checksums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zipfile import BadZipFile

import numpy as np
import zarr
from zarr import AsyncArray

from rescnet_dist.errors import CorruptDataError, RescnetError, StoreError, StoreReadError
from rescnet_dist.kernels import to_host
from rescnet_dist.store.checksums import Array, checksum
from rescnet_dist.store.half import from_half
from rescnet_dist.store.retry import with_retries

# What Zarr, its codecs and zip files raise on damaged bytes, and on arrays that are too short.
DECODE_ERRORS = (IndexError, RuntimeError, ValueError, BadZipFile)


class StoredArray(zarr.Array[Any]):
    """A Zarr array that retries transient errors when it reads, writes or is resized.

    `__getitem__`, `__setitem__`, `oindex` and Dask use the methods that are overridden here.
    Values that cannot be decoded raise CorruptDataError.
    """

    def __init__(self, async_array: AsyncArray[Any], store: str = "") -> None:
        super().__init__(async_array)
        self._description = f"{self.path} of {store}" if self.path else store

    def _get(self, read: Callable[..., Any], selection: Any, **options: Any) -> Any:
        """Return the result of a method that reads a selection."""

        def attempt() -> tuple[Any, str]:
            try:
                return read(selection, **options), ""
            except DECODE_ERRORS as error:
                return None, f"cannot be decoded ({error})"

        values, problem = with_retries(attempt, f"reading {self._description}", StoreReadError)
        if problem:  # Not inside `except`: errors of Zarr may fail to unpickle.
            raise _describe_damage(self, selection, problem)
        return values

    def _set(self, write: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a method that writes."""
        with_retries(partial(write, *arguments, **options), self._description)

    def get_basic_selection(self, selection: Any = Ellipsis, **options: Any) -> Any:
        """Read a block, given by slices and integers."""
        return self._get(super().get_basic_selection, selection, **options)

    def get_orthogonal_selection(self, selection: Any, **options: Any) -> Any:
        """Read rows, columns, …, each given by a slice or an array of indices."""
        return self._get(super().get_orthogonal_selection, selection, **options)

    def get_coordinate_selection(self, selection: Any, **options: Any) -> Any:
        """Read elements, given by arrays of their coordinates."""
        return self._get(super().get_coordinate_selection, selection, **options)

    def get_mask_selection(self, mask: Any, **options: Any) -> Any:
        """Read elements, given by a mask."""
        return self._get(super().get_mask_selection, mask, **options)

    def set_basic_selection(self, selection: Any, value: Any, **options: Any) -> None:
        """Write a block, given by slices and integers."""
        self._set(super().set_basic_selection, selection, value, **options)

    def set_orthogonal_selection(self, selection: Any, value: Any, **options: Any) -> None:
        """Write rows, columns, …, each given by a slice or an array of indices."""
        self._set(super().set_orthogonal_selection, selection, value, **options)

    def set_coordinate_selection(self, selection: Any, value: Any, **options: Any) -> None:
        """Write elements, given by arrays of their coordinates."""
        self._set(super().set_coordinate_selection, selection, value, **options)

    def set_mask_selection(self, mask: Any, value: Any, **options: Any) -> None:
        """Write elements, given by a mask."""
        self._set(super().set_mask_selection, mask, value, **options)

    def resize(self, new_shape: Any) -> None:
        """Change the shape; chunks outside it are removed."""
        self._set(super().resize, new_shape)

    @property
    def nchunks_initialized(self) -> int:
        """The number of chunks that are stored."""
        return with_retries(
            lambda: super(StoredArray, self).nchunks_initialized,
            f"reading {self._description}",
            StoreReadError,
        )


# reading ----------------------------------------------------------------------------------------


def read_region(
    array: zarr.Array[Any],
    start: int,
    stop: int,
    expected: int | None = None,
    change: Callable[[Array], Array] | None = None,
) -> Array:
    """Read rows start to stop of an array.

    Raise CorruptDataError if they cannot be decoded, or if their checksum is not `expected`.
    `change` is applied to the rows before the checksum is computed; it may return a CuPy array.
    """
    return read_block(array, (slice(start, stop),), expected, change)


def read_block(
    array: zarr.Array[Any],
    block: tuple[slice, ...],
    expected: int | None = None,
    change: Callable[[Array], Array] | None = None,
) -> Array:
    """Read a block of an array, given as slices of rows, columns, …; see `read_region`."""
    values = np.asarray(array[block])
    values = change(values) if change else values
    if expected is not None and checksum(to_host(values)) != expected:
        raise _describe_damage(array, block, "are not those that were committed")
    return values


def read_chunks(
    array: zarr.Array[Any], block: tuple[slice, ...], rows: int, expected: Sequence[int]
) -> Array:
    """Read a block of several chunks of rows, with the checksum of each; see `read_block`."""
    values = np.asarray(array[block])
    for number, value in enumerate(expected):
        part = slice(number * rows, (number + 1) * rows)
        if checksum(values[part]) != value:
            start = block[0].start
            damaged = slice(start + part.start, min(start + part.stop, block[0].stop))
            problem = "are not those that were committed"
            raise _describe_damage(array, (damaged, *block[1:]), problem)
    return values


def read_verified(array: zarr.Array[Any]) -> Array:
    """Read a small array whole; raise CorruptDataError if its checksum attribute does not match.

    An array in half precision is restored before: a release that does not know its scale fails.
    """
    try:
        values = from_half(np.asarray(array[...]), array.attrs)
        if checksum(values) == array.attrs["crc32c"]:
            return values
    except CorruptDataError:
        pass
    except RescnetError:  # as of a store that does not answer
        raise
    except (AttributeError, KeyError, TypeError, ValueError):  # of damaged attributes
        pass
    raise CorruptDataError(f"{array.path} is missing in part or altered.")


def _describe_damage(array: zarr.Array[Any], selection: Any, problem: str) -> CorruptDataError:
    """Return the error for values that were read and cannot be used."""
    parts, values = selection if isinstance(selection, tuple) else (selection,), "Values"
    if all(isinstance(part, slice) and part.stop is not None for part in parts):
        values = f"Rows {', columns '.join(f'{part.start} to {part.stop}' for part in parts)}"
    return CorruptDataError(f"{values} of {array.path} are missing or altered: they {problem}.")


# writing ----------------------------------------------------------------------------------------


def write_region(array: zarr.Array[Any], start: int, values: Array) -> None:
    """Write whole chunks of rows from row `start`.

    Raise StoreError if the region covers part of a chunk only, as two tasks that write to the same
    chunk would corrupt it silently.
    """
    write_block(array, (start,), values)


def write_block(array: zarr.Array[Any], starts: tuple[int, ...], values: Array) -> None:
    """Write whole chunks from the given first row, column, …; see `write_region`."""
    block = tuple(
        slice(start, start + length) for start, length in zip(starts, values.shape, strict=False)
    )
    for part, chunk, length in zip(block, array.chunks, array.shape, strict=False):
        if part.start % chunk or (part.stop % chunk and part.stop != length):
            raise StoreError(
                f"Rows {part.start} to {part.stop} of {array.path} split its chunks of {chunk} "
                "rows. Write whole chunks."
            )
    array[block] = values
