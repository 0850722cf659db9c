"""Concurrent and killed downloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from download_helpers import CONTENT, HALF, SHORT_WAITS, Server, get_error, list_names

from rescnet_dist.data import fetch
from rescnet_dist.data.fetch import RemoteFile, download
from rescnet_dist.errors import DataError

DOWNLOAD_SCRIPT = """
import os, sys, types
folder, end, name, url, checksum, size, root = sys.argv[1:]
for package in ("rescnet_dist", "rescnet_dist.data"):  # whose imports are slow and not needed
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [os.path.join(root, *package.split("."))]
from rescnet_dist.data.fetch import RemoteFile, download
if end == "dies":
    os.replace = lambda *paths: os._exit(9)
print("ready", flush=True)
sys.stdin.readline()
print(download(RemoteFile(name, (url,), checksum, int(size)), folder))
"""


def start_download(file: RemoteFile, folder: Path, end: str = "lives") -> subprocess.Popen[str]:
    """Start a process that downloads a file once it reads a line."""
    root = Path(fetch.__file__).parents[2]
    arguments = (folder, end, file.name, *file.urls, file.checksum, file.size, root)
    return subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD_SCRIPT, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"no_proxy": "127.0.0.1"},
    )


def test_killed_and_concurrent_processes(server: Server, tmp_path: Path) -> None:
    """A process killed before the rename, one killed in between, and two at once.

    This is one test, as processes take long to start.
    """
    file, others = server.file(), tmp_path / "others"
    processes = [
        start_download(file, tmp_path / "renames", "dies"),
        *(start_download(file, others) for _ in range(3)),
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        processes[0].communicate("go\n")
        assert processes[0].returncode == 9
        assert list_names(tmp_path / "renames") == ["a.bin.partial"]
        server.requested.clear()
        assert download(file, tmp_path / "renames").read_bytes() == CONTENT
        assert server.requested == [], "the partial file was complete"

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
            results = list(pool.map(lambda process: process.communicate("go\n"), processes[2:]))
        assert [out.strip() for out, _ in results] == [str(others / "a.bin")] * 2
        assert (others / "a.bin").read_bytes() == CONTENT
        assert list_names(others) == ["a.bin"]
        assert server.requested == [None, f"bytes={HALF}-"], "one process waits for the other"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("locks", [True, False])
def test_concurrent_threads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """One downloads and is interrupted, another resumes; without locks each has its own file."""
    if not locks:
        monkeypatch.setattr(fetch, "_lock", lambda *args: False)
    file, server.faults = server.file(), ["interrupted", "503"]
    with ThreadPoolExecutor(6) as pool:
        paths = list(pool.map(lambda _: download(file, tmp_path, **SHORT_WAITS), range(6)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert list_names(tmp_path) == ["a.bin"]
    if locks:
        assert sum(server.sent) == len(CONTENT)


def test_waiting_threads_try_after_failure(server: Server, tmp_path: Path) -> None:
    """The file that they have waited for is gone."""
    file, server.faults = server.file(), ["wrong", "404", "wrong"]

    def attempt(_: int) -> bool:
        try:
            return bool(download(file, tmp_path, **SHORT_WAITS))
        except DataError:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, range(4))) == [False, False, False, True]
    assert list_names(tmp_path) == ["a.bin"]


def test_lock_timeout(tmp_path: Path) -> None:
    """The error names the locked file."""
    with fetch.partial_file(tmp_path / "a") as partial:
        assert partial is not None
        second = fetch.partial_file(tmp_path / "a", 0.1)
        message = get_error(second.__enter__)
    assert f"{tmp_path / 'a.partial'}" in message
    assert list_names(tmp_path) == []
