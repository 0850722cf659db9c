"""A faulty HTTP server and helpers for the tests of downloads and archives."""

from __future__ import annotations

import hashlib
import stat
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rescnet_dist.data.fetch import RemoteFile
from rescnet_dist.errors import DataError

CONTENT = bytes(range(256)) * 4000  # about 1 MB
HALF = len(CONTENT) // 2
SHORT_WAITS = {"timeout": 1.0, "first_wait": 0.01}  # in seconds


@dataclass
class Server:
    """An HTTP server on loopback: its files and faults, and the requests it has answered."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # of the first responses, in this order
    default_fault: str = ""  # of all responses after those
    ranges: bool = True
    lengths: bool = True  # whether responses have a Content-Length
    requested: list[str | None] = field(default_factory=list)  # the Range of each request
    sent: list[int] = field(default_factory=list)  # the number of bytes of each response
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)  # ends hanging responses

    def file(self, content: bytes = CONTENT, name: str = "a.bin", *, size: bool = True):
        """Serve a file and return its description."""
        self.files[f"/{name}"] = content
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        urls = (f"{self.url}/{name}",)
        return RemoteFile(name, urls, checksum, len(content) if size else None)


class Handler(BaseHTTPRequestHandler):
    """Serves the files of the server, with the faults that it is configured to have."""

    server: Any
    protocol_version = "HTTP/1.0"  # one response for each connection

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Send the file, or the requested range of it."""
        state: Server = self.server.state
        requested = self.headers.get("Range")
        with state.lock:
            state.requested.append(requested)
            state.sent.append(0)
            index = len(state.sent) - 1
            fault = state.faults.pop(0) if state.faults else state.default_fault
        content = state.files.get(self.path)
        if content is None or fault.isdecimal():
            self.send_error(int(fault or 404))
            return
        if fault == "wrong":
            content = bytes(len(content))
        if fault == "short":
            content = content[: len(content) // 2]
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
        if requested and state.ranges and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        start = start if state.ranges else 0
        self.send_response(206 if requested and state.ranges else 200)
        if requested and state.ranges:
            first = 7 if fault == "wrong range" else start
            content_range = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", content_range)
        if state.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if fault == "silent":
            state.released.wait(30)
            return
        half, tenth = len(content) // 2, start + len(content) // 10
        stop = {"interrupted": half, "hangs": half, "tenth": tenth}.get(fault, len(content))
        # Counted before the bytes are sent, as the test continues after them.
        state.sent[index] = max(0, stop - start)
        try:
            self.wfile.write(content[start:stop])
            self.wfile.flush()
            if fault == "hangs":
                state.released.wait(30)
            if fault == "more":
                self.wfile.write(b"more")
        except OSError:
            pass


def list_names(folder: Path) -> list[str]:
    """Return the sorted names in a folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def get_error(action: Callable[[], Any]) -> str:
    """Return the message of the DataError that an action raises."""
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


def make_zip(path: Path, members: dict[str, bytes], modes: dict[str, int] | None = None) -> Path:
    """Create a zip archive with these members, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return path
