"""Downloads that resume and are verified, and archives that are extracted whole or not at all."""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import http.client
import lzma
import os
import random
import re
import shutil
import stat
import tarfile
import time
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
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
BLOCK = 2**18  # bytes read at once, also of a header inside a tar file
COMPRESSIONS = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\x00": lzma}  # by first bytes
MEMBER = 512  # bytes that each member of an archive counts besides its content

Progress = Callable[[int, int | None], object]
Member = tuple[str, int, Callable[[], IO[bytes]] | None]  # name, size, opens it; None: a folder


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
    with _on_disk(target):
        while not target.exists():
            with _partial_file(target) as partial:
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
def _on_disk(target: Path) -> Iterator[None]:
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
def _partial_file(target: Path, patience: float = PATIENCE) -> Iterator[BinaryIO | None]:
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


# archives ---------------------------------------------------------------------------------------


def extract(
    archive: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    limit: int,
    place: Callable[[str], str | None] = str,
) -> Path:
    """The folder `target` with the files of a zip or tar archive; one that is there is left as is.

    `place` says for the name of a member where it goes under `target`; None leaves it out. Refused
    are archives with absolute paths, `..`, links, devices or names that come twice, and those of
    more than `limit` bytes, by what they declare or really have, where each member counts 512
    bytes more. The files come into a folder beside `target`, which gets its name at the end.
    """
    source, target = Path(archive), Path(target)
    with _on_disk(target):
        while not target.exists():
            with _partial_file(target) as partial:
                if partial is None:
                    continue
                folder = Path(f"{partial.name}.d")
                shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
                try:
                    folder.mkdir()
                    _unpack(source, folder, limit, place)
                    _rename(folder, target)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
    if not target.is_dir():
        raise DataError(f"{target} is no folder: remove it, and {source} is extracted there")
    return target


def _rename(folder: Path, target: Path) -> None:
    """Give a whole folder its name, unless another process has been faster."""
    try:
        os.rename(folder, target)
    except OSError:
        if not target.is_dir():
            raise


def read_member(archive: str | os.PathLike[str], name: str, *, limit: int) -> bytes:
    """The bytes of one member of a zip archive, of at most `limit`; an error if there is none."""
    source = Path(archive)
    with _reading(source), zipfile.ZipFile(source) as zipped:
        if name not in zipped.namelist():
            raise DataError(f"{source} holds no {name}: it is another archive than expected")
        with zipped.open(name) as member:
            content = member.read(limit + 1)
    if len(content) > limit:
        raise DataError(f"{name} in {source} has more than {limit:,} bytes: it is not read")
    return content


def _unpack(archive: Path, folder: Path, limit: int, place: Callable[[str], str | None]) -> None:
    """Extract the members of an archive into an empty folder."""
    declared = 0
    with closing(_members(archive, limit)) as members:
        for name, size, opened in members:
            declared += size + MEMBER
            _check_declared(archive, declared, limit)
            if opened is None or (placed := place(name)) is None:
                continue
            _check_name(archive, placed)
            path = folder / placed
            path.parent.mkdir(parents=True, exist_ok=True)
            with _reading(archive):
                member = opened()
            try:
                with member, path.open("xb") as file:
                    _copy(archive, name, size, member, file)
            except FileExistsError:
                raise DataError(f"{archive} holds {placed} twice: it is not extracted") from None


def _copy(archive: Path, name: str, size: int, member: IO[bytes], file: IO[bytes]) -> None:
    """Copy a member of an archive, which has as many bytes as it declares."""
    copied = 0
    while True:
        with _reading(archive):
            block = member.read(BLOCK)
        if not block:
            break
        copied += len(block)
        if copied > size:
            break
        file.write(block)
    if copied != size:
        raise DataError(
            f"{name} in {archive} declares {size:,} bytes and has "
            f"{'more' if copied > size else f'{copied:,}'}: the archive is not extracted"
        )


def _members(archive: Path, limit: int) -> Generator[Member, None, None]:
    """The members of an archive in its order, with names that lead nowhere else."""
    with _reading(archive):
        with archive.open("rb") as file:
            head = file.read(6)
        if head.startswith(b"PK"):
            yield from _zip_members(archive, limit)
        else:
            opener: Any = next(
                (module for magic, module in COMPRESSIONS.items() if head.startswith(magic)), None
            )
            with opener.open(archive, "rb") if opener else archive.open("rb") as stream:
                yield from _tar_members(archive, _Metered(archive, stream))


def _zip_members(archive: Path, limit: int) -> Iterator[Member]:
    """The members of a zip archive, refused before the first one if any must be."""
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        _check_declared(archive, sum(member.file_size + MEMBER for member in members), limit)
        for member in members:
            _check_name(archive, member.filename, folder=member.is_dir())
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where the system has no such thing
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _odd_kind(archive, member.filename)
        for member in members:
            opened = None if member.is_dir() else functools.partial(zipped.open, member)
            yield member.filename, member.file_size, opened


def _tar_members(archive: Path, stream: _Metered) -> Iterator[Member]:
    """The members of a tar archive as they come."""
    tar: Any  # of which the types do not tell all attributes
    with tarfile.open(fileobj=cast(Any, stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            _check_name(archive, member.name, folder=member.isdir())
            if not (member.isreg() or member.isdir()):
                raise _odd_kind(archive, member.name)
            opened = None if member.isdir() else functools.partial(tar.extractfile, member)
            yield member.name, member.size, opened
            tar.members.clear()  # it keeps all of both otherwise
            tar.pax_headers.clear()
        stream.seek(tar.offset)
        if stream.read(MEMBER) != bytes(MEMBER):  # where tarfile takes damage for the end
            raise DataError(f"{archive} ends in the middle: remove it, so that it is fetched again")


class _Metered:
    """A stream of which little is read at once: tarfile reads a header whole, however long."""

    def __init__(self, archive: Path, stream: IO[bytes]) -> None:
        self.archive, self.stream = archive, stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        """Some bytes, never all of them."""
        if not 0 <= size <= BLOCK:
            raise DataError(
                f"{self.archive} has a header of more than {BLOCK:,} bytes: it is not extracted"
            )
        return self.stream.read(size)


def _check_declared(archive: Path, declared: int, limit: int) -> None:
    """Refuse an archive that would become too large."""
    if declared > limit:
        raise DataError(
            f"{archive} would expand to {declared:,} bytes or more, beyond the limit of {limit:,}: "
            "it is not extracted"
        )


def _check_name(archive: Path, name: str, *, folder: bool = False) -> None:
    """Refuse a name that leads, on any system, out of the folder it is put into."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    outside = ".." in parts or re.search(r"^/|^[A-Za-z]:|[\\\0]", name)
    if outside or not (parts or folder):
        raise DataError(
            f"{name!r} in {archive} leads out of the folder: the archive is not extracted"
        )


def _odd_kind(archive: Path, name: str) -> DataError:
    """What to raise for a member that is neither file nor folder."""
    return DataError(f"{name!r} in {archive} is a link or a device: the archive is not extracted")


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Names the archive that cannot be read; what its readers raise has no end."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{archive} cannot be read: {error or type(error).__name__}; if it is damaged, remove "
            "it, so that it is fetched again"
        ) from error
