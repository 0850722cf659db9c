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
        serve_dataset: Server = self.server.served
        requested = self.headers.get("Range")
        with serve_dataset.lock:
            serve_dataset.requested.append(requested)
            serve_dataset.sent.append(0)
            index = len(serve_dataset.sent) - 1
            fault = (
                serve_dataset.faults.pop(0) if serve_dataset.faults else serve_dataset.default_fault
            )
        content = serve_dataset.files.get(self.path)
        if content is None or fault.isdecimal():
            self.send_error(int(fault or 404))
            return
        if fault == "wrong":
            content = bytes(len(content))
        if fault == "short":
            content = content[: len(content) // 2]
        start_download = int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
        if requested and serve_dataset.ranges and start_download >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        start_download = start_download if serve_dataset.ranges else 0
        self.send_response(206 if requested and serve_dataset.ranges else 200)
        if requested and serve_dataset.ranges:
            first = 7 if fault == "wrong range" else start_download
            content_range = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", content_range)
        if serve_dataset.lengths:
            self.send_header("Content-Length", str(len(content) - start_download))
        self.end_headers()
        if fault == "silent":
            serve_dataset.released.wait(30)
            return
        half, tenth = len(content) // 2, start_download + len(content) // 10
        stop = {"interrupted": half, "hangs": half, "tenth": tenth}.get(fault, len(content))
        serve_dataset.sent[index] = max(
            0, stop - start_download
        )  # before the bytes, as the test continues after them
        try:
            self.wfile.write(content[start_download:stop])
            self.wfile.flush()
            if fault == "hangs":
                serve_dataset.released.wait(30)
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
