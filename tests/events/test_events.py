"""Events of a run: order, contents and metrics; listeners cannot break the run."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.errors import RescnetError, SpecError
from rescnet_dist.events import (
    EVENTS_VERSION,
    PHASES,
    Callback,
    ChunkDone,
    Event,
    PassDone,
    PassRetried,
    RunDone,
    RunStarted,
    RunStopped,
    event_to_dict,
)
from rescnet_dist.events.bus import MAX_LISTENER_FAILURES
from rescnet_dist.store import RunStore

N = 120
X, Y = (array[:N] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, max_layers=2)
RUN = RunSpec(chunk_images=30, accumulators=2, solve_threads=1, validation=0.25, maps="store")


def fit(store: Path, listeners: list[Any], **options: Any) -> ResCNetClassifier:
    """Train two small layers."""
    run = RUN.replace(**options)
    return ResCNetClassifier(SPEC, store=store, run=run, listeners=listeners).fit(X, Y)


class CallLog(Callback):
    """Records which methods were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda event: self.called.append(f"{name} {getattr(event, 'layer', '')}".strip())
        return super().__getattribute__(name)


def test_callback_methods_are_called_in_order(client: Client, tmp_path: Path) -> None:
    """The events of chunks come from another thread."""
    log = CallLog()
    fit(tmp_path / "run", [log])
    in_order = [name for name in log.called if "chunk" not in name]
    layers = [
        f"{name} {n}" for n in (1, 2) for name in ("on_pass_start", "on_pass_end", "on_layer_end")
    ]
    survey, score = (["on_pass_start 0", "on_pass_end 0"], ["on_pass_start 2", "on_pass_end 2"])
    placed = "on_maps_placed 1"
    assert in_order == ["on_run_start", *survey, placed, *layers, *score, "on_run_end"]
    assert [log.called.count(f"on_chunk_done {n}") for n in (0, 1, 2)] == [4, 4, 8]


