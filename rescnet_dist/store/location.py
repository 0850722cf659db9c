"""A place for arrays and records: any fsspec URL, opened as a Zarr store and for small JSON."""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import fsspec
import numpy as np
import zarr
from fsspec.implementations.local import LocalFileSystem
from zarr.abc.store import Store
from zarr.codecs import ZstdCodec
from zarr.errors import (
    ArrayNotFoundError,
    ContainsArrayError,
    GroupNotFoundError,
    NodeTypeValidationError,
)
from zarr.storage import FsspecStore, LocalStore

from rescnet_dist.errors import (
    CorruptDataError,
    StoreClosedError,
    StoreError,
    StoreUnreachableError,
    mask_secrets,
)
from rescnet_dist.store.checksums import checksum, read_region, read_verified
from rescnet_dist.store.retry import is_out_of_space, is_transient, with_retries

Array = np.ndarray[Any, np.dtype[Any]]
Result = TypeVar("Result")

CREATING = threading.Lock()  # of a new record, as memory:// takes two steps for it

ABSENT = (FileNotFoundError, NotADirectoryError)
OF_ANOTHER_KIND = (
    *(ArrayNotFoundError, ContainsArrayError, GroupNotFoundError, NodeTypeValidationError),
)

PROTOCOL = re.compile(r"(\w+)://")
NO_BUCKET = re.compile(r"(?i)\b(bucket|container) does not exist")  # what servers say of it
EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}  # of this package

COMPRESSION = ZstdCodec(level=1, checksum=True)  # as small as of level 3, twice as fast


