"""What befalls a run: stores that fail, workers, schedulers and drivers that die, disks that fill
up. It ends in the same bits, or in an error that says what to do and a run that can be resumed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import zarr
from aiohttp import ServerDisconnectedError
from botocore.exceptions import EndpointConnectionError
from click.testing import CliRunner
from dask import delayed
from dask.graph_manipulation import bind
from distributed import Client, LocalCluster
from test_training import assert_same_bits, model

from rescnet_dist import (
    DataError,
    NetworkSpec,
    ResCNetClassifier,
    RescnetError,
    RunSpec,
    StoreError,
    load_digits,
)
from rescnet_dist.cli import main
from rescnet_dist.errors import ClusterLostError, PassError, SingularError, StoreUnreachableError
from rescnet_dist.store import RunStore, retry, with_retries
from rescnet_dist.train import (
    ChunkDone,
    Event,
    PassDone,
    PassRetried,
    PassStarted,
    chunks,
    executor,
    verify_run,
)

pytestmark = pytest.mark.slow  # minutes of real processes that come and go

Model = dict[str, np.ndarray[Any, Any]]

X, Y = (array[:60] for array in load_digits())
X = X[:, ::2, ::2]
LAYERS = 3
SPEC = NetworkSpec(
    filters=3, first_filter_size=3, block=7, stride=7, residual="regress", max_layers=LAYERS,
    stop_at_zero_error=False,
)  # fmt: skip
RUN = RunSpec(chunk_images=10, accumulators=3, solve_threads=1)  # 6 chunks in 3 groups
QUICKLY = {"distributed.comm.timeouts.connect": "2s"}  # is a lost connection noticed
ONE_GROUP = RUN.replace(accumulators=1)  # one task, so that no other one is blamed
RESCNET = Path(sys.executable).parent / "rescnet"

DEADLY = """
import os, time
from pathlib import Path
from rescnet_dist.train import chunks

def deadly(reader, chunk, read=chunks.Reader.maps_and_scores):
    always, once = (Path(os.environ["DYING"]) / f"{w}-{chunk.start}" for w in ("always", "once"))
    if reader.task.layer == 2 and (always.exists() or once.exists()):
        time.sleep(0.3)  # for what is reported of the chunk before to arrive
        once.unlink(missing_ok=True)
        os._exit(1)
    return read(reader, chunk)

if chunks.Reader.maps_and_scores.__name__ != "deadly":  # Dask runs this twice
    chunks.Reader.maps_and_scores = deadly
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The images and labels in a Zarr store."""
    url = str(tmp_path_factory.mktemp("data") / "digits.zarr")
    group = zarr.open_group(url, mode="w")
    group.create_array("images", data=X, chunks=(30, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(30,))
    return url


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network and the run as a file for the command."""
    path = tmp_path_factory.mktemp("config") / "network.toml"
    path.write_text(SPEC.to_toml() + RUN.to_toml())
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Model:
    """The model of a run that nothing happens to."""
    store = tmp_path_factory.mktemp("undisturbed") / "run"
    with Client(threads_cluster):
        fit(store)
    return model(store)


