"""Claims: one writer at a time, expiry of claims, and drivers whose run was taken over."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from dask import delayed
from distributed import Client
from models import assert_same_bits, read_model

from rescnet_dist import (
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    StoreError,
    estimator,
    load_digits,
)
from rescnet_dist.cli import main
from rescnet_dist.data import training_set
from rescnet_dist.errors import ClaimLostError
from rescnet_dist.events import Event, PassDone, PassStarted
from rescnet_dist.lifecycle import CheckedRun, begin_or_resume, check_run
from rescnet_dist.store import Claim, Location, RunStore, claim
from rescnet_dist.train import chunks, loop, verify_run

X, Y = (array[:60] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(filters=3, first_filter_size=3, block=7, stride=7, head="regress", max_layers=2)
RUN = RunSpec(validation=0, chunk_images=20, accumulators=2, solve_threads=1)
TEST_TIMEOUT_SECONDS = 60  # after which a waiting test fails
slow_on_s3 = pytest.mark.parametrize(  # where training takes longer than the test
    "url",
    ["folder", "memory", *(pytest.param(s, marks=pytest.mark.slow) for s in ("fsspec", "obstore"))],
    indirect=True,
)

CLAIM_SCRIPT = """
import multiprocessing, sys
from rescnet_dist.errors import StoreError
from rescnet_dist.store import Claim, Location

def take(url, start, outcomes):
    start.wait()
    try:
        outcomes.put(Claim.take(Location.of(url)).writer)
    except StoreError as error:
        outcomes.put(str(error))
    start.wait()  # A claim lasts no longer than its process.

context = multiprocessing.get_context("fork")
for url in sys.argv[2:]:
    start, outcomes = context.Barrier(int(sys.argv[1])), context.Queue()
    drivers = [
        context.Process(target=take, args=(url, start, outcomes)) for _ in range(int(sys.argv[1]))
    ]
    for driver in drivers:
        driver.start()
    for _ in drivers:
        print(outcomes.get(timeout=60), flush=True)
    for driver in drivers:
        driver.join()
