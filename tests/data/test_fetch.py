"""Downloads from a real HTTP server that misbehaves, hostile archives, and the named data sets."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rescnet_dist.data import fetch
from rescnet_dist.data.archives import extract, read_member
from rescnet_dist.data.fetch import RemoteFile, download
from rescnet_dist.data.named import (
    DATASETS,
    NamedDataset,
    cache_folder,
    fetch_dataset,
    named_dataset,
)
from rescnet_dist.errors import DataError

CONTENT = bytes(range(256)) * 4000  # about 1 MB
HALF = len(CONTENT) // 2
HASTY = {"timeout": 1.0, "first_wait": 0.01}  # seconds


# a server ---------------------------------------------------------------------------------------


@dataclass
class Server:
    """Files on loopback, how they are served, and what has been asked for and sent."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # one for each answer, in this order
    always: str = ""  # the fault of all answers after those
    ranges: bool = True
    lengths: bool = True  # whether answers say how long they are
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    sent: list[int] = field(default_factory=list)  # the bytes of each answer
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)  # lets go of who hangs

    def file(self, content: bytes = CONTENT, name: str = "a.bin", *, size: bool = True):
        """Serve a file; gives its description."""
        self.files[f"/{name}"] = content
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        urls = (f"{self.url}/{name}",)
        return RemoteFile(name, urls, checksum, len(content) if size else None)


class Handler(BaseHTTPRequestHandler):
    """Answers with the files of the server, or as badly as it is told to."""

    server: Any
    protocol_version = "HTTP/1.0"  # one answer for each connection

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer, with a part of the file if that was asked for."""
        served: Server = self.server.served
        asked = self.headers.get("Range")
        with served.lock:
            served.asked.append(asked)
            served.sent.append(0)
            index = len(served.sent) - 1
            fault = served.faults.pop(0) if served.faults else served.always
        content = served.files.get(self.path)
        if content is None or fault.isdecimal():
            self.send_error(int(fault or 404))
            return
        if fault == "wrong":
            content = bytes(len(content))
        if fault == "short":
            content = content[: len(content) // 2]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if asked and served.ranges and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        start = start if served.ranges else 0
        self.send_response(206 if asked and served.ranges else 200)
        if asked and served.ranges:
            first = 7 if fault == "elsewhere" else start
            said = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", said)
        if served.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if fault == "silent":
            served.released.wait(30)
            return
        half, tenth = len(content) // 2, start + len(content) // 10
        stop = {"breaks": half, "hangs": half, "drips": tenth}.get(fault, len(content))
        served.sent[index] = max(0, stop - start)  # before they are, as the test goes on then
        try:
            self.wfile.write(content[start:stop])
            self.wfile.flush()
            if fault == "hangs":
                served.released.wait(30)
            if fault == "more":
                self.wfile.write(b"more")
        except OSError:
            pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of this test, reached without a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    served = Server(f"http://127.0.0.1:{http.server_port}")
    http.served = served  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        served.released.set()
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL where nobody listens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def names(folder: Path) -> list[str]:
    """What is in a folder, of which nothing may be left behind."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def said(action: Callable[[], Any]) -> str:
    """The message of the error that an action ends in."""
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


# downloads --------------------------------------------------------------------------------------


