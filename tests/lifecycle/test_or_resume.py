"""`rescnet train --or-resume`: start, resume, or leave a finished run unchanged."""

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
from rescnet_dist.cli.common import CLUSTER_HELP, pop_cluster_options
from rescnet_dist.cli.signals import LOST_EXCEPTION_SECONDS, Terminated, raise_on_signal
from rescnet_dist.errors import ClusterError
from rescnet_dist.lifecycle import begin
from rescnet_dist.store import Claim, Location, RunStore

SMALL = [
    *("--preset", "digits", "--filters", "4", "--max-layers", "2"),
    *("--block", "14", "--stride", "14"),
]


def train(data: str, url: Any, *options: str) -> Result:
    """Run `rescnet train --or-resume` in this process."""
    command = ["train", data, "--store", str(url), "--or-resume", *SMALL, *options]
    return CliRunner().invoke(main, command)


@pytest.fixture(scope="module")
def data_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a Zarr store of 300 digits."""
    images, labels = rd.load_digits()
    folder = tmp_path_factory.mktemp("data") / "digits.zarr"
    group = zarr.open_group(folder, mode="w")
    group.create_array("images", data=images[:300], chunks=(100, 28, 28, 1))
    group.create_array("labels", data=labels[:300], chunks=(100,))
    return str(folder)


def read_files(folder: Path) -> dict[str, bytes]:
    """Read all files in a folder, except the claims, which every driver writes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "claims" not in path.parts
    }


def test_start_then_resume_then_no_change(client: Client, data_url: str, tmp_path: Path) -> None:
    """The second of three starts comes after the last commit was lost: the run is the same."""
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    first = read_files(url)
    (url / "result.json").unlink()
    (url / "commits/0002.json").unlink()
    resumed = train(data_url, url)
    assert resumed.exit_code == 0, resumed.output
    second = read_files(url)
    assert second.keys() == first.keys()
    layers = [name for name in first if name.startswith("layers/")]
    assert layers
    assert all(second[name] == first[name] for name in layers)
    third = train(data_url, url, "--json")
    assert third.exit_code == 0, third.output
    assert json.loads(third.stdout)["state"] == "done"
    assert read_files(url) == second


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--filters", "5"], "filters 4 instead of 5"),
        (["--seed", "3"], "seed 0 instead of 3"),
        (["--class-weight", "balanced"], "class_weight None instead of 'balanced'"),
        (["--max-layers", "3"], "max_layers 2 instead of 3"),
        (["--copies", "1", "--flip"], "copies 0 instead of 1; flip False instead of True"),
    ],
)
def test_other_run_is_rejected(
    client: Client,
    data_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    options: list[str],
    expected: str,
) -> None:
    """The error names the settings that differ, in one line; nothing is changed."""
    url = tmp_path_factory.getbasetemp() / "a-run"
    if not url.exists():
        assert train(data_url, url).exit_code == 0
    before = read_files(url)
    failed = train(data_url, url, *options)
    assert failed.exit_code == 2
    assert expected in failed.output
    assert "or another store" in failed.output
    assert failed.output.count("\n") == 1
    assert read_files(url) == before


def test_resume_of_run_of_older_release(client: Client, data_url: str, tmp_path: Path) -> None:
    """An option that it did not have yet has its default."""
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    record = json.loads((url / "zarr.json").read_text())
    network, run_table = record["attributes"]["network"], record["attributes"]["run"]
    for table, name in ((network, "decay"), (network["bank"][1], "draws"), (run_table, "codec")):
        del table[name]
    (url / "zarr.json").write_text(json.dumps(record))
    resumed = train(data_url, url)
    assert resumed.exit_code == 0, resumed.output


def test_run_keeps_its_plan(client: Client, data_url: str, tmp_path: Path) -> None:
    """A job that is rendered again for more workers keeps its plan, and prints it."""
    url = tmp_path / "run"
    assert train(data_url, url, "--chunk-images", "150").exit_code == 0
    (url / "result.json").unlink()
    resumed = train(data_url, url, "--chunk-images", "50", "--accumulators", "4")
    assert resumed.exit_code == 0, resumed.output
    note = "continues with the plan that it was started with: chunk_images=150, accumulators=2,"
    assert note in resumed.output
    assert "continues with the plan" not in train(data_url, url, "--chunk-images", "150").output


