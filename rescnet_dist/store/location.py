"""A place for arrays and records: any fsspec URL, opened as a Zarr store and for small JSON."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
import zarr
from fsspec.implementations.local import LocalFileSystem
from zarr.abc.store import Store
from zarr.errors import (
    ArrayNotFoundError,
    ContainsArrayError,
    GroupNotFoundError,
    NodeTypeValidationError,
)
from zarr.storage import FsspecStore, LocalStore

from rescnet_dist.errors import StoreError, StoreUnreachable, masked
from rescnet_dist.store.checksums import checksum, read_checked
from rescnet_dist.store.patience import may_pass

Array = np.ndarray[Any, np.dtype[Any]]

ABSENT = (FileNotFoundError, NotADirectoryError)
OF_ANOTHER_KIND = (
    *(ArrayNotFoundError, ContainsArrayError, GroupNotFoundError, NodeTypeValidationError),
)


@dataclass(frozen=True, slots=True)
class Location:
    """A folder, bucket prefix or memory path, by its URL. Cheap to make and to send to workers."""

    url: str

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> Location:
        """A local path is made absolute, so that workers in other folders find it."""
        text = os.fspath(url)
        try:
            fs, path = fsspec.url_to_fs(text)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{text} cannot be opened: {error}") from error
        return cls(path if isinstance(fs, LocalFileSystem) else text.rstrip("/"))

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name}")

    def __str__(self) -> str:
        return masked(self.url)

    def __repr__(self) -> str:
        return f"Location({masked(self.url)!r})"  # as Dask logs the arguments of what fails

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the local file system."""
        return isinstance(self._fs()[0], LocalFileSystem)

    @property
    def has_secret(self) -> bool:
        """Whether the URL itself carries credentials."""
        return masked(self.url) != self.url

    def _fs(self) -> tuple[Any, str]:
        return fsspec.url_to_fs(self.url)

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

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Name this place when it cannot be written."""
        try:
            yield
            return
        except OSError as error:
            kind = StoreUnreachable if may_pass(error) else StoreError
            problem = f"{self.url} cannot be written: {error}"
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
        kind = StoreUnreachable if may_pass(error) else StoreError
        reason = str(error) or type(error).__name__
        return kind(
            f"{self.url} cannot be reached: {reason}; check the URL, the network and your rights"
        )

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
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def remove(self) -> None:
        """Remove all that is stored here, if anything."""
        fs, path = self._fs()
        if fs.exists(path):
            fs.rm(path, recursive=True)

    def read_json(self) -> Any:
        """The JSON record at this place, or None where there is none."""
        fs, path = self._fs()
        try:
            text = fs.cat_file(path)
        except FileNotFoundError:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise StoreError(f"{self.url} is not valid JSON: the record is damaged") from error

    def write_json(self, record: Any) -> None:
        """Write a JSON record as one object, so that a reader sees all of it or nothing."""
        text = json.dumps(record, indent=1).encode()
        fs, path = self._fs()
        with self._writing():
            if isinstance(fs, LocalFileSystem):
                fs.makedirs(os.path.dirname(path), exist_ok=True)
                partial = f"{path}.{uuid.uuid4().hex}.partial"
                fs.pipe_file(partial, text)
                os.replace(partial, path)
            else:
                fs.pipe_file(path, text)

    def create_json(self, record: Any) -> bool:
        """Write a JSON record only where there is none, in one step; whether it is ours now."""
        text = json.dumps(record, indent=1).encode()
        fs, path = self._fs()
        if isinstance(fs, LocalFileSystem):
            with self._writing():
                return _create_file(path, text)
        try:
            fs.pipe_file(path, text, mode="create")
        except Exception as error:  # what a file system raises where there is one already varies
            fs.invalidate_cache(path)
            if not fs.exists(path):
                raise self._unreachable(error) from None
        return bool(fs.cat_file(path) == text)

    def attributes(self) -> dict[str, Any]:
        """The attributes of the Zarr group here; an error that names the URL if there is none."""
        with self._opening("Zarr group"):
            group = zarr.open_group(self.zarr_store(read_only=True), mode="r")
            return dict(group.attrs)

    @contextmanager
    def _opening(self, what: str) -> Iterator[None]:
        """Name this place and what is missing or damaged there."""
        try:
            yield
            return
        except (*ABSENT, *OF_ANOTHER_KIND):
            problem = StoreError(f"there is no {what} at {self.url}: check the URL")
        except ValueError as error:
            problem = StoreError(f"the {what} at {self.url} is damaged: {error}")
        except Exception as error:
            problem = self._unreachable(error)
        # not inside `except`: Zarr's own errors do not survive the way back from a worker
        raise problem

    def update_attributes(self, attributes: dict[str, Any]) -> None:
        """Set these attributes of the Zarr group here, which is made if there is none."""
        with self._writing():
            group = zarr.open_group(self.zarr_store(), mode="a", zarr_format=3)
            group.update_attributes(attributes)

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
        is a shape, of that shape."""
        zarr.create_array(
            self.zarr_store(),
            name=path,
            shape=shape,
            dtype=dtype,
            chunks=(chunk, *shape[1:]) if isinstance(chunk, int) else chunk,
            compressors="auto" if compress else None,
            dimension_names=dims,
            overwrite=True,
        )

    def open_array(self, path: str | None = None, *, write: bool = False) -> zarr.Array[Any]:
        """The array at `path` under this group, or the one at this place itself."""
        place = self / path if path else self
        with place._opening("Zarr array"):
            store = self.zarr_store(read_only=not write)
            return zarr.open_array(store, path=path or "", mode="r+" if write else "r")

    def write_small(self, path: str, arrays: dict[str, tuple[tuple[str, ...], Array]]) -> None:
        """Write small named arrays, each (dims, values), into the group at `path`."""
        store = self.zarr_store()
        zarr.open_group(store, path=path, mode="a", zarr_format=3)
        for name, (dims, values) in arrays.items():
            zarr.create_array(
                store,
                name=f"{path}/{name}",
                data=values,
                dimension_names=dims,
                attributes={"crc32c": checksum(values)},
                overwrite=True,
            )

    def read_small(self, path: str, names: tuple[str, ...]) -> dict[str, Array]:
        """Read named arrays whole from the group at `path`, checked against their checksums."""
        return {name: read_checked(self.open_array(f"{path}/{name}")) for name in names}


def _create_file(path: str, text: bytes) -> bool:
    """Make a file with this text, whole from its first moment; False if there is one already."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{uuid.uuid4().hex}.partial"
    with open(partial, "xb") as file:
        file.write(text)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        os.remove(partial)
    return True