def test_a_file_is_fetched_once_with_its_progress(server: Server, tmp_path: Path) -> None:
    """And it is verified, not fetched, the second time."""
    file, seen = server.file(), []
    path = download(file, tmp_path / "new" / "folder", progress=lambda *at: seen.append(at))
    assert path == tmp_path / "new" / "folder" / "a.bin"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["a.bin"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    assert download(file, path.parent, progress=lambda *at: seen.append(at)) == path
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(server.asked) == 1


@pytest.mark.parametrize("size", [True, False])
def test_an_md5_will_do_and_so_will_an_unknown_size(
    server: Server, tmp_path: Path, size: bool
) -> None:
    """Where neither server nor description say how long a file is, its progress has no total."""
    file = replace(server.file(size=size), checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    server.lengths, totals = False, set()
    path = download(file, tmp_path, progress=lambda done, total: totals.add(total))
    assert path.read_bytes() == CONTENT
    assert totals == {len(CONTENT) if size else None}


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("fault", ["breaks", "hangs"])
def test_a_broken_download_is_resumed(
    server: Server, tmp_path: Path, fault: str, size: bool
) -> None:
    """Within one call, and only the missing bytes are sent the second time."""
    server.faults = [fault]
    assert download(server.file(size=size), tmp_path, **HASTY).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={HALF}-"]
    assert server.sent == [HALF, len(CONTENT) - HALF]
    assert names(tmp_path) == ["a.bin"]


def test_the_next_call_goes_on_where_a_truncated_download_was_given_up(
    server: Server, tmp_path: Path
) -> None:
    """The error says how much there is; what is kept is not sent again."""
    server.always = "breaks"
    file = server.file()
    message = said(lambda: download(file, tmp_path, **HASTY))
    assert f"broke off after {HALF:,} of {len(CONTENT):,} bytes" in message
    assert f"goes on after the {HALF:,} bytes" in message
    assert len(server.asked) == 1 + fetch.TRIES
    assert (tmp_path / "a.bin.partial").stat().st_size == HALF
    assert names(tmp_path) == ["a.bin.partial"]
    server.always = ""
    server.sent.clear()
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.sent == [len(CONTENT) - HALF]
    assert names(tmp_path) == ["a.bin"]


def test_tries_do_not_count_while_bytes_come(server: Server, tmp_path: Path) -> None:
    """A server that breaks off after a tenth each time, and is busy in between, is used to the
    end."""
    server.faults = ["drips", "503"] * 9
    assert download(server.file(), tmp_path, **HASTY, tries=2).read_bytes() == CONTENT
    assert sum(server.sent) == len(CONTENT)


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    """As does a download from it that broke off; one that always breaks off is given up."""
    server.ranges, server.faults = False, ["breaks"]
    file = server.file()
    assert download(file, tmp_path, **HASTY).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={HALF}-"]
    assert server.sent == [HALF, len(CONTENT)]
    server.always = "breaks"
    assert "broke off" in said(lambda: download(file, tmp_path / "b", **HASTY))


def test_another_part_than_was_asked_for_is_not_used(server: Server, tmp_path: Path) -> None:
    """It is fetched again from the start."""
    (tmp_path / "a.bin.partial").write_bytes(CONTENT[:HALF])
    server.faults = ["elsewhere"]
    assert download(server.file(), tmp_path, **HASTY).read_bytes() == CONTENT
    assert server.asked == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("size", [True, False])
def test_a_wrong_checksum_is_refused_and_nothing_kept(
    server: Server, tmp_path: Path, size: bool
) -> None:
    """The error names both checksums and the URL."""
    server.always = "wrong"
    file = server.file(size=size)
    message = said(lambda: download(file, tmp_path, **HASTY))
    found = hashlib.sha256(bytes(len(CONTENT))).hexdigest()
    for part in (file.urls[0], f"sha256:{found}, {file.checksum} was expected"):
        assert part in message
    assert names(tmp_path) == []
    assert len(server.asked) == 1, "what is wrong stays wrong"


@pytest.mark.parametrize("kept", [b"\0" * 1000, CONTENT + b"\0", b"\0" * len(CONTENT)])
@pytest.mark.parametrize("size", [True, False])
def test_a_partial_file_that_is_wrong_is_replaced(
    server: Server, tmp_path: Path, kept: bytes, size: bool
) -> None:
    """Too long, or not what the file starts with: it is fetched from the start."""
    (tmp_path / "a.bin.partial").write_bytes(kept)
    assert download(server.file(size=size), tmp_path, **HASTY).read_bytes() == CONTENT
    assert server.asked[-1] is None
    assert names(tmp_path) == ["a.bin"]


def test_a_file_of_another_length_is_refused_before_it_is_fetched(
    server: Server, tmp_path: Path
) -> None:
    """A Content-Length that is too small; without a known size the checksum tells."""
    server.always = "short"
    message = said(lambda: download(server.file(), tmp_path, **HASTY))
    assert f"has {HALF:,} bytes, {len(CONTENT):,} were expected" in message
    message = said(lambda: download(server.file(size=False), tmp_path, **HASTY))
    assert "was expected" in message
    assert names(tmp_path) == []


def test_a_file_that_never_ends_is_cut_off(server: Server, tmp_path: Path) -> None:
    """Where the server does not say how long it is."""
    server.lengths, server.always = False, "more"
    message = said(lambda: download(server.file(), tmp_path, **HASTY))
    assert f"sends more than {len(CONTENT):,} bytes" in message
    assert names(tmp_path) == []


def test_a_refusal_is_final_and_a_fault_passes(server: Server, tmp_path: Path) -> None:
    """404 at once; 500 and 429 are waited out."""
    file = server.file()
    server.faults = ["500", "429"]
    assert download(file, tmp_path, **HASTY).read_bytes() == CONTENT
    server.asked.clear()
    server.files.clear()
    message = said(lambda: download(file, tmp_path / "b", **HASTY))
    assert "HTTP error 404" in message
    assert str(tmp_path / "b" / "a.bin") in message
    assert len(server.asked) == 1
    assert names(tmp_path / "b") == []


def test_a_server_that_is_silent_is_given_up(server: Server, tmp_path: Path) -> None:
    """After the time-out, tried as often as was said."""
    server.always = "silent"
    began = time.monotonic()
    message = said(lambda: download(server.file(), tmp_path, timeout=0.5, tries=2, first_wait=0))
    assert "timed out" in message
    assert len(server.asked) == 2
    assert time.monotonic() - began < 5


def test_mirrors_are_tried_in_order(server: Server, nobody: str, tmp_path: Path) -> None:
    """Past one that is gone, one that is wrong and one that breaks off, whose bytes are used."""
    file = server.file()
    server.files["/wrong"] = bytes(len(CONTENT))
    urls = (f"{nobody}/a", f"{server.url}/gone", f"{server.url}/wrong", *file.urls)
    server.faults = ["", "", "breaks"]
    mirrored = replace(file, urls=(*urls, f"{server.url}//a.bin"))
    server.files["//a.bin"] = CONTENT
    assert download(mirrored, tmp_path, **HASTY).read_bytes() == CONTENT
    assert server.sent == [0, len(CONTENT), HALF, len(CONTENT) - HALF]
    message = said(lambda: download(replace(file, urls=urls[:3]), tmp_path / "b", **HASTY, tries=1))
    assert all(url in message for url in urls[:3])


def test_only_http_is_fetched(tmp_path: Path) -> None:
    """A file:// URL is no way to read the files of this machine."""
    (tmp_path / "a").write_bytes(CONTENT)
    file = RemoteFile("a.bin", (f"file://{tmp_path / 'a'}",), "sha256:00")
    assert "no URL of http" in said(lambda: download(file, tmp_path / "cache"))


def test_secrets_in_urls_are_not_shown(nobody: str, tmp_path: Path) -> None:
    """Neither in the reasons nor in the remedy."""
    file = RemoteFile("a.bin", (f"{nobody}/a?token=abc123",), "sha256:00")
    assert "abc123" not in said(lambda: download(file, tmp_path, **HASTY))


def test_without_a_network_it_is_said_what_to_put_where(
    server: Server, nobody: str, tmp_path: Path
) -> None:
    """And what was put there is used once it is right."""
    file = replace(server.file(), urls=(f"{nobody}/a.bin",))
    message = said(lambda: download(file, tmp_path, **HASTY))
    by_hand = tmp_path / "a.bin"
    for part in ("refused", file.urls[0], file.checksum, str(by_hand), "check the network"):
        assert part in message
    assert names(tmp_path) == []
    by_hand.write_bytes(CONTENT[1:])
    message = said(lambda: download(file, tmp_path))
    found = hashlib.sha256(CONTENT[1:]).hexdigest()
    for part in (str(by_hand), f"sha256:{found}, {file.checksum} was expected", "remove it"):
        assert part in message
    assert by_hand.exists()
    by_hand.write_bytes(CONTENT)
    assert download(file, tmp_path) == by_hand


def test_a_cache_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    """Here it is a file."""
    (tmp_path / "cache").write_bytes(b"")
    message = said(lambda: download(server.file(), tmp_path / "cache"))
    assert str(tmp_path / "cache" / "a.bin") in message
    assert "check your rights" in message


# processes --------------------------------------------------------------------------------------

FETCH = """
import os, sys, types
folder, end, name, url, checksum, size, root = sys.argv[1:]
for package in ("rescnet_dist", "rescnet_dist.data"):  # which import much that is not needed here
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [os.path.join(root, *package.split("."))]
from rescnet_dist.data.fetch import RemoteFile, download
if end == "dies":
    os.replace = lambda *paths: os._exit(9)
print("ready", flush=True)
sys.stdin.readline()
print(download(RemoteFile(name, (url,), checksum, int(size)), folder))
"""


def start(file: RemoteFile, folder: Path, end: str = "lives") -> subprocess.Popen[str]:
    """A process that downloads a file once it is told to."""
    root = Path(fetch.__file__).parents[2]
    what = (folder, end, file.name, *file.urls, file.checksum, file.size, root)
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *map(str, what)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"no_proxy": "127.0.0.1"},
    )


