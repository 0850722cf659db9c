"""The same command again, as a restarted pod gives it: begin, go on, leave a finished run alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import pytest
import zarr
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster

import rescnet_dist as rd
from rescnet_dist.cli import main
from rescnet_dist.cli.options import CLUSTER_HELP, pop_cluster_options
from rescnet_dist.cli.signals import LOST_EXCEPTION_SECONDS, Terminated, raise_on_signal
from rescnet_dist.errors import ClusterError
from rescnet_dist.store import Claim, Location, RunStore

SMALL = [
    *("--preset", "digits", "--filters", "4", "--max-layers", "2"),
    *("--block", "14", "--stride", "14"),
]


def train(data: str, url: Any, *more: str) -> Result:
    """`rescnet train --or-resume`, in this process."""
    command = ["train", data, "--store", str(url), "--or-resume", *SMALL, *more]
    return CliRunner().invoke(main, command)


@pytest.fixture(scope="module")
def data_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Zarr store of 300 digits with images and labels."""
    images, labels = rd.load_digits()
    folder = tmp_path_factory.mktemp("data") / "digits.zarr"
    group = zarr.open_group(folder, mode="w")
    group.create_array("images", data=images[:300], chunks=(100, 28, 28, 1))
    group.create_array("labels", data=labels[:300], chunks=(100,))
    return str(folder)


def files_in(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, claims aside, which every driver takes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "claims" not in path.parts
    }


def test_it_trains_then_goes_on_then_leaves_it(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """Three starts, the second after the last layer's commit was lost: the same run."""
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    first = files_in(url)
    (url / "result.json").unlink()
    (url / "commits/0002.json").unlink()
    again = train(data_url, url)
    assert again.exit_code == 0, again.output
    second = files_in(url)
    assert second.keys() == first.keys()
    layer = [name for name in first if name.startswith("layers/")]
    assert layer
    assert all(second[name] == first[name] for name in layer)
    third = train(data_url, url, "--json")
    assert third.exit_code == 0, third.output
    assert json.loads(third.stdout)["state"] == "done"
    assert files_in(url) == second


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--filters", "5"], "filters 4 where 5 is asked for"),
        (["--seed", "3"], "seed 0 where 3 is asked for"),
        (["--max-layers", "3"], "max_layers 2 where 3 is asked for"),
        (["--copies", "1", "--flip"], "copies 0 where 1 is asked for; flip False where True"),
    ],
)
def test_another_run_is_refused(
    client: Client, data_url: str, tmp_path_factory: pytest.TempPathFactory,
    more: list[str], expected: str,
) -> None:  # fmt: skip
    """By the settings that differ, in one line, and nothing is touched."""
    url = tmp_path_factory.getbasetemp() / "a-run"
    if not url.exists():
        assert train(data_url, url).exit_code == 0
    before = files_in(url)
    failed = train(data_url, url, *more)
    assert failed.exit_code == 2
    assert expected in failed.output
    assert "or another store" in failed.output
    assert failed.output.count("\n") == 1
    assert files_in(url) == before


