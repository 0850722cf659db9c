"""Safe extraction of zip and tar archives: completely or not at all, and only into the target."""

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

from rescnet_dist.data.fetch import partial_file, translate_disk_errors
from rescnet_dist.errors import DataError

ARCHIVE_READ_BYTES = 2**18  # read at once, also of a header inside a tar file
COMPRESSIONS = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\x00": lzma}  # by first bytes
MEMBER_OVERHEAD_BYTES = 512  # counted for each member of an archive, besides its content
TAR_BLOCK_BYTES = 512  # tar files consist of blocks of this size

# Name, size, and a function that opens the member; None for a folder.
Member = tuple[str, int, Callable[[], IO[bytes]] | None]


def extract(
    archive: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    limit: int,
    map_path: Callable[[str], str | None] = str,
) -> Path:
    """Extract a zip or tar archive to the folder `target`, unless that exists; return the folder.

    `map_path` returns for the name of a member its path under `target`; None skips the member.
    Raise DataError if the archive has absolute paths, `..`, links, devices or duplicate names, or
    more than `limit` bytes, declared or actual, where each member counts 512 bytes more. Files are
    extracted to a temporary folder next to `target`, which is renamed at the end.
    """
    source, target = Path(archive), Path(target)
    with translate_disk_errors(target):
        while not target.exists():
            with partial_file(target) as partial:
                if partial is None:
                    continue
                folder = Path(f"{partial.name}.d")
                shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
                try:
                    folder.mkdir()
                    _unpack(source, folder, limit, map_path)
                    _rename(folder, target)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
    if not target.is_dir():
        raise DataError(
            f"{target} is not a folder. Remove it, so that {source} is extracted there."
        )
    return target


def _rename(folder: Path, target: Path) -> None:
    """Rename a complete folder, unless another process has been faster."""
    try:
        os.rename(folder, target)
    except OSError:
        if not target.is_dir():
            raise


def read_member(archive: str | os.PathLike[str], name: str, *, limit: int) -> bytes:
    """Read one member of a zip archive; raise DataError if it is missing or too large."""
    source = Path(archive)
    with _translate_archive_errors(source), zipfile.ZipFile(source) as zip_file:
        if name not in zip_file.namelist():
            raise DataError(f"{source} has no {name}. It is not the expected archive.")
        with zip_file.open(name) as member:
            content = member.read(limit + 1)
    if len(content) > limit:
        raise DataError(f"{name} in {source} has more than {limit:,} bytes, and is not read.")
    return content


def _unpack(archive: Path, folder: Path, limit: int, map_path: Callable[[str], str | None]) -> None:
    """Extract the members of an archive into an empty folder."""
    declared = 0
    with closing(_list_members(archive, limit)) as members:
        for name, size, open_member in members:
            declared += size + MEMBER_OVERHEAD_BYTES
            _check_declared(archive, declared, limit)
            if open_member is None or (relative := map_path(name)) is None:
                continue
            _check_name(archive, relative)
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            with _translate_archive_errors(archive):
                member = open_member()
            try:
                with member, path.open("xb") as file:
                    _copy(archive, name, size, member, file)
            except FileExistsError:
                raise DataError(
                    f"{archive} contains {relative} twice, and is not extracted."
                ) from None


def _copy(archive: Path, name: str, size: int, member: IO[bytes], file: IO[bytes]) -> None:
    """Copy a member of an archive; raise DataError if it has not the declared size."""
    copied = 0
    while True:
        with _translate_archive_errors(archive):
            block = member.read(ARCHIVE_READ_BYTES)
        if not block:
            break
        copied += len(block)
        if copied > size:
            break
        file.write(block)
    if copied != size:
        raise DataError(
            f"{name} in {archive} declares {size:,} bytes and has "
            f"{'more' if copied > size else f'{copied:,}'}. The archive is not extracted."
        )