def test_processes_that_are_killed_and_that_run_at_once(server: Server, tmp_path: Path) -> None:
    """One is killed between download and rename, one in the middle; two then fetch at once.

    One test, as processes take long to start.
    """
    file, others = server.file(), tmp_path / "others"
    processes = [
        start(file, tmp_path / "renames", "dies"),
        *(start(file, others) for _ in range(3)),
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        processes[0].communicate("go\n")
        assert processes[0].returncode == 9
        assert names(tmp_path / "renames") == ["a.bin.partial"]
        server.asked.clear()
        assert download(file, tmp_path / "renames").read_bytes() == CONTENT
        assert server.asked == [], "all of it was there"

        server.faults = ["hangs"]
        assert processes[1].stdin is not None
        processes[1].stdin.write("go\n")
        processes[1].stdin.flush()
        half = others / "a.bin.partial"
        deadline = time.monotonic() + 10
        while not (half.exists() and half.stat().st_size == HALF):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGKILL)
        processes[1].communicate()

        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(lambda process: process.communicate("go\n"), processes[2:]))
        assert [out.strip() for out, _ in ended] == [str(others / "a.bin")] * 2
        assert (others / "a.bin").read_bytes() == CONTENT
        assert names(others) == ["a.bin"]
        assert server.asked == [None, f"bytes={HALF}-"], "one waits for the other"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("locks", [True, False])