def test_a_run_of_an_older_release_is_gone_on_with(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """Which did not have an option yet, and did as its default does now."""
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    record = json.loads((url / "zarr.json").read_text())
    for table, name in (("network", "lda_draws"), ("run", "codec")):
        del record["attributes"][table][name]
    (url / "zarr.json").write_text(json.dumps(record))
    again = train(data_url, url)
    assert again.exit_code == 0, again.output


def test_a_run_keeps_the_plan_that_it_began_with(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """As a job does that is rendered again for more workers; it says so."""
    url = tmp_path / "run"
    assert train(data_url, url, "--chunk-images", "150").exit_code == 0
    (url / "result.json").unlink()
    again = train(data_url, url, "--chunk-images", "50", "--accumulators", "4")
    assert again.exit_code == 0, again.output
    assert "goes on with the plan that it began with: chunk_images=150, accumulators=2," in (
        again.output
    )
    assert "goes on with the plan" not in train(data_url, url, "--chunk-images", "150").output


def test_other_data_and_what_is_no_run_are_refused(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """A store that holds something else is never cleared."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.png").write_bytes(b"1")
    failed = train(data_url, tmp_path / "photos")
    assert failed.exit_code == 2
    assert (tmp_path / "photos/one.png").exists()
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    os.rename(data_url, f"{data_url}-moved")
    try:
        failed = train(f"{data_url}-moved", url)
    finally:
        os.rename(f"{data_url}-moved", data_url)
    assert failed.exit_code == 2
    assert f"data {data_url!r} where" in failed.output


def test_a_run_that_died_early_begins_anew(client: Client, data_url: str, tmp_path: Path) -> None:
    """With a claim alone, or attributes and half the data; but not while its driver lives."""
    url = tmp_path / "run"
    claim = Claim.take(Location.of(url), new=True)
    failed = train(data_url, url)
    assert failed.exit_code == 2
    assert "is being written by process" in failed.output
    claim.release()
    run = RunStore(Location.of(url))
    run.initialize({"network": {"filters": 3}})
    run.create_labels(10, 10)
    assert CliRunner().invoke(main, ["train", data_url, "--store", str(url), *SMALL]).exit_code == 2
    done = train(data_url, url)
    assert done.exit_code == 0, done.output
    assert run.attributes()["network"]["filters"] == 4


def test_a_run_that_ended_since_the_look_is_kept(
    client: Client, data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver's whole run between the look at a beginning and the claim on it."""
    url = tmp_path / "run"
    Claim.take(Location.of(url), new=True).release()
    take = Claim.take

    def take_late(location: Location, **how: Any) -> Claim:
        monkeypatch.undo()
        assert train(data_url, url).exit_code == 0
        return take(location, **how)

    monkeypatch.setattr(Claim, "take", take_late)
    failed = train(data_url, url)
    assert failed.exit_code == 2
    assert "already holds another run" in failed.output
    assert (url / "result.json").exists()
    assert train(data_url, url).exit_code == 0


def test_workers_too_small_for_the_plan_are_refused(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """Where there is something left to do, and before anything is written."""
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    never = {f"distributed.worker.memory.{what}": False for what in ("pause", "spill")}
    with (
        dask.config.set(never),  # as it shares this process, which takes more than that
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, memory_limit="400MiB",
            dashboard_address="127.0.0.1:0",
        ) as small,
        Client(small),
    ):  # fmt: skip
        assert train(data_url, url).exit_code == 0  # it is done
        (url / "result.json").unlink()
        (url / "commits/0002.json").unlink()
        before = files_in(url)
        again = train(data_url, url)
        resumed = CliRunner().invoke(main, ["resume", str(url)])
        for failed in (again, resumed):
            assert failed.exit_code == 2, failed.output
            assert "The run keeps the plan it started with" in failed.output
            assert "of each worker's 400 MiB may be used before Dask spills" in failed.output
            advised = re.search(r"workers of at least ([\d,]+) MiB, or with fewer", failed.output)
            assert advised, failed.output
            assert 500 < int(advised[1].replace(",", "")) < 4000
            assert files_in(url).items() <= before.items()
    done = CliRunner().invoke(main, ["resume", str(url)])
    assert done.exit_code == 0, done.output


def test_a_store_must_be_named(data_url: str) -> None:
    """As a store named after the time is another one each time."""
    failed = CliRunner().invoke(main, ["train", data_url, "--or-resume", *SMALL])
    assert failed.exit_code == 2
    assert "Add --store URL" in failed.output


@pytest.mark.slow
def test_a_terminated_driver_goes_on(started: Any, data_url: str, tmp_path: Path) -> None:
    """SIGTERM, exit code 75, and the same command again: as a pod that is started anew."""
    _, file = started.scheduler()
    started.worker(file)
    more = ("--scheduler-file", str(file), "--max-layers", "4", "--json-lines")
    run = ("train", data_url, "--or-resume", "--store", str(tmp_path / "run"), *SMALL, *more)
    command = [sys.executable, "-m", "rescnet_dist", *run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout
        for line in first.stdout:
            if json.loads(line)["event"] == "pass_done" and json.loads(line)["layer"] == 1:
                first.send_signal(signal.SIGTERM)
                break
        first.stdout.read()
    assert first.returncode == 75
    done = CliRunner().invoke(main, run)
    assert done.exit_code == 0, done.output
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert 1 <= events[0]["layers"] < 4
    assert events[-1]["state"] == "done"


def test_a_signal_that_gets_lost_comes_again() -> None:
    """As one that comes while Python frees an object; but not while it is being answered."""
    answered = 0
    with raise_on_signal():
        with suppress(Terminated):
            signal.raise_signal(signal.SIGTERM)
        try:
            time.sleep(20)
        except Terminated:
            answered += 1
            time.sleep(2.5 * LOST_EXCEPTION_SECONDS)  # cleaning up
    assert answered == 1


def test_no_signal_comes_once_the_body_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the body ends as its loss is being noticed: the handler is still there."""
    sent = []
    noticed, kill = threading.Event(), os.kill

    def slowly(process: int, number: int) -> None:
        noticed.set()
        time.sleep(0.2)
        sent.append(signal.getsignal(number))
        kill(process, number)

    monkeypatch.setattr(os, "kill", slowly)
    before = signal.getsignal(signal.SIGTERM)
    with raise_on_signal():
        with suppress(Terminated):
            signal.raise_signal(signal.SIGTERM)
        assert noticed.wait(20)
    assert len(sent) == 1
    assert sent[0] is not before
    assert signal.getsignal(signal.SIGTERM) is before


# the cluster ------------------------------------------------------------------------------------


def flags(**given: Any) -> dict[str, Any]:
    """The options of a cluster, most of them not given."""
    return dict.fromkeys([*CLUSTER_HELP, "wait"]) | given


def test_the_environment_names_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Dask's operator does; an option wins over it."""
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tls://there:8786")
    assert pop_cluster_options(flags()) == {"scheduler": "tls://there:8786"}
    assert pop_cluster_options(flags(gateway="https://g")) == {"gateway": "https://g"}
    assert pop_cluster_options(flags(wait="10m")) == {"scheduler": "tls://there:8786", "wait": 600}
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "")
    assert pop_cluster_options(flags()) == {}


@pytest.mark.parametrize("wait", ["soon", "-1", "0", "inf", ""])
def test_what_is_no_time_is_refused(wait: str) -> None:
    """By the option and the value."""
    with pytest.raises(ClusterError, match=f"--wait {wait} is not a time. Give it in seconds"):
        pop_cluster_options(flags(scheduler="tcp://there:8786", wait=wait))


def test_waiting_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded one is there at once."""
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ClusterError, match="none is named"):
        pop_cluster_options(flags(wait="9"))


@pytest.mark.slow
def test_a_scheduler_that_comes_late_is_waited_for(
    started: Any, data_url: str, tmp_path: Path
) -> None:
    """And so is its first worker, which comes later still; without --wait there is an error."""
    file = tmp_path / "scheduler.json"
    named = ("--scheduler-file", str(file))
    assert "There is no scheduler file" in train(data_url, tmp_path / "run", *named).output

    def start() -> None:
        time.sleep(1)
        started.dask("scheduler", "--port", "0", "--scheduler-file", file)
        started.wait_until(file.exists)
        time.sleep(3)  # longer than from one try to reach the scheduler to the next
        started.worker(file)

    starting = threading.Thread(target=start)
    starting.start()
    done = train(data_url, tmp_path / "run", *named, "--wait", "60s", "--max-layers", "1")
    starting.join()
    assert done.exit_code == 0, done.output
    assert "waiting up to 60 s for the cluster" in done.output