@pytest.fixture(scope="module")
def in_one_group(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Model:
    """The same with another order of sums."""
    store = tmp_path_factory.mktemp("one-group") / "run"
    with Client(threads_cluster):
        fit(store, run=ONE_GROUP)
    return model(store)


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files tell workers at which chunks of layer 2 to die: once-10, always-30."""
    return tmp_path_factory.mktemp("dying")


@pytest.fixture(scope="module")
def nannies(
    processes_in: Any, dying: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Two worker processes that are started again when they die, by their scheduler's file; a task
    is blamed for the first death already, so that this is met often."""
    folder = tmp_path_factory.mktemp("nannies")
    (folder / "deadly.py").write_text(DEADLY)
    with processes_in(folder) as started:
        _, file = started.scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
        started.worker(file, "--preload", folder / "deadly.py", nannies=2, DYING=str(dying))
        yield file


def fit(store: Any, images: Any = X, spec: NetworkSpec = SPEC, **more: Any) -> ResCNetClassifier:
    """Train in a store."""
    given = {"run": RUN, **more}
    labels = None if isinstance(images, str) else Y
    return ResCNetClassifier(spec, store=store, **given).fit(images, labels)


def rescnet(*arguments: Any) -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def when(
    wanted: type[Event], layer: int, action: Callable[[], Any], times: int = 1
) -> Callable[[Event], None]:
    """A listener that acts on the first events of a kind in a layer."""
    left = iter(range(times))

    def listen(event: Event) -> None:
        if isinstance(event, wanted) and event.layer == layer and next(left, None) is not None:
            action()

    return listen


def reasons(events: list[Event]) -> list[str]:
    """Why passes were tried again."""
    return [event.reason for event in events if isinstance(event, PassRetried)]


# patience with stores ---------------------------------------------------------------------------


class Clock:
    """A clock that nobody has to wait for."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of patience."""
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    return clock


class Failing:
    """An action that fails with some errors in turn before it succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.tries = errors, 0

    def __call__(self) -> str:
        """Try once more."""
        self.tries += 1
        if self.tries <= len(self.errors):
            raise self.errors[self.tries - 1]
        return "done"


PASSING = {
    "reset": ConnectionResetError(errno.ECONNRESET, "reset by peer"),
    "timeout": TimeoutError("timed out"),
    "input/output": OSError(errno.EIO, "input/output error"),
    "unnamed": OSError("SlowDown: please reduce your request rate"),
    "botocore": EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
    "aiohttp": ServerDisconnectedError(),
    "unreachable": StoreUnreachableError("s3://runs/x cannot be reached"),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING.keys())
def test_errors_that_pass_are_waited_out_ever_more_slowly(clock: Clock, error: Exception) -> None:
    """Each wait is up to twice as long as the one before, and never longer than the longest."""
    action = Failing(*[error] * 10)
    assert with_retries(action, "writing") == "done"
    assert action.tries == 11
    for number, wait in enumerate(clock.waits):
        most = min(retry.FIRST_WAIT * 2**number, retry.LONGEST_WAIT)
        assert most / 2 <= wait <= most
    assert len(set(clock.waits)) == 10, "many workers must not come back at the same moment"


def test_patience_has_an_end(clock: Clock) -> None:
    """After about as long as was said, with an error that says for how long and what to do."""
    action = Failing(*[ConnectionResetError("gone")] * 1000)
    with pytest.raises(StoreError, match=r"^maps/0001 of s3://runs/x has failed for (\d+) s: gone"):
        with_retries(action, "maps/0001 of s3://runs/x", patience=50)
    assert 35 <= clock.now <= 50
    assert action.tries == len(clock.waits) + 1 > 5
    action = Failing(*[ConnectionResetError("gone")] * 1000)
    with pytest.raises(StoreError, match="check the store, then resume"):
        with_retries(action, "maps/0001")
    assert action.tries < 40


LASTING: dict[str, tuple[Exception, type[Exception], str]] = {
    "missing": (FileNotFoundError("no such"), StoreError, "maps failed: no such; check the URL"),
    "forbidden": (PermissionError("403"), StoreError, "maps failed: 403; .* your rights"),
    "a folder": (IsADirectoryError("a folder"), StoreError, "maps failed: a folder"),
    "full": (
        OSError(errno.ENOSPC, "No space left on device"),
        StoreError,
        "maps cannot be written: .*No space left on device; make room, then resume the run",
    ),
    "quota": (OSError(errno.EDQUOT, "Quota exceeded"), StoreError, "make room, then resume"),
    "read-only": (OSError(errno.EROFS, "Read-only"), StoreError, "Read-only; .*your rights"),
    "said already": (StoreError("as it is"), StoreError, "^as it is$"),
    "said already, data": (DataError("as it is"), DataError, "^as it is$"),
    "a mistake in the code": (KeyError("x"), KeyError, "^'x'$"),
}


@pytest.mark.parametrize(("error", "kind", "words"), LASTING.values(), ids=LASTING.keys())
def test_errors_that_last_are_raised_at_once(
    clock: Clock, error: Exception, kind: type[Exception], words: str
) -> None:
    """They are not tried again; those of a store become one that says what to do."""
    action = Failing(error)
    with pytest.raises(kind, match=words):
        with_retries(action, "maps")
    assert (action.tries, clock.waits) == (1, [])


def test_a_store_that_fails_in_passing_changes_no_bit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Model
) -> None:
    """Every third write of a chunk fails once, half of the chunk being there."""
    write, calls = chunks.write_region, iter(range(10_000))

    def failing(array: Any, start: int, values: Any) -> None:
        if next(calls) % 3 == 1:
            write(array, start, np.zeros_like(values))
            raise ConnectionResetError("gone")
        write(array, start, values)

    monkeypatch.setattr(chunks, "write_region", failing)
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.01)
    events: list[Event] = []
    fit(tmp_path / "run", listeners=[events.append])
    assert next(calls) > 50
    assert reasons(events) == []
    assert_same_bits(model(tmp_path / "run"), undisturbed)
    assert verify_run(tmp_path / "run") == []


# tasks that fail --------------------------------------------------------------------------------


def fail_at(
    monkeypatch: pytest.MonkeyPatch, start: int, error: Exception, times: int = 10_000
) -> list[int]:
    """Have the work on the chunk from image `start` of layer 2 fail; the list grows with every
    failure."""
    read, failures = chunks.Reader.maps_and_scores, list[int]()

    def failing(self: Any, chunk: Any) -> Any:
        if (self.task.layer, chunk.start) == (2, start) and len(failures) < times:
            failures.append(start)
            raise error
        return read(self, chunk)

    monkeypatch.setattr(chunks.Reader, "maps_and_scores", failing)
    return failures


def test_a_task_that_always_fails_ends_the_run_with_chunk_and_cause(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Model
) -> None:
    """After three tries, nothing of the layer being committed; resumed once the cause is gone."""
    store = tmp_path / "run"
    failures = fail_at(monkeypatch, 30, ZeroDivisionError("no such number"))
    events: list[Event] = []
    with pytest.raises(PassError) as caught:
        fit(store, listeners=[events.append])
    for words in (
        *("the pass of layer 2 has failed 3 times", "chunk 3 (images 30 to 40)"),
        *("ZeroDivisionError: no such number", "what is committed is kept", "resume the run"),
    ):
        assert words in str(caught.value)
    assert 3 <= len(failures) <= 5  # other chunks done in between are progress
    assert len(reasons(events)) == len(failures) - 1
    assert all("chunk 3 (images 30 to 40)" in reason for reason in reasons(events))
    assert len(RunStore.open(store).commits()) == 2
    assert verify_run(store) == []
    monkeypatch.undo()
    ResCNetClassifier.resume(store)
    assert_same_bits(model(store), undisturbed)


def test_a_task_that_fails_in_passing_is_tried_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Model
) -> None:
    """Twice, for a reason that nobody knows; then it passes, and the listeners have been told."""
    failures = fail_at(monkeypatch, 30, MemoryError("malloc of 12 bytes failed"), times=2)
    events: list[Event] = []
    fit(tmp_path / "run", listeners=[events.append])
    assert len(failures) == 2
    assert [reason.split(": ")[1:] for reason in reasons(events)] == [
        ["MemoryError", "malloc of 12 bytes failed"]
    ] * 2
    assert_same_bits(model(tmp_path / "run"), undisturbed)


def lose_labels(store: Path) -> Callable[[Event], None]:
    """A listener that takes an array away before layer 2."""
    return when(PassStarted, 2, lambda: (store / "data/labels").rename(store / "data/lost"))


def image_with_nan(folder: Path) -> str:
    """Images at a URL, one of which is not finite."""
    images = X.astype(np.float32)
    images[47, 3, 3, 0] = np.nan
    group = zarr.open_group(str(folder / "nan.zarr"), mode="w")
    group.create_array("images", data=images, chunks=(30, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(30,))
    return str(folder / "nan.zarr")


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (
            lambda folder: {"images": image_with_nan(folder)},
            DataError,
            "image 47 of X has the pixel value nan",
        ),
        (
            lambda folder: {"spec": SPEC.replace(ridge=0.0, block=5, stride=1)},
            SingularError,
            "ridge",
        ),
        (
            lambda folder: {"listeners": [lose_labels(folder / "run")]},
            StoreError,
            "there is no Zarr array at .*data/labels: check the URL",
        ),
    ],
    ids=["data", "singular", "store"],
)
def test_errors_that_say_what_is_wrong_end_a_run_at_once(
    nannies: Path,
    tmp_path: Path,
    given: Callable[[Path], dict[str, Any]],
    kind: type[RescnetError],
    words: str,
) -> None:
    """They come from other processes as they were raised there, and nothing is tried again."""
    events: list[Event] = []
    arguments = given(tmp_path)
    listeners = [events.append, *arguments.pop("listeners", ())]
    with Client(scheduler_file=str(nannies)), pytest.raises(kind, match=words):
        fit(tmp_path / "run", **arguments, listeners=listeners)
    assert any(isinstance(event, PassStarted) for event in events)
    assert reasons(events) == []


# workers that die -------------------------------------------------------------------------------


def test_workers_may_die_again_and_again_while_chunks_get_done(
    nannies: Path,
    dying: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_one_group: Model,
) -> None:
    """More often than a task may fail, at one chunk after the other."""
    monkeypatch.setattr(executor, "TRIES", 2)  # as starting workers again takes long
    starts = (10, 20, 40)
    for start in starts:
        (dying / f"once-{start}").touch()
    events: list[Event] = []
    with Client(scheduler_file=str(nannies)):
        fit(tmp_path / "run", run=ONE_GROUP, listeners=[events.append])
    assert not list(dying.iterdir())
    assert len(reasons(events)) == len(starts) > executor.TRIES
    for start, reason in zip(starts, reasons(events), strict=True):
        assert f"at chunk {start // 10} (images {start} to {start + 10})" in reason
    assert_same_bits(model(tmp_path / "run"), in_one_group)
    assert verify_run(tmp_path / "run") == []


def test_workers_that_always_die_at_the_same_chunk_end_the_run_with_its_name(
    nannies: Path,
    dying: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_one_group: Model,
) -> None:
    """And with what it mostly is; the run is resumed once they no longer do."""
    monkeypatch.setattr(executor, "TRIES", 2)
    store = tmp_path / "run"
    (dying / "always-30").touch()
    with Client(scheduler_file=str(nannies)):
        with pytest.raises(PassError) as caught:
            fit(store, run=ONE_GROUP)
        for words in (
            *("the pass of layer 2 has failed 2 times", "workers died again and again"),
            *("at chunk 3 (images 30 to 40)", "the last of them tcp://127.0.0.1:", "its log"),
            *("too little memory", "resume the run"),
        ):
            assert words in str(caught.value)
        assert len(RunStore.open(store).commits()) == 2
        assert verify_run(store) == []
        (dying / "always-30").unlink()
        ResCNetClassifier.resume(store)
    assert_same_bits(model(store), in_one_group)


def test_workers_that_join_and_leave_change_no_bit(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Model
) -> None:
    """One is killed, one joins, then all are killed, which the listeners are told of; the run goes
    on when another one joins."""
    monkeypatch.setattr(executor, "LOOK_EVERY", 0.5)
    _, file = started.scheduler()
    workers = [started.worker(file) for _ in range(2)]
    events: list[Event] = []

    def join() -> None:
        workers.append(started.worker(file))

    def kill_all() -> None:
        for worker in workers:
            started.kill(worker)

    def join_when_there_is_none(event: Event) -> None:
        if isinstance(event, PassRetried) and "there is no worker" in event.reason:
            join()

    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(2, timeout=60)
        listeners = [
            *(events.append, join_when_there_is_none),
            when(ChunkDone, 1, lambda: os.kill(workers[0].pid, signal.SIGKILL)),
            when(PassStarted, 2, join),
            when(PassStarted, 3, kill_all),
        ]
        fit(tmp_path / "run", listeners=listeners)
    assert "there is no worker: waiting for one to join" in reasons(events)
    assert len(workers) == 4
    assert_same_bits(model(tmp_path / "run"), undisturbed)


# schedulers that die ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment",
    [PassStarted, *(pytest.param(m, marks=pytest.mark.slow) for m in (ChunkDone, PassDone))],
)
def test_a_scheduler_that_dies_is_named_and_the_run_resumes_elsewhere(
    started: Any,
    threads_cluster: LocalCluster,
    tmp_path: Path,
    moment: type[Event],
    undisturbed: Model,
) -> None:
    """Before a pass, within it and behind it."""
    store = tmp_path / "run"
    scheduler, file = started.scheduler()
    started.worker(file)
    with dask.config.set(QUICKLY), Client(scheduler_file=str(file)):
        listener = when(moment, 2, lambda: started.kill(scheduler))
        with pytest.raises(ClusterLostError) as caught:
            fit(store, listeners=[listener])
    for words in ("connection to the Dask scheduler was lost", "kept", "resume the run"):
        assert words in str(caught.value)
    assert verify_run(store) == []
    assert len(RunStore.open(store).commits()) in (2, 3)
    with Client(threads_cluster):
        ResCNetClassifier.resume(store)
    assert_same_bits(model(store), undisturbed)


def test_a_scheduler_that_dies_while_data_are_copied_leaves_nothing_behind(
    started: Any, tmp_path: Path
) -> None:
    """There is nothing to resume yet, and the same place can be used again."""
    store = tmp_path / "run"
    scheduler, file = started.scheduler()
    started.worker(file)

    def kill_while_copying() -> None:
        started.wait_until((store / "data/images/zarr.json").exists)
        time.sleep(0.5)
        started.kill(scheduler)

    images = da.from_array(X, chunks=(30, *X.shape[1:]))
    slow = bind(images, delayed(time.sleep)(20))
    killer = threading.Thread(target=kill_while_copying)
    with dask.config.set(QUICKLY), Client(scheduler_file=str(file)):
        killer.start()
        with pytest.raises(ClusterLostError, match="connection to the Dask scheduler was lost"):
            fit(store, slow)
    killer.join()
    assert not store.exists()


def test_the_command_tells_a_lost_cluster_by_its_exit_code(
    started: Any,
    threads_cluster: LocalCluster,
    tmp_path: Path,
    data: str,
    config: Path,
    undisturbed: Model,
) -> None:
    """75, as of what can be tried again; and it is."""
    store = tmp_path / "run"
    scheduler, file = started.scheduler()
    started.worker(file)

    def kill_within_layer_2() -> None:
        started.wait_until((store / "maps/0002/c").exists)
        started.kill(scheduler)

    killer = threading.Thread(target=kill_within_layer_2)
    killer.start()
    lost = rescnet("train", data, "--store", store, "--scheduler-file", file, "--config", config)
    killer.join()
    assert lost.exit_code == 75, lost.output
    assert "error: the connection to the Dask scheduler was lost during the pass" in lost.output
    assert "Traceback" not in lost.output
    assert rescnet("check", store).exit_code == 0
    with Client(threads_cluster):
        assert rescnet("resume", store).exit_code == 0
    assert_same_bits(model(store), undisturbed)


# the driver is terminated -----------------------------------------------------------------------


def test_a_terminated_command_leaves_a_clean_run_and_says_how_to_go_on(
    threads_cluster: LocalCluster, tmp_path: Path, data: str, config: Path, undisturbed: Model
) -> None:
    """SIGTERM, as from a cluster that takes its machine back: exit code 75, nothing runs on."""
    store = tmp_path / "run"
    command = [RESCNET, "train", data, "--store", store, "--config", config]
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            deadline = time.monotonic() + 60
            while not (store / "commits/0001.json").exists():
                assert driver.poll() is None, driver.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            family = psutil.Process(driver.pid).children(recursive=True)
            driver.send_signal(signal.SIGTERM)
            _, said = driver.communicate(timeout=60)
        finally:
            driver.kill()
    assert driver.returncode == 75, said
    assert said.splitlines()[-1].startswith("terminated; resume with: ")
    assert said.splitlines()[-1].endswith(f"resume {store}")
    assert family
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    commits = len(RunStore.open(store).commits())
    assert 2 <= commits <= LAYERS
    assert rescnet("check", store).exit_code == 0
    with Client(threads_cluster):
        assert rescnet("resume", store).exit_code == 0
    assert_same_bits(model(store), undisturbed)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_stopped_before_there_is_a_run_does_not_speak_of_going_on(
    client: Client,
    tmp_path: Path,
    data: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: signal.Signals,
) -> None:
    """While the data are copied: nothing is left to resume."""

    def stopped(*_: Any) -> None:
        os.kill(os.getpid(), stop)
        time.sleep(10)

    monkeypatch.setattr("rescnet_dist.train.prepare._write_rows", stopped)
    result = rescnet("train", data, "--store", tmp_path / "run", "--config", config)
    assert result.exit_code == (75 if stop == signal.SIGTERM else 130)
    assert "resume" not in result.output
    assert "nothing was kept: run the same command again" in result.output
    assert not (tmp_path / "run").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# disks that are full ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of a given size, or makes it larger."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def sized(size: str) -> Path:
        mounted = disk.is_mount()
        options = f"remount,size={size}" if mounted else f"size={size}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr}")
        return disk

    yield sized
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


SLOW_SIZES = ("120k", "200k", "320k", "360k", "600k", "640k")


@pytest.mark.parametrize(
    "size", ["160k", "480k", *(pytest.param(size, marks=pytest.mark.slow) for size in SLOW_SIZES)]
)
def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(
    client: Client, small_disk: Callable[[str], Path], undisturbed: Model, size: str
) -> None:
    """Whatever is written at that moment: what is committed is whole."""
    store = small_disk(size) / "run"
    events: list[Event] = []
    with pytest.raises(StoreError) as caught:
        fit(store, run=RUN.replace(keep_maps="all"), listeners=[events.append])
    for words in ("cannot be written", "No space left on device", "make room, then resume"):
        assert words in str(caught.value)
    assert reasons(events) == []
    commits = len(RunStore.open(store).commits())
    assert commits <= LAYERS
    assert verify_run(store) == []
    assert not list(store.rglob("*.partial"))
    small_disk("20m")
    ResCNetClassifier.resume(store)
    assert_same_bits(model(store), undisturbed)
    assert verify_run(store) == []


def test_a_disk_too_small_for_the_data_leaves_nothing_behind(
    client: Client, small_disk: Callable[[str], Path]
) -> None:
    """The same command does once there is room."""
    store = small_disk("48k") / "run"
    with pytest.raises(StoreError, match=r"No space left on device.*make room"):
        fit(store)
    assert not store.exists()
    small_disk("20m")
    assert fit(store).depth_ == LAYERS
