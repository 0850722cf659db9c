"""Extraction of archives, also of malicious ones."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import stat
import struct
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from download_helpers import get_error, list_names, make_zip

from rescnet_dist.data import fetch
from rescnet_dist.data.archives import extract, read_member
from rescnet_dist.errors import DataError


def make_tar_archive(path: Path, members: dict[str, bytes], **changes: Any) -> Path:
    """Create a tar archive with these members, with the given header fields."""
    mode: Any = {".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return path


ARCHIVE_MAKERS: dict[str, Callable[..., Path]] = {
    "zip": make_zip,
    **dict.fromkeys(("tar", "tar.gz", "tar.bz2", "tar.xz"), make_tar_archive),
}

MEMBERS = {"a.txt": b"A", "b/c.txt": b"C" * 300_000, "b/d/empty": b"", "./e.txt": b"E"}


@pytest.mark.parametrize("suffix", ARCHIVE_MAKERS)
def test_extract_archive(tmp_path: Path, suffix: str) -> None:
    """An existing folder is not changed; `map_path` moves and skips members."""
    archive = ARCHIVE_MAKERS[suffix](tmp_path / f"archive.{suffix}", MEMBERS)
    target = extract(archive, tmp_path / "deep" / "out", limit=10**6)
    assert {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    } == {name.removeprefix("./"): content for name, content in MEMBERS.items()}
    assert list_names(target.parent) == ["out"]
    (target / "mine").touch()
    assert extract(archive, target, limit=0) == target
    assert (target / "mine").exists()
    moved = {"a.txt": "x/y.txt"}
    mapped = extract(archive, tmp_path / "mapped", limit=10**6, map_path=moved.get)
    assert [str(path.relative_to(mapped)) for path in mapped.rglob("*.*")] == ["x/y.txt"]


def test_extract_folder_members(tmp_path: Path) -> None:
    """Also the folder of the archive itself."""
    (tmp_path / "in" / "b").mkdir(parents=True)
    (tmp_path / "in" / "b" / "c").write_bytes(b"C")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "in", ".")
    folders = make_zip(
        tmp_path / "a.zip", {"./": b"", "b/": b"", "b/c": b"C"}, {"b/": stat.S_IFDIR}
    )
    for archive in (tmp_path / "a.tar", folders):
        target = extract(archive, tmp_path / archive.suffix, limit=10**5)
        assert (target / "b" / "c").read_bytes() == b"C"


OUTSIDE_PATHS = ["../evil", "a/../../evil", "/tmp/evil", "..", "a\\..\\..\\evil", "C:/evil", "a/.."]


@pytest.mark.parametrize("name", OUTSIDE_PATHS)
@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_reject_paths_outside_target(tmp_path: Path, suffix: str, name: str) -> None:
    """Nothing of the archive is left, inside or outside."""
    members = {"fine": b"F", name: b"E"}
    archive = ARCHIVE_MAKERS[suffix](tmp_path / f"archive.{suffix}", members)
    message = get_error(lambda: extract(archive, tmp_path / "deep" / "out", limit=10**6))
    assert repr(name) in message
    assert str(archive) in message
    assert "points out of the folder" in message
    assert list_names(tmp_path / "deep") == []
    assert list_names(tmp_path) == [archive.name, "deep"]
    # Also if only `map_path` points outside.
    fine = ARCHIVE_MAKERS[suffix](tmp_path / f"fine.{suffix}", {"fine": b"F"})
    map_path = {"fine": name}.get
    assert "points out of the folder" in get_error(
        lambda: extract(fine, tmp_path / "o", limit=10**6, map_path=map_path)
    )


TAR_TYPES = {
    "symbolic link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
}


@pytest.mark.parametrize("kind", TAR_TYPES)
def test_reject_links_and_devices_in_tar(tmp_path: Path, kind: str) -> None:
    """Whatever they point to."""
    archive = make_tar_archive(tmp_path / "a.tar", {"x": b""}, type=TAR_TYPES[kind], linkname="y")
    assert "'x'" in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert "link or a device" in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert list_names(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_reject_links_and_devices_in_zip(tmp_path: Path, kind: int) -> None:
    """Python's own extraction would write them as files."""
    archive = make_zip(tmp_path / "a.zip", {"f": b"F", "x": b"/etc/passwd"}, {"x": kind | 0o777})
    assert "link or a device" in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert list_names(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_reject_duplicate_names(tmp_path: Path, suffix: str) -> None:
    """One would hide the other."""
    archive = ARCHIVE_MAKERS[suffix](tmp_path / f"a.{suffix}", {"x": b"1", "./x": b"2"})
    assert "twice" in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert list_names(tmp_path) == [archive.name]


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_reject_declared_size_above_limit(tmp_path: Path, suffix: str) -> None:
    """For one large member or many small ones, used or skipped, before extraction."""
    large = ARCHIVE_MAKERS[suffix](tmp_path / f"large.{suffix}", {"x": bytes(2 * 10**6)})
    assert large.stat().st_size < 10**4
    many = ARCHIVE_MAKERS[suffix](tmp_path / f"many.{suffix}", {str(i): b"" for i in range(2000)})
    for archive in (large, many):
        for map_path in (str, {}.get):
            action = partial(extract, archive, tmp_path / "o", limit=10**6, map_path=map_path)
            assert "more than the limit of 1,000,000" in get_error(action)
    assert list_names(tmp_path) == [large.name, many.name]


def test_reject_zip_with_false_size(tmp_path: Path) -> None:
    """Its size is falsified in both headers."""
    archive = make_zip(tmp_path / "a.zip", {"x": bytes(10**7)})
    content, size = archive.read_bytes(), struct.pack("<I", 10**7)
    assert content.count(size) == 2
    archive.write_bytes(content.replace(size, struct.pack("<I", 10)))
    assert str(archive) in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert list_names(tmp_path) == ["a.zip"]


def test_reject_large_tar_header(tmp_path: Path) -> None:
    """tarfile reads headers whole: this one has 50 MB, compressed to 50 KB."""
    archive = tmp_path / "a.tar.gz"
    make_tar_archive(archive, {"x": b"X"}, pax_headers={"comment": "0" * (50 * 10**6)})
    assert "header of more than" in get_error(lambda: extract(archive, tmp_path / "o", limit=10**9))
    assert list_names(tmp_path) == ["a.tar.gz"]


def test_reject_huge_declared_tar_member(tmp_path: Path) -> None:
    """The content after a header that declares 2⁶⁰ bytes is not read."""
    header = tarfile.TarInfo("x")
    header.size = 2**60
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(header.tobuf() + bytes(10240)))
    assert "would expand to" in get_error(lambda: extract(archive, tmp_path / "o", limit=10**9))


