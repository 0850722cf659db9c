"""`--json-lines` and `--quiet`: output streams, whole lines, and readers that stop reading."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from distributed import Client
from rich.console import Console

from rescnet_dist.cli.json_lines import JsonLines
from rescnet_dist.dashboard.progress import TerminalProgress
from rescnet_dist.events import EVENTS_VERSION, ChunkDone, MapsPlaced, PassRetried, RunStarted
from rescnet_dist.planning import Placement, PlacementCause, describe_placement
from rescnet_dist.runs import describe_run
from tests.commands import SMALL, run, stored_digits


@pytest.fixture(scope="module")
def data_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a Zarr store of 200 digits."""
    return stored_digits(tmp_path_factory.mktemp("data"), 200, 50)


def train(data_url: str, store: Path, *options: Any) -> Result:
    """Train two small layers."""
    return run("train", data_url, "--preset", "digits", "--store", store, *SMALL, *options)


def test_standard_output_has_events_then_the_outcome(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """Each line is JSON, in order; standard error is empty."""
    store = tmp_path / "run"
    result = train(data_url, store, "--json-lines", "--test", data_url)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert {event["version"] for event in events} == {EVENTS_VERSION}
    kinds = [event["event"] for event in events if event["event"] != "chunk_done"]
    one_pass = ["pass_started", "pass_done"]
    assert kinds == ["run_started", *one_pass, "maps_placed", *one_pass * 3, "run_done", "outcome"]
    placed = next(event for event in events if event["event"] == "maps_placed")
    assert placed["reason"] == describe_placement(Placement(**placed["placement"]))
    assert any(event["event"] == "chunk_done" for event in events)
    outcome, described = events[-1], describe_run(store)
    assert outcome["layers"] == described["layers"]
    assert (outcome["depth"], outcome["state"]) == (described["depth"], "done")
    assert outcome["test"] > 0.5


def test_resume_prints_json_lines_too(client: Client, data_url: str, tmp_path: Path) -> None:
    """Only of the layers it adds; --quiet does not change them."""
    store = tmp_path / "run"
    assert train(data_url, store, "--quiet").exit_code == 0
    result = run("resume", store, "--max-layers", 3, "--json-lines", "--quiet")
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["layer"] for e in events if e["event"] == "pass_started"] == [3, 3]
    assert len(events[-1]["layers"]) == 3
    assert result.stderr == ""


def test_quiet_prints_only_the_outcome(client: Client, data_url: str, tmp_path: Path) -> None:
    """Standard error is empty; standard output is as without --quiet."""
    result = train(data_url, tmp_path / "run", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.startswith("depth ")
    resumed = run("resume", tmp_path / "run", "--max-layers", 3, "-q", "--json")
    assert resumed.stderr == ""
    assert json.loads(resumed.stdout)["state"] == "done"


def test_quiet_prints_problems(capsys: pytest.CaptureFixture[str]) -> None:
    """Retried passes and maps that leave memory are printed; progress is not."""
    with TerminalProgress(Console(stderr=True, force_terminal=True), quiet=True) as progress:
        fits, full = Placement(PlacementCause.FITS), Placement(PlacementCause.MAPS_DO_NOT_FIT)
        progress(MapsPlaced(1, True, True, "in workers' memory", fits))
        progress(ChunkDone("grow", 1, 0, 10, "w", 1))
        progress(MapsPlaced(2, False, False, "in the store: full", full))
        progress(PassRetried("grow", 1, "workers died"))
    output = capsys.readouterr().err
    assert "workers died" in output
    assert "layer 2: maps are now kept in the store: full" in output
    assert "workers' memory" not in output
    assert "images/s" not in output


@pytest.mark.parametrize("starts", [False, True], ids=["compiling", "immediately"])
def test_slow_start_prints_a_notice(
    starts: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, and only before the run starts."""
    monkeypatch.setattr("rescnet_dist.dashboard.progress.STARTUP_NOTICE_SECONDS", 0.2)
    with TerminalProgress(Console(stderr=True)) as progress:
        if starts:
            progress(RunStarted("run", 10, 1, 0, ()))
        progress.notice.join(5)
    error = capsys.readouterr().err
    assert ("still starting: " in error) == (not starts)
    assert "first run on a machine compiles" not in error  # which nobody knows here


def test_errors_go_to_standard_error(tmp_path: Path) -> None:
    """With their exit codes; standard output is empty."""
    result = run("train", "digits", "--json-lines", "--filters", 0)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "filters=0 is out of range" in result.stderr
    for command in (["train", "digits"], ["resume", tmp_path]):
        result = run(*command, "--json", "--json-lines")
        assert (result.exit_code, result.stdout) == (2, "")
        assert (
            "--json prints one record, but --json-lines prints a line for each event"
            in result.stderr
        )


def test_lines_from_many_threads_are_whole() -> None:
    """Lines longer than the buffer of a pipe, read as they come."""
    reader, writer = os.pipe()
    received: list[bytes] = []
    with os.fdopen(writer, "w") as file, os.fdopen(reader, "rb") as pipe:
        reading = threading.Thread(target=lambda: received.extend(pipe))
        reading.start()
        with JsonLines(file) as lines:
            threads = [
                threading.Thread(
                    target=lambda n=n: [lines.write({"n": n, "x": "x" * 9000}) for _ in range(40)]
                )
                for n in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        file.close()
        reading.join()
    numbers = [json.loads(line)["n"] for line in received]
    assert sorted(numbers) == sorted(list(range(8)) * 40)


def test_lines_are_written_immediately() -> None:
    """They do not wait for a full buffer."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file, os.fdopen(reader, "rb") as pipe, JsonLines(file) as lines:
        lines(PassRetried("grow", 1, "why"))
        assert json.loads(pipe.readline())["reason"] == "why"


def test_reader_that_does_not_read_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the threads that emit events nor the end of a failed run."""
    monkeypatch.setattr("rescnet_dist.cli.json_lines.FLUSH_TIMEOUT_SECONDS", 0.1)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        started = time.monotonic()
        with suppress(ZeroDivisionError), JsonLines(file) as lines:
            for _ in range(100):
                lines.write({"x": "x" * 9000})
            raise ZeroDivisionError
        assert time.monotonic() - started < 5
        os.close(reader)  # ends the waiting thread
        lines._thread.join(5)
        assert not lines._thread.is_alive()


def test_closed_pipe_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Later lines are dropped silently; other failures are reported once."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file, JsonLines(file) as lines:
        for _ in range(3):
            lines.write({"x": 1})
    assert capsys.readouterr().err == ""
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as file, JsonLines(file) as lines:
            for _ in range(3):
                lines.write({"x": 1})
        assert capsys.readouterr().err.count("Events are no longer written") == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs pipes as Unix has them")
def test_run_continues_after_its_reader_has_closed_the_pipe(data_url: str, tmp_path: Path) -> None:
    """`rescnet train --json-lines | head -1`, as a process with its own cluster."""
    store = tmp_path / "run"
    command = [sys.executable, "-m", "rescnet_dist", "train", data_url, "--preset", "digits"]
    process = subprocess.Popen(
        [*command, "--store", store, *SMALL, "--json-lines"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    assert json.loads(process.stdout.readline())["event"] == "run_started"
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 0
    assert errors == ""
    assert describe_run(store)["state"] == "done"
