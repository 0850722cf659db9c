"""Runs in a notebook: what a cell shows, and that it is kept up to date while a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist.dashboard import notebook
from tests.dashboard.conftest import LAYERS, PausedRun


def test_a_run_shows_itself(run: Path) -> None:
    """Its words and its curve; and it gives what else there is to see."""
    found = rd.open_run(run)
    assert repr(found) == f"<Run {run}>"
    html = found._repr_html_()
    assert "small</b> is done" in html
    assert html.count("<circle") == 2 * LAYERS
    assert found.describe()["bytes"]["maps"] > 0
    assert found.plot.accuracy().axes
    assert "<svg" in found.report(images=20)


class Display:
    """Stands in for the display of IPython, which is another process's."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, html: Any, display_id: bool) -> Display:
        self.update(html)
        return self

    def update(self, html: Any) -> None:
        """Show something else."""
        self.shown.append(html.data)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    """What a cell shows."""
    shown = Display()
    monkeypatch.setattr("IPython.display.display", shown)
    return shown


def test_a_run_that_goes_on_is_shown_anew(client: Client, tmp_path: Path, display: Display) -> None:
    """From the store, until it is done."""
    with PausedRun(tmp_path / "run", before=2) as held:
        watch = rd.open_run(tmp_path / "run").watch(every=0.05)
        assert "is running" in display.shown[0]
        assert not watch.ended
        held.let_go()
        assert watch.wait(60)
    assert watch.ended
    assert "is done" in display.shown[-1]
    assert display.shown[-1].count("<circle") == 2 * LAYERS


def test_watching_can_be_stopped_and_survives_a_store_that_is_away(
    run: Path, display: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was shown stays, with the reason."""
    found = rd.open_run(run)
    view = found.view()
    view.state = "running"
    answers = [view]

    def look() -> Any:
        if answers:
            return answers.pop()
        raise rd.StoreError("the store <is> away")

    monkeypatch.setattr(found, "view", look)
    watch = found.watch(every=0.01)
    while "away" not in display.shown[-1]:
        assert not watch.ended
    assert "StoreError: the store &lt;is&gt; away" in display.shown[-1]
    assert "small</b> is running" in display.shown[-1]
    watch.stop()
    assert watch.ended


@pytest.mark.parametrize("every", [0, -1, float("nan")])
def test_bad_intervals_are_refused(run: Path, every: float, display: Display) -> None:
    """By name."""
    with pytest.raises(rd.RescnetError, match="every="):
        rd.open_run(run).watch(every=every)
    assert notebook.WATCH_SECONDS > 0
