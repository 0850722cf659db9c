"""Locations of arrays and records: any fsspec URL, as a Zarr store and for small JSON files.

Transient errors are retried in every method that reads or writes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import ZstdCodec
from zarr.errors import (
    ArrayNotFoundError,
    ContainsArrayError,
    GroupNotFoundError,
    NodeTypeValidationError,
)
from zarr.storage import StorePath

from rescnet_dist._compat import read_zarr_arrays
from rescnet_dist.errors import (
    CorruptDataError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreReadError,
    StoreUnreachableError,
    is_path,
    mask_secrets,
    url_word,
)
from rescnet_dist.store.arrays import StoredArray, read_verified
from rescnet_dist.store.backend import Backend, open_backend, open_zarr_store
from rescnet_dist.store.checksums import Array, checksum
from rescnet_dist.store.filesystem import describe_missing_bucket
from rescnet_dist.store.half import from_half, to_half
from rescnet_dist.store.objects import (
    ZARR_METADATA,
    Objects,
    encode_arrays,
    encode_empty_array,
)
from rescnet_dist.store.retry import (
    CLOCK_REMEDY,
    describe_failure,
    is_clock_wrong,
    is_out_of_space,
    is_store_failure,
    is_transient,
    lacks_credentials,
    retry,
)
from rescnet_dist.store.zipped import open_zip, split_zip_url

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

ABSENT_ERRORS = (FileNotFoundError, NotADirectoryError)
NODE_TYPE_ERRORS = (
    ArrayNotFoundError,
    ContainsArrayError,
    GroupNotFoundError,
    NodeTypeValidationError,
)


MAX_CHUNKS = 2**26  # of an array that is opened, far more than any of ours has
MAX_LENGTH = 2**63 - 1  # of a chunk, as NumPy counts
MAX_CONCURRENT_WRITES = 8  # of small objects at the same time
COMPRESSION = ZstdCodec(level=1, checksum=True)  # as small as level 3, and twice as fast


@dataclass(frozen=True, slots=True)
class Location:
    """A folder, bucket prefix or memory path, by its URL; cheap to create and to pickle.

    If a zip file is at the URL, its content can be read, and groups in it as net.zip/GROUP.
    """

    url: str

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> Location:
        """Return the location of a URL; local paths become absolute, as workers need them."""
        text = os.fspath(url)
        backend, path = open_backend(text)
        return cls(path if backend.is_local else text.rstrip("/"))

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name}")

    def __str__(self) -> str:
        return mask_secrets(self.url)

    def __repr__(self) -> str:
        return f"Location({mask_secrets(self.url)!r})"  # Dask logs the arguments of failed tasks.

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the local file system."""
        return self._open()[0].is_local

    @property
    def client(self) -> str:
        """Name of what opens this location, such as obstore, s3fs or local."""
        return self._open()[0].name

    @property
    def has_secret(self) -> bool:
        """Whether the URL itself carries credentials."""
        return mask_secrets(self.url) != self.url

    def _open(self) -> tuple[Backend, str]:
        """Return the backend and the path there."""
        return open_backend(self.url)

    def zarr_store(self, *, read_only: bool = False, is_new: bool = False) -> Store | StorePath:
        """Open the Zarr store at this location; `is_new` if a user has just named it."""
        if read_only and (zipped := self._open_zip(is_new=is_new)):
            return zipped
        return open_zarr_store(self.url, read_only=read_only)

    def _open_zip(self, *, is_new: bool) -> Store | StorePath | None:
        """Return the store in the zip file here, or the group in one above; None without any."""
        url, path = split_zip_url(self.url)
        zipped = open_zip(url, is_new=is_new) if url else None
        return StorePath(zipped, path) if zipped and path else zipped

    def _write(self, action: Callable[[], Result]) -> Result:
        """Return the result of writing here; raise StoreError with the URL if that fails."""
        try:
            return retry(action)
        except Exception as error:
            if not is_store_failure(error):
                raise
            kind: type[StoreError] = StoreError
            remedy = "Check your permissions."
            if is_out_of_space(error):
                kind, remedy = StoreFullError, "Free some space, then resume the run."
            elif is_transient(error):
                kind, remedy = StoreUnreachableError, "Check the store, then resume the run."
            elif is_clock_wrong(error):
                remedy = CLOCK_REMEDY
            message = f"{self.url} cannot be written: {describe_failure(error)}. {remedy}"
        raise kind(message)

    def exists(self) -> bool:
        """Return whether anything is stored here."""
        backend, path = self._open()
        return self._request(lambda: backend.exists(path))

    def _request(self, action: Callable[[], Result], *expected: type[Exception]) -> Result:
        """Return the result of a request to the file system.

        Raise errors of the expected kinds as they are, and a StoreError for all others.
        """
        try:
            return retry(action)
        except expected:
            raise
        except Exception as error:  # each file system has errors of its own
            problem = self._unreachable(error)
        raise problem

    def _unreachable(self, error: Exception) -> StoreError:
        """Return the exception to raise if the store does not answer.

        It is never the error itself, which may belong to a library that the driver does not have,
        or may not be picklable.
        """
        denied = isinstance(error, PermissionError) or lacks_credentials(error)
        closed = StorePermissionError if denied else StoreReadError
        kind = StoreUnreachableError if is_transient(error) else closed
        remedy = "Check the URL, the network and your permissions."
        if is_path(self.url):
            remedy = "Check the path and your permissions."
        if lacks_credentials(error):
            remedy = "Set the credentials, for S3 by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        elif is_clock_wrong(error):
            remedy = CLOCK_REMEDY
        elif denied and not self.is_local:
            remedy = (
                "The store answers, but refuses these credentials. Check them, and whether your "
                "permissions include this URL: in a shared store, use a folder of your own."
            )
        return kind(f"{self.url} cannot be reached: {describe_failure(error)}. {remedy}")

    def check_bucket(self) -> None:
        """Raise StoreError if the bucket does not exist; some servers create it at a write."""
        if problem := self._find_missing_bucket():
            raise StoreError(problem)

    def _find_missing_bucket(self) -> str | None:
        """Return that the bucket does not exist, and a remedy; None if it does."""
        backend, path = self._open()
        if backend.is_local:
            return None
        try:
            self._request(lambda: backend.names(path), FileNotFoundError)
        except FileNotFoundError as error:
            return describe_missing_bucket(error, self.url)
        return None

    def free_bytes(self) -> int | None:
        """Return the bytes of free space on the disk of a local folder, which need not exist yet.

        It is None for other stores, and if it cannot be found out.
        """
        if not self.is_local:
            return None
        folder = os.path.abspath(self._open()[1])
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None

    def size(self) -> int:
        """Return the number of bytes stored here; raise FileNotFoundError if files vanish."""
        backend, path = self._open()
        return self._request(lambda: backend.size(path), *ABSENT_ERRORS)

    def names(self) -> list[str]:
        """Return the sorted names directly under this location; empty if it does not exist."""
        backend, path = self._open()
        try:
            entries = self._request(lambda: backend.names(path), *ABSENT_ERRORS)
        except ABSENT_ERRORS:
            return []
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def list_entries(self) -> dict[str, bool] | None:
        """Return the names directly under this location, and whether each is a folder.

        It is None if nothing, or a file, is here.
        """
        backend, path = self._open()
        try:
            return self._request(lambda: backend.entries(path), *ABSENT_ERRORS)
        except ABSENT_ERRORS:
            return None

    def remove(self) -> None:
        """Remove everything that is stored here, if anything is."""
        backend, path = self._open()
        self._write(lambda: backend.remove(path))

    def read_json(self) -> Any:
        """Read the JSON record at this location; None if there is none.

        Raise CorruptDataError if it is damaged.
        """
        if (text := self._read_object()) is None:
            return None
        try:
            record = json.loads(text)
            if record is None:
                raise ValueError("it is null")
            if b"\\ud" in text.lower():
                _check_text(record)
        except (ValueError, RecursionError) as error:
            raise CorruptDataError(
                f"{self.url} is not valid JSON ({error}). The record is damaged; remove it, then "
                "resume the run, which writes it anew."
            ) from None
        return record

    def write_json(self, record: Any) -> None:
        """Write a JSON record as one object, so that readers see all of it or nothing."""
        text = json.dumps(record, indent=1).encode()
        backend, path = self._open()
        self._write(lambda: backend.write(path, text))

    def create_json(self, record: Any) -> bool:
        """Write a JSON record atomically unless there is one; return whether it is this one."""
        text = json.dumps(record, indent=1).encode()
        backend, path = self._open()
        make_request = self._write if backend.is_local else self._request
        return make_request(lambda: backend.create(path, text))

    def attributes(self) -> dict[str, Any]:
        """Read the attributes of the Zarr group here; raise StoreError if there is none."""

        def read() -> dict[str, Any]:
            store = self.zarr_store(read_only=True, is_new=True)
            try:  # One format at a time: asked for both, Zarr leaves requests unfinished.
                found = dict(zarr.open_group(store, mode="r", zarr_format=3).attrs)
            except ABSENT_ERRORS:
                found = dict(zarr.open_group(store, mode="r", zarr_format=2).attrs)
            _check_text(found)
            return found

        return self._read("Zarr group", read)

    def _read(self, kind: str, action: Callable[[], Result]) -> Result:
        """Return the result of reading a Zarr node of a kind here.

        Raise StoreReadError if there is none, and CorruptDataError if it is damaged.
        """
        try:
            return retry(action)
        except (*ABSENT_ERRORS, *NODE_TYPE_ERRORS):
            missing = f"There is no {kind} at {self.url}."
            contents, is_missing = self._describe_contents()
            problem: StoreError = StoreReadError(f"{missing} {contents}", missing_path=is_missing)
        except BadZipFile as error:
            problem = CorruptDataError(
                f"{self.url} is not a complete zip file ({describe_failure(error)}). Restore it "
                "from a copy, or save the network again."
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = CorruptDataError(
                f"The {kind} at {self.url} is damaged: {error}. Restore its zarr.json from a copy, "
                "or create it anew."
            )
        except Exception as error:
            problem = self._unreachable(error)
        # Not inside `except` nor a context manager: the context of an error is pickled with it on
        # a worker, and Zarr's own errors do not survive that.
        raise problem

    def _describe_contents(self) -> tuple[str, bool]:
        """Return what is at this location instead of what was expected, with a remedy.

        Also return whether it is a path of this machine where nothing is.
        """
        found, remedy = self.list_entries(), f"Check the {url_word(self.url)}."
        if found is None and self.exists():
            return f"It is a file. {remedy}", False
        if found is None:
            missing = self._find_missing_bucket() or f"It does not exist. {remedy}"
            return missing, is_path(self.url)
        if "commits" in found:  # Only runs have it.
            return "This is a run that has lost its zarr.json. Restore a copy of it.", False
        names = ", ".join(sorted(found)[:3]) or "nothing"
        return f"It holds {names}{', …' if len(found) > 3 else ''}. {remedy}", False

    def update_attributes(self, attributes: dict[str, Any]) -> None:
        """Set attributes of the Zarr group here, which is created if there is none."""

        def write() -> None:
            group = zarr.open_group(self.zarr_store(), mode="a", zarr_format=3)
            group.update_attributes(attributes)

        self._write(write)

    def create_array(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: Any,
        chunk: int | tuple[int, ...],
        dims: tuple[str, ...],
        *,
        compress: bool,
        with_groups: bool = True,
    ) -> None:
        """Create an empty array of shape (n, …) under this group, replacing any.

        `chunk` is the number of whole rows of a chunk, or its shape. With the path "", the array is
        created at this location itself, without a group. The groups on the path are written too,
        unless they are known to exist (`with_groups`).
        """
        options = {
            "shape": shape,
            "dtype": dtype,
            "chunks": (chunk, *shape[1:]) if isinstance(chunk, int) else chunk,
            "compressors": COMPRESSION if compress else None,
            "dimension_names": dims,
        }
        if self.is_local:
            create = partial(zarr.create_array, self.zarr_store(), name=path, overwrite=True)
            (self / path)._write(lambda: create(**options))
            return
        target = self / path if path else self
        if (target / ZARR_METADATA)._read_object() is not None:
            target.remove()
        objects = encode_empty_array(path, with_groups=with_groups, **options)
        target._write_objects(self.url, objects)

    def _read_object(self) -> bytes | None:
        """Read the object here, by one request; None if there is none."""
        backend, path = self._open()
        try:
            return self._request(lambda: backend.read(path), *ABSENT_ERRORS)
        except ABSENT_ERRORS:
            return None

    def _write_objects(self, root: str, objects: Objects) -> None:
        """Write objects by their keys below a URL, each atomically, several at a time.

        Those that fail for a while are written again, without the others. This location is named
        in errors.
        """
        pending, (backend, folder) = list(objects), open_backend(root)

        def write(key: str) -> Exception | None:
            try:
                backend.write(f"{folder}/{key}", objects[key])
            except Exception as error:
                return error
            return None

        def write_pending() -> None:
            if backend.is_local:
                errors = {key: write(key) for key in pending}
            else:
                with ThreadPoolExecutor(MAX_CONCURRENT_WRITES) as pool:
                    errors = dict(zip(pending, pool.map(write, pending), strict=True))
            pending[:] = [key for key in pending if errors[key]]
            for error in errors.values():
                if error:
                    raise error

        self._write(write_pending)

    def array_names(self, first: Sequence[str] = ()) -> list[str]:
        """Return the names of the arrays in the group here, those of `first` before the others.

        Raise StoreReadError if one of `first` has an unknown data type or codec.
        """

        def read() -> tuple[list[str], str]:
            group = zarr.open_group(self.zarr_store(read_only=True), mode="r")
            found = []
            for name in first:
                try:
                    if name in group and isinstance(group[name], zarr.Array):
                        found.append(name)
                except ValueError as error:
                    return [], f"{self.url}/{name} cannot be read: {error}."
            return found + [name for name in sorted(group.array_keys()) if name not in found], ""

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about objects in the store that are not Zarr's
            names, problem = self._read("Zarr group", read)
        if problem:
            raise StoreReadError(problem)
        return names

    def open_array(self, path: str | None = None, *, write: bool = False) -> StoredArray:
        """Open the array at `path` under this group, or the one at this location itself.

        Arrays stored by pickle, with empty or endless chunks, or with more chunks than any store
        has, are rejected. All chunks written are stored, also chunks of zeros.
        """
        location, mode = self / path if path else self, "r+" if write else "r"

        def read() -> zarr.Array[Any]:
            open_format = partial(
                zarr.open_array, self.zarr_store(read_only=not write), path=path or "", mode=mode
            )
            try:  # One format at a time: asked for both, Zarr looks for three objects.
                return open_format(zarr_format=3)
            except ABSENT_ERRORS:
                return open_format(zarr_format=2)

        array = location._read("Zarr array", read)
        if "pickle" in _list_codecs(array):
            raise StoreReadError(
                f"The Zarr array at {location.url} is stored by pickle, which could run any "
                "program, and is not read. Store it as numbers or strings."
            )
        sizes = list(zip(array.shape, array.chunks, strict=False))
        is_bad = any((length and not size) or size > MAX_LENGTH for length, size in sizes)
        if is_bad or math.prod(-(-length // (size or 1)) for length, size in sizes) > MAX_CHUNKS:
            raise StoreReadError(
                f"The Zarr array at {location.url} of shape {array.shape} has chunks of shape "
                f"{array.chunks}. Its metadata are damaged; restore them, or create it anew."
            )
        if write:
            array = array.with_config({"write_empty_chunks": True})
        return StoredArray(array.async_array, str(self))

    def write_small(
        self,
        path: str,
        arrays: dict[str, tuple[tuple[str, ...], Array]],
        *,
        in_half: bool = False,
        new_groups: Collection[str] | None = None,
    ) -> None:
        """Write small named arrays, each (dims, values), into the group at `path`.

        The groups of `new_groups` are written too: by default the one at `path` and all above it.

        With `in_half`, the larger ones of floats are stored in half precision; see `to_half`.

        Objects are replaced, never removed: a late task of a dead driver writes the same values
        while others read them.
        """
        encoded = {}
        for name, (dims, given) in arrays.items():
            stored, attributes = to_half(given) if in_half else (given, {})
            values = from_half(stored, attributes)
            encoded[name] = dims, stored, {"crc32c": checksum(values), **attributes}
        (self / path)._write_objects(self.url, encode_arrays(path, encoded, new_groups))

    def read_small(self, path: str, names: tuple[str, ...]) -> dict[str, Array]:
        """Read named arrays from the group at `path`; raise CorruptDataError if any is damaged."""
        values = self._read_together(path, names)
        if values is not None:
            return values
        arrays = {name: self.open_array(f"{path}/{name}") for name in names}
        try:
            return {name: read_verified(array) for name, array in arrays.items()}
        except CorruptDataError as error:
            raise CorruptDataError(
                f"{self.url} is damaged. {error} Restore it from a copy, or train again."
            ) from None

    def _read_together(self, path: str, names: tuple[str, ...]) -> dict[str, Array] | None:
        """Read named arrays from the group at `path` at the same time.

        Returns None if that fails for any reason: reading them one by one then retries, and tells
        what is wrong with which array.
        """
        paths = [f"{path}/{name}" for name in names]
        try:
            found = read_zarr_arrays(self.zarr_store(read_only=True), paths)
            values = [from_half(np.asarray(value), attributes) for value, attributes in found]
            expected = [attributes["crc32c"] for _, attributes in found]
        except Exception as error:
            logger.debug("%s of %s cannot be read together: %s", path, self, error)
            return None
        is_whole = [checksum(value) for value in values] == expected
        return dict(zip(names, values, strict=True)) if is_whole else None


def _list_codecs(array: zarr.Array[Any]) -> list[str]:
    """Return the names of the NumCodecs codecs of an array of Zarr format 2."""
    metadata: Any = array.metadata
    codecs = [*(getattr(metadata, "filters", ()) or ()), getattr(metadata, "compressor", None)]
    return [codec.codec_id for codec in codecs if codec is not None]


def _check_text(value: Any) -> None:
    """Raise ValueError if a JSON value has strings that are no Unicode text and cannot be shown."""
    json.dumps(value, ensure_ascii=False).encode()
