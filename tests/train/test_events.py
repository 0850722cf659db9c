"""Events: a run tells what happens and what it took, and nobody who listens can break it."""

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
from rescnet_dist.store import RunStore
from rescnet_dist.train import (
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
from rescnet_dist.train.events import FAILURES

N = 120
X, Y = (array[:N] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, max_layers=2)
RUN = RunSpec(chunk_images=30, accumulators=2, solve_threads=1, validation=0.25, maps="store")


def fit(store: Path, listeners: list[Any], **more: Any) -> ResCNetClassifier:
    """Train two small layers."""
    run = RUN.replace(**more)
    return ResCNetClassifier(SPEC, store=store, run=run, listeners=listeners).fit(X, Y)


class Log(Callback):
    """Notes which methods were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda event: self.called.append(f"{name} {getattr(event, 'layer', '')}".strip())
        return super().__getattribute__(name)


def test_callbacks_are_called_for_what_they_are_named_after(client: Client, tmp_path: Path) -> None:
    """In order; chunks come from another thread."""
    log = Log()
    fit(tmp_path / "run", [log])
    in_order = [name for name in log.called if "chunk" not in name]
    layers = [
        f"{name} {n}" for n in (1, 2) for name in ("on_pass_start", "on_pass_end", "on_layer_end")
    ]
    survey, score = (["on_pass_start 0", "on_pass_end 0"], ["on_pass_start 2", "on_pass_end 2"])
    placed = "on_maps_placed 1"
    assert in_order == ["on_run_start", *survey, placed, *layers, *score, "on_run_end"]
    assert [log.called.count(f"on_chunk_done {n}") for n in (0, 1, 2)] == [4, 4, 8]


def test_a_listener_that_fails_is_logged_and_breaks_nothing(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named with its traceback, and left out once it has failed often."""
    told: list[Event] = []

    def fail(event: Event) -> None:
        told.append(event)
        raise ZeroDivisionError("of a user")

    heard: list[Event] = []
    with caplog.at_level(logging.ERROR, "rescnet_dist"):
        clf = fit(tmp_path / "run", [fail, heard.append])
    assert clf.depth_ in (1, 2)
    assert isinstance(heard[-1], RunDone)
    assert len(told) == len(caplog.records) == FAILURES < len(heard)
    assert "failed on RunStarted, and the run goes on" in caplog.text
    assert "ZeroDivisionError: of a user" in caplog.text
    assert f"left out after {FAILURES} failures" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_no_listener_hangs_a_run_from_the_thread_that_tells_of_chunks(
    client: Client, tmp_path: Path, error: type[BaseException]
) -> None:
    """What is to stop the run stops it; what is to end the program is a failure as any other."""
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


def test_a_slow_listener_does_not_hold_up_dask(client: Client, tmp_path: Path) -> None:
    """It hears of all chunks in their order, before their pass is told of as done."""
    heard: list[Event] = []

    def slow(event: Event) -> None:
        heard.append(event)
        if isinstance(event, ChunkDone) and event.phase == "survey":
            began = time.perf_counter()
            assert client.run_on_scheduler(lambda: 1, wait=True) == 1  # which the loop answers
            assert time.perf_counter() - began < 5
            time.sleep(0.2)

    fit(tmp_path / "run", [slow])
    survey = [e for e in heard if getattr(e, "phase", "") == "survey"]
    assert isinstance(survey[-1], PassDone)
    assert len(survey) == 6


def test_a_failed_run_tells_that_it_stopped(client: Client, tmp_path: Path) -> None:
    """With the reason, to all listeners."""
    heard: list[Event] = []

    def break_it(event: Event) -> None:
        heard.append(event)
        if isinstance(event, PassDone) and event.layer == 1:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(RescnetError) as raised:
        fit(tmp_path / "run", [break_it])
    assert isinstance(heard[-1], RunStopped)
    assert heard[-1].reason == str(raised.value)


def test_a_pass_tells_what_it_took(client: Client, tmp_path: Path) -> None:
    """Phases add up to the pass, bytes are those of the arrays; commits hold the same."""
    events: list[Event] = []
    fit(tmp_path / "run", [events.append])
    commits = RunStore.open(tmp_path / "run").commits()
    passes = {(e.phase, e.layer): e for e in events if isinstance(e, PassDone)}
    maps, scores, images, labels = N * 14 * 14 * 4 * 4, N * 10 * 4, N * 14 * 14, N * 5
    blocks = 2  # in which each of two groups reads the labels of all
    expected = {
        ("survey", 0): (images + blocks * labels, 0),
        ("grow", 1): (images + blocks * labels, maps + scores),
        ("grow", 2): (images + blocks * labels + maps + scores, maps + scores),
        ("score", 2): (blocks * labels + maps + scores, 0),
    }
    for key, done in passes.items():
        observed = done.observed
        assert (observed.read, observed.written) == expected[key], key
        assert set(observed.seconds) == set(PHASES)
        assert all(seconds >= 0 for seconds in observed.seconds.values())
        assert 0.3 * done.seconds < sum(observed.seconds.values()) <= done.seconds
        assert observed.memory
        assert min(observed.memory.values()) > 50 * 2**20
        assert observed.redone == 0
        if done.phase != "score":
            record = commits[done.layer]
            assert record["observed"] == json.loads(json.dumps(observed.to_dict()))
            assert record["seconds"] == done.seconds
    assert passes["grow", 1].residual == (1.0, 0.0)  # nothing is predicted yet
    positive, negative = passes["grow", 2].residual or (0, 0)
    assert 0 < positive < 1
    assert positive + negative == pytest.approx(1)
    assert commits[2]["residual"] == [positive, negative]


@pytest.mark.slow
def test_tiled_passes_tell_it_too(client: Client, tmp_path: Path) -> None:
    """The features that are written for the tiles count."""
    events: list[Event] = []
    fit(tmp_path / "run", [events.append], tile_features=20)
    done = next(e for e in events if isinstance(e, PassDone) and e.phase == "grow")
    features = RunStore.open(tmp_path / "run").attributes()["expected"]["features"]
    found = RunStore.open(tmp_path / "run").attributes()["expected"]["traffic"]
    assert done.observed.written > N * (14 * 14 * 4 * 4 + 10 * 4 + 4 * features)  # and tiles
    assert 0.9 * found["written"] <= done.observed.written <= found["written"]
    done = next(e for e in events if isinstance(e, PassDone) and e.layer == 2)
    assert 0.8 * found["read"] <= done.observed.read <= 1.05 * found["read"]
    assert done.observed.seconds["solve"] > 0


def test_events_become_plain_values(client: Client, tmp_path: Path) -> None:
    """All kinds, with version and time, through JSON; secrets in URLs are masked."""
    events: list[Event] = [PassRetried("grow", 3, "why")]
    fit(tmp_path / "run", [events.append])
    found = [json.loads(json.dumps(event_to_dict(event))) for event in events]
    assert {e["version"] for e in found} == {EVENTS_VERSION}
    assert [e["time"] for e in found] == sorted(e["time"] for e in found)
    chunk = next(e for e in found if e["event"] == "chunk_done")
    told = next(e for e in events if isinstance(e, ChunkDone))
    assert (chunk["images"], chunk["worker"]) == (told.images, told.worker)
    kinds = {"run_started", "maps_placed", "pass_started", "pass_done", "pass_retried", "run_done"}
    assert kinds <= {e["event"] for e in found}
    started = event_to_dict(RunStarted("s3://key:secret@host/run", 1, 1, 0, ()))
    assert "secret" not in json.dumps(started)


def test_a_result_that_comes_slowly_is_waited_for(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To gather it may take longer than the pauses between looks at listeners: that is no failure,
    for which all would be done again."""
    monkeypatch.setattr("rescnet_dist.train.executor.LISTEN_EVERY", 1e-4)
    events: list[Event] = []
    fit(tmp_path / "run", [events.append])
    assert [event.reason for event in events if isinstance(event, PassRetried)] == []
    done = [event for event in events if isinstance(event, PassDone)]
    assert [event.observed.redone for event in done] == [0] * len(done)


@pytest.mark.parametrize(
    ("listeners", "words"),
    [(Log(), r"is no list: give \["), ([3], "3 among the listeners is no function of an event")],
    ids=["no list", "no function"],
)
def test_what_cannot_listen_is_refused(listeners: Any, words: str, tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(SpecError, match=words):
        fit(tmp_path / "run", listeners)
    assert not (tmp_path / "run").exists()
