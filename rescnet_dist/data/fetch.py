"""Downloads that resume and are verified; one process at a time."""

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

try:
    import fcntl
except ImportError:  # of another platform: downloads are then each one's own, and do not resume
    fcntl = None  # type: ignore[assignment]

TIMEOUT = 20.0  # seconds that a server may be silent
TRIES = 3  # of all URLs in turn without one new byte, after which a download is given up
FIRST_WAIT = 0.5  # seconds before the second try, doubled for each further one
PATIENCE = 3600.0  # seconds to wait for another process that fetches the same file
BUSY = (408, 425, 429)  # of the refusals of a server those that may pass
BLOCK = 2**18  # bytes read at once

Progress = Callable[[int, int | None], object]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to be had at any of some URLs, which all give the same bytes.

    `name` is its name in the cache, `checksum` the algorithm and the digest in hexadecimal, as in
    "sha256:9f86d0…", and `size` its bytes, None where that is not known.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    size: int | None = None

    def digest_of(self, file: IO[bytes]) -> str:
        """The checksum of an open file, written as `checksum` is."""
        algorithm = self.checksum.partition(":")[0]
        file.seek(0)
        # published MD5 sums find damage, also on systems that forbid MD5 for security
        found = hashlib.file_digest(
            cast(Any, file), lambda: hashlib.new(algorithm, usedforsecurity=False)
        )
        return f"{algorithm}:{found.hexdigest()}"


class _Failure(Exception):
    """What failed at one URL, and whether it may go better at the next try."""

    def __init__(self, reason: object, *, passing: bool) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.passing = passing


# downloads --------------------------------------------------------------------------------------


def download(
    file: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    timeout: float = TIMEOUT,
    tries: int = TRIES,
    first_wait: float = FIRST_WAIT,
) -> Path:
    """The path of a file in `folder`, fetched if it is not there, and with the right checksum.

    What arrives goes to NAME.partial, which gets its name once its checksum is right. A download
    that breaks off is resumed, `tries` times without a new byte, and then by the next call. Of
    processes that want the same file at once one fetches it and the others wait. `progress` is
    called with the bytes that are there and those of the whole file, None if unknown.
    """
    target = Path(folder) / file.name
    report: Progress = progress or (lambda done, total: None)
    with on_disk(target):
        while not target.exists():
            with partial_file(target) as partial:
                if partial is None:
                    continue
                _fill(partial, file, target, report, timeout, tries, first_wait)
                os.fsync(partial.fileno())
                if fcntl is None:
                    partial.close()  # as such platforms rename no open file
                os.replace(partial.name, target)
                return target
        with target.open("rb") as there:
            found = file.digest_of(there)
            size = os.fstat(there.fileno()).st_size
    if found != file.checksum:
        raise DataError(
            f"{target} has the checksum {found}, {file.checksum} was expected: remove it, and it "
            f"is fetched again, or put the file of {file.urls[0]} there"
        )
    report(size, size)
    return target


def _fill(
    partial: BinaryIO,
    file: RemoteFile,
    target: Path,
    report: Progress,
    timeout: float,
    tries: int,
    wait: float,
) -> None:
    """Bring the whole file, verified, into `partial`; an error says what failed at each URL."""
    urls, failures = list(file.urls), dict[str, str]()
    most, idle, pause = _length(partial), 0, wait
    while urls and idle < tries:
        if failures:
            time.sleep(pause * random.uniform(0.5, 1))
        before = most
        for url in tuple(urls):
            try:
                _try(partial, file, url, report, timeout)
                return
            except _Failure as failure:
                failures[url] = str(failure)
                if not failure.passing:
                    urls.remove(url)
            most = max(most, _length(partial))
        idle, pause = (0, wait) if most > before else (idle + 1, 2 * pause)
    there = _length(partial)
    kept = f", which goes on after the {there:,} bytes that are there" if there else ""
    raise DataError(
        f"{file.name} could not be fetched ("
        + "; ".join(f"{url}: {reason}" for url, reason in failures.items())
        + f"): check the network and try again{kept}, or put the file of {file.urls[0]} with the "
        f"checksum {file.checksum} at {target}"
    )


def _try(partial: BinaryIO, file: RemoteFile, url: str, report: Progress, timeout: float) -> None:
    """Bring what is missing from one URL, and verify the whole."""
    if file.size is not None and _length(partial) > file.size:
        partial.truncate(0)
    resumed = _length(partial) > 0
    if _length(partial) != file.size:
        _transfer(partial, file, url, report, timeout)
    found = file.digest_of(partial)
    if found != file.checksum:
        partial.truncate(0)
        # what was there before may be what was wrong
        reason = f"has the checksum {found}, {file.checksum} was expected"
        raise _Failure(reason, passing=resumed)


