"""One writer at a time: who gets a run, when a claim counts for nothing, and what a driver does
whose run has been taken over."""

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

import dask.array as da
import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from dask import delayed
from distributed import Client
from models import assert_same_bits
from models import read_model as model

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, StoreError, load_digits
from rescnet_dist.cli import main
from rescnet_dist.data import training_set
from rescnet_dist.store import Claim, Location, RunStore, claim
from rescnet_dist.train import (
    Event,
    PassDone,
    PassStarted,
    begin_run,
    chunks,
    lifecycle,
    verify_run,
)

X, Y = (array[:60] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(
    filters=3, first_filter_size=3, block=7, stride=7, residual="regress", max_layers=2
)
RUN = RunSpec(chunk_images=20, accumulators=2, solve_threads=1)
PATIENCE = 60  # seconds after which a test that waits has failed
ON_S3_SLOWLY = pytest.mark.parametrize(  # where the run takes longer than what is tested
    "url", ["folder", "memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)

ONE_OF_MANY = """
import multiprocessing, sys
from rescnet_dist.errors import StoreError
from rescnet_dist.store import Claim, Location

def take(url, start, outcomes):
    start.wait()
    try:
        outcomes.put(Claim.take(Location.of(url)).writer)
    except StoreError as error:
        outcomes.put(str(error))
    start.wait()  # a claim lasts no longer than its process

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

DIES = """
import sys, time
from rescnet_dist.store import Claim, Location
with Claim.take(Location.of(sys.argv[1])).kept():
    print("claimed", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where nothing is yet, on each kind of store."""
    if request.param == "s3":
        request.getfixturevalue("s3")
        yield f"s3://runs/{uuid.uuid4().hex}"
    elif request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}"
        yield url
        Location.of(url).remove()
    else:
        yield str(tmp_path / "run")


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads are switched as often as can be, so that a race that can be lost is lost."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any
) -> dict[str, np.ndarray[Any, Any]]:
    """The model of a run with one driver."""
    store = tmp_path_factory.mktemp("undisturbed") / "run"
    with Client(threads_cluster):
        fit(store)
    return model(store)


def fit(store: Any, images: Any = X, **more: Any) -> ResCNetClassifier:
    """Train in a store."""
    return ResCNetClassifier(SPEC, store=store, run=RUN, **more).fit(images, Y)


class Gate:
    """Holds a driver up where it is told to, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Say that somebody has come, and hold them up."""
        self.reached.set()
        assert self.opened.wait(PATIENCE)

    def at(self, phase: str, layer: int) -> Callable[[Event], None]:
        """A listener that is held up when a pass begins."""

        def listen(event: Event) -> None:
            if event == PassStarted(phase, layer):
                self.wait()

        return listen


GATE = Gate()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate of this test's own."""
    monkeypatch.setattr(sys.modules[__name__], "GATE", Gate())
    return GATE


@pytest.fixture
def driver(gate: Gate) -> Iterator[Callable[..., Future[Any]]]:
    """Starts another driver in a thread of its own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit
        gate.opened.set()


def claims(url: str) -> list[dict[str, Any]]:
    """All claim records at a place."""
    location = Location.of(url) / "claims"
    return [(location / name).read_json() for name in location.names()]


def rewrite_claim(url: str, **changes: Any) -> None:
    """Change the newest claim, as another driver would have written it."""
    location = Location.of(url) / "claims"
    record = location / location.names()[-1]
    record.write_json(record.read_json() | changes)


def commit_bytes(store: Path) -> dict[str, bytes]:
    """The commit records and the result, byte for byte."""
    return {p.name: p.read_bytes() for p in [*store.glob("commits/*"), store / "result.json"]}


# who gets it ------------------------------------------------------------------------------------


def test_of_many_threads_exactly_one_gets_the_claim(url: str, quick_switches: None) -> None:
    """Again and again; those refused are told that another driver was faster."""
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
        for refusal in outcomes:
            if isinstance(refusal, str):
                assert "claimed by another driver just now" in refusal or (
                    f"is being written by process {os.getpid()}" in refusal
                )


def test_of_many_processes_exactly_one_gets_the_claim(s3: None, tmp_path: Path) -> None:
    """In a folder and in a bucket."""
    places = [str(tmp_path / "run"), f"s3://runs/{uuid.uuid4().hex}"]
    done = subprocess.run(
        [sys.executable, "-c", ONE_OF_MANY, "6", *places],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    for location, outcomes in zip(places, (lines[:6], lines[6:]), strict=True):
        (record,) = claims(location)
        assert [line for line in outcomes if location not in line] == [record["writer"]]


def test_a_new_claim_takes_the_place_of_a_released_one(url: str) -> None:
    """Numbers rise, and one record is all there is."""
    location = Location.of(url)
    for number in (1, 2, 3):
        with Claim.take(location).kept() as held:
            assert held.number == number
        assert [record["released"] for record in claims(url)] == [True]


@ON_S3_SLOWLY
def test_a_second_driver_is_refused_while_the_first_one_lives(
    url: str,
    client: Client,
    gate: Gate,
    driver: Callable[..., Future[Any]],
    undisturbed: dict[str, np.ndarray[Any, Any]],
) -> None:
    """By Python and by the command, and told by whom and what to do; the first goes on unharmed."""
    first = driver(fit, url, listeners=[gate.at("grow", 2)])
    assert gate.reached.wait(PATIENCE)
    with pytest.raises(StoreError) as caught:
        ResCNetClassifier.resume(url)
    with pytest.raises(StoreError) as of_train:
        fit(url)
    of_command = CliRunner().invoke(main, ["resume", url])
    assert of_command.exit_code == 2
    for message in (str(caught.value), str(of_train.value), of_command.output):
        for words in (
            *(url, f"process {os.getpid()} on {socket.gethostname()}", "last sign of life 20"),
            *("wait until it ends", "if it is dead", "--take-over", "take_over=True"),
        ):
            assert words in message
    gate.opened.set()
    assert first.result(PATIENCE).depth_ == 2
    assert_same_bits(model(url), undisturbed)


# when a claim counts for nothing ----------------------------------------------------------------


def test_the_claim_of_a_process_that_died_counts_for_nothing_at_once(tmp_path: Path) -> None:
    """Killed, and whether or not its parent has noticed yet."""
    location = Location.of(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", DIES, location.url], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "claimed\n"
            with pytest.raises(
                StoreError, match=f"process {process.pid} on {socket.gethostname()}"
            ):
                Claim.take(location)
            process.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + PATIENCE
            while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            zombie_is_over = Claim.take(location)
            rewrite_claim(location.url, pid=process.pid)
        finally:
            process.kill()
            process.wait()
        assert zombie_is_over.number == 2
        assert Claim.take(location).number == 3


def test_a_process_of_the_same_number_is_not_the_one_that_died(url: str) -> None:
    """The system gives numbers again; the start time tells them apart."""
    Claim.take(Location.of(url))
    with pytest.raises(StoreError, match="is being written"):
        Claim.take(Location.of(url))
    rewrite_claim(url, process_started=psutil.Process().create_time() - 100)
    assert Claim.take(Location.of(url)).number == 2


def test_a_claim_from_another_host_holds_until_it_has_expired(url: str) -> None:
    """Whether its process lives cannot be seen from here: the lifetime alone counts."""
    location = Location.of(url)
    Claim.take(location)
    elsewhere = {"host": "elsewhere", "pid": 1, "process_started": 0.0}
    rewrite_claim(url, **elsewhere, renewed=time.time() - claim.LIFETIME + 20)
    with pytest.raises(StoreError, match=r"process 1 on elsewhere .* dead, wait (20|19) s, or"):
        Claim.take(location)
    rewrite_claim(url, renewed=time.time() - claim.LIFETIME - 1)
    assert Claim.take(location).number == 2


def test_renewal_keeps_a_claim(s3: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the claim expires, though its process lives, as one that hangs does."""
    monkeypatch.setattr(claim, "LIFETIME", 1.5)
    monkeypatch.setattr(claim, "RENEW_EVERY", 0.1)
    name = uuid.uuid4().hex
    urls = [str(tmp_path / "run"), f"memory://{name}", f"s3://runs/{name}"]
    with ExitStack() as kept:
        for url in urls:
            kept.enter_context(Claim.take(Location.of(url)).kept())
        begun = [claims(url)[0]["renewed"] for url in urls]
        time.sleep(2)
        for url, first in zip(urls, begun, strict=True):
            assert claims(url)[0]["renewed"] > first + 1
            with pytest.raises(StoreError, match="is being written"):
                Claim.take(Location.of(url))
    for url in urls:
        Claim.take(Location.of(url))
    time.sleep(1.6)
    for url in urls:
        assert Claim.take(Location.of(url)).number == 3


def test_a_store_that_fails_to_renew_once_does_not_end_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next renewal may pass, and the driver looks itself before it writes."""
    monkeypatch.setattr(claim, "RENEW_EVERY", 0.05)
    renew, failures = Claim.renew, iter([OSError("busy"), StoreError("busy")])

    def failing_twice(self: Claim) -> None:
        for error in failures:
            raise error
        renew(self)

    monkeypatch.setattr(Claim, "renew", failing_twice)
    url = str(tmp_path / "run")
    with Claim.take(Location.of(url)).kept() as held:
        begun = claims(url)[0]["renewed"]
        deadline = time.monotonic() + PATIENCE
        while claims(url)[0]["renewed"] == begun:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        held.check()


# taking over ------------------------------------------------------------------------------------


@ON_S3_SLOWLY
def test_a_driver_that_was_taken_over_stops_before_it_begins_a_pass(
    url: str,
    client: Client,
    gate: Gate,
    driver: Callable[..., Future[Any]],
    undisturbed: dict[str, np.ndarray[Any, Any]],
) -> None:
    """It says by whom, and the new driver's run is as if there had been no other."""
    old = driver(fit, url, listeners=[gate.at("grow", 2)])
    assert gate.reached.wait(PATIENCE)
    clf = ResCNetClassifier.resume(url, take_over=True)
    assert clf.depth_ == 2
    gate.opened.set()
    with pytest.raises(
        StoreError,
        match=rf"{url} has been taken over by process {os.getpid()} on {socket.gethostname()}: "
        "this driver stops",
    ):
        old.result(PATIENCE)
    assert_same_bits(model(url), undisturbed)
    assert verify_run(url) == []
    (record,) = claims(url)
    assert record["released"], "the old driver has no say in the new one's claim"


def test_a_driver_that_was_taken_over_within_a_pass_commits_nothing_of_it(
    client: Client,
    gate: Gate,
    driver: Callable[..., Future[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, np.ndarray[Any, Any]],
) -> None:
    """Taken over by the command while one of its tasks writes; that task ends last of all."""
    store, write, first = tmp_path / "run", chunks.write_region, threading.Lock()

    def hold_up_the_first(array: Any, start: int, values: Any) -> None:
        if array.path == "maps/0002" and first.acquire(blocking=False):
            gate.wait()
        write(array, start, values)

    monkeypatch.setattr(chunks, "write_region", hold_up_the_first)
    old = driver(fit, store)
    assert gate.reached.wait(PATIENCE)
    done = CliRunner().invoke(main, ["resume", str(store), "--take-over", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["depth"] == 2
    before = commit_bytes(store)
    gate.opened.set()
    with pytest.raises(StoreError, match=f"taken over by process {os.getpid()}"):
        old.result(PATIENCE)
    assert commit_bytes(store) == before
    assert_same_bits(model(store), undisturbed)
    assert verify_run(store) == []


# giving it back ---------------------------------------------------------------------------------


class Broken(BaseException):
    """What ends a run in these tests."""


@pytest.mark.parametrize("error", [None, Broken(), KeyboardInterrupt()])
def test_the_claim_is_given_back_however_a_run_ends(
    client: Client, tmp_path: Path, error: BaseException | None
) -> None:
    """At its end, after an error and after Ctrl-C: the same process, which lives, may go on."""
    store = tmp_path / "run"

    def stop(event: Event) -> None:
        if error is not None and isinstance(event, PassDone) and event.layer == 1:
            raise error

    if error is None:
        fit(store)
    else:
        with pytest.raises(type(error)):
            fit(store, listeners=[stop])
    (record,) = claims(str(store))
    assert record["released"]
    assert not [thread for thread in threading.enumerate() if thread.name == "rescnet-claim"]
    assert ResCNetClassifier.resume(store).depth_ == 2
    assert claims(str(store))[0]["released"]


def test_a_claim_is_given_back_where_there_is_no_room_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which is what ended the run: removing takes no room."""
    location = Location.of(tmp_path / "run")

    def full(self: Location, record: Any) -> None:
        raise StoreError(f"{self.url} cannot be written: no space left on device")

    with Claim.take(location).kept():
        monkeypatch.setattr(Location, "write_json", full)
    monkeypatch.undo()
    Claim.take(location)  # this process lives, and would be refused if its claim were there


# new runs ---------------------------------------------------------------------------------------


def late_images() -> Any:
    """The second half of the images, once the gate is open."""
    GATE.wait()
    return X[30:]


def held_up() -> da.Array:
    """The images as a lazy array whose second chunk waits at the gate."""
    late = da.from_delayed(delayed(late_images)(), (30, *X.shape[1:]), X.dtype)
    return da.concatenate([da.from_array(X[:30], chunks=(30, *X.shape[1:])), late])


def test_a_run_that_is_just_being_begun_is_left_alone(
    client: Client, gate: Gate, driver: Callable[..., Future[Any]], tmp_path: Path
) -> None:
    """While its data are copied it can be neither begun, resumed, nor taken for a broken one."""
    store = tmp_path / "run"
    first = driver(fit, store, held_up())
    assert gate.reached.wait(PATIENCE)
    train = ["train", "digits", "--store", str(store), "--max-layers", "1"]
    for refuse in (
        lambda: fit(store),
        lambda: ResCNetClassifier.resume(store),
        lambda: begin_run(store, SPEC, RUN, training_set(X, Y), client),
    ):
        with pytest.raises(StoreError, match=f"is being written by process {os.getpid()}"):
            refuse()
    refused = CliRunner().invoke(main, train)
    assert refused.exit_code == 2
    assert f"is being written by process {os.getpid()}" in refused.output
    gate.opened.set()
    assert first.result(PATIENCE).depth_ == 2
    assert verify_run(store) == []


def test_of_many_drivers_that_begin_at_the_same_place_one_does(
    client: Client,
    driver: Callable[..., Future[Any]],
    tmp_path: Path,
    undisturbed: dict[str, np.ndarray[Any, Any]],
) -> None:
    """The others are refused, and neither write there nor clear it away."""
    store, start = tmp_path / "run", threading.Barrier(4)

    def begin() -> Any:
        start.wait()
        try:
            return fit(store)
        except StoreError as error:
            return error

    outcomes = [future.result(PATIENCE) for future in [driver(begin) for _ in range(4)]]
    assert sorted(type(found).__name__ for found in outcomes) == [
        "ResCNetClassifier",
        *["StoreError"] * 3,
    ]
    assert_same_bits(model(store), undisturbed)
    assert verify_run(store) == []


def test_a_run_that_ended_since_the_look_is_not_begun_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver's whole run between the look at a place and the claim on it is kept."""
    store = tmp_path / "run"
    check_run = lifecycle.check_run

    def look_and_be_slow(*arguments: Any) -> None:
        check_run(*arguments)
        monkeypatch.undo()
        fit(store)

    monkeypatch.setattr(lifecycle, "check_run", look_and_be_slow)
    with pytest.raises(StoreError, match=r"already holds another run.*hoose another URL"):
        fit(store)
    assert RunStore.open(store).result()["depth"] == 2
    assert verify_run(store) == []