@dataclass(frozen=True, slots=True)
class Location:
    """A folder, bucket prefix or memory path, by its URL. Cheap to make and to send to workers."""

    url: str

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> Location:
        """A local path is made absolute, so that workers in other folders find it."""
        text = os.fspath(url)
        fs, path = file_system(text)
        return cls(path if isinstance(fs, LocalFileSystem) else text.rstrip("/"))

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name}")

    def __str__(self) -> str:
        return mask_secrets(self.url)

    def __repr__(self) -> str:
        return f"Location({mask_secrets(self.url)!r})"  # as Dask logs the arguments of what fails

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the local file system."""
        return isinstance(self._fs()[0], LocalFileSystem)

    @property
    def has_secret(self) -> bool:
        """Whether the URL itself carries credentials."""
        return mask_secrets(self.url) != self.url

    def _fs(self) -> tuple[Any, str]:
        return file_system(self.url)

    def _current(self) -> tuple[Any, str]:
        """The file system, with what it remembers of this place forgotten: others write too."""
        fs, path = self._fs()
        fs.invalidate_cache(path)
        return fs, path

    def zarr_store(self, *, read_only: bool = False) -> Store:
        """The Zarr store at this place."""
        if self.is_local:
            return LocalStore(self.url, read_only=read_only)
        return FsspecStore.from_url(self.url, read_only=read_only)

    def _written(self, write: Callable[[], Result]) -> Result:
        """The result of writing here; names this place when it cannot be written."""
        try:
            return write()
        except Exception as error:
            if not (isinstance(error, OSError) or is_transient(error)):
                raise
            kind = StoreUnreachableError if is_transient(error) else StoreError
            remedy = (
                "make room, then resume the run" if is_out_of_space(error) else "check your rights"
            )
            problem = f"{self.url} cannot be written: {error or type(error).__name__}; {remedy}"
        raise kind(problem)

    def exists(self) -> bool:
        """Whether anything is stored here."""
        fs, path = self._current()
        try:
            return bool(fs.exists(path) and (not fs.isdir(path) or fs.ls(path)))
        except FileNotFoundError:
            return False
        except Exception as error:  # each file system has errors of its own
            problem = self._unreachable(error)
        raise problem

    def _unreachable(self, error: Exception) -> StoreError:
        """What to raise where a place does not answer; never the error itself, which may belong to
        a library that the driver does not have, or that does not pickle."""
        closed = StoreClosedError if isinstance(error, PermissionError) else StoreError
        kind = StoreUnreachableError if is_transient(error) else closed
        reason = str(error) or type(error).__name__
        return kind(
            f"{self.url} cannot be reached: {reason}; check the URL, the network and your rights"
        )

    def check_bucket(self) -> None:
        """Refuse a place in a bucket that there is not, which some servers would make at the first
        write."""
        fs, path = self._current()
        if isinstance(fs, LocalFileSystem):
            return
        try:
            fs.ls(path)
        except FileNotFoundError as error:
            problem = no_bucket(error, self.url)
        except Exception as error:
            raise self._unreachable(error) from None
        else:
            return
        if problem:
            raise StoreError(problem)

    def size(self) -> int:
        """Bytes stored here."""
        fs, path = self._fs()
        return int(fs.du(path)) if fs.exists(path) else 0

    def names(self) -> list[str]:
        """The names stored directly under this place, sorted; empty if there is none."""
        fs, path = self._current()
        try:
            entries = fs.ls(path, detail=False)
        except ABSENT:
            return []
        except Exception as error:
            problem = self._unreachable(error)
        else:
            return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)
        raise problem

    def listing(self) -> dict[str, bool] | None:
        """The names stored directly under this place, and which of them are folders; None where
        nothing is, and a file is not a place that holds names."""
        fs, path = self._current()
        try:
            entries = fs.ls(path, detail=True)
        except ABSENT:
            return None
        except Exception as error:
            problem = self._unreachable(error)
        else:
            here = path.rstrip("/")
            if any(e["name"].rstrip("/") == here and e["type"] == "file" for e in entries):
                entries = [e for e in entries if e["name"].rstrip("/") != here]
                if not entries:  # not the marker of a folder, as S3 has them, but a file
                    return None
            return {e["name"].rstrip("/").rsplit("/", 1)[-1]: e["type"] != "file" for e in entries}
        raise problem

    def remove(self) -> None:
        """Remove all that is stored here, if anything."""
        fs, path = self._fs()
        self._written(lambda: fs.rm(path, recursive=True) if fs.exists(path) else None)

    def read_json(self) -> Any:
        """The JSON record at this place, or None where there is none."""
        fs, path = self._fs()
        try:
            return json.loads(fs.cat_file(path))
        except ABSENT:
            return None
        except ValueError as error:
            problem = StoreError(
                f"{self.url} is not valid JSON ({error}): the record is damaged; remove it, then "
                "resume the run, which makes it again"
            )
        except Exception as error:
            problem = self._unreachable(error)
        raise problem

    def write_json(self, record: Any) -> None:
        """Write a JSON record as one object, so that a reader sees all of it or nothing."""
        text = json.dumps(record, indent=1).encode()
        fs, path = self._fs()
        local = isinstance(fs, LocalFileSystem)
        self._written(lambda: _replace_file(path, text) if local else fs.pipe_file(path, text))

    def create_json(self, record: Any) -> bool:
        """Write a JSON record only where there is none, in one step; whether it is ours now."""
        text = json.dumps(record, indent=1).encode()
        fs, path = self._fs()
        if isinstance(fs, LocalFileSystem):
            return self._written(lambda: _create_file(path, text))
        with CREATING:
            try:
                fs.pipe_file(path, text, mode="create")
            except Exception as error:  # what is raised where there is one already varies
                fs.invalidate_cache(path)
                if not fs.exists(path):
                    raise self._unreachable(error) from None
            return bool(fs.cat_file(path) == text)

    def attributes(self) -> dict[str, Any]:
        """The attributes of the Zarr group here; an error that names the URL if there is none."""

        def read() -> dict[str, Any]:
            store = self.zarr_store(read_only=True)
            try:  # one format after the other: asked for both, Zarr leaves requests behind
                return dict(zarr.open_group(store, mode="r", zarr_format=3).attrs)
            except ABSENT:
                return dict(zarr.open_group(store, mode="r", zarr_format=2).attrs)

        return self._opened("Zarr group", read)

    def _opened(self, what: str, read: Callable[[], Result]) -> Result:
        """The result of reading here; names this place and what is missing or damaged there."""
        try:
            return read()
        except (*ABSENT, *OF_ANOTHER_KIND):
            problem = StoreError(f"there is no {what} at {self.url}: {self._instead()}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = StoreError(
                f"the {what} at {self.url} is damaged: {error}; put its zarr.json back, or make it "
                "anew"
            )
        except Exception as error:
            problem = self._unreachable(error)
        # not inside `except` nor a context manager: the error that another one is raised in comes
        # along with it from a worker, and Zarr's own do not survive that
        raise problem

    def _instead(self) -> str:
        """What there is at a place instead of what was looked for, and what to do."""
        found = self.listing()
        if found is None:
            return f"it {'is a file' if self.exists() else 'does not exist'}; check the URL"
        if "commits" in found:  # which nothing but a run has
            return "this is a run that has lost its zarr.json; put back a copy of it"
        some = ", ".join(sorted(found)[:3]) or "nothing"
        return f"it holds {some}{', …' if len(found) > 3 else ''}; check the URL"

    def update_attributes(self, attributes: dict[str, Any]) -> None:
        """Set these attributes of the Zarr group here, which is made if there is none."""

        def write() -> None:
            group = zarr.open_group(self.zarr_store(), mode="a", zarr_format=3)
            group.update_attributes(attributes)

        self._written(write)

    def create_array(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: Any,
        chunk: int | tuple[int, ...],
        dims: tuple[str, ...],
        *,
        compress: bool,
    ) -> None:
        """Make an empty array (n, …) under this group, in chunks of `chunk` whole rows or, where it
        is a shape, of that shape; with the path "", here itself, in no group."""
        create = partial(
            zarr.create_array,
            name=path,
            shape=shape,
            dtype=dtype,
            chunks=(chunk, *shape[1:]) if isinstance(chunk, int) else chunk,
            compressors=COMPRESSION if compress else None,
            dimension_names=dims,
            overwrite=True,
        )
        (self / path)._written(lambda: create(self.zarr_store()))

    def open_array(self, path: str | None = None, *, write: bool = False) -> zarr.Array[Any]:
        """The array at `path` under this group, or the one at this place itself; never one whose
        bytes are unpickled. All chunks that are written are there afterwards, those of zeros too.
        """
        location, mode = self / path if path else self, "r+" if write else "r"
        array = location._opened(
            "Zarr array",
            lambda: zarr.open_array(
                self.zarr_store(read_only=not write), path=path or "", mode=mode
            ),
        )
        if "pickle" in _codecs(array):
            raise StoreError(
                f"the Zarr array at {location.url} is stored by pickle, which could run any program: "
                "it is not read; store it as numbers or strings"
            )
        return array.with_config({"write_empty_chunks": True}) if write else array

    def write_small(self, path: str, arrays: dict[str, tuple[tuple[str, ...], Array]]) -> None:
        """Write small named arrays, each (dims, values), into the group at `path`.

        Those that are there already are left alone: writing an array anew removes it first, and a
        task that is late, its driver long dead, would take what is committed from its readers.
        """
        (self / path)._written(lambda: self._write_small(path, arrays))

    def _write_small(self, path: str, arrays: dict[str, tuple[tuple[str, ...], Array]]) -> None:
        store = self.zarr_store()
        zarr.open_group(store, path=path, mode="a", zarr_format=3)
        for name, (dims, values) in arrays.items():
            if self._holds(f"{path}/{name}", values):
                continue
            zarr.create_array(
                store,
                name=f"{path}/{name}",
                data=values,
                dimension_names=dims,
                attributes={"crc32c": checksum(values)},
                overwrite=True,
            )

    def _holds(self, path: str, values: Array) -> bool:
        """Whether an array with these values, bit for bit, is at `path`."""
        if self.is_local and not os.path.exists(os.path.join(self.url, path)):
            return False  # mostly so, and sooner known
        try:
            found = read_verified(self.open_array(path))
        except StoreUnreachableError:
            raise
        except StoreError:
            return False
        same_kind = (found.shape, found.dtype) == (values.shape, values.dtype)
        return same_kind and found.tobytes() == values.tobytes()

    def read_small(self, path: str, names: tuple[str, ...]) -> dict[str, Array]:
        """Read named arrays whole from the group at `path`, checked against their checksums."""
        try:
            return {name: read_verified(self.open_array(f"{path}/{name}")) for name in names}
        except CorruptDataError as error:
            raise CorruptDataError(
                f"{error}, at {self.url}: put it back from a copy, or train again"
            ) from None


def no_bucket(error: FileNotFoundError, url: str) -> str | None:
    """What to say where something is not found at a URL as its bucket is not there; None where the
    bucket is not what is missing.

    >>> no_bucket(FileNotFoundError("The specified bucket does not exist"), "s3://a/b")
    'there is no bucket for s3://a/b: check the URL and the endpoint, or make the bucket first'
    """
    if not NO_BUCKET.search(str(error)):
        return None
    return f"there is no bucket for {url}: check the URL and the endpoint, or make the bucket first"


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path there."""
    try:
        fs, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        extra = next((EXTRAS[name] for name in PROTOCOL.findall(url) if name in EXTRAS), None)
        if extra is None or not isinstance(error, ImportError):
            raise StoreError(f"{url} cannot be opened: {error}") from error
        raise StoreError(
            f'{url} cannot be opened ({error}): pip install "rescnet-dist[{extra}]"'
        ) from error
    return fs, path


