"""Fixtures: small runs, and pages in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.events import Event, PassStarted

IMAGES, LAYERS = 120, 3
X, Y = (array[:IMAGES] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(
    filters=4,
    first_filter_size=3,
    block=5,
    stride=2,
    sigma=2.0,
    learning_rate=0.5,
    stop_at_zero_error=False,
    max_layers=LAYERS,
)
RUN = RunSpec(chunk_images=30, accumulators=2, solve_threads=1, validation=0.25, maps="store")


def train(store: Path, **options: Any) -> ResCNetClassifier:
    """Train for a second or two on digits of 14×14 pixels, given as arrays."""
    return ResCNetClassifier(SPEC, store=store, run=RUN, **options).fit(X, Y)


class PausedRun:
    """A run in a thread that pauses before a layer, the third by default, until it is resumed."""

    def __init__(self, store: Path, before: int = 3) -> None:
        self.store, self._before = store, before
        self._paused, self._resumed = threading.Event(), threading.Event()
        listeners = {"listeners": [self._wait]}
        self._thread = threading.Thread(target=train, args=[store], kwargs=listeners)

    def _wait(self, event: Event) -> None:
        if event == PassStarted("grow", self._before):
            self._paused.set()
            assert self._resumed.wait(120)

    def __enter__(self) -> PausedRun:
        """Start the run, and wait until it pauses."""
        self._thread.start()
        assert self._paused.wait(60)
        return self

    def resume(self) -> None:
        """Let the run continue."""
        self._resumed.set()

    def __exit__(self, *_: Any) -> None:
        """Wait for the end of the run."""
        self.resume()
        self._thread.join()


def cluster_with_dashboard() -> LocalCluster:
    """Return a cluster with a worker in this process and a dashboard on loopback."""
    return LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
    )


@pytest.fixture(scope="session")
def run(threads_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three layers."""
    store = tmp_path_factory.mktemp("runs") / "small"
    with Client(threads_cluster):
        train(store)
    return store


@pytest.fixture(scope="session")
def digits_run(run: Path) -> str:
    """The URL of the finished run."""
    return str(run)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a URL at 1280×800; the console must stay silent."""
    pages, messages = [], []

    def open_url(url: str, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("console", lambda m: m.type in ("error", "warning") and messages.append(m.text))
        pages.append(page)
        page.goto(url)
        return page

    yield open_url
    for page in pages:
        page.close()
    assert messages == []
