"""Objects through fsspec: on the local file system, and in any store that fsspec knows."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from rescnet_dist.store.filesystem import (
    client_options,
    create_file,
    is_s3,
    leave_retries_to_us,
    replace_file,
)
from rescnet_dist.store.retry import is_transient

CREATE_LOCK = threading.Lock()  # memory:// takes two steps to create an object

# s3fs reads objects of more than 50 MB in concurrent parts, and asks for the size of all others
# too. Our chunks are about as large, and tasks read them ahead.
WHOLE_READ_OPTIONS = {"max_concurrency": 1}


class FsspecBackend:
    """Objects of a file system of fsspec; see `Backend`."""

    is_local = False

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self.name = type(fs).__module__.partition(".")[0]  # of the package: s3fs, gcsfs, adlfs
        self.read_options = WHOLE_READ_OPTIONS if is_s3(fs.protocol) else {}

    def _forget(self, path: str) -> Any:
        """Return the file system without what it remembers, as other processes write too."""
        self.fs.invalidate_cache(path)
        return self.fs

    def read(self, path: str) -> bytes:
        """Read a whole object."""
        return bytes(self.fs.cat_file(path, **self.read_options))

    def write(self, path: str, content: bytes) -> None:
        """Create or replace an object."""
        self.fs.pipe_file(path, content)

    def create(self, path: str, content: bytes) -> bool:
        """Create an object; return False if there is one that has other content."""
        with CREATE_LOCK:
            try:
                self.fs.pipe_file(path, content, mode="create")
            except Exception as error:  # File systems differ in what they raise if it exists.
                try:
                    exists = self._forget(path).exists(path)
                except Exception as unknown:
                    if is_transient(unknown):
                        raise
                    raise error from None  # An answer to HEAD does not say why.
                if not exists:
                    raise
            return self.read(path) == content

    def exists(self, path: str) -> bool:
        """Return whether anything is stored at a path or below it."""
        fs = self._forget(path)
        try:
            if not fs.isdir(path):
                return bool(fs.exists(path))
            if self.is_local:
                return bool(fs.ls(path))
            # Some servers list empty folders, as such or with a marker that has no name.
            return any(name for _, _, files in fs.walk(path) for name in files)
        except FileNotFoundError:
            return False

    def names(self, path: str) -> list[str]:
        """Return the paths directly below a path."""
        return list(self._forget(path).ls(path, detail=False))

    def entries(self, path: str) -> dict[str, bool] | None:
        """Return the names directly below a path, and whether each is a folder."""
        entries, own = self._forget(path).ls(path, detail=True), path.rstrip("/")
        others = [entry for entry in entries if entry["name"].rstrip("/") != own]
        if entries and not others:  # This is a file, and not the marker of a folder in S3.
            return None
        return {e["name"].rstrip("/").rsplit("/", 1)[-1]: e["type"] != "file" for e in others}

    def size(self, path: str) -> int:
        """Return the number of bytes at a path and below it."""
        return int(self.fs.du(path)) if self.fs.exists(path) else 0

    def remove(self, path: str) -> None:
        """Remove everything at a path and below it, if there is anything."""
        try:
            self._forget(path).rm(path, recursive=True)
        except FileNotFoundError:
            if self.is_local and os.path.lexists(path):
                raise  # A file in it has vanished, and others are left.

    def upload(self, file: str, path: str) -> None:
        """Copy a local file to a path."""
        try:
            self.fs.put_file(file, path)
        except BaseException:
            if not is_s3(self.fs.protocol):  # where a part of a file is never seen
                with suppress(Exception):  # The first error is the one to report.
                    self.fs.rm_file(path)  # not what is below the path, if it is a folder
            raise

    def zarr_store(self, url: str, path: str, *, read_only: bool) -> Store:
        """Open the Zarr store at a URL, which reads whole objects in one request."""
        options = client_options(url)
        store = FsspecStore.from_url(url, options | self.read_options, read_only)
        if options:
            leave_retries_to_us(store.fs)
        return store


class LocalBackend(FsspecBackend):
    """Files of this machine, which are replaced atomically; see `Backend`."""

    is_local = True

    @staticmethod
    def accepts(fs: Any) -> bool:
        """Return whether a file system is that of this machine."""
        return isinstance(fs, LocalFileSystem)

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        replace_file(path, content)

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if there is one."""
        return create_file(path, content)

    def zarr_store(self, url: str, path: str, *, read_only: bool) -> Store:
        """Open the Zarr store in a folder."""
        return LocalStore(path, read_only=read_only)
