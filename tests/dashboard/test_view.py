"""Views of runs: the same from events as from the store, and a board that keeps the last ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import ResCNetClassifier
from rescnet_dist.dashboard import RunView, StoredRun
from rescnet_dist.dashboard import scheduler as dashboard_scheduler
from rescnet_dist.dashboard.plots import short_names
from rescnet_dist.dashboard.scheduler import MAX_BOARD_RUNS, Board, RunsPlugin, SchedulerPage
from rescnet_dist.train import Event, PassStarted, RunStarted, event_to_dict
from tests.dashboard.conftest import LAYERS, train


def test_events_make_the_view_that_the_store_gives(client: Client, tmp_path: Path) -> None:
    """After each pass, but for accuracies to come; and at the end in all."""
    views: list[RunView] = []

    def listen(event: Event) -> None:
        if isinstance(event, RunStarted):
            views.append(StoredRun(event.url).view())
        views[0].handle_event(event_to_dict(event))

    train(tmp_path / "run", listeners=[listen])
    stored = StoredRun(str(tmp_path / "run")).view()
    assert views[0].layers == stored.layers
    assert (views[0].state, views[0].depth, views[0].reason) == (
        "done",
        stored.depth,
        stored.reason,
    )
    assert stored.state == "done"
    assert len(stored.layers) == LAYERS
    assert stored.planned_memory
    assert views[0].current is None


def test_a_run_that_is_taken_further_goes_on(client: Client, tmp_path: Path) -> None:
    """It was done, and is not while it grows; its reason is gone, and its depth the best so far."""
    train(tmp_path / "run")
    states = []

    def look(event: Event) -> None:
        if event == PassStarted("grow", LAYERS + 1):
            view = StoredRun(str(tmp_path / "run")).view()
            states.append((view.state, view.reason))
            heard = StoredRun(str(tmp_path / "run")).view()
            heard.state, heard.reason = "done", "before"
            heard.handle_event(event_to_dict(event))
            states.append((heard.state, heard.reason))

    ResCNetClassifier.resume(tmp_path / "run", max_layers=LAYERS + 1, listeners=[look])
    assert states == [("running", None)] * 2
    assert StoredRun(str(tmp_path / "run")).view().state == "done"


def test_runs_of_the_same_name_are_told_apart(run: Path) -> None:
    """By as much of their URLs as it takes."""
    one, other, third = (StoredRun(str(run)).view() for _ in range(3))
    one.url, other.url, third.url = "/a/x/run", "/b/x/run", "/b/x/walk"
    assert short_names([one]) == ["run"]
    assert short_names([one, third]) == ["run", "walk"]
    assert short_names([one, other]) == ["a/x/run", "b/x/run"]
    assert short_names([one, one]) == ["/a/x/run"] * 2


def test_notes_and_memory_do_not_grow_without_end(run: Path) -> None:
    """As thousands of workers come and go, and thousands of chunks are rebuilt."""
    view = StoredRun(str(run)).view()
    view.handle_event({"event": "pass_retried", "reason": "why"})
    for _ in range(1000):
        view.handle_event({"event": "chunk_rebuilt", "layer": 2})
    assert len(view.notes) == 2
    assert view.notes[0] == "why"


def test_maps_that_leave_memory_are_noted(run: Path) -> None:
    """Not those that are in the store from the first layer on."""
    view = StoredRun(str(run)).view()
    for layer, in_memory in enumerate([False, True, True, False], start=1):
        told = {"layer": layer, "in_memory": in_memory, "features": False, "reason": "in the store"}
        view.handle_event({"event": "maps_placed", **told})
    assert view.notes == ["layer 4: maps are now in the store"]


def test_time_left_is_that_of_the_layers_to_come(run: Path) -> None:
    """By the median of the last ones, less what the one that grows has taken."""
    view = StoredRun(str(run)).view()
    view.state, view.max_layers = "running", 10
    for layer, seconds in zip(view.layers, (9.0, 4.0, 6.0), strict=True):
        layer.seconds = seconds
    assert view.layer_seconds() == 5.0  # the first layer is another kind of pass
    assert view.seconds_left() == 7 * 5.0
    view.handle_event({"event": "pass_started", "phase": "grow", "layer": 4, "time": 1000.0})
    assert view.seconds_left(1002.0) == 7 * 5.0 - 2
    assert view.seconds_left(1099.0) == 6 * 5.0
    view.state = "unfinished"
    assert view.seconds_left() is None


def test_a_chunk_that_is_redone_counts_once(run: Path) -> None:
    """And one of a pass that was given up counts nothing."""
    view = StoredRun(str(run)).view()
    view.handle_event({"event": "pass_started", "phase": "grow", "layer": 4, "time": 0.0})
    chunk = {"event": "chunk_done", "phase": "grow", "start": 0, "images": 60}
    for layer in (4, 4, 3):
        view.handle_event(chunk | {"layer": layer, "worker": "w", "memory": 5})
    assert view.current
    assert view.current.images == 60
    assert view.memory["w"] == 5


def test_a_board_keeps_the_last_runs_and_knows_when_a_driver_is_gone(run: Path) -> None:
    """Messages of runs that it has not heard of, or of another kind, are passed over."""
    board, found = Board(), StoredRun(str(run)).description()
    board.handle_message("rescnet-x", {"kind": "chunk"})
    assert board.views() == []
    for number in range(MAX_BOARD_RUNS + 2):
        message = {"kind": "run", "driver": f"d{number}", "run": found | {"state": "running"}}
        board.handle_message(f"rescnet-{number}", message)
        board.handle_message(f"rescnet-{number}", {"kind": "tile", "row": 1})
    assert len(board.views()) == MAX_BOARD_RUNS
    board.remove_driver(f"d{MAX_BOARD_RUNS}")
    assert [view.state for view in board.views()][-2:] == ["unfinished", "running"]


@pytest.mark.slow
def test_a_scheduler_without_a_dashboard_shows_nothing_and_trains(
    started: Any, tmp_path: Path
) -> None:
    """The board is kept; there is no page to link to."""
    _, file = started.scheduler()
    started.worker(file)
    with Client(scheduler_file=str(file)) as client:
        page = SchedulerPage(client)
        clf = train(tmp_path / "run", listeners=[page])
        assert page.link is None
        kept = client.run_on_scheduler(
            lambda dask_scheduler: [
                (view.state, len(view.layers))
                for view in dask_scheduler.plugins[RunsPlugin.name].board.views()
            ]
        )
    assert kept == [("done", LAYERS)]
    assert clf.depth_


def test_a_scheduler_that_cannot_show_the_page_is_told_of_once(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where it has not got this package; the run is trained all the same."""

    def missing(dask_scheduler: Any) -> bool:
        raise ModuleNotFoundError("No module named 'rescnet_dist'")

    monkeypatch.setattr(dashboard_scheduler, "install", missing)
    with caplog.at_level(logging.WARNING, "rescnet_dist"):
        clf = train(tmp_path / "run")
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("rescnet_dist")]
    assert said == "The run is not shown in Dask's dashboard: No module named 'rescnet_dist'"
    assert clf.depth_
