"""Stores in one zip file at any fsspec URL: a folder is packed into it, and it is read in place."""

from __future__ import annotations

import os
import threading
import zipfile
from pathlib import Path
from typing import IO, Any

from fsspec.implementations.local import LocalFileSystem
from zarr.storage import ZipStore

from rescnet_dist.errors import mask_secrets
from rescnet_dist.store.filesystem import file_system

ZIP_SUFFIX = ".zip"
MAX_OPEN_FILES = 8  # zip files that a process keeps open, with their lists of members
FIRST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # of all members, so that equal networks are equal files


class ZippedStore(ZipStore):
    """The Zarr store in a zip file at any fsspec URL, read in place; not picklable.

    A remote file is read by ranges of bytes, which fsspec caches.
    """

    def __init__(self, url: str) -> None:
        super().__init__(Path(url), mode="r")
        self.url = url

    def open_now(self) -> None:
        """Open the file; Zarr would open it on first use, but not before it asks what exists."""
        self._sync_open()

    def _sync_open(self) -> None:
        fs, path = file_system(self.url)
        self._lock = threading.RLock()
        self._zf = zipfile.ZipFile(path if _is_local(fs) else fs.open(path, "rb"))
        self._is_open = True

    def __str__(self) -> str:
        return f"zip::{mask_secrets(self.url)}"

    def __repr__(self) -> str:
        return f"ZippedStore({str(self)!r})"


_open_files: dict[str, tuple[Any, ZippedStore]] = {}  # by URL: its version, and the store
_open_files_lock = threading.Lock()


def is_zip_url(url: str) -> bool:
    """Return whether a URL is that of a zip file by its name.

    >>> is_zip_url("s3://bucket/Net.ZIP"), is_zip_url("runs/1")
    (True, False)
    """
    return url.lower().endswith(ZIP_SUFFIX)


def split_zip_url(url: str) -> tuple[str, str]:
    """Return the last zip file on the way to a URL, by its name, and the path in it.

    >>> split_zip_url("s3://bucket/Net.ZIP/networks/0001"), split_zip_url("runs/1")
    (('s3://bucket/Net.ZIP', 'networks/0001'), ('', ''))
    """
    end = f"{url}/".lower().rfind(f"{ZIP_SUFFIX}/") + len(ZIP_SUFFIX)
    return (url[:end], url[end + 1 :]) if end >= len(ZIP_SUFFIX) else ("", "")


def open_zip(url: str, *, is_new: bool = False) -> ZippedStore | None:
    """Return the store in the zip file at a URL; None if it is a folder or does not exist.

    Files stay open, as the members of a file are listed when it is opened. A local file that has
    changed is opened anew; a remote one if `is_new`, which should be set when a user names it.
    """
    fs, path = file_system(url)
    version = None
    if _is_local(fs):
        if not os.path.isfile(path):
            return None
        found = os.stat(path)
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        is_new = False
    with _open_files_lock:
        known = _open_files.get(url)
        if known and known[0] == version and not is_new:
            return known[1]
    if version is None:
        fs.invalidate_cache(path)
        if not fs.isfile(path):
            return None
    store = ZippedStore(url)
    store.open_now()
    with _open_files_lock:
        _open_files.pop(url, None)
        _open_files[url] = version, store
        for oldest in list(_open_files)[:-MAX_OPEN_FILES]:
            del _open_files[oldest]  # closed when the last array that reads it is gone
    return store


def pack_folder(folder: str, file: IO[bytes]) -> None:
    """Write the files of a local folder into a zip file, uncompressed, in the order of names."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            member = zipfile.ZipInfo(path.relative_to(folder).as_posix(), FIRST_ZIP_DATE)
            member.external_attr = 0o644 << 16  # readable when it is unpacked
            member.file_size = path.stat().st_size
            with path.open("rb") as source, packed.open(member, "w") as target:
                while block := source.read(2**20):
                    target.write(block)


def _is_local(fs: Any) -> bool:
    """Return whether a file system is that of this machine."""
    return isinstance(fs, LocalFileSystem)