@pytest.mark.parametrize("suffix", ARCHIVE_MAKERS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9])
def test_reject_truncated_archive(tmp_path: Path, suffix: str, share: float) -> None:
    """Wherever it ends; a partial extraction is not taken for a complete one."""
    members = {f"{i:02}": os.urandom(2000) for i in range(50)}
    archive = ARCHIVE_MAKERS[suffix](tmp_path / f"a.{suffix}", members)
    content = archive.read_bytes()
    archive.write_bytes(content[: int(share * len(content))])
    assert str(archive) in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert list_names(tmp_path) == [archive.name]


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz"])
def test_altered_archive_is_rejected_or_extracted(tmp_path: Path, rng, suffix: str) -> None:
    """Only a DataError is raised, and nothing is written outside."""
    members = {f"b/{i}": os.urandom(200) for i in range(9)}
    archive = ARCHIVE_MAKERS[suffix](tmp_path / f"a.{suffix}", members)
    content = bytearray(archive.read_bytes())
    outcomes = set()
    for attempt in range(150):
        altered = content.copy()
        for at in rng.integers(len(altered), size=rng.integers(1, 6)):
            altered[at] = rng.integers(256)
        archive.write_bytes(altered)
        target = tmp_path / "out" / str(attempt)
        try:
            outcomes.add(extract(archive, target, limit=10**5).is_dir())
        except DataError:
            outcomes.add(target.exists())
    assert outcomes <= {True, False}
    assert False in outcomes
    assert list_names(tmp_path) == [archive.name, "out"]
    assert all(name.isdecimal() for name in list_names(tmp_path / "out"))


def test_remove_files_of_killed_extraction(tmp_path: Path) -> None:
    """They have another name than a complete folder."""
    archive = make_zip(tmp_path / "a.zip", MEMBERS)
    (tmp_path / "out.partial").touch()
    (tmp_path / "out.partial.d").mkdir()
    (tmp_path / "out.partial.d" / "half").touch()
    target = extract(archive, tmp_path / "out", limit=10**6)
    assert list_names(tmp_path) == ["a.zip", "out"]
    assert list_names(target) == ["a.txt", "b", "e.txt"]


@pytest.mark.parametrize("locks", [True, False])
def test_concurrent_extraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """All threads get the same folder, complete."""
    if not locks:
        monkeypatch.setattr(fetch, "_lock", lambda *args: False)
    archive = make_zip(tmp_path / "a.zip", {f"b/{i}": b"x" for i in range(200)})
    out = tmp_path / "out"
    with ThreadPoolExecutor(4) as pool:
        counts = list(
            pool.map(lambda _: len(list_names(extract(archive, out, limit=10**6) / "b")), range(4))
        )
    assert counts == [200] * 4
    assert list_names(tmp_path) == ["a.zip", "out"]


def test_target_is_a_file(tmp_path: Path) -> None:
    """It is not overwritten."""
    archive = make_zip(tmp_path / "a.zip", MEMBERS)
    (tmp_path / "out").touch()
    assert "is not a folder" in get_error(lambda: extract(archive, tmp_path / "out", limit=10**6))


def test_read_member_up_to_a_limit(tmp_path: Path) -> None:
    """The error names a missing member."""
    archive = make_zip(tmp_path / "a.zip", MEMBERS)
    assert read_member(archive, "a.txt", limit=1) == b"A"
    assert "more than 100 bytes" in get_error(lambda: read_member(archive, "b/c.txt", limit=100))
    assert "has no x" in get_error(lambda: read_member(archive, "x", limit=100))
    archive.write_bytes(b"PK")
    assert "cannot be read" in get_error(lambda: read_member(archive, "a.txt", limit=100))


def test_bzip2_file_without_tar(tmp_path: Path) -> None:
    """The error also names an archive that does not exist."""
    (tmp_path / "a").write_bytes(bz2.compress(b"nothing of the kind" * 100))
    for name in ("a", "b"):
        assert f"{tmp_path / name} cannot be read" in get_error(
            lambda name=name: extract(tmp_path / name, tmp_path / "out", limit=10**6)
        )