def test_threads_at_once_all_end_with_the_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """One fetches and breaks off, another goes on; without locks each fetches its own."""
    if not locks:
        monkeypatch.setattr(fetch, "_lock", lambda *args: False)
    file, server.faults = server.file(), ["breaks", "503"]
    with ThreadPoolExecutor(6) as pool:
        paths = list(pool.map(lambda _: download(file, tmp_path, **HASTY), range(6)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert names(tmp_path) == ["a.bin"]
    if locks:
        assert sum(server.sent) == len(CONTENT)


def test_after_a_failure_those_who_wait_try_themselves(server: Server, tmp_path: Path) -> None:
    """Whose file it was that they have waited for: it is gone."""
    file, server.faults = server.file(), ["wrong", "404", "wrong"]

    def attempt(_: int) -> bool:
        try:
            return bool(download(file, tmp_path, **HASTY))
        except DataError:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, range(4))) == [False, False, False, True]
    assert names(tmp_path) == ["a.bin"]


def test_waiting_for_another_process_has_an_end(tmp_path: Path) -> None:
    """The error names the file that is held."""
    with fetch.partial_file(tmp_path / "a") as partial:
        assert partial is not None
        waiting = fetch.partial_file(tmp_path / "a", 0.1)
        message = said(waiting.__enter__)
    assert f"{tmp_path / 'a.partial'}" in message
    assert names(tmp_path) == []


# archives ---------------------------------------------------------------------------------------