def _transfer(
    partial: BinaryIO, file: RemoteFile, url: str, report: Progress, timeout: float
) -> None:
    """Append what one answer of a server brings."""
    done = _length(partial)
    response = _answer(url, done, timeout)
    if response is None:
        return  # there is nothing after what we have: its checksum says if that is all
    with response:
        try:
            total = _total(response, done)
        except _Failure:
            if response.status == 206:
                partial.truncate(0)  # to ask for no part the next time
            raise
        if total is not None and file.size is not None and total != file.size:
            raise _Failure(f"has {total:,} bytes, {file.size:,} were expected", passing=False)
        if response.status != 206:  # a server that starts anew, asked or not
            partial.truncate(0)
            done = 0
        total = file.size if total is None else total
        try:
            while block := _block(response):
                partial.write(block)
                done += len(block)
                if total is not None and done > total:
                    partial.truncate(0)
                    raise _Failure(f"sends more than {total:,} bytes", passing=False)
                report(done, total)
        finally:
            partial.flush()
    if total is not None and done < total:
        raise _Failure(f"broke off after {done:,} of {total:,} bytes", passing=True)


def _answer(url: str, start: int, timeout: float) -> http.client.HTTPResponse | None:
    """The answer of a server that is asked for a file from a byte on; None if it ends there."""
    if not url.startswith(("http://", "https://")):
        raise _Failure("is no URL of http or https", passing=False)
    headers = {"User-Agent": "rescnet-dist"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        answer = urllib.request.urlopen(request, timeout=timeout)
        return cast(http.client.HTTPResponse, answer)
    except HTTPError as error:
        with error:
            if start and error.code == 416:
                return None
            passing = error.code >= 500 or error.code in BUSY
            failure = _Failure(f"HTTP error {error.code} {error.reason}", passing=passing)
    except (OSError, http.client.HTTPException) as error:
        failure = _Failure(getattr(error, "reason", error), passing=True)
    raise failure


def _total(response: http.client.HTTPResponse, start: int) -> int | None:
    """The bytes of the whole file, as an answer from byte `start` on says; None if it does not."""
    if response.status == 206:
        said = response.headers.get("Content-Range", "")
        parts = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", said.strip())
        if parts is None or int(parts[1]) != start:
            raise _Failure(f"sends {said or 'a part'}, not bytes {start}-", passing=True)
        return None if parts[2] == "*" else int(parts[2])
    if response.status != 200:
        raise _Failure(f"HTTP answer {response.status} {response.reason}", passing=False)
    length = response.headers.get("Content-Length", "").strip()
    return int(length) if length.isdecimal() else None


def _block(response: http.client.HTTPResponse) -> bytes:
    """What has arrived, some bytes at least; none at the end."""
    try:
        return response.read1(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        failure = _Failure(error, passing=True)
    raise failure


def _length(file: BinaryIO) -> int:
    """The bytes of an open file."""
    return os.fstat(file.fileno()).st_size


@contextmanager
def on_disk(target: Path) -> Iterator[None]:
    """Names the place for which something failed on disk."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{target} cannot be read or written: {error}; make room, check your rights, or use "
            "another folder"
        ) from error


# one process at a time --------------------------------------------------------------------------


@contextmanager
def partial_file(target: Path, patience: float = PATIENCE) -> Iterator[BinaryIO | None]:
    """NAME.partial, open, which no other process has; None if `target` may have come meanwhile.

    It is locked, so that it is free as soon as its process is gone, however that ends; and it is
    its own lock, so that nothing is left behind. Left empty it is removed. Where the file system
    has no locks it is a file of its own for each, and removed in any case.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f"{target.name}.partial")
    with path.open("a+b") as partial:
        if _lock(partial, path, patience):
            try:
                # the process before may have renamed or removed what we have waited for
                yield partial if _is_at(path, partial) and not target.exists() else None
            finally:
                if _is_at(path, partial) and not _length(partial):
                    path.unlink()
                fcntl.flock(partial, fcntl.LOCK_UN)  # closing leaves it to forked processes
            return
        empty = not _length(partial)
    if empty:
        path.unlink(missing_ok=True)
    path = target.with_name(f"{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with path.open("x+b") as partial:
            yield partial
    finally:
        path.unlink(missing_ok=True)


def _lock(file: BinaryIO, path: Path, patience: float) -> bool:
    """Wait until nobody else has a file locked, and lock it; False if there are no locks here."""
    give_up = time.monotonic() + patience
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise DataError(
                    f"another process has held {path} for {patience:.0f} s: end it, and try again"
                ) from None
        except OSError:
            return False
        time.sleep(0.05)
    return False


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file is the one at `path`."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False
