"""Small runs to look at with a real browser, and pages of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.train import Event, PassStarted

IMAGES, LAYERS = 120, 3
X, Y = (array[:IMAGES] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(
    filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, learning_rate=0.5,
    stop_at_zero_error=False, max_layers=LAYERS,
)  # fmt: skip
RUN = RunSpec(chunk_images=30, accumulators=2, solve_threads=1, validation=0.25, maps="store")


def train(store: Path, **more: Any) -> ResCNetClassifier:
    """A run of a second or two on digits of 14×14 pixels, given as arrays."""
    return ResCNetClassifier(SPEC, store=store, run=RUN, **more).fit(X, Y)


class PausedRun:
    """A run in a thread that waits before a layer, its third, until it is let go."""

    def __init__(self, store: Path, before: int = 3) -> None:
        self.store, self._before = store, before
        self._reached, self._free = threading.Event(), threading.Event()
        listeners = {"listeners": [self._wait]}
        self._thread = threading.Thread(target=train, args=[store], kwargs=listeners)

    def _wait(self, event: Event) -> None:
        if event == PassStarted("grow", self._before):
            self._reached.set()
            assert self._free.wait(120)

    def __enter__(self) -> PausedRun:
        """Begin, and give the run when it waits."""
        self._thread.start()
        assert self._reached.wait(60)
        return self

    def let_go(self) -> None:
        """Let the run go on."""
        self._free.set()

    def __exit__(self, *_: Any) -> None:
        """Wait for its end."""
        self.let_go()
        self._thread.join()


def cluster_with_dashboard() -> LocalCluster:
    """A worker in this process, and a dashboard on loopback."""
    return LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
    )  # fmt: skip


@pytest.fixture(scope="session")
def run(threads_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three layers that is done."""
    store = tmp_path_factory.mktemp("runs") / "small"
    with Client(threads_cluster):
        train(store)
    return store


@pytest.fixture(scope="session")
def digits_run(run: Path) -> str:
    """Its URL."""
    return str(run)


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a URL in a page of 1280×800, whose console must stay silent."""
    pages, said = [], []

    def opened(url: str, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else 0)
        pages.append(page)
        page.goto(url)
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []
