"""Interrupted and extended runs end in the same bits as runs without a stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Future, LocalCluster
from models import assert_same_bits, read_model
from training_cases import (
    PLAN,
    SPEC,
    X_OTHER,
    Y_OTHER,
    Array,
    fit,
)

from rescnet_dist import (
    ResCNetClassifier,
    StoreError,
)
from rescnet_dist.events import Event, PassStarted, RunDone, RunStarted
from rescnet_dist.lifecycle import begin
from rescnet_dist.store import Location, RunStore, arrays
from rescnet_dist.train import chunks, loop, passes
from rescnet_dist.train.task import Task


class Interrupted(KeyboardInterrupt):
    """Raised by listeners to stop a run."""


def raise_at(phase: str, layer: int, error: BaseException) -> Callable[[Event], None]:
    """Return a listener that raises when a pass starts."""

    def listen(event: Event) -> None:
        if event == PassStarted(phase, layer):
            raise error

    return listen


def test_extended_run_equals_run_with_all_layers(client: Client, tmp_path: Path) -> None:
    """Two layers, then four: the chosen depth is that of all four."""
    fit(tmp_path / "four", SPEC.replace(max_layers=4), PLAN)
    fit(tmp_path / "two", SPEC.replace(max_layers=2), PLAN)
    expected = read_model(tmp_path / "four")
    assert "layer 3 filters" not in read_model(tmp_path / "two")
    clf = ResCNetClassifier.resume(tmp_path / "two", max_layers=4)
    assert_same_bits(read_model(tmp_path / "two"), expected)
    assert clf.spec.max_layers == 4
    assert clf.depth_ == 1 + int(np.argmax(expected["validation accuracy"]))


@pytest.mark.parametrize(
    ("phase", "layer", "error"),
    [
        ("survey", 0, Interrupted()),
        ("grow", 3, Interrupted()),
        pytest.param("grow", 3, KeyboardInterrupt(), marks=pytest.mark.slow),
        ("score", 3, Interrupted()),
    ],
)
def test_resume_after_stop_between_passes_gives_same_bits(
    client: Client,
    tmp_path: Path,
    reference_models: dict[str, dict[str, Array]],
    phase: str,
    layer: int,
    error: BaseException,
) -> None:
    """Stop at the first pass, the second, in the middle and at the last; commits are kept."""
    store = tmp_path / "run"
    listener = raise_at(phase, layer, error)
    with pytest.raises(type(error)):
        fit(store, run=PLAN, listeners=[listener])
    committed = len(RunStore.open(store).commits())
    assert committed == {"survey": 0, "grow": layer, "score": 4}[phase]
    events: list[Event] = []
    ResCNetClassifier.resume(store, listeners=[events.append])
    assert next(e for e in events if isinstance(e, PassStarted)) == PassStarted(phase, layer)
    assert_same_bits(read_model(store), reference_models["classify"])


@pytest.mark.parametrize("name", ["count", "survey", "grow"])
def test_resume_after_stop_before_commit_gives_same_bits(
    client: Client,
    tmp_path: Path,
    reference_models: dict[str, dict[str, Array]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Stop after a pass has done all its work and before it is committed."""
    store = tmp_path / "run"
    compute = loop._Driver.compute

    def stop_after(self: Any, pass_: passes.Pass, task: Task) -> Any:
        result = compute(self, pass_, task)
        if pass_.name == name:
            raise Interrupted
        return result

    with monkeypatch.context() as patch:
        patch.setattr(loop._Driver, "compute", stop_after)
        with pytest.raises(Interrupted):
            fit(store, run=PLAN)
    ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), reference_models["classify"])


