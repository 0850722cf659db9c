"""Downloads from a real HTTP server with faults."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from download_helpers import CONTENT, HALF, SHORT_WAITS, Server, get_error, list_names

from rescnet_dist.data import fetch
from rescnet_dist.data.fetch import RemoteFile, download


def test_download_once_and_report_progress(server: Server, tmp_path: Path) -> None:
    """The second call verifies the file and does not download it."""
    file, seen = server.file(), []
    path = download(file, tmp_path / "new" / "folder", progress=lambda *at: seen.append(at))
    assert path == tmp_path / "new" / "folder" / "a.bin"
    assert path.read_bytes() == CONTENT
    assert list_names(path.parent) == ["a.bin"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    assert download(file, path.parent, progress=lambda *at: seen.append(at)) == path
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(server.requested) == 1


@pytest.mark.parametrize("size", [True, False])
def test_md5_checksum_and_unknown_size(server: Server, tmp_path: Path, size: bool) -> None:
    """If neither server nor description have a size, the progress has no total."""
    file = replace(server.file(size=size), checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    server.lengths, totals = False, set()
    path = download(file, tmp_path, progress=lambda done, total: totals.add(total))
    assert path.read_bytes() == CONTENT
    assert totals == {len(CONTENT) if size else None}


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("fault", ["interrupted", "hangs"])
def test_resume_interrupted_download(
    server: Server, tmp_path: Path, fault: str, size: bool
) -> None:
    """Within one call, and only the missing bytes are sent the second time."""
    server.faults = [fault]
    assert download(server.file(size=size), tmp_path, **SHORT_WAITS).read_bytes() == CONTENT
    assert server.requested == [None, f"bytes={HALF}-"]
    assert server.sent == [HALF, len(CONTENT) - HALF]
    assert list_names(tmp_path) == ["a.bin"]


def test_next_call_resumes_failed_download(server: Server, tmp_path: Path) -> None:
    """The error has the number of bytes so far, which are not sent again."""
    server.default_fault = "interrupted"
    file = server.file()
    message = get_error(lambda: download(file, tmp_path, **SHORT_WAITS))
    assert f"was interrupted after {HALF:,} of {len(CONTENT):,} bytes" in message
    assert f"resumes after the first {HALF:,} bytes" in message
    assert len(server.requested) == 1 + fetch.MAX_IDLE_ATTEMPTS
    assert (tmp_path / "a.bin.partial").stat().st_size == HALF
    assert list_names(tmp_path) == ["a.bin.partial"]
    server.default_fault = ""
    server.sent.clear()
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.sent == [len(CONTENT) - HALF]
    assert list_names(tmp_path) == ["a.bin"]


def test_attempts_with_progress_are_not_limited(server: Server, tmp_path: Path) -> None:
    """A server that fails after a tenth of the file each time is used to the end."""
    server.faults = ["tenth", "503"] * 9
    assert (
        download(server.file(), tmp_path, **SHORT_WAITS, max_idle_attempts=2).read_bytes()
        == CONTENT
    )
    assert sum(server.sent) == len(CONTENT)


def test_server_without_ranges(server: Server, tmp_path: Path) -> None:
    """The download starts from the beginning; one that always fails is given up."""
    server.ranges, server.faults = False, ["interrupted"]
    file = server.file()
    assert download(file, tmp_path, **SHORT_WAITS).read_bytes() == CONTENT
    assert server.requested == [None, f"bytes={HALF}-"]
    assert server.sent == [HALF, len(CONTENT)]
    server.default_fault = "interrupted"
    assert "was interrupted" in get_error(lambda: download(file, tmp_path / "b", **SHORT_WAITS))


def test_wrong_range_is_not_used(server: Server, tmp_path: Path) -> None:
    """The file is downloaded again from the start."""
    (tmp_path / "a.bin.partial").write_bytes(CONTENT[:HALF])
    server.faults = ["wrong range"]
    assert download(server.file(), tmp_path, **SHORT_WAITS).read_bytes() == CONTENT
    assert server.requested == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("size", [True, False])
def test_wrong_checksum_leaves_no_file(server: Server, tmp_path: Path, size: bool) -> None:
    """The error names both checksums and the URL."""
    server.default_fault = "wrong"
    file = server.file(size=size)
    message = get_error(lambda: download(file, tmp_path, **SHORT_WAITS))
    found = hashlib.sha256(bytes(len(CONTENT))).hexdigest()
    for part in (file.urls[0], f"sha256:{found}, not {file.checksum}"):
        assert part in message
    assert list_names(tmp_path) == []
    assert len(server.requested) == 1, "a wrong file is not requested again"


@pytest.mark.parametrize("content", [b"\0" * 1000, CONTENT + b"\0", b"\0" * len(CONTENT)])
@pytest.mark.parametrize("size", [True, False])
def test_a_partial_file_that_is_wrong_is_remapped(
    server: Server, tmp_path: Path, content: bytes, size: bool
) -> None:
    """A partial file that is too long or differs is downloaded from the start."""
    (tmp_path / "a.bin.partial").write_bytes(content)
    assert download(server.file(size=size), tmp_path, **SHORT_WAITS).read_bytes() == CONTENT
    assert server.requested[-1] is None
    assert list_names(tmp_path) == ["a.bin"]


def test_wrong_content_length(server: Server, tmp_path: Path) -> None:
    """A wrong length is an error before the download; an unknown one fails the checksum."""
    server.default_fault = "short"
    message = get_error(lambda: download(server.file(), tmp_path, **SHORT_WAITS))
    assert f"has {HALF:,} bytes, not {len(CONTENT):,}" in message
    message = get_error(lambda: download(server.file(size=False), tmp_path, **SHORT_WAITS))
    assert "has the checksum" in message
    assert f"not {server.file(size=False).checksum}" in message
    assert list_names(tmp_path) == []


def test_stop_at_expected_size(server: Server, tmp_path: Path) -> None:
    """If the server does not declare a length, the download stops at the known size."""
    server.lengths, server.default_fault = False, "more"
    message = get_error(lambda: download(server.file(), tmp_path, **SHORT_WAITS))
    assert f"sends more than {len(CONTENT):,} bytes" in message
    assert list_names(tmp_path) == []


def test_retry_transient_status_only(server: Server, tmp_path: Path) -> None:
    """404 fails at once; 500 and 429 are retried."""
    file = server.file()
    server.faults = ["500", "429"]
    assert download(file, tmp_path, **SHORT_WAITS).read_bytes() == CONTENT
    server.requested.clear()
    server.files.clear()
    message = get_error(lambda: download(file, tmp_path / "b", **SHORT_WAITS))
    assert "HTTP error 404" in message
    assert str(tmp_path / "b" / "a.bin") in message
    assert len(server.requested) == 1
    assert list_names(tmp_path / "b") == []


def test_timeout_of_silent_server(server: Server, tmp_path: Path) -> None:
    """The download fails after the timeout and the given number of attempts."""
    server.default_fault = "silent"
    started = time.monotonic()
    message = get_error(
        lambda: download(server.file(), tmp_path, timeout=0.5, max_idle_attempts=2, first_wait=0)
    )
    assert "timed out" in message
    assert len(server.requested) == 2
    assert time.monotonic() - started < 5


def test_try_mirrors_in_order(server: Server, unused_url: str, tmp_path: Path) -> None:
    """Mirrors that are gone, wrong or interrupted are skipped; received bytes are used."""
    file = server.file()
    server.files["/wrong"] = bytes(len(CONTENT))
    urls = (f"{unused_url}/a", f"{server.url}/gone", f"{server.url}/wrong", *file.urls)
    server.faults = ["", "", "interrupted"]
    mirrored = replace(file, urls=(*urls, f"{server.url}//a.bin"))
    server.files["//a.bin"] = CONTENT
    assert download(mirrored, tmp_path, **SHORT_WAITS).read_bytes() == CONTENT
    assert server.sent == [0, len(CONTENT), HALF, len(CONTENT) - HALF]
    message = get_error(
        lambda: download(
            replace(file, urls=urls[:3]), tmp_path / "b", **SHORT_WAITS, max_idle_attempts=1
        )
    )
    assert all(url in message for url in urls[:3])


def test_only_http_urls_are_allowed(tmp_path: Path) -> None:
    """A file:// URL must not read files of this machine."""
    (tmp_path / "a").write_bytes(CONTENT)
    file = RemoteFile("a.bin", (f"file://{tmp_path / 'a'}",), "sha256:00")
    assert "not an http or https URL" in get_error(lambda: download(file, tmp_path / "cache"))


