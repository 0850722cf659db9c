"""The bytes of files at any fsspec URL: whole, in part or decompressed, never more than a limit."""

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

from rescnet_dist.errors import DataError, RescnetError, mask_secrets
from rescnet_dist.store import file_system, no_bucket, with_retries

LARGEST = 384 * 2**20  # bytes of one file that are held in memory, compressed or not
AT_A_TIME = 32  # files that are asked for
SAID = 300  # characters of an error of a library
ADDRESS = re.compile(r"<\S+ object at 0x\w+>")


@dataclass(frozen=True, slots=True)
class File:
    """A file by its URL, of `size` bytes as it is stored; read at random even if it is gzipped.

    version: changes with what is in it, as far as its file system tells."""

    url: str
    size: int
    version: str = ""

    @classmethod
    def at(cls, url: str) -> File:
        """The file at a URL."""
        with reading(url):
            fs, path = file_system(url)
            info = fs.info(path)
        if info["size"] is None:
            raise DataError(f"{url} does not tell its size: copy it to where files have one")
        return cls(url, int(info["size"]), hashlib.sha256(str(info).encode()).hexdigest())

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_gzipped(self) -> bool:
        """Whether the name says so."""
        return self.name.endswith((".gz", ".tgz"))

    @property
    def length(self) -> int:
        """Bytes of what is in it, decompressed."""
        return len(_decompressed(self)) if self.is_gzipped else self.size

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes start to stop of what is in it; refused if there are fewer."""
        stop = self.length if stop is None else stop
        if stop - start > LARGEST:
            raise DataError(
                f"{self.url} asks for {stop - start:,} bytes at once, and {LARGEST:,} are the limit"
            )
        if self.is_gzipped:
            data = _decompressed(self)[start:stop]
        else:
            with reading(self.url):
                fs, path = file_system(self.url)
                read = partial(fs.cat_file, path, start=start, end=stop)
                data = with_retries(read, mask_secrets(self.url)) if stop > start else b""
        if len(data) != stop - start:
            raise DataError(
                f"{self.url} is cut short: bytes {start:,} to {stop:,} are asked for, and "
                f"{len(data):,} are there"
            )
        return bytes(data)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """A file object of what is in it."""
        with reading(self.url):
            if self.is_gzipped:
                yield io.BytesIO(_decompressed(self))
                return
            fs, path = file_system(self.url)
            with fs.open(path, "rb") as file:
                yield file


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Name the file in the errors of reading it; what its readers raise has no end."""
    try:
        yield
    except RescnetError:
        raise
    except FileNotFoundError as error:
        problem = no_bucket(error, url) or f"there is no file at {url}: check the URL"
        raise DataError(problem) from None
    except Exception as error:
        raise DataError(f"{url} cannot be read ({brief(error)})") from None


def brief(error: Exception) -> str:
    """An error in a few words, as it may quote what is in a file; without addresses in memory.

    >>> brief(OSError("cannot read <_io.BytesIO object at 0x7f3a>"))
    'OSError: cannot read it'
    """
    return f"{type(error).__name__}: {ADDRESS.sub('it', str(error))[:SAID]}"


@lru_cache(maxsize=1)
def _decompressed(file: File) -> bytes:
    """All that is in a gzipped file; refused where that is more than the limit."""
    with reading(file.url):
        fs, path = file_system(file.url)
        with fs.open(path, "rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            data = unpacked.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise DataError(
            f"{file.url} has more than {LARGEST:,} bytes in it, which are not held in memory: "
            "decompress it first"
        )
    return data


def files_below(url: str) -> list[str]:
    """Relative paths of all files below a folder or prefix, sorted."""
    with reading(url):
        fs, root = file_system(url)
        if isinstance(fs, LocalFileSystem):
            return sorted(_local_files(root))
        found = fs.find(root)
    return sorted(path[len(root) :].lstrip("/") for path in found)


def _local_files(root: str) -> Iterator[str]:
    """As `files_below`, in the order of the disk; many times faster than by fsspec."""
    for folder, _, names in os.walk(root):
        below = os.path.relpath(folder, root)
        prefix = "" if below == "." else below.replace(os.sep, "/") + "/"
        yield from (prefix + name for name in names)


def contents(urls: Sequence[str]) -> Iterator[bytes | DataError]:
    """The bytes of many small files, some at the same time where the file system can; an error in
    place of one that cannot be read."""
    fs, _ = file_system(urls[0])
    if isinstance(fs, LocalFileSystem):
        yield from (_content(path_of(url)) for url in urls)
        return
    paths = [fs._strip_protocol(url) for url in urls]
    with ThreadPoolExecutor(AT_A_TIME) as pool:  # fs.cat of many would take names for patterns
        for start in range(0, len(paths), AT_A_TIME):
            yield from pool.map(partial(_remote, fs), paths[start : start + AT_A_TIME])


def _remote(fs: Any, path: str) -> bytes | DataError:
    """The bytes of one file; waits for a store that fails, which is no fault of the image."""
    try:
        return bytes(with_retries(partial(fs.cat_file, path), mask_secrets(path)))
    except FileNotFoundError:
        return DataError("it cannot be read: there is no such file")
    except RescnetError as error:
        return DataError(f"it cannot be read: {error}")


def path_of(url: str) -> str:
    """The path of a local file, from its URL; as fsspec has it, in a tenth of the time."""
    return url if url.startswith("/") else str(LocalFileSystem._strip_protocol(url))


def _content(path: str) -> bytes | DataError:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return file.read() if size <= LARGEST else _too_large(size)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EIO):
            raise DataError(f"{path} cannot be read: {error.strerror}; mend that first") from None
        return DataError(f"it cannot be read: {error.strerror}")


def _too_large(size: int) -> DataError:
    return DataError(f"it has {size:,} bytes, and an image may have {LARGEST:,} at most")