def chunk_problem(location: Location, path: str, number: int, expected: int | None = None) -> str:
    """What is wrong with a chunk of whole rows of the array at `path`; nothing, if nothing is. It
    should have the checksum `expected`; where none is known, it should be there, as Zarr reads
    zeros where it is not."""
    try:
        array = location.open_array(path)
        key = array.metadata.encode_chunk_key((number, *(0 for _ in array.shape[1:])))
        if expected is None and not with_retries(
            (location / path / key).exists, f"reading {location}"
        ):
            return f"{path}, chunk {number}: it is missing"
        start = number * array.chunks[0]
        read_region(array, start, min(start + array.chunks[0], array.shape[0]), expected)
    except (StoreError, OSError) as error:
        return f"{path}, chunk {number}: {error}"
    return ""


def _codecs(array: zarr.Array[Any]) -> list[str]:
    """The names of NumCodecs codecs that an array, as of Zarr's version 2, is stored with."""
    metadata: Any = array.metadata
    codecs = [*(getattr(metadata, "filters", ()) or ()), getattr(metadata, "compressor", None)]
    return [codec.codec_id for codec in codecs if codec is not None]


def _create_file(path: str, text: bytes) -> bool:
    """Make a file with this text, whole from its first moment; False if there is one already."""
    with _partial_file(path, text) as partial_path:
        try:
            os.link(partial_path, path)
        except FileExistsError:
            return False
    return True


def _replace_file(path: str, text: bytes) -> None:
    """Make a file with this text in place of any; whoever reads it sees all of one of them."""
    with _partial_file(path, text) as partial_path:
        os.replace(partial_path, path)


@contextmanager
def _partial_file(path: str, text: bytes) -> Iterator[str]:
    """A file with this text beside where it is to be, gone afterwards under this name."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial_path = f"{path}.{uuid.uuid4().hex}.partial"
    try:
        LocalFileSystem().pipe_file(partial_path, text)
        yield partial_path
    finally:
        with suppress(FileNotFoundError):
            os.remove(partial_path)