def test_error_masks_secrets_in_urls(unused_url: str, tmp_path: Path) -> None:
    """Neither the reasons nor the remedy have the secret."""
    file = RemoteFile("a.bin", (f"{unused_url}/a?token=abc123",), "sha256:00")
    assert "abc123" not in get_error(lambda: download(file, tmp_path, **SHORT_WAITS))


def test_offline_error_says_where_to_put_file(
    server: Server, unused_url: str, tmp_path: Path
) -> None:
    """A file that was put there is used if its checksum is correct."""
    file = replace(server.file(), urls=(f"{unused_url}/a.bin",))
    message = get_error(lambda: download(file, tmp_path, **SHORT_WAITS))
    by_hand = tmp_path / "a.bin"
    for part in ("refused", file.urls[0], file.checksum, str(by_hand), "Check the network"):
        assert part in message
    assert list_names(tmp_path) == []
    by_hand.write_bytes(CONTENT[1:])
    message = get_error(lambda: download(file, tmp_path))
    found = hashlib.sha256(CONTENT[1:]).hexdigest()
    for part in (str(by_hand), f"sha256:{found}, not {file.checksum}", "Remove it"):
        assert part in message
    assert by_hand.exists()
    by_hand.write_bytes(CONTENT)
    assert download(file, tmp_path) == by_hand


def test_error_names_unwritable_cache(server: Server, tmp_path: Path) -> None:
    """Here the cache is a file."""
    (tmp_path / "cache").write_bytes(b"")
    message = get_error(lambda: download(server.file(), tmp_path / "cache"))
    assert str(tmp_path / "cache" / "a.bin") in message
    assert "check your permissions" in message