def test_failing_listener_is_logged_and_disabled(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its traceback; after several failures it gets no more events."""
    received: list[Event] = []

    def fail(event: Event) -> None:
        received.append(event)
        raise ZeroDivisionError("of a user")

    events: list[Event] = []
    with caplog.at_level(logging.ERROR, "rescnet_dist"):
        clf = fit(tmp_path / "run", [fail, events.append])
    assert clf.depth_ in (1, 2)
    assert isinstance(events[-1], RunDone)
    assert len(received) == len(caplog.records) == MAX_LISTENER_FAILURES < len(events)
    assert "failed on RunStarted. The run continues." in caplog.text
    assert "ZeroDivisionError: of a user" in caplog.text
    assert (
        f"no more events after {MAX_LISTENER_FAILURES} failures" in caplog.records[-1].getMessage()
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_chunk_listener_does_not_hang_run(
    client: Client, tmp_path: Path, error: type[BaseException]
) -> None:
    """KeyboardInterrupt stops the run; SystemExit counts as a failure of the listener."""
    stopped: list[Event] = []

    class Stop(Callback):
        def on_chunk_done(self, event: ChunkDone) -> None:
            raise error

        def on_run_stopped(self, event: RunStopped) -> None:
            stopped.append(event)

    if error is SystemExit:
        assert fit(tmp_path / "run", [Stop()]).depth_
        assert not stopped
    else:
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run", [Stop()])
        assert stopped == [RunStopped(str(tmp_path / "run"), "interrupted")]
    assert client.submit(int, pure=False).result(timeout=10) == 0  # Dask's loop is alive


def test_slow_listener_does_not_block_dask(client: Client, tmp_path: Path) -> None:
    """It gets the events of all chunks in order, before that of their pass."""
    events: list[Event] = []

    def listen_slowly(event: Event) -> None:
        events.append(event)
        if isinstance(event, ChunkDone) and event.phase == "survey":
            started = time.perf_counter()
            assert client.run_on_scheduler(lambda: 1, wait=True) == 1  # answered by the event loop
            assert time.perf_counter() - started < 5
            time.sleep(0.2)

    fit(tmp_path / "run", [listen_slowly])
    survey = [e for e in events if getattr(e, "phase", "") == "survey"]
    assert isinstance(survey[-1], PassDone)
    assert len(survey) == 6


def test_failed_run_publishes_run_stopped(client: Client, tmp_path: Path) -> None:
    """The event has the error message."""
    events: list[Event] = []

    def remove_run(event: Event) -> None:
        events.append(event)
        if isinstance(event, PassDone) and event.layer == 1:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(RescnetError) as raised:
        fit(tmp_path / "run", [remove_run])
    assert isinstance(events[-1], RunStopped)
    assert events[-1].reason == str(raised.value)


def test_metrics_of_passes(client: Client, tmp_path: Path) -> None:
    """Phases add up to the pass, bytes are those of the arrays; commits have the same."""
    events: list[Event] = []
    fit(tmp_path / "run", [events.append])
    commits = RunStore.open(tmp_path / "run").commits()
    passes = {(e.phase, e.layer): e for e in events if isinstance(e, PassDone)}
    maps, scores, images, labels = N * 14 * 14 * 4 * 4, N * 10 * 4, N * 14 * 14, N * 5
    blocks = 2  # each of two groups reads all labels
    expected = {
        ("survey", 0): (images + blocks * labels, 0),
        ("grow", 1): (images + blocks * labels, maps + scores),
        ("grow", 2): (images + blocks * labels + maps + scores, maps + scores),
        ("score", 2): (blocks * labels + maps + scores, 0),
    }
    for key, done in passes.items():
        metrics = done.observed
        assert (metrics.read, metrics.written) == expected[key], key
        assert set(metrics.seconds) == set(PHASES)
        assert all(seconds >= 0 for seconds in metrics.seconds.values())
        assert 0.3 * done.seconds < sum(metrics.seconds.values()) <= done.seconds
        assert metrics.memory
        assert min(metrics.memory.values()) > 50 * 2**20
        assert metrics.redone == 0
        if done.phase != "score":
            record = commits[done.layer]
            assert record["observed"] == json.loads(json.dumps(metrics.to_dict()))
            assert record["seconds"] == done.seconds
    assert passes["grow", 1].residual == (1.0, 0.0)  # nothing is predicted yet
    positive, negative = passes["grow", 2].residual or (0, 0)
    assert 0 < positive < 1
    assert positive + negative == pytest.approx(1)
    assert commits[2]["residual"] == [positive, negative]


@pytest.mark.slow
def test_metrics_of_tiled_passes(client: Client, tmp_path: Path) -> None:
    """The features written for the tiles count."""
    events: list[Event] = []
    fit(tmp_path / "run", [events.append], tile_features=20)
    done = next(e for e in events if isinstance(e, PassDone) and e.phase == "grow")
    features = RunStore.open(tmp_path / "run").attributes()["expected"]["features"]
    traffic = RunStore.open(tmp_path / "run").attributes()["expected"]["traffic"]
    assert done.observed.written > N * (14 * 14 * 4 * 4 + 10 * 4 + 4 * features)  # and tiles
    assert 0.9 * traffic["written"] <= done.observed.written <= traffic["written"]
    done = next(e for e in events if isinstance(e, PassDone) and e.layer == 2)
    assert 0.8 * traffic["read"] <= done.observed.read <= 1.05 * traffic["read"]
    assert done.observed.seconds["solve"] > 0


def test_event_to_dict(client: Client, tmp_path: Path) -> None:
    """All kinds can be sent as JSON and by Dask, with version and time; secrets are masked."""
    events: list[Event] = [PassRetried("grow", 3, "reason")]
    fit(tmp_path / "run", [events.append])
    found = [json.loads(json.dumps(event_to_dict(event))) for event in events]
    for event in events:
        client.log_event("test", event_to_dict(event))  # raises for values that are not plain
    assert {e["version"] for e in found} == {EVENTS_VERSION}
    assert [e["time"] for e in found] == sorted(e["time"] for e in found)
    chunk = next(e for e in found if e["event"] == "chunk_done")
    event = next(e for e in events if isinstance(e, ChunkDone))
    assert (chunk["images"], chunk["worker"]) == (event.images, event.worker)
    kinds = {"run_started", "maps_placed", "pass_started", "pass_done", "pass_retried", "run_done"}
    assert kinds <= {e["event"] for e in found}
    started = event_to_dict(RunStarted("s3://key:secret@host/run", 1, 1, 0, ()))
    assert "secret" not in json.dumps(started)


def test_slow_transfer_of_result_is_no_failure(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take longer than the interval of the listener checks; the pass is not retried."""
    monkeypatch.setattr("rescnet_dist.train.executor.LISTENER_CHECK_SECONDS", 1e-4)
    events: list[Event] = []
    fit(tmp_path / "run", [events.append])
    assert [event.reason for event in events if isinstance(event, PassRetried)] == []
    done = [event for event in events if isinstance(event, PassDone)]
    assert [event.observed.redone for event in done] == [0] * len(done)


@pytest.mark.parametrize(
    ("listeners", "words"),
    [(CallLog(), r"is not a list\. Pass \["), ([3], "3 in listeners is not callable")],
    ids=["not a list", "not callable"],
)
def test_invalid_listeners_are_rejected(listeners: Any, words: str, tmp_path: Path) -> None:
    """They are rejected before a store is created."""
    with pytest.raises(SpecError, match=words):
        fit(tmp_path / "run", listeners)
    assert not (tmp_path / "run").exists()