def _list_members(archive: Path, limit: int) -> Generator[Member, None, None]:
    """Yield the members of an archive in its order; raise DataError for unsafe names."""
    with _translate_archive_errors(archive):
        with archive.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(b"PK"):
            yield from _list_zip_members(archive, limit)
        else:
            opener: Any = next(
                (module for start, module in COMPRESSIONS.items() if magic.startswith(start)), None
            )
            with opener.open(archive, "rb") if opener else archive.open("rb") as stream:
                yield from _list_tar_members(archive, BoundedStream(archive, stream))


def _list_zip_members(archive: Path, limit: int) -> Iterator[Member]:
    """Yield the members of a zip archive, after all of them have been checked."""
    with zipfile.ZipFile(archive) as zip_file:
        members = zip_file.infolist()
        declared = sum(member.file_size + MEMBER_OVERHEAD_BYTES for member in members)
        _check_declared(archive, declared, limit)
        for member in members:
            _check_name(archive, member.filename, is_folder=member.is_dir())
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 on systems without file types
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _unsupported_member(archive, member.filename)
        for member in members:
            open_member = None if member.is_dir() else functools.partial(zip_file.open, member)
            yield member.filename, member.file_size, open_member


def _list_tar_members(archive: Path, stream: BoundedStream) -> Iterator[Member]:
    """Yield the members of a tar archive, each checked as it is read."""
    tar: Any  # whose type stubs lack some attributes
    with tarfile.open(fileobj=cast(Any, stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            _check_name(archive, member.name, is_folder=member.isdir())
            if not (member.isreg() or member.isdir()):
                raise _unsupported_member(archive, member.name)
            open_member = None if member.isdir() else functools.partial(tar.extractfile, member)
            yield member.name, member.size, open_member
            tar.members.clear()  # It would hold all members and headers otherwise.
            tar.pax_headers.clear()
        stream.seek(tar.offset)
        if stream.read(TAR_BLOCK_BYTES) != bytes(TAR_BLOCK_BYTES):  # tarfile stops at damage.
            raise DataError(
                f"{archive} has no end mark; it is truncated or damaged. Remove it, so that it is "
                "downloaded again."
            )


class BoundedStream:
    """A stream with a limit on single reads, as tarfile reads headers of any size at once."""

    def __init__(self, archive: object, stream: IO[bytes]) -> None:
        self.archive, self.stream = archive, stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes; raise DataError if that is more than the limit."""
        if not 0 <= size <= ARCHIVE_READ_BYTES:
            raise DataError(
                f"{self.archive} has a header of more than {ARCHIVE_READ_BYTES:,} bytes. It is "
                "damaged."
            )
        return self.stream.read(size)


def _check_declared(archive: Path, declared: int, limit: int) -> None:
    """Raise DataError if the declared size of an archive exceeds the limit."""
    if declared > limit:
        raise DataError(
            f"{archive} would expand to at least {declared:,} bytes, more than the limit of "
            f"{limit:,}. It is not extracted."
        )


def _check_name(archive: Path, name: str, *, is_folder: bool = False) -> None:
    """Raise DataError if a name points, on any system, out of the target folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    is_outside = ".." in parts or re.search(r"^/|^[A-Za-z]:|[\\\0]", name)
    if is_outside or not (parts or is_folder):
        raise DataError(
            f"{name!r} in {archive} points out of the folder. The archive is not extracted."
        )


def _unsupported_member(archive: Path, name: str) -> DataError:
    """Return the error for a member that is neither file nor folder."""
    return DataError(f"{name!r} in {archive} is a link or a device. The archive is not extracted.")


@contextmanager
def _translate_archive_errors(archive: Path) -> Iterator[None]:
    """Raise DataError with the archive for any error of the body, as readers raise all kinds."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{archive} cannot be read: {error or type(error).__name__}. If it is damaged, remove "
            "it, so that it is downloaded again."
        ) from error