"""

HOLD_SCRIPT = """
import sys, time
from rescnet_dist.store import Claim, Location
with Claim.take(Location.of(sys.argv[1])).hold():
    print("claimed", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["folder", "memory", "fsspec", "obstore"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL of each kind of store, at which nothing is stored yet; S3 with two clients."""
    if request.param in ("fsspec", "obstore"):
        request.getfixturevalue("s3")
        pytest.importorskip(request.param)
        with dask.config.set({"rescnet.object-store": request.param}):
            yield f"s3://runs/{uuid.uuid4().hex}"
    elif request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}"
        yield url
        Location.of(url).remove()
    else:
        yield str(tmp_path / "run")


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Switch threads as often as possible, so that race conditions show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def expected_model(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any
) -> dict[str, np.ndarray[Any, Any]]:
    """The model of a run with one driver."""
    store = tmp_path_factory.mktemp("undisturbed") / "run"
    with Client(threads_cluster):
        fit_run(store)
    return read_model(store)


def fit_run(store: Any, images: Any = X, **more: Any) -> ResCNetClassifier:
    """Train a run in a store."""
    return ResCNetClassifier(SPEC, store=store, run=RUN, **more).fit(images, Y)


class Gate:
    """Blocks a driver at a given event until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Block the caller until the gate is opened."""
        self.reached.set()
        assert self.opened.wait(TEST_TIMEOUT_SECONDS)

    def at(self, phase: str, layer: int) -> Callable[[Event], None]:
        """Return a listener that blocks when a pass starts."""

        def listen(event: Event) -> None:
            if event == PassStarted(phase, layer):
                self.wait()

        return listen


GATE = Gate()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate of this test."""
    monkeypatch.setattr(sys.modules[__name__], "GATE", Gate())
    return GATE


@pytest.fixture
def start_driver(gate: Gate) -> Iterator[Callable[..., Future[Any]]]:
    """A function that starts another driver in a thread."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit
        gate.opened.set()


def read_claims(url: str) -> list[dict[str, Any]]:
    """Return all claim records at a location; files that are being written are none."""
    location = Location.of(url) / "claims"
    names = (name for name in location.names() if name.endswith(".json"))
    return [(location / name).read_json() for name in names]


def rewrite_claim(url: str, **changes: Any) -> None:
    """Change the latest claim, as if another driver had written it."""
    location = Location.of(url) / "claims"
    record = location / location.names()[-1]
    record.write_json(record.read_json() | changes)


def read_commits(store: Path) -> dict[str, bytes]:
    """Return the bytes of the commit records and the result."""
    return {p.name: p.read_bytes() for p in [*store.glob("commits/*"), store / "result.json"]}


# taking a claim ---------------------------------------------------------------------------------


@pytest.mark.sampled(2, first=1)
def test_one_of_many_threads_gets_claim(url: str, frequent_thread_switches: None) -> None:
    """In many trials; the others get an error that names the other driver."""
    for trial in range(4 if url.startswith("s3:") else 60):
        location, start = Location.of(f"{url}/{trial}"), threading.Barrier(8)

        def take(location: Location = location, start: threading.Barrier = start) -> Claim | str:
            start.wait()
            try:
                return Claim.take(location)
            except StoreError as error:
                return str(error)

        with ThreadPoolExecutor(8) as pool:
            outcomes = [future.result() for future in [pool.submit(take) for _ in range(8)]]
        (winner,) = [found for found in outcomes if isinstance(found, Claim)]
        winner.check()
        for outcome in outcomes:
            if isinstance(outcome, str):
                assert "claimed by another driver just now" in outcome or (
                    f"is being written by process {os.getpid()}" in outcome
                )


@pytest.mark.slow
def test_one_of_many_processes_gets_claim(s3: None, object_store: str, tmp_path: Path) -> None:
    """In a folder and in a bucket."""
    urls = [str(tmp_path / "run"), f"s3://runs/{uuid.uuid4().hex}"]
    done = subprocess.run(
        [sys.executable, "-c", CLAIM_SCRIPT, "6", *urls],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    for url, outcomes in zip(urls, (lines[:6], lines[6:]), strict=True):
        (record,) = read_claims(url)
        assert [line for line in outcomes if url not in line] == [record["writer"]]


def test_new_claim_replaces_released_claim(url: str) -> None:
    """Numbers increase, and there is only one record."""
    location = Location.of(url)
    for number in (1, 2, 3):
        with Claim.take(location).hold() as active:
            assert active.number == number
        assert [record["released"] for record in read_claims(url)] == [True]


@slow_on_s3
def test_second_driver_fails_while_first_runs(
    url: str,
    client: Client,
    gate: Gate,
    start_driver: Callable[..., Future[Any]],
    expected_model: dict[str, np.ndarray[Any, Any]],
) -> None:
    """In Python and by the command; the error names the holder and a remedy.

    The first driver is not disturbed.
    """
    first = start_driver(fit_run, url, listeners=[gate.at("grow", 2)])
    assert gate.reached.wait(TEST_TIMEOUT_SECONDS)
    with pytest.raises(StoreError) as caught:
        ResCNetClassifier.resume(url)
    with pytest.raises(StoreError) as caught_by_fit:
        fit_run(url)
    result = CliRunner().invoke(main, ["resume", url])
    assert result.exit_code == 2
    for message in (str(caught.value), str(caught_by_fit.value), result.output):
        for part in (
            *(url, f"process {os.getpid()} on {socket.gethostname()}", "last renewed 20"),
            *("Wait until it ends", "if it is dead", "--take-over", "take_over=True"),
        ):
            assert part in message
    gate.opened.set()
    assert first.result(TEST_TIMEOUT_SECONDS).depth_ == 2
    assert_same_bits(read_model(url), expected_model)


# expired and void claims ------------------------------------------------------------------------


def test_claim_of_dead_process_is_void(tmp_path: Path) -> None:
    """At once after a kill, whether or not its parent has noticed."""
    location = Location.of(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_SCRIPT, location.url], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "claimed\n"
            with pytest.raises(
                StoreError, match=f"process {process.pid} on {socket.gethostname()}"
            ):
                Claim.take(location)
            process.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + TEST_TIMEOUT_SECONDS
            while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            after_zombie = Claim.take(location)
            rewrite_claim(location.url, pid=process.pid)
        finally:
            process.kill()
            process.wait()
        assert after_zombie.number == 2
        assert Claim.take(location).number == 3


def test_reused_pid_is_another_process(url: str) -> None:
    """Pids are reused; the start time distinguishes processes."""
    Claim.take(Location.of(url))
    with pytest.raises(StoreError, match="is being written"):
        Claim.take(Location.of(url))
    rewrite_claim(url, process_started=psutil.Process().create_time() - 100, started_after_boot=-1)
    assert Claim.take(Location.of(url)).number == 2


@pytest.mark.parametrize("step", [-3600, 3600])
def test_claim_holds_after_a_step_of_the_clock(url: str, step: int) -> None:
    """The time of creation of a process, as the system computes it, moves with the clock."""
    location = Location.of(url)
    Claim.take(location)
    rewrite_claim(url, process_started=psutil.Process().create_time() + step)
    assert claim.is_claimed(location)


@pytest.mark.parametrize(
    "damage",
    [
        {"renewed": float("nan")},
        {"renewed": 1e300},
        {"renewed": -1.0},
        {"renewed": 10**400},
        {"pid": -1},
        {"process_started": 10**400},
        {"started_after_boot": 10**400},
        {"started_after_boot": "soon"},
        {"released": "yes"},
    ],
    ids=str,
)
def test_damaged_claim_holds_until_it_is_taken_over(
    tmp_path: Path, damage: dict[str, object]
) -> None:
    """Whose it is cannot be known."""
    location = Location.of(tmp_path / "run")
    Claim.take(location)
    rewrite_claim(location.url, **damage)
    with pytest.raises(StoreError, match=r"a claim that cannot be read, claims/000001\.json"):
        Claim.take(location)
    assert claim.is_claimed(location)
    assert Claim.take(location, take_over=True).number == 2


def test_claim_of_other_host_holds_until_it_expires(url: str) -> None:
    """Whether its process runs is unknown here: only the lifetime counts."""
    location = Location.of(url)
    Claim.take(location)
    other_host = {"host": "elsewhere", "pid": 1, "process_started": 0.0}
    rewrite_claim(url, **other_host, renewed=time.time() - claim.CLAIM_LIFETIME_SECONDS + 20)
    with pytest.raises(StoreError, match=r"process 1 on elsewhere .* dead, wait (20|19) s, or"):
        Claim.take(location)
    rewrite_claim(url, renewed=time.time() - claim.CLAIM_LIFETIME_SECONDS - 1)
    assert Claim.take(location).number == 2


def test_renewal_extends_claim(
    s3: None, object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the claim expires, though its process runs, as one that hangs does."""
    monkeypatch.setattr(claim, "CLAIM_LIFETIME_SECONDS", 1.5)
    monkeypatch.setattr(claim, "RENEW_INTERVAL_SECONDS", 0.1)
    name = uuid.uuid4().hex
    urls = [str(tmp_path / "run"), f"memory://{name}", f"s3://runs/{name}"]
    with ExitStack() as stack:
        for url in urls:
            stack.enter_context(Claim.take(Location.of(url)).hold())
        before = [read_claims(url)[0]["renewed"] for url in urls]
        time.sleep(2)
        for url, first in zip(urls, before, strict=True):
            assert read_claims(url)[0]["renewed"] > first + 1
            with pytest.raises(StoreError, match="is being written"):
                Claim.take(Location.of(url))
    monkeypatch.setattr(claim, "CLAIM_LIFETIME_SECONDS", 0.1)
    for url in urls:
        Claim.take(Location.of(url))
    time.sleep(0.2)
    for url in urls:
        assert Claim.take(Location.of(url)).number == 3


def test_renewal_after_two_takeovers_is_noticed(url: str) -> None:
    """As of a driver that was suspended before it wrote: its record is not left behind."""
    location, make_record = Location.of(url), claim._make_record
    suspended = Claim.take(location)

    def take_over_twice(writer: str) -> dict[str, Any]:
        patch.undo()
        for _ in range(2):
            Claim.take(location, take_over=True)
        return make_record(writer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim, "_make_record", take_over_twice)
        suspended.renew()
    with pytest.raises(ClaimLostError, match="taken over"):
        suspended.check()


def test_failed_renewals_do_not_end_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next renewal may succeed, and the driver checks before it writes."""
    monkeypatch.setattr(claim, "RENEW_INTERVAL_SECONDS", 0.05)
    renew, failures = Claim.renew, iter([OSError("busy"), StoreError("busy")])

    def fail_twice(self: Claim) -> None:
        for error in failures:
            raise error
        renew(self)

    monkeypatch.setattr(Claim, "renew", fail_twice)
    url = str(tmp_path / "run")
    with Claim.take(Location.of(url)).hold() as active:
        before = read_claims(url)[0]["renewed"]
        deadline = time.monotonic() + TEST_TIMEOUT_SECONDS
        while read_claims(url)[0]["renewed"] == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        active.check()


# taking over ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"run": {"tile_features": 48}}, {"spec": {"solver": "cg"}}])
def test_work_area_is_not_created_after_takeover(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A driver is suspended after its check at the start of a layer, while another has the run."""
    location = Location.of(tmp_path / "run")
    recreate = loop._Driver.recreate_removed_maps

    def recreate_late(driver: Any, layer: int) -> None:
        recreate(driver, layer)
        Claim.take(location, take_over=True)

    monkeypatch.setattr(loop._Driver, "recreate_removed_maps", recreate_late)
    spec = SPEC.replace(**options.get("spec", {}))
    run = RUN.replace(maps="store", **options.get("run", {}))
    with pytest.raises(StoreError, match="has been taken over by process"):
        ResCNetClassifier(spec, store=location.url, run=run).fit(X, Y)
    assert not (location / "work").exists()


@slow_on_s3
def test_driver_stops_before_pass_after_takeover(
    url: str,
    client: Client,
    gate: Gate,
    start_driver: Callable[..., Future[Any]],
    expected_model: dict[str, np.ndarray[Any, Any]],
) -> None:
    """Its error names the new driver, whose run is as if there had been no other."""
    old = start_driver(fit_run, url, listeners=[gate.at("grow", 2)])
    assert gate.reached.wait(TEST_TIMEOUT_SECONDS)
    clf = ResCNetClassifier.resume(url, take_over=True)
    assert clf.depth_ == 2
    gate.opened.set()
    with pytest.raises(
        StoreError,
        match=rf"{url} has been taken over by process {os.getpid()} on {socket.gethostname()}"
        r"\. This driver stops",
    ):
        old.result(TEST_TIMEOUT_SECONDS)
    assert_same_bits(read_model(url), expected_model)
    assert verify_run(url) == []
    (record,) = read_claims(url)
    assert record["released"], "the old driver must not change the new claim"


def test_driver_commits_nothing_after_takeover(
    client: Client,
    gate: Gate,
    start_driver: Callable[..., Future[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected_model: dict[str, np.ndarray[Any, Any]],
) -> None:
    """Taken over by the command while one of its tasks writes; that task ends last."""
    store, write, first = tmp_path / "run", chunks.write_region, threading.Lock()

    def block_first_write(array: Any, start: int, values: Any) -> None:
        if array.path == "maps/0002" and first.acquire(blocking=False):
            gate.wait()
        write(array, start, values)

    monkeypatch.setattr(chunks, "write_region", block_first_write)
    old = start_driver(fit_run, store)
    assert gate.reached.wait(TEST_TIMEOUT_SECONDS)
    done = CliRunner().invoke(main, ["resume", str(store), "--take-over", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["depth"] == 2
    before = read_commits(store)
    gate.opened.set()
    with pytest.raises(StoreError, match=f"taken over by process {os.getpid()}"):
        old.result(TEST_TIMEOUT_SECONDS)
    assert read_commits(store) == before
    assert_same_bits(read_model(store), expected_model)
    assert verify_run(store) == []


# releasing --------------------------------------------------------------------------------------


class AbortRun(BaseException):
    """Ends a run in these tests."""


@pytest.mark.parametrize("error", [None, AbortRun(), KeyboardInterrupt()])
def test_claim_is_released_when_run_ends(
    client: Client, tmp_path: Path, error: BaseException | None
) -> None:
    """At its end, after an error and after Ctrl-C, the same process may resume the run."""
    store = tmp_path / "run"

    def stop(event: Event) -> None:
        if error is not None and isinstance(event, PassDone) and event.layer == 1:
            raise error

    if error is None:
        fit_run(store)
    else:
        with pytest.raises(type(error)):
            fit_run(store, listeners=[stop])
    (record,) = read_claims(str(store))
    assert record["released"]
    assert not [thread for thread in threading.enumerate() if thread.name == "rescnet-claim"]
    assert ResCNetClassifier.resume(store).depth_ == 2
    assert read_claims(str(store))[0]["released"]


def test_claim_is_released_on_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is removed, which needs no space."""
    location = Location.of(tmp_path / "run")

    def fail_on_full_disk(self: Location, record: Any) -> None:
        raise StoreError(f"{self.url} cannot be written: no space left on device")

    with Claim.take(location).hold():
        monkeypatch.setattr(Location, "write_json", fail_on_full_disk)
    monkeypatch.undo()
    Claim.take(location)  # It would fail if the claim of this running process were left.


# new runs ---------------------------------------------------------------------------------------


def wait_for_images() -> Any:
    """Return the second half of the images, once the gate is open."""
    GATE.wait()
    return X[30:]


def make_blocked_images() -> da.Array:
    """Return the images as a lazy array whose second chunk waits at the gate."""
    late = da.from_delayed(delayed(wait_for_images)(), (30, *X.shape[1:]), X.dtype)
    return da.concatenate([da.from_array(X[:30], chunks=(30, *X.shape[1:])), late])


def test_run_being_created_is_protected(
    client: Client, gate: Gate, start_driver: Callable[..., Future[Any]], tmp_path: Path
) -> None:
    """While its data are copied it cannot be created or resumed by another driver."""
    store = tmp_path / "run"
    first = start_driver(fit_run, store, make_blocked_images())
    assert gate.reached.wait(TEST_TIMEOUT_SECONDS)
    train = ["train", "digits", "--store", str(store), "--max-layers", "1"]
    for attempt in (
        lambda: fit_run(store),
        lambda: ResCNetClassifier.resume(store),
        lambda: begin_or_resume(check_run(store, SPEC, RUN, training_set(X, Y)), client),
    ):
        with pytest.raises(StoreError, match=f"is being written by process {os.getpid()}"):
            attempt()
    result = CliRunner().invoke(main, train)
    assert result.exit_code == 2
    assert f"is being written by process {os.getpid()}" in result.output
    gate.opened.set()
    assert first.result(TEST_TIMEOUT_SECONDS).depth_ == 2
    assert verify_run(store) == []


def test_one_of_many_drivers_creates_run(
    client: Client,
    start_driver: Callable[..., Future[Any]],
    tmp_path: Path,
    expected_model: dict[str, np.ndarray[Any, Any]],
) -> None:
    """The others fail, and neither write there nor remove anything."""
    store, start = tmp_path / "run", threading.Barrier(4)

    def begin() -> Any:
        start.wait()
        try:
            return fit_run(store)
        except StoreError as error:
            return error

    outcomes = [
        future.result(TEST_TIMEOUT_SECONDS) for future in [start_driver(begin) for _ in range(4)]
    ]
    assert sorted(type(found).__name__ for found in outcomes) == [
        "ResCNetClassifier",
        *["StoreError"] * 3,
    ]
    assert_same_bits(read_model(store), expected_model)
    assert verify_run(store) == []


def test_run_finished_after_check_is_kept(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver's whole run between the check of a location and its claim is kept."""
    store = tmp_path / "run"

    def check_and_let_other_run(*arguments: Any, **options: Any) -> CheckedRun:
        checked = check_run(*arguments, **options)
        monkeypatch.undo()
        fit_run(store)
        return checked

    monkeypatch.setattr(estimator.classifier, "check_run", check_and_let_other_run)
    with pytest.raises(StoreError, match=r"already holds another run\. Choose another URL"):
        fit_run(store)
    assert RunStore.open(store).result()["depth"] == 2
    assert verify_run(store) == []
