"""Failing tasks and dying workers: same bits, or an error that names chunk and cause."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client
from fault_cases import (
    ONE_GROUP,
    SPEC,
    Model,
    X,
    Y,
    act_on,
    fit,
    get_retry_reasons,
)
from models import assert_same_bits, read_model

from rescnet_dist import (
    DataError,
    ResCNetClassifier,
    RescnetError,
    StoreError,
)
from rescnet_dist.errors import PassError, SingularError
from rescnet_dist.events import ChunkDone, Event, PassRetried, PassStarted
from rescnet_dist.store import RunStore
from rescnet_dist.train import chunks, executor, verify_run

pytestmark = pytest.mark.slow  # starts and kills processes for minutes

CRASH_PRELOAD = """
import os, time
from pathlib import Path
from rescnet_dist.train import chunks

def crash(reader, source, chunk, read=chunks.Reader.read_state):
    folder = Path(os.environ["CRASH_FOLDER"])
    always, once = (folder / f"{word}-{chunk.start}" for word in ("always", "once"))
    if reader.task.layer == 2 and (always.exists() or once.exists()):
        time.sleep(0.3)  # for the messages of the chunk before to arrive
        once.unlink(missing_ok=True)
        os._exit(1)
    return read(reader, source, chunk)

if chunks.Reader.read_state.__name__ != "crash":  # Dask runs this twice
    chunks.Reader.read_state = crash
"""


@pytest.fixture(scope="module")
def crash_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose files (once-10, always-30) name chunks of layer 2 to crash at."""
    return tmp_path_factory.mktemp("crash")


