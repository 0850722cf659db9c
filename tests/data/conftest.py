"""Fixtures of the tests of datasets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from download_helpers import Handler, Server
from import_helpers import BAD_IMAGES, TaskBudget, save_image, write_within_budget

from rescnet_dist.data import import_record, importing


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for this test, reached without a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    state = Server(f"http://127.0.0.1:{http.server_port}")
    http.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
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


@pytest.fixture
def photos(tmp_path: Path, rng: np.random.Generator) -> Path:
    """30 PNG files of 8×6 in color: two splits, two classes; `train` has 20."""
    folder = tmp_path / "photos"
    for split, count in (("train", 20), ("test", 10)):
        for number in range(count):
            name = f"{split}/{('cat', 'dog')[number % 2]}/{number:02}.png"
            save_image(folder / name, rng.integers(0, 256, (8, 6, 3), np.uint8))
    return folder


@pytest.fixture
def bad_photos(photos: Path, tmp_path: Path) -> Path:
    """The photos, of which four cannot be used; the folder `clean` has the others only."""
    for path in photos.rglob("*.png"):
        name = str(path.relative_to(photos))
        if name not in BAD_IMAGES:
            (tmp_path / "clean" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "clean" / name).write_bytes(path.read_bytes())
    (photos / BAD_IMAGES[0]).write_bytes(b"no image")
    save_image(photos / BAD_IMAGES[1], np.zeros((9, 6, 3), np.uint8))
    save_image(photos / BAD_IMAGES[2], np.zeros((8, 6), np.uint8))
    (photos / BAD_IMAGES[3]).write_bytes((photos / BAD_IMAGES[3]).read_bytes()[:60])
    return photos


@pytest.fixture
def limit_tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """A function that sets the number of tasks that may run; returns a list of their rows."""
    monkeypatch.setattr(importing, "_write_rows", write_within_budget)
    monkeypatch.setattr(import_record, "MAX_TASK_CHUNKS", 1)

    def set_limit(limit: int = 10**9) -> list[int]:
        TaskBudget.remaining, TaskBudget.starts = limit, []
        return TaskBudget.starts

    return set_limit
