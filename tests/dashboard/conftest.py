"""A real browser, and small runs to look at with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits

IMAGES, LAYERS = 120, 3
X, Y = (array[:IMAGES] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(
    filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, learning_rate=0.5,
    stop_at_zero_error=False, max_layers=LAYERS,
)  # fmt: skip
RUN = RunSpec(chunk_images=30, accumulators=2, solve_threads=1, validation=0.25)


def train(store: Path, **more: Any) -> ResCNetClassifier:
    """A run of a second or two on digits of 14×14 pixels, given as arrays."""
    return ResCNetClassifier(SPEC, store=store, run=RUN, **more).fit(X, Y)


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, where the machine has one."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium (such as Debian's package chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


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
