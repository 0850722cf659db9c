"""Verified downloads that can be resumed, by one process at a time.

pooch would replace the checksums, the cache and simple retries, but not what large datasets and
slow mirrors need: it has one URL per file, starts over after an interruption, repeats a download
that fails for good, and lets concurrent processes download the same file each. It would also add
requests and platformdirs to the dependencies. This module needs the standard library only.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import re
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.error import HTTPError

from rescnet_dist.errors import DataError
from rescnet_dist.store.retry import is_retriable_status

try:
    import fcntl
except ImportError:  # Other platforms: each process downloads its own copy, without resuming.
    fcntl = None  # type: ignore[assignment]

SERVER_TIMEOUT_SECONDS = 20.0  # without a response
MAX_IDLE_ATTEMPTS = 3  # at all URLs, without one new byte
FIRST_DOWNLOAD_WAIT_SECONDS = 0.5  # before the second attempt; doubled for each further one
LOCK_TIMEOUT_SECONDS = 3600.0  # for another process that downloads the same file
LOCK_POLL_SECONDS = 0.05
DOWNLOAD_BLOCK_BYTES = 2**18  # read at once

Progress = Callable[[int, int | None], object]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that is available at several URLs.

    `name` is its name in the cache, `checksum` the algorithm and the hexadecimal digest, as in
    "sha256:9f86d0…", and `size` its number of bytes, None if unknown.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    size: int | None = None

    def compute_checksum(self, file: IO[bytes]) -> str:
        """Return the checksum of an open file, in the form of `checksum`."""
        algorithm = self.checksum.partition(":")[0]
        file.seek(0)
        # MD5 is used to find damage only, also on systems that forbid it for security.
        digest = hashlib.file_digest(
            cast(Any, file), lambda: hashlib.new(algorithm, usedforsecurity=False)
        )
        return f"{algorithm}:{digest.hexdigest()}"


class _DownloadError(Exception):
    """The failure of one URL, and whether it may succeed at the next attempt."""

    def __init__(self, reason: object, *, is_transient: bool) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.is_transient = is_transient


# downloads --------------------------------------------------------------------------------------


def download(
    file: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    timeout: float = SERVER_TIMEOUT_SECONDS,
    max_idle_attempts: int = MAX_IDLE_ATTEMPTS,
    first_wait: float = FIRST_DOWNLOAD_WAIT_SECONDS,
) -> Path:
    """Download a file to `folder`, unless it is there, and verify its checksum; return its path.

    Bytes are written to NAME.partial, which is renamed once its checksum matches. An interrupted
    download is resumed, up to `max_idle_attempts` times without a new byte, and then by the next
    call. If several processes need the same file, one downloads it and the others wait. `progress`
    is called with the number of bytes so far and of the whole file, None if unknown.
    """
    target = Path(folder) / file.name
    report: Progress = progress or (lambda done, total: None)
    with translate_disk_errors(target):
        while not target.exists():
            with partial_file(target) as partial:
                if partial is None:
                    continue
                _fill(partial, file, target, report, timeout, max_idle_attempts, first_wait)
                os.fsync(partial.fileno())
                if fcntl is None:
                    partial.close()  # Such platforms cannot rename an open file.
                os.replace(partial.name, target)
                return target
        with target.open("rb") as existing:
            actual = file.compute_checksum(existing)
            size = os.fstat(existing.fileno()).st_size
    if actual != file.checksum:
        raise DataError(
            f"{target} has the checksum {actual}, not {file.checksum}. Remove it, so that it is "
            f"downloaded again, or replace it by the file at {file.urls[0]}."
        )
    report(size, size)
    return target


def _fill(
    partial: BinaryIO,
    file: RemoteFile,
    target: Path,
    report: Progress,
    timeout: float,
    max_idle_attempts: int,
    first_wait: float,
) -> None:
    """Download the whole file, verified, to `partial`; raise DataError with each URL's failure."""
    urls, failures = list(file.urls), dict[str, str]()
    longest, idle_attempts, wait = _get_length(partial), 0, first_wait
    while urls and idle_attempts < max_idle_attempts:
        if failures:
            time.sleep(wait * random.uniform(0.5, 1))
        before = longest
        for url in tuple(urls):
            try:
                _try_url(partial, file, url, report, timeout)
                return
            except _DownloadError as failure:
                failures[url] = str(failure)
                if not failure.is_transient:
                    urls.remove(url)
            longest = max(longest, _get_length(partial))
        has_progress = longest > before
        idle_attempts, wait = (0, first_wait) if has_progress else (idle_attempts + 1, 2 * wait)
    length = _get_length(partial)
    resumed = f", which resumes after the first {length:,} bytes" if length else ""
    raise DataError(
        f"{file.name} could not be downloaded ("
        + "; ".join(f"{url}: {reason}" for url, reason in failures.items())
        + f"). Check the network and try again{resumed}; or put the file at {file.urls[0]}, with "
        f"the checksum {file.checksum}, at {target}."
    )