@pytest.fixture(scope="module")
def nannies(
    processes_in: Any, crash_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Start two workers that are restarted when they die; yield the scheduler's file.

    A task fails with the first death of its worker, so that this case is met often.
    """
    folder = tmp_path_factory.mktemp("nannies")
    (folder / "crash.py").write_text(CRASH_PRELOAD)
    with processes_in(folder) as started:
        _, file = started.scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
        started.worker(
            file, "--preload", folder / "crash.py", nannies=2, CRASH_FOLDER=str(crash_folder)
        )
        yield file


# failing tasks --------------------------------------------------------------------------------


def fail_at(
    monkeypatch: pytest.MonkeyPatch, start: int, error: Exception, times: int = 10_000
) -> list[int]:
    """Make tasks fail at the chunk that begins at image `start` of layer 2.

    Return a list that grows with every failure.
    """
    read, failures = chunks.Reader.read_state, list[int]()

    def fail(self: Any, source: Any, chunk: Any) -> Any:
        if (self.task.layer, chunk.start) == (2, start) and len(failures) < times:
            failures.append(start)
            raise error
        return read(self, source, chunk)

    monkeypatch.setattr(chunks.Reader, "read_state", fail)
    return failures


def test_error_of_failing_task_names_chunk_and_cause(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_free_model: Model
) -> None:
    """Nothing of the layer is committed after three attempts; the run can be resumed."""
    store = tmp_path / "run"
    failures = fail_at(monkeypatch, 30, ZeroDivisionError("no such number"))
    events: list[Event] = []
    with pytest.raises(PassError) as caught:
        fit(store, listeners=[events.append])
    for words in (
        *("The pass of layer 2 has failed 3 times", "chunk 3 (images 30 to 40)"),
        *("ZeroDivisionError: no such number", "Everything committed is kept", "resume the run"),
    ):
        assert words in str(caught.value)
    assert 3 <= len(failures) <= 5  # chunks that are done in between are progress
    assert len(get_retry_reasons(events)) == len(failures) - 1
    assert all("chunk 3 (images 30 to 40)" in reason for reason in get_retry_reasons(events))
    assert len(RunStore.open(store).commits()) == 2
    assert verify_run(store) == []
    monkeypatch.undo()
    ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), fault_free_model)


def test_transient_task_failure_is_retried(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_free_model: Model
) -> None:
    """The task fails twice for an unknown reason, then succeeds; listeners get the reasons."""
    failures = fail_at(monkeypatch, 30, MemoryError("malloc of 12 bytes failed"), times=2)
    events: list[Event] = []
    fit(tmp_path / "run", listeners=[events.append])
    assert len(failures) == 2
    assert [reason.split(": ")[1:] for reason in get_retry_reasons(events)] == [
        ["MemoryError", "malloc of 12 bytes failed"]
    ] * 2
    assert_same_bits(read_model(tmp_path / "run"), fault_free_model)


def make_label_remover(store: Path) -> Callable[[Event], None]:
    """Return a listener that moves the labels away before layer 2."""
    return act_on(PassStarted, 2, lambda: (store / "data/labels").rename(store / "data/lost"))


def write_image_with_nan(folder: Path) -> str:
    """Write images, one of which is not finite; return their URL."""
    images = X.astype(np.float32)
    images[47, 3, 3, 0] = np.nan
    group = zarr.open_group(str(folder / "nan.zarr"), mode="w")
    group.create_array("images", data=images, chunks=(30, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(30,))
    return str(folder / "nan.zarr")


@pytest.mark.parametrize(
    ("make_options", "kind", "words"),
    [
        (
            lambda folder: {"images": write_image_with_nan(folder)},
            DataError,
            "Image 47 of X has the pixel value nan",
        ),
        (
            lambda folder: {"spec": SPEC.replace(ridge=0.0, block=5, stride=1)},
            SingularError,
            "ridge",
        ),
        (
            lambda folder: {"listeners": [make_label_remover(folder / "run")]},
            StoreError,
            "There is no Zarr array at .*data/labels.*Check the path",
        ),
    ],
    ids=["data", "singular", "store"],
)
def test_rescnet_errors_end_run_at_once(
    nannies: Path,
    tmp_path: Path,
    make_options: Callable[[Path], dict[str, Any]],
    kind: type[RescnetError],
    words: str,
) -> None:
    """They arrive from other processes as they were raised there, and nothing is retried."""
    events: list[Event] = []
    options = make_options(tmp_path)
    listeners = [events.append, *options.pop("listeners", ())]
    with Client(scheduler_file=str(nannies)), pytest.raises(kind, match=words):
        fit(tmp_path / "run", **options, listeners=listeners)
    assert any(isinstance(event, PassStarted) for event in events)
    assert get_retry_reasons(events) == []


# dying workers -------------------------------------------------------------------------------


def test_workers_may_die_while_chunks_get_done(
    nannies: Path,
    crash_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_group_model: Model,
) -> None:
    """They die more often than a task may fail, at one chunk after the other."""
    # restarting workers takes long
    monkeypatch.setattr(executor, "MAX_CONSECUTIVE_FAILURES", 2)
    starts = (10, 20, 40)
    for start in starts:
        (crash_folder / f"once-{start}").touch()
    events: list[Event] = []
    with Client(scheduler_file=str(nannies)):
        fit(tmp_path / "run", run=ONE_GROUP, listeners=[events.append])
    assert not list(crash_folder.iterdir())
    assert len(get_retry_reasons(events)) == len(starts) > executor.MAX_CONSECUTIVE_FAILURES
    for start, reason in zip(starts, get_retry_reasons(events), strict=True):
        assert f"at chunk {start // 10} (images {start} to {start + 10})" in reason
    assert_same_bits(read_model(tmp_path / "run"), one_group_model)
    assert verify_run(tmp_path / "run") == []


def test_error_of_repeatedly_dying_workers_names_chunk(
    nannies: Path,
    crash_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_group_model: Model,
) -> None:
    """The error names the usual cause too; the run can be resumed once they survive."""
    monkeypatch.setattr(executor, "MAX_CONSECUTIVE_FAILURES", 2)
    store = tmp_path / "run"
    (crash_folder / "always-30").touch()
    with Client(scheduler_file=str(nannies)):
        with pytest.raises(PassError) as caught:
            fit(store, run=ONE_GROUP)
        for words in (
            *("The pass of layer 2 has failed 2 times", "workers died repeatedly"),
            *("at chunk 3 (images 30 to 40)", "the last of them tcp://127.0.0.1:", "its log"),
            *("too little memory", "resume the run"),
        ):
            assert words in str(caught.value)
        assert len(RunStore.open(store).commits()) == 2
        assert verify_run(store) == []
        (crash_folder / "always-30").unlink()
        ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), one_group_model)


def test_joining_and_leaving_workers_change_no_bit(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_free_model: Model
) -> None:
    """One is killed, one joins, then all are killed, which is published; the run continues when
    another one joins."""
    monkeypatch.setattr(executor, "WORKER_CHECK_SECONDS", 0.5)
    _, file = started.scheduler()
    workers = [started.worker(file) for _ in range(2)]
    events: list[Event] = []

    def join() -> None:
        workers.append(started.worker(file))

    def kill_all() -> None:
        for worker in workers:
            started.kill(worker)

    def join_if_none_left(event: Event) -> None:
        if isinstance(event, PassRetried) and "There is no worker" in event.reason:
            join()

    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(2, timeout=60)
        listeners = [
            *(events.append, join_if_none_left),
            act_on(ChunkDone, 1, lambda: os.kill(workers[0].pid, signal.SIGKILL)),
            act_on(PassStarted, 2, join),
            act_on(PassStarted, 3, kill_all),
        ]
        fit(tmp_path / "run", listeners=listeners)
    assert "There is no worker. Waiting for one to join." in get_retry_reasons(events)
    assert len(workers) == 4
    assert_same_bits(read_model(tmp_path / "run"), fault_free_model)
