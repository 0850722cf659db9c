"""Views of runs, from events and from the store, and the board of the last runs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import ResCNetClassifier
from rescnet_dist.dashboard import RunView, StoredRun
from rescnet_dist.dashboard import scheduler as dashboard_scheduler
from rescnet_dist.dashboard.page import PLOTS
from rescnet_dist.dashboard.plots import short_names
from rescnet_dist.dashboard.scheduler import (
    MAX_BOARD_RUNS,
    TOPIC_PREFIX,
    Board,
    RunsPlugin,
    SchedulerPage,
)
from rescnet_dist.dashboard.summary import describe_html
from rescnet_dist.dashboard.view import LayerView
from rescnet_dist.events import Event, PassStarted, RunStarted, event_to_dict
from tests.dashboard.conftest import LAYERS, train


def test_view_from_events_matches_the_store(client: Client, tmp_path: Path) -> None:
    """At the end of a run, in all fields."""
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


def test_resumed_run_is_running(client: Client, tmp_path: Path) -> None:
    """A finished run has the state running and no reason while it grows more layers."""
    train(tmp_path / "run")
    states = []

    def check_state(event: Event) -> None:
        if event == PassStarted("grow", LAYERS + 1):
            view = StoredRun(str(tmp_path / "run")).view()
            states.append((view.state, view.reason))
            updated = StoredRun(str(tmp_path / "run")).view()
            updated.state, updated.reason = "done", "before"
            updated.handle_event(event_to_dict(event))
            states.append((updated.state, updated.reason))

    ResCNetClassifier.resume(tmp_path / "run", max_layers=LAYERS + 1, listeners=[check_state])
    assert states == [("running", None)] * 2
    assert StoredRun(str(tmp_path / "run")).view().state == "done"


def test_short_names_are_distinct(run: Path) -> None:
    """They have as many parts of the URLs as needed."""
    one, other, third = (StoredRun(str(run)).view() for _ in range(3))
    one.url, other.url, third.url = "/a/x/run", "/b/x/run", "/b/x/walk"
    assert short_names([one]) == ["run"]
    assert short_names([one, third]) == ["run", "walk"]
    assert short_names([one, other]) == ["a/x/run", "b/x/run"]
    assert short_names([one, one]) == ["/a/x/run"] * 2


def test_notes_are_bounded(run: Path) -> None:
    """Thousands of chunks may be rebuilt; repeated notes are kept once."""
    view = StoredRun(str(run)).view()
    view.handle_event({"event": "pass_retried", "reason": "why"})
    for _ in range(1000):
        view.handle_event({"event": "chunk_rebuilt", "layer": 2, "unexpected": True})
    view.handle_event({"event": "chunk_rebuilt", "layer": 3, "unexpected": False})
    assert len(view.notes) == 2
    assert view.notes[0] == "why"


def test_note_when_maps_leave_memory(run: Path) -> None:
    """No note if they are in the store from the first layer on."""
    view = StoredRun(str(run)).view()
    for layer, in_memory in enumerate([False, True, True, False], start=1):
        placed = {
            "layer": layer,
            "in_memory": in_memory,
            "features": False,
            "reason": "in the store",
        }
        view.handle_event({"event": "maps_placed", **placed})
    assert view.notes == ["layer 4: maps are now in the store"]


def test_seconds_left(run: Path) -> None:
    """Median of the last layers times the layers left, less the time of the current pass."""
    view = StoredRun(str(run)).view()
    view.state, view.max_layers = "running", 10
    for layer, seconds in zip(view.layers, (9.0, 4.0, 6.0), strict=True):
        layer.seconds = seconds
    assert view.layer_seconds() == 5.0  # without the first layer, which is another kind of pass
    assert view.seconds_left() == 7 * 5.0
    view.handle_event({"event": "pass_started", "phase": "grow", "layer": 4, "time": 1000.0})
    assert view.seconds_left(1002.0) == 7 * 5.0 - 2
    assert view.seconds_left(1099.0) == 6 * 5.0
    view.state = "unfinished"
    assert view.seconds_left() is None


def test_redone_chunk_counts_once(run: Path) -> None:
    """And a chunk of another pass does not count."""
    view = StoredRun(str(run)).view()
    view.handle_event({"event": "pass_started", "phase": "grow", "layer": 4, "time": 0.0})
    chunk = {"event": "chunk_done", "phase": "grow", "start": 0, "images": 60}
    for layer in (4, 4, 3):
        view.handle_event(chunk | {"layer": layer, "worker": "w", "memory": 5})
    assert view.current
    assert view.current.images == 60
    assert view.memory["w"] == 5


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("event", {"event": "run_stopped", "reason": -1}),
        ("event", {"event": "run_done", "reason": {}, "depth": "x"}),
        ("run", {"state": "done", "reason": [], "depth": []}),
        ("run", {"state": "lost"}),
        ("run", {"expected": {"peak_memory": "many", "workers": None}}),
        ("run", {"expected": {"traffic": {"read": []}}}),
    ],
)
def test_messages_of_other_types_do_not_break_the_page(
    run: Path, kind: str, values: dict[str, Any]
) -> None:
    """Any client of the scheduler can send them."""
    plugin, found = RunsPlugin(), StoredRun(str(run)).description()
    topic = f"{TOPIC_PREFIX}x"
    plugin.log_event(topic, {"kind": "run", "driver": "d", "run": found})
    message = {"kind": kind, **values} if kind == "event" else {"kind": kind, "run": found | values}
    plugin.log_event(topic, {"driver": "d", **message})
    (view,) = plugin.board.views()
    assert view.name in describe_html(view)
    for plot in PLOTS:
        plot(plugin.board.views).update()


def test_board_keeps_last_runs(run: Path) -> None:
    """Messages of unknown runs or kinds are ignored; runs of a lost driver are unfinished."""
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
def test_scheduler_without_a_dashboard(started: Any, tmp_path: Path) -> None:
    """The run trains and the board is updated; there is no link to a page."""
    _, file = started.scheduler()
    started.worker(file)
    with Client(scheduler_file=str(file)) as client:
        page = SchedulerPage(client)
        clf = train(tmp_path / "run", listeners=[page])
        assert page.link is None
        states = client.run_on_scheduler(
            lambda dask_scheduler: [
                (view.state, len(view.layers))
                for view in dask_scheduler.plugins[RunsPlugin.name].board.views()
            ]
        )
    assert states == [("done", LAYERS)]
    assert clf.depth_


def test_scheduler_without_this_package_warns_once(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run trains without the page."""

    def missing(dask_scheduler: Any) -> bool:
        raise ModuleNotFoundError("No module named 'rescnet_dist'")

    monkeypatch.setattr(dashboard_scheduler, "install", missing)
    with caplog.at_level(logging.WARNING, "rescnet_dist"):
        clf = train(tmp_path / "run")
    (message,) = [r.getMessage() for r in caplog.records if r.name.startswith("rescnet_dist")]
    assert message == "The run is not shown in Dask's dashboard: No module named 'rescnet_dist'"
    assert clf.depth_


def test_layers_share_the_names_of_phases() -> None:
    """A scheduler keeps the view of every layer, made from a message of its own."""
    message = json.dumps({"layer": 1, "seconds": 2.0, "observed": {"seconds": {"compute": 1.5}}})
    first, second = (LayerView.of(json.loads(message)) for _ in range(2))
    assert first.phases == {"compute": 1.5}
    assert next(iter(first.phases)) is next(iter(second.phases))
