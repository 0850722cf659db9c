"""Runs in notebooks: what a cell shows, and its updates during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist.dashboard import notebook
from tests.dashboard.conftest import LAYERS, PausedRun


def test_run_html(run: Path) -> None:
    """Its summary and chart; description, figures and report are available."""
    found = rd.open_run(run)
    assert repr(found) == f"<Run {run}>"
    html = found._repr_html_()
    assert "small</b> is done" in html
    assert html.count("<circle") == 2 * LAYERS
    assert found.describe()["bytes"]["maps"] > 0
    assert found.plot.accuracy().axes
    assert "<svg" in found.report(images=20)


class Display:
    """Replaces the display function of IPython, which needs a kernel."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, html: Any, display_id: bool) -> Display:
        self.update(html)
        return self

    def update(self, html: Any) -> None:
        """Record what is shown."""
        self.shown.append(html.data)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    """The recorded output of a cell."""
    display = Display()
    monkeypatch.setattr("IPython.display.display", display)
    return display


def test_watch_follows_a_running_run(client: Client, tmp_path: Path, display: Display) -> None:
    """It reads the store until the run is done."""
    with PausedRun(tmp_path / "run", before=2) as paused:
        watch = rd.open_run(tmp_path / "run").watch(every=0.05)
        assert "is running" in display.shown[0]
        assert not watch.ended
        paused.resume()
        assert watch.wait(60)
    assert watch.ended
    assert "is done" in display.shown[-1]
    assert display.shown[-1].count("<circle") == 2 * LAYERS


def test_watch_survives_an_unreachable_store(
    run: Path, display: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last view stays, with the reason; watching can be stopped."""
    found = rd.open_run(run)
    view = found.view()
    view.state = "running"
    answers = [view]

    def read_view() -> Any:
        if answers:
            return answers.pop()
        raise rd.StoreError("the store <is> away")

    monkeypatch.setattr(found, "view", read_view)
    watch = found.watch(every=0.01)
    while "away" not in display.shown[-1]:
        assert not watch.ended
    assert "StoreError: the store &lt;is&gt; away" in display.shown[-1]
    assert "small</b> is running" in display.shown[-1]
    watch.stop()
    assert watch.ended


@pytest.mark.parametrize("every", [0, -1, float("nan")])
def test_bad_interval_raises(run: Path, every: float, display: Display) -> None:
    """The message names the parameter."""
    with pytest.raises(rd.RescnetError, match="every="):
        rd.open_run(run).watch(every=every)
    assert notebook.WATCH_SECONDS > 0