def test_partially_written_layer_is_never_read(
    client: Client,
    tmp_path: Path,
    reference_models: dict[str, dict[str, Array]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass that fails after some chunks were written is run again as a whole.

    This holds though the error, and with it Dask's futures of the pass, is still referenced, as in
    a notebook.
    """
    store = tmp_path / "run"
    written: list[str] = []
    write_region = chunks.write_region

    def fail_in_layer_3(array: Any, start: int, values: Array) -> None:
        if array.path == "maps/0003":
            written.append(array.path)
            if len(written) == 3:
                raise StoreError("no more")
            values = values + 1e6  # the values that are written are wrong too
        write_region(array, start, values)

    with monkeypatch.context() as patch:
        patch.setattr(chunks, "write_region", fail_in_layer_3)
        with pytest.raises(StoreError, match="no more") as caught:
            fit(store, run=PLAN)
    assert caught.traceback
    assert len(RunStore.open(store).commits()) == 3
    ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), reference_models["classify"])


def test_tasks_of_interrupted_pass_are_cancelled(
    client: Client,
    threads_cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster that outlives the run, its tasks would write into whatever comes next.

    They are cancelled even while the exception is still referenced, as in a notebook.
    """
    result = Future.result

    def list_tasks() -> list[Any]:
        return [key for key in list(threads_cluster.scheduler.tasks) if "grow-" in str(key)]

    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert condition(), list_tasks()

    def interrupt(self: Future, *args: Any, **kwargs: Any) -> Any:
        if str(self.key).startswith("grow-"):
            wait_until(lambda: bool(list_tasks()))  # the pass is in progress
            raise KeyboardInterrupt
        return result(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            fit(tmp_path / "run")
    wait_until(lambda: not list_tasks())
    assert caught.traceback


def test_resume_of_finished_run_changes_nothing(client: Client, tmp_path: Path) -> None:
    """No pass is run, and the result is the same."""
    fit(tmp_path / "run")
    before = read_model(tmp_path / "run")
    events: list[Event] = []
    clf = ResCNetClassifier.resume(tmp_path / "run", listeners=[events.append])
    assert [type(event) for event in events] == [RunStarted, RunDone]
    assert events[0].layers == 3
    assert clf.depth_ == 3
    assert_same_bits(read_model(tmp_path / "run"), before)


def test_resume_rejects_fewer_layers_than_grown(client: Client, tmp_path: Path) -> None:
    """Resuming never makes a run worse: it stays unchanged, and can be resumed with as many."""
    fit(tmp_path / "run", validation=(X_OTHER, Y_OTHER))
    full = read_model(tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"max_layers=1 is less than the 3 layers of the run .*Give at least 3"
    ):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=1)
    resumed = ResCNetClassifier.resume(tmp_path / "run", max_layers=3)
    assert resumed.depth_ == 1 + int(np.argmax(full["validation accuracy"]))
    assert_same_bits(read_model(tmp_path / "run"), full)


def test_network_of_unfinished_run_has_its_committed_layers(client: Client, tmp_path: Path) -> None:
    """It can be loaded before the run is done; without a layer there is an error."""
    store = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(store, listeners=[raise_at("grow", 3, Interrupted())])
    assert ResCNetClassifier.load(store).depth_ == 2
    with pytest.raises(Interrupted):
        fit(tmp_path / "none", listeners=[raise_at("grow", 1, Interrupted())])
    with pytest.raises(ValueError, match=r"no finished layer yet\. Resume it first"):
        ResCNetClassifier.load(tmp_path / "none")


class TaskFailedError(Exception):
    """Raised in tasks; an interrupt would end the thread of the worker."""


@pytest.mark.parametrize("name", ["images", "labels", "train"])
def test_run_with_incomplete_data_is_not_resumed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Missing chunks read as zeros, which must not be trained on."""
    write_block = arrays.write_block

    def fail(array: Any, starts: tuple[int, ...], values: Array) -> None:
        if array.path == f"data/{name}" and starts[0] >= begin.BLOCK_IMAGES:
            raise TaskFailedError
        write_block(array, starts, values)

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "write_block", fail)
        patch.setattr(begin, "BLOCK_IMAGES", 40)
        # a killed driver cleans nothing up
        patch.setattr(Location, "remove", lambda location: None)
        patch.setattr(begin, "REMOVE_WAIT_SECONDS", 0)
        with pytest.raises(TaskFailedError):
            fit(tmp_path / "run")
    with pytest.raises(StoreError, match=r"never completely written\. Remove it"):
        ResCNetClassifier.resume(tmp_path / "run")