def zipped(path: Path, members: dict[str, bytes], modes: dict[str, int] | None = None) -> Path:
    """A zip archive with these members, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return path


def tarred(path: Path, members: dict[str, bytes], **changes: Any) -> Path:
    """A tar archive with these members, all changed in the same way."""
    mode: Any = {".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return path


MAKERS: dict[str, Callable[..., Path]] = {
    "zip": zipped,
    **dict.fromkeys(("tar", "tar.gz", "tar.bz2", "tar.xz"), tarred),
}
MEMBERS = {"a.txt": b"A", "b/c.txt": b"C" * 300_000, "b/d/empty": b"", "./e.txt": b"E"}


@pytest.mark.parametrize("suffix", MAKERS)
def test_archives_are_extracted_whole(tmp_path: Path, suffix: str) -> None:
    """Into a folder that is then left as it is; `location` moves members and leaves some out."""
    archive = MAKERS[suffix](tmp_path / f"archive.{suffix}", MEMBERS)
    target = extract(archive, tmp_path / "deep" / "out", limit=10**6)
    assert {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    } == {name.removeprefix("./"): content for name, content in MEMBERS.items()}
    assert names(target.parent) == ["out"]
    (target / "mine").touch()
    assert extract(archive, target, limit=0) == target
    assert (target / "mine").exists()
    moved = {"a.txt": "x/y.txt"}
    placed = extract(archive, tmp_path / "placed", limit=10**6, location=moved.get)
    assert [str(path.relative_to(placed)) for path in placed.rglob("*.*")] == ["x/y.txt"]


def test_folders_in_archives_are_no_harm(tmp_path: Path) -> None:
    """That of the archive itself least of all."""
    (tmp_path / "in" / "b").mkdir(parents=True)
    (tmp_path / "in" / "b" / "c").write_bytes(b"C")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "in", ".")
    folders = zipped(tmp_path / "a.zip", {"./": b"", "b/": b"", "b/c": b"C"}, {"b/": stat.S_IFDIR})
    for archive in (tmp_path / "a.tar", folders):
        target = extract(archive, tmp_path / archive.suffix, limit=10**5)
        assert (target / "b" / "c").read_bytes() == b"C"


OUTSIDE = ["../evil", "a/../../evil", "/tmp/evil", "..", "a\\..\\..\\evil", "C:/evil", "a/.."]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_paths_that_lead_outside_are_refused(tmp_path: Path, suffix: str, name: str) -> None:
    """Nothing of the archive is left, inside or outside."""
    members = {"fine": b"F", name: b"E"}
    archive = MAKERS[suffix](tmp_path / f"archive.{suffix}", members)
    message = said(lambda: extract(archive, tmp_path / "deep" / "out", limit=10**6))
    assert repr(name) in message
    assert str(archive) in message
    assert "leads out" in message
    assert names(tmp_path / "deep") == []
    assert names(tmp_path) == [archive.name, "deep"]
    # nor if it is only where a member is to be put
    fine = MAKERS[suffix](tmp_path / f"fine.{suffix}", {"fine": b"F"})
    location = {"fine": name}.get
    assert "leads out" in said(
        lambda: extract(fine, tmp_path / "o", limit=10**6, location=location)
    )


TAR_KINDS = {
    "symbolic link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
}


@pytest.mark.parametrize("kind", TAR_KINDS)
def test_links_and_devices_in_tar_are_refused(tmp_path: Path, kind: str) -> None:
    """Whatever they point to."""
    archive = tarred(tmp_path / "a.tar", {"x": b""}, type=TAR_KINDS[kind], linkname="y")
    assert "'x'" in said(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert "link or a device" in said(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert names(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_zip_are_refused(tmp_path: Path, kind: int) -> None:
    """Though Python's own extraction would write them as files."""
    archive = zipped(tmp_path / "a.zip", {"f": b"F", "x": b"/etc/passwd"}, {"x": kind | 0o777})
    assert "link or a device" in said(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert names(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_names_that_come_twice_are_refused(tmp_path: Path, suffix: str) -> None:
    """One would hide the other."""
    archive = MAKERS[suffix](tmp_path / f"a.{suffix}", {"x": b"1", "./x": b"2"})
    assert "twice" in said(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert names(tmp_path) == [archive.name]


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_bombs_are_refused_by_what_they_declare(tmp_path: Path, suffix: str) -> None:
    """Of one large member or of many small ones, used or left out; before they are expanded."""
    large = MAKERS[suffix](tmp_path / f"large.{suffix}", {"x": bytes(2 * 10**6)})
    assert large.stat().st_size < 10**4
    many = MAKERS[suffix](tmp_path / f"many.{suffix}", {str(i): b"" for i in range(2000)})
    for archive in (large, many):
        for location in (str, {}.get):
            action = partial(extract, archive, tmp_path / "o", limit=10**6, location=location)
            assert "beyond the limit of 1,000,000" in said(action)
    assert names(tmp_path) == [large.name, many.name]


def test_a_zip_bomb_that_declares_little_is_refused(tmp_path: Path) -> None:
    """Its sizes are falsified where they are declared, both times."""
    archive = zipped(tmp_path / "a.zip", {"x": bytes(10**7)})
    content, size = archive.read_bytes(), struct.pack("<I", 10**7)
    assert content.count(size) == 2
    archive.write_bytes(content.replace(size, struct.pack("<I", 10)))
    assert str(archive) in said(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert names(tmp_path) == ["a.zip"]


def test_a_tar_bomb_of_headers_is_refused(tmp_path: Path) -> None:
    """tarfile reads them whole: this one has 50 MB, compressed to 50 KB."""
    archive = tmp_path / "a.tar.gz"
    tarred(archive, {"x": b"X"}, pax_headers={"comment": "0" * (50 * 10**6)})
    assert "header of more than" in said(lambda: extract(archive, tmp_path / "o", limit=10**9))
    assert names(tmp_path) == ["a.tar.gz"]


def test_a_tar_member_that_declares_much_is_refused(tmp_path: Path) -> None:
    """A header that declares 2⁶⁰ bytes is not looked behind."""
    header = tarfile.TarInfo("x")
    header.size = 2**60
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(header.tobuf() + bytes(10240)))
    assert "would expand to" in said(lambda: extract(archive, tmp_path / "o", limit=10**9))


@pytest.mark.parametrize("suffix", MAKERS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9])
def test_truncated_archives_are_refused(tmp_path: Path, suffix: str, share: float) -> None:
    """Wherever they end; a half extraction is not taken for a whole one."""
    members = {f"{i:02}": os.urandom(2000) for i in range(50)}
    archive = MAKERS[suffix](tmp_path / f"a.{suffix}", members)
    content = archive.read_bytes()
    archive.write_bytes(content[: int(share * len(content))])
    assert str(archive) in said(lambda: extract(archive, tmp_path / "out", limit=10**6))
    assert names(tmp_path) == [archive.name]


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz"])
def test_altered_archives_are_refused_or_extracted(tmp_path: Path, rng, suffix: str) -> None:
    """Nothing but a DataError comes out of them, and nothing gets outside."""
    members = {f"b/{i}": os.urandom(200) for i in range(9)}
    archive = MAKERS[suffix](tmp_path / f"a.{suffix}", members)
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
    assert names(tmp_path) == [archive.name, "out"]
    assert all(name.isdecimal() for name in names(tmp_path / "out"))


def test_what_a_killed_extraction_left_is_cleared_away(tmp_path: Path) -> None:
    """It has another name than a whole one."""
    archive = zipped(tmp_path / "a.zip", MEMBERS)
    (tmp_path / "out.partial").touch()
    (tmp_path / "out.partial.d").mkdir()
    (tmp_path / "out.partial.d" / "half").touch()
    target = extract(archive, tmp_path / "out", limit=10**6)
    assert names(tmp_path) == ["a.zip", "out"]
    assert names(target) == ["a.txt", "b", "e.txt"]


@pytest.mark.parametrize("locks", [True, False])
def test_threads_may_extract_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """All get the same folder, whole."""
    if not locks:
        monkeypatch.setattr(fetch, "_lock", lambda *args: False)
    archive = zipped(tmp_path / "a.zip", {f"b/{i}": b"x" for i in range(200)})
    out = tmp_path / "out"
    with ThreadPoolExecutor(4) as pool:
        counts = list(
            pool.map(lambda _: len(names(extract(archive, out, limit=10**6) / "b")), range(4))
        )
    assert counts == [200] * 4
    assert names(tmp_path) == ["a.zip", "out"]


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    """It is not overwritten."""
    archive = zipped(tmp_path / "a.zip", MEMBERS)
    (tmp_path / "out").touch()
    assert "is no folder" in said(lambda: extract(archive, tmp_path / "out", limit=10**6))


def test_one_member_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """One that is missing is an error that names it."""
    archive = zipped(tmp_path / "a.zip", MEMBERS)
    assert read_member(archive, "a.txt", limit=1) == b"A"
    assert "more than 100 bytes" in said(lambda: read_member(archive, "b/c.txt", limit=100))
    assert "holds no x" in said(lambda: read_member(archive, "x", limit=100))
    archive.write_bytes(b"PK")
    assert "cannot be read" in said(lambda: read_member(archive, "a.txt", limit=100))


def test_bzip2_data_that_is_no_tar_is_refused(tmp_path: Path) -> None:
    """And an archive that is not there is named."""
    (tmp_path / "a").write_bytes(bz2.compress(b"nothing of the kind" * 100))
    for name in ("a", "b"):
        assert f"{tmp_path / name} cannot be read" in said(
            lambda name=name: extract(tmp_path / name, tmp_path / "out", limit=10**6)
        )


# named data sets --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DATASETS)
def test_descriptions_are_well_formed(name: str) -> None:
    """Each file has URLs that end in its name, a SHA-256 of its own and a size."""
    dataset = named_dataset(name)
    assert dataset.name == name
    assert dataset.home.startswith("http")
    assert dataset.files
    for file in dataset.files:
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", file.checksum)
        assert file.size
        assert file.size > 4000
        assert re.fullmatch(r"[\w.-]+", file.name)
        assert len(set(file.urls)) == len(file.urls) >= 2
        for url in file.urls:
            assert re.fullmatch(rf"https?://[\w.-]+/[\w./~-]*{re.escape(file.name)}", url)
    assert dataset.form == {4: "folder"}.get(
        len(dataset.files), "tiny-imagenet" if name == "tiny-imagenet" else "file"
    )
    assert dataset.size == sum(file.size or 0 for file in dataset.files)


def test_no_two_files_are_the_same() -> None:
    """A checksum that was copied to the wrong place would be found twice."""
    checksums = [file.checksum for dataset in DATASETS.values() for file in dataset.files]
    assert len(set(checksums)) == len(checksums) == 11


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """And with all there are."""
    message = said(lambda: fetch_dataset("cifar-10"))
    assert "'cifar-10'" in message
    assert "Did you mean 'cifar10'?" in message
    assert "Known: cifar10, cifar100, fashion-mnist, mnist, tiny-imagenet" in message


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order; what is empty, or relative where it may not be, is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("RESCNET_CACHE", raising=False)
    for xdg in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache_folder() == Path("/home/me/.cache/rescnet")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/mine")
    assert cache_folder() == Path("/var/mine/rescnet")
    monkeypatch.setenv("RESCNET_CACHE", "~/sets")
    assert cache_folder() == Path("/home/me/sets")
    assert cache_folder("here") == tmp_path / "here"


def served(server: Server, name: str, contents: dict[str, bytes]) -> NamedDataset:
    """A named data set with other content, at a local server."""
    dataset = named_dataset(name)
    files = tuple(server.file(contents[file.name], file.name) for file in dataset.files)
    return replace(dataset, files=files)


def idx_files() -> dict[str, bytes]:
    """Four small files in the format of MNIST."""
    return {
        file.name: gzip.compress(
            struct.pack(">IIII", 2051, 2, 2, 2) + bytes([index] * 8)
            if "images" in file.name
            else struct.pack(">II", 2049, 2) + bytes([index] * 2)
        )
        for index, file in enumerate(named_dataset("mnist").files)
    }


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_data_sets_are_a_folder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of the four files; the progress is that of them all."""
    contents, seen = idx_files(), []
    dataset = served(server, name, contents)
    monkeypatch.setenv("RESCNET_CACHE", str(tmp_path))
    server.faults = ["", "breaks"]
    folder = fetch_dataset(dataset, progress=lambda *at: seen.append(at))
    assert folder == tmp_path / name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (dataset.size, dataset.size)
    server.asked.clear()
    assert fetch_dataset(dataset) == folder
    assert not server.asked


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_the_archive_itself(server: Server, tmp_path: Path, name: str) -> None:
    """Nothing is extracted."""
    file = named_dataset(name).files[0].name
    path = fetch_dataset(served(server, name, {file: CONTENT}), tmp_path)
    assert path == tmp_path / name / file
    assert path.read_bytes() == CONTENT


TINY = {
    "tiny-imagenet-200/wnids.txt": b"n01\nn02\n",
    "tiny-imagenet-200/words.txt": b"n01\tone\n",
    "tiny-imagenet-200/train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t1\t1\n",
    "tiny-imagenet-200/train/n01/images/n01_0.JPEG": b"1-0",
    "tiny-imagenet-200/train/n01/images/n01_1.JPEG": b"1-1",
    "tiny-imagenet-200/train/n02/images/n02_0.JPEG": b"2-0",
    "tiny-imagenet-200/test/images/test_0.JPEG": b"unlabeled",
    "tiny-imagenet-200/val/images/val_0.JPEG": b"v0",
    "tiny-imagenet-200/val/images/val_1.JPEG": b"v1",
    "tiny-imagenet-200/val/val_annotations.txt": (
        b"val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t52\t55\t57\t59\n"
    ),
}


def tiny(server: Server, folder: Path, members: dict[str, bytes]) -> NamedDataset:
    """Tiny ImageNet with other members, at a local server."""
    archive = zipped(folder / "made.zip", members)
    return served(server, "tiny-imagenet", {"tiny-imagenet-200.zip": archive.read_bytes()})


def test_tiny_imagenet_is_a_plain_folder(server: Server, tmp_path: Path) -> None:
    """Labeled images only, by split and class; extracted once, and then not even verified."""
    dataset = tiny(server, tmp_path, TINY)
    folder = fetch_dataset(dataset, tmp_path / "cache")
    images = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert images == {
        "train/n01/n01_0.JPEG": b"1-0",
        "train/n01/n01_1.JPEG": b"1-1",
        "train/n02/n02_0.JPEG": b"2-0",
        "val/n02/val_0.JPEG": b"v0",
        "val/n01/val_1.JPEG": b"v1",
    }
    assert names(folder.parent) == ["tiny-imagenet-200", "tiny-imagenet-200.zip"]
    (folder.parent / "tiny-imagenet-200.zip").unlink()
    assert fetch_dataset(dataset, tmp_path / "cache") == folder
    assert len(server.asked) == 1


def test_tiny_imagenet_without_labels_is_refused(server: Server, tmp_path: Path) -> None:
    """Of all images or of one; no folder is made."""
    annotations = "tiny-imagenet-200/val/val_annotations.txt"
    none = {name: content for name, content in TINY.items() if name != annotations}
    message = said(lambda: fetch_dataset(tiny(server, tmp_path, none), tmp_path / "none"))
    assert f"holds no {annotations}" in message
    one = TINY | {annotations: b"val_0.JPEG\tn02\t0\t32\t44\t62\n"}
    message = said(lambda: fetch_dataset(tiny(server, tmp_path, one), tmp_path / "one"))
    assert "names no class for val_1.JPEG" in message
    assert names(tmp_path / "one" / "tiny-imagenet") == ["tiny-imagenet-200.zip"]


def test_all_missing_files_are_named_without_a_network(
    server: Server, nobody: str, tmp_path: Path
) -> None:
    """And once they are put there by hand, the data set is ready."""
    contents = idx_files()
    dataset = served(server, "mnist", contents)
    offline = replace(
        dataset,
        files=tuple(replace(file, urls=(f"{nobody}/{file.name}",)) for file in dataset.files),
    )
    folder = tmp_path / "mnist"
    folder.mkdir()
    last = offline.files[-1]
    (folder / last.name).write_bytes(contents[last.name])
    message = said(lambda: fetch_dataset(offline, tmp_path))
    assert str(folder / offline.files[0].name) in message
    for file in offline.files[:-1]:
        assert file.urls[0] in message
        assert file.checksum in message
    assert last.urls[0] not in message
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    assert fetch_dataset(offline, tmp_path) == folder
