"""The bytes of files at any fsspec URL: whole, in part or decompressed, up to a size limit."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from rescnet_dist._compat import strip_protocol
from rescnet_dist.errors import DataError, RescnetError, is_path, url_word
from rescnet_dist.store import describe_missing_bucket, file_system, read_bytes

MAX_FILE_BYTES = 384 * 2**20  # of one file held in memory, compressed or not
CONCURRENT_READS = 32  # of remote files
MAX_ERROR_CHARACTERS = 300  # quoted from the error of a library
OBJECT_ADDRESS = re.compile(r"<\S+ object at 0x\w+>")


@dataclass(frozen=True, slots=True)
class File:
    """A file by its URL, with random access even if it is gzipped.

    `size` is the number of stored bytes. `version` changes with the content, as far as the file
    system reports changes.
    """

    url: str
    size: int
    version: str = ""

    @classmethod
    def at(cls, url: str) -> File:
        """Return the file at a URL."""
        with translate_read_errors(url):
            fs, path = file_system(url, client_retries=True)
            info = fs.info(path)
        if info["size"] is None:
            raise DataError(
                f"{url} does not report its size. Copy it to a store where files have a size."
            )
        return cls(url, int(info["size"]), hashlib.sha256(str(info).encode()).hexdigest())

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_gzipped(self) -> bool:
        """Whether the name ends like that of a gzipped file."""
        return self.name.endswith((".gz", ".tgz"))

    @property
    def length(self) -> int:
        """The number of bytes of the decompressed content."""
        return len(_decompress(self)) if self.is_gzipped else self.size

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes start to stop of the decompressed content; raise DataError if fewer."""
        stop = self.length if stop is None else stop
        if stop - start > MAX_FILE_BYTES:
            raise DataError(
                f"{self.url} requires {stop - start:,} bytes at once. The limit is "
                f"{MAX_FILE_BYTES:,} bytes."
            )
        if self.is_gzipped:
            data = _decompress(self)[start:stop]
        else:
            with translate_read_errors(self.url):
                fs, path = file_system(self.url)
                data = read_bytes(fs, path, start, stop, url=self.url) if stop > start else b""
        if len(data) != stop - start:
            raise DataError(
                f"{self.url} is truncated. Bytes {start:,} to {stop:,} were requested, and it has "
                f"{len(data):,} of them."
            )
        return data

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open a file object of the decompressed content."""
        with translate_read_errors(self.url):
            if self.is_gzipped:
                yield io.BytesIO(_decompress(self))
                return
            fs, path = file_system(self.url, client_retries=True)
            with fs.open(path, "rb") as file:
                yield file


@contextmanager
def translate_read_errors(url: str) -> Iterator[None]:
    """Raise DataError with the URL for any error of the body, as readers raise all kinds."""
    try:
        yield
    except RescnetError:
        raise
    except FileNotFoundError as error:
        missing = f"There is no file at {url}. Check the {url_word(url)}."
        message = describe_missing_bucket(error, url) or missing
        raise DataError(message, missing_path=is_path(url)) from None
    except Exception as error:
        raise DataError(f"{url} cannot be read ({summarize_error(error)}).") from None


def summarize_error(error: Exception) -> str:
    """Return type and message of an error, shortened, without addresses of objects in memory.

    >>> summarize_error(OSError("cannot read <_io.BytesIO object at 0x7f3a>"))
    'OSError: cannot read it'
    """
    message = OBJECT_ADDRESS.sub("it", str(error))[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {message}"


@lru_cache(maxsize=1)
def _decompress(file: File) -> bytes:
    """Return the content of a gzipped file; raise DataError if it is larger than the limit."""
    with translate_read_errors(file.url):
        fs, path = file_system(file.url, client_retries=True)
        with fs.open(path, "rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            data = unpacked.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise DataError(
            f"{file.url} has more than {MAX_FILE_BYTES:,} decompressed bytes, which do not fit in "
            "memory. Decompress it first."
        )
    return data


def list_files(url: str) -> list[str]:
    """Return the relative paths of all files below a folder or prefix, sorted."""
    with translate_read_errors(url):
        fs, root = file_system(url, client_retries=True)
        if isinstance(fs, LocalFileSystem):
            return sorted(_list_local_files(root))
        found = fs.find(root)
    return sorted(path[len(root) :].lstrip("/") for path in found)


def _list_local_files(root: str) -> Iterator[str]:
    """Yield the paths of `list_files` in any order, many times faster than by fsspec."""
    for folder, _, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else relative.replace(os.sep, "/") + "/"
        yield from (prefix + name for name in names)


def read_files(urls: Sequence[str]) -> Iterator[bytes | DataError]:
    """Yield the bytes of many small files, or an error for a file that cannot be read.

    Remote files are read concurrently.
    """
    fs, _ = file_system(urls[0])
    if isinstance(fs, LocalFileSystem):
        yield from (_read_local_file(local_path(url)) for url in urls)
        return
    paths = [strip_protocol(fs, url) for url in urls]
    with ThreadPoolExecutor(CONCURRENT_READS) as pool:  # fs.cat would take names for patterns.
        for start in range(0, len(paths), CONCURRENT_READS):
            yield from pool.map(
                partial(_read_remote_file, fs), paths[start : start + CONCURRENT_READS]
            )


def read_named_file(url: str) -> bytes | DataError:
    """Return the bytes of a small file that a user has just named, or an error.

    There are no retries: the URL may be wrong, and is reported at once.
    """
    fs, path = file_system(url)
    if isinstance(fs, LocalFileSystem):
        return _read_local_file(local_path(url))
    try:
        return bytes(fs.cat_file(path))
    except Exception as error:  # Client libraries raise all kinds.
        return DataError(
            f"The photo cannot be read ({summarize_error(error)}). Check its URL and the "
            "connection."
        )


def _read_remote_file(fs: Any, path: str) -> bytes | DataError:
    """Return the bytes of one file, or an error if it cannot be read."""
    try:
        return read_bytes(fs, path)
    except RescnetError as error:
        return DataError(f"The file cannot be read: {error}")


def local_path(url: str) -> str:
    """Return the path of a local file from its URL, ten times faster than by fsspec."""
    return url if url.startswith("/") else strip_protocol(LocalFileSystem, url)


def _read_local_file(path: str) -> bytes | DataError:
    """Return the bytes of one local file, or an error if the file itself cannot be read.

    Errors that affect all files are raised.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= MAX_FILE_BYTES:
                return file.read()
            return DataError(
                f"The file has {size:,} bytes. An image may have at most {MAX_FILE_BYTES:,}."
            )
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EIO):
            raise DataError(f"{path} cannot be read: {error.strerror}. Fix that first.") from None
        return DataError(f"The file cannot be read: {error.strerror}.")
    except ValueError as error:  # a null byte in its name
        return DataError(f"The file cannot be read: {error}.")