def _try_url(
    partial: BinaryIO, file: RemoteFile, url: str, report: Progress, timeout: float
) -> None:
    """Download the missing bytes from one URL, and verify the whole file."""
    if file.size is not None and _get_length(partial) > file.size:
        partial.truncate(0)
    is_resumed = _get_length(partial) > 0
    if _get_length(partial) != file.size:
        _transfer(partial, file, url, report, timeout)
    actual = file.compute_checksum(partial)
    if actual != file.checksum:
        partial.truncate(0)
        # The bytes of an earlier attempt may have been the wrong ones: try again without them.
        reason = f"has the checksum {actual}, not {file.checksum}"
        raise _DownloadError(reason, is_transient=is_resumed)


def _transfer(
    partial: BinaryIO, file: RemoteFile, url: str, report: Progress, timeout: float
) -> None:
    """Append the bytes of one response of a server."""
    done = _get_length(partial)
    response = _request(url, done, timeout)
    if response is None:
        return  # The file ends here. Its checksum shows whether it is complete.
    with response:
        try:
            total = _parse_total(response, done)
        except _DownloadError:
            if response.status == 206:
                partial.truncate(0)  # The next request is for the whole file.
            raise
        if total is not None and file.size is not None and total != file.size:
            raise _DownloadError(f"has {total:,} bytes, not {file.size:,}", is_transient=False)
        if response.status != 206:  # The server starts from the beginning.
            partial.truncate(0)
            done = 0
        total = file.size if total is None else total
        try:
            while block := _read_block(response):
                partial.write(block)
                done += len(block)
                if total is not None and done > total:
                    partial.truncate(0)
                    raise _DownloadError(f"sends more than {total:,} bytes", is_transient=False)
                report(done, total)
        finally:
            partial.flush()
    if total is not None and done < total:
        raise _DownloadError(
            f"was interrupted after {done:,} of {total:,} bytes", is_transient=True
        )


def _request(url: str, start: int, timeout: float) -> http.client.HTTPResponse | None:
    """Request a file from byte `start` on; return None if it ends there."""
    if not url.startswith(("http://", "https://")):
        raise _DownloadError("is not an http or https URL", is_transient=False)
    headers = {"User-Agent": "rescnet-dist"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        response = urllib.request.urlopen(request, timeout=timeout)
        return cast(http.client.HTTPResponse, response)
    except HTTPError as error:
        with error:
            if start and error.code == 416:
                return None
            reason = f"HTTP error {error.code} {error.reason}"
            failure = _DownloadError(reason, is_transient=is_retriable_status(error.code))
    except (OSError, http.client.HTTPException) as error:
        failure = _DownloadError(getattr(error, "reason", error), is_transient=True)
    raise failure


def _parse_total(response: http.client.HTTPResponse, start: int) -> int | None:
    """Return the size of the whole file from a response from byte `start` on; None if unknown."""
    if response.status == 206:
        header = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", header.strip())
        if match is None or int(match[1]) != start:
            raise _DownloadError(
                f"sends {header or 'a part'}, not bytes {start}-", is_transient=True
            )
        return None if match[2] == "*" else int(match[2])
    if response.status != 200:
        reason = f"HTTP response {response.status} {response.reason}"
        raise _DownloadError(reason, is_transient=False)
    length = response.headers.get("Content-Length", "").strip()
    return int(length) if length.isdecimal() else None


def _read_block(response: http.client.HTTPResponse) -> bytes:
    """Read the bytes that have arrived, at least one; none at the end."""
    try:
        return response.read1(DOWNLOAD_BLOCK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        failure = _DownloadError(error, is_transient=True)
    raise failure


def _get_length(file: BinaryIO) -> int:
    """Return the number of bytes of an open file."""
    return os.fstat(file.fileno()).st_size


@contextmanager
def translate_disk_errors(target: Path) -> Iterator[None]:
    """Raise DataError with the target for an OSError of the body."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{target} cannot be read or written: {error}. Free some space, check your "
            "permissions, or use another folder."
        ) from error


# one process at a time --------------------------------------------------------------------------


@contextmanager
def partial_file(target: Path, timeout: float = LOCK_TIMEOUT_SECONDS) -> Iterator[BinaryIO | None]:
    """Open NAME.partial exclusively; yield None if `target` may have been created meanwhile.

    The file is its own lock, which is released when its process ends in any way, and leaves
    nothing over. An empty file is removed. If the file system has no locks, each process has a
    file of its own, which is removed in any case.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f"{target.name}.partial")
    with path.open("a+b") as partial:
        if _lock(partial, path, timeout):
            try:
                # The process that held the lock may have renamed or removed the file.
                yield partial if _is_at(path, partial) and not target.exists() else None
            finally:
                if _is_at(path, partial) and not _get_length(partial):
                    path.unlink()
                fcntl.flock(partial, fcntl.LOCK_UN)  # Closing would leave it to forked processes.
            return
        is_empty = not _get_length(partial)
    if is_empty:
        path.unlink(missing_ok=True)
    path = target.with_name(f"{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with path.open("x+b") as partial:
            yield partial
    finally:
        path.unlink(missing_ok=True)


def _lock(file: BinaryIO, path: Path, timeout: float) -> bool:
    """Lock a file, waiting for other processes; return False if there are no locks here."""
    deadline = time.monotonic() + timeout
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DataError(
                    f"Another process has held {path} for {timeout:.0f} s. End it, and try again."
                ) from None
        except OSError:
            return False
        time.sleep(LOCK_POLL_SECONDS)
    return False


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether an open file is the one at `path`."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False