def test_other_data_and_stores_without_run_are_rejected(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """A store that holds anything else is never cleared."""
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
    assert f"data {data_url!r} instead of" in failed.output


def test_incomplete_run_is_started_again(client: Client, data_url: str, tmp_path: Path) -> None:
    """It has a claim only, or attributes and half the data, and its driver is dead."""
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


def test_run_completed_by_other_driver_is_kept(
    client: Client, data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver completes a run between the check of an incomplete one and its claim."""
    url = tmp_path / "run"
    Claim.take(Location.of(url), new=True).release()
    take = Claim.take

    def take_late(location: Location, **options: Any) -> Claim:
        monkeypatch.undo()
        assert train(data_url, url).exit_code == 0
        return take(location, **options)

    monkeypatch.setattr(Claim, "take", take_late)
    failed = train(data_url, url)
    assert failed.exit_code == 2
    assert "already holds another run" in failed.output
    assert (url / "result.json").exists()
    assert train(data_url, url).exit_code == 0


@pytest.mark.parametrize("fails", [False, True])
def test_run_taken_over_while_its_data_are_written_is_kept(
    client: Client, data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The driver was suspended for longer than its claim lasts; it changes and removes nothing."""
    url = tmp_path / "run"
    index_rows = begin._index_rows

    def index_late(*arguments: Any) -> Any:
        rows = index_rows(*arguments)
        Claim.take(Location.of(url), take_over=True)
        (url / "result.json").write_text("of the other driver")
        if fails:
            raise rd.DataError("the images cannot be read")
        return rows

    monkeypatch.setattr(begin, "_index_rows", index_late)
    failed = train(data_url, url)
    assert failed.exit_code == (2 if fails else 75), failed.output
    assert fails or "has been taken over" in failed.output
    assert (url / "result.json").read_text() == "of the other driver"
    assert "plan" not in json.loads((url / "zarr.json").read_text())["attributes"]


def test_empty_folders_of_an_object_store_are_no_run(
    client: Client, data_url: str, s3: None, object_store: str
) -> None:
    """A driver that was killed has left a folder that the server lists, with no object in it."""
    location = Location(f"s3://runs/empty-folders-{object_store}")
    (location / "data/labels/zarr.json").write_json({})
    (location / "data/labels/zarr.json").remove()
    if "data" not in location.names():
        pytest.skip("this server lists no empty folders")
    trained = train(data_url, location.url)
    assert trained.exit_code == 0, trained.output


LATE_CHUNKS = ["data/labels/c/0", "work/features/c/0/3", "maps/0001/c/12/0/0/0"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("or_resume", [True, False], ids=["or resume", "new"])
@pytest.mark.parametrize("path", [*LATE_CHUNKS, f"data/train/c/0.{'1f' * 16}.partial"])
def test_chunks_of_a_removed_run_are_removed(
    client: Client, data_url: str, tmp_path: Path, path: str, or_resume: bool
) -> None:
    """A worker that was suspended wrote them after the run was removed (kill round 26-97)."""
    chunk = tmp_path / "run" / path
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(b"late")
    option = ["--or-resume"] if or_resume else []
    command = ["train", data_url, "--store", str(tmp_path / "run"), *SMALL, *option]
    trained = CliRunner().invoke(main, command)
    assert trained.exit_code == 0, trained.output
    assert not chunk.exists() or chunk.read_bytes() != b"late"


def test_chunks_of_a_removed_run_on_an_object_store_are_removed(
    client: Client, data_url: str, s3: None, object_store: str
) -> None:
    """There, folders are prefixes."""
    location = Location(f"s3://runs/late-chunks-{object_store}")
    (location / LATE_CHUNKS[1]).write_json({})
    trained = train(data_url, location.url)
    assert trained.exit_code == 0, trained.output
    assert not (location / "work").exists()


@pytest.mark.parametrize("or_resume", [True, False], ids=["or resume", "new"])
@pytest.mark.parametrize(
    "path",
    [
        "data/labels/zarr.json",
        "data/train/c/0.png",
        "data/train/c/007",
        "data/a/c/1",
        "data",
        "c/0",
    ],
)
def test_files_that_may_be_of_the_user_are_kept(
    data_url: str, tmp_path: Path, path: str, or_resume: bool
) -> None:
    """They are next to a chunk of a removed run, and cannot be one."""
    file, chunk = tmp_path / "run" / path, tmp_path / "run/work/features/c/0"
    for created in (file, chunk):
        created.parent.mkdir(parents=True, exist_ok=True)
        created.write_bytes(b"mine")
    option = ["--or-resume"] if or_resume else []
    command = ["train", data_url, "--store", str(tmp_path / "run"), *SMALL, *option]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "not a run" in refused.output or "no Zarr group" in refused.output
    assert file.read_bytes() == chunk.read_bytes() == b"mine"


def test_chunks_of_removed_maps_are_removed_at_the_end(
    client: Client, data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late task wrote one after the maps of its layer were removed."""
    chunk, write_result = tmp_path / "run/maps/0001/c/0/0/0/0", RunStore.write_result

    def write_late(run: RunStore, record: dict[str, Any]) -> None:
        write_result(run, record)
        if record["reason"]:
            chunk.parent.mkdir(parents=True)
            chunk.write_bytes(b"late")

    monkeypatch.setattr(RunStore, "write_result", write_late)
    trained = train(data_url, tmp_path / "run", "--keep-maps", "last")
    assert trained.exit_code == 0, trained.output
    assert not (tmp_path / "run/maps/0001").exists()
    assert (tmp_path / "run/maps/0002/zarr.json").exists()


def test_run_that_begins_while_another_is_removed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of the other run only waits for what its tasks may still write."""
    location = Location.of(tmp_path / "run")
    claim, others = Claim.take(location, new=True), list[Claim]()
    monkeypatch.setattr(
        begin.time, "sleep", lambda _: others or others.append(Claim.take(location, new=True))
    )
    begin._remove(claim)
    others[0].check()  # raises if its claim was removed


def test_workers_too_small_for_plan_are_rejected(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """They are rejected before anything is written, and only if there is work left."""
    url = tmp_path / "run"
    assert train(data_url, url).exit_code == 0
    no_limits = {f"distributed.worker.memory.{name}": False for name in ("pause", "spill")}
    with (
        dask.config.set(no_limits),  # the worker shares this process, which needs more
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            memory_limit="400MiB",
            dashboard_address="127.0.0.1:0",
        ) as small,
        Client(small),
    ):
        assert train(data_url, url).exit_code == 0  # it is done
        (url / "result.json").unlink()
        (url / "commits/0002.json").unlink()
        before = read_files(url)
        trained = train(data_url, url)
        resumed = CliRunner().invoke(main, ["resume", str(url)])
        for failed in (trained, resumed):
            assert failed.exit_code == 2, failed.output
            assert "The run keeps the plan it started with" in failed.output
            assert "of each worker's 400 MiB may be used before Dask spills" in failed.output
            advised = re.search(r"workers of at least ([\d,]+) MiB, or with fewer", failed.output)
            assert advised, failed.output
            assert 500 < int(advised[1].replace(",", "")) < 4000
            assert read_files(url).items() <= before.items()
    done = CliRunner().invoke(main, ["resume", str(url)])
    assert done.exit_code == 0, done.output


def test_or_resume_needs_store(data_url: str) -> None:
    """The default store is named after the time, so that it differs each time."""
    failed = CliRunner().invoke(main, ["train", data_url, "--or-resume", *SMALL])
    assert failed.exit_code == 2
    assert "Add --store URL" in failed.output


@pytest.mark.slow
def test_resume_after_terminated_driver(started: Any, data_url: str, tmp_path: Path) -> None:
    """After SIGTERM (exit code 75) the same command resumes, as in a restarted pod."""
    _, file = started.scheduler()
    started.worker(file)
    options = ("--scheduler-file", str(file), "--max-layers", "4", "--json-lines")
    run = ("train", data_url, "--or-resume", "--store", str(tmp_path / "run"), *SMALL, *options)
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


def test_exit_code_of_command_terminated_while_it_waits_for_a_cluster(
    data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of a command that can be repeated, as later."""

    def wait(*_arguments: Any, **_options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr("rescnet_dist.cli.actions.training.training_cluster", wait)
    stopped = train(data_url, tmp_path / "run")
    assert stopped.exit_code == 75, stopped.output
    assert stopped.output.splitlines()[-1] == "terminated"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_lost_signal_is_sent_again() -> None:
    """A signal is lost if it comes while Python frees an object; it is not repeated while it is
    being handled."""
    handled = 0
    with raise_on_signal():
        with suppress(Terminated):
            signal.raise_signal(signal.SIGTERM)
        try:
            time.sleep(20)
        except Terminated:
            handled += 1
            time.sleep(2.5 * LOST_EXCEPTION_SECONDS)  # cleaning up
    assert handled == 1


def test_no_signal_after_end_of_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler is still installed if the body ends while the loss is being noticed."""
    sent = []
    noticed, kill = threading.Event(), os.kill

    def kill_slowly(process: int, number: int) -> None:
        noticed.set()
        time.sleep(0.2)
        sent.append(signal.getsignal(number))
        kill(process, number)

    monkeypatch.setattr(os, "kill", kill_slowly)
    before = signal.getsignal(signal.SIGTERM)
    with raise_on_signal():
        with suppress(Terminated):
            signal.raise_signal(signal.SIGTERM)
        assert noticed.wait(20)
    assert len(sent) == 1
    assert sent[0] is not before
    assert signal.getsignal(signal.SIGTERM) is before


# the cluster ------------------------------------------------------------------------------------


def make_flags(**options: Any) -> dict[str, Any]:
    """Return the options of a cluster, None if not given."""
    return dict.fromkeys([*CLUSTER_HELP, "wait", "workers"]) | options


def test_scheduler_address_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's operator sets the variable; an option takes precedence."""
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tls://scheduler:8786")
    assert pop_cluster_options(make_flags()) == {"scheduler": "tls://scheduler:8786"}
    assert pop_cluster_options(make_flags(gateway="https://g")) == {"gateway": "https://g"}
    assert pop_cluster_options(make_flags(wait="10m")) == {
        "scheduler": "tls://scheduler:8786",
        "wait": 600,
    }
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "")
    assert pop_cluster_options(make_flags()) == {}


@pytest.mark.parametrize("wait", ["soon", "-1", "0", "inf", ""])
def test_invalid_wait_is_rejected(wait: str) -> None:
    """The error names the option and the value."""
    with pytest.raises(ClusterError, match=f"--wait {wait} is not a time. Give it in seconds"):
        pop_cluster_options(make_flags(scheduler="tcp://scheduler:8786", wait=wait))


def test_wait_needs_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local cluster starts at once."""
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ClusterError, match="none is named"):
        pop_cluster_options(make_flags(wait="9"))


@pytest.mark.slow
def test_late_scheduler_is_waited_for(started: Any, data_url: str, tmp_path: Path) -> None:
    """Its first worker, which comes later still, is waited for too; without --wait it fails."""
    file = tmp_path / "scheduler.json"
    option = ("--scheduler-file", str(file))
    assert "There is no scheduler file" in train(data_url, tmp_path / "run", *option).output

    def start() -> None:
        time.sleep(1)
        started.dask("scheduler", "--port", "0", "--scheduler-file", file)
        started.wait_until(file.exists)
        time.sleep(3)  # longer than between two attempts to reach the scheduler
        started.worker(file)

    starter = threading.Thread(target=start)
    starter.start()
    done = train(data_url, tmp_path / "run", *option, "--wait", "60s", "--max-layers", "1")
    starter.join()
    assert done.exit_code == 0, done.output
    assert "waiting up to 60 s for the cluster" in done.output
