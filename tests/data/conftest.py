"""Fixtures of the tests of data sets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from download_helpers import (
    Handler,
    Server,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for this test, reached without a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    serve_dataset = Server(f"http://127.0.0.1:{http.server_port}")
    http.served = serve_dataset  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield serve_dataset
    finally:
        serve_dataset.released.set()
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture
def unused_url(monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL at which no server listens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
