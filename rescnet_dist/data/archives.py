"""Archives that are extracted whole or not at all, and nowhere else than they should."""

from __future__ import annotations

import bz2
import functools
import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rescnet_dist.data.fetch import on_disk, partial_file
from rescnet_dist.errors import DataError

BLOCK = 2**18  # bytes read at once, also of a header inside a tar file
COMPRESSIONS = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\x00": lzma}  # by first bytes
MEMBER = 512  # bytes that each member of an archive counts besides its content

Member = tuple[str, int, Callable[[], IO[bytes]] | None]  # name, size, opens it; None: a folder


def extract(
    archive: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    limit: int,
    location: Callable[[str], str | None] = str,
) -> Path:
    """The folder `target` with the files of a zip or tar archive; one that is there is left as is.

    `location` says for the name of a member where it goes under `target`; None leaves it out. Refused
    are archives with absolute paths, `..`, links, devices or names that come twice, and those of
    more than `limit` bytes, by what they declare or really have, where each member counts 512
    bytes more. The files come into a folder beside `target`, which gets its name at the end.
    """
    source, target = Path(archive), Path(target)
    with on_disk(target):
        while not target.exists():
            with partial_file(target) as partial:
                if partial is None:
                    continue
                folder = Path(f"{partial.name}.d")
                shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
                try:
                    folder.mkdir()
                    _unpack(source, folder, limit, location)
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


def _unpack(archive: Path, folder: Path, limit: int, location: Callable[[str], str | None]) -> None:
    """Extract the members of an archive into an empty folder."""
    declared = 0
    with closing(_members(archive, limit)) as members:
        for name, size, opened in members:
            declared += size + MEMBER
            _check_declared(archive, declared, limit)
            if opened is None or (placed := location(name)) is None:
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
                yield from _tar_members(archive, Metered(archive, stream))


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


def _tar_members(archive: Path, stream: Metered) -> Iterator[Member]:
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


class Metered:
    """A stream of which little is read at once: tarfile reads a header whole, however long."""

    def __init__(self, archive: object, stream: IO[bytes]) -> None:
        self.archive, self.stream = archive, stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        """Some bytes, never all of them."""
        if not 0 <= size <= BLOCK:
            raise DataError(
                f"{self.archive} has a header of more than {BLOCK:,} bytes: it is damaged"
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
