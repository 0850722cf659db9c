"""`--json-lines` and `--quiet`: what goes to which stream, whole lines, and readers that leave."""

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
from rescnet_dist.cli.progress import TerminalProgress
from rescnet_dist.train import (
    EVENTS_VERSION,
    ChunkDone,
    MapsPlaced,
    PassRetried,
    RunStarted,
    describe_run,
)
from tests.commands import SMALL, run, stored_digits


@pytest.fixture(scope="module")
def data_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Zarr store of 200 digits."""
    return stored_digits(tmp_path_factory.mktemp("data"), 200, 50)


def train(data_url: str, store: Path, *options: Any) -> Result:
    """Train two small layers."""
    where = ("--preset", "digits", "--store", store)
    return run("train", data_url, *where, *SMALL, *options)


def test_standard_output_is_events_then_the_outcome(
    client: Client, data_url: str, tmp_path: Path
) -> None:
    """Each line is JSON, in order; standard error has nothing."""
    store = tmp_path / "run"
    result = train(data_url, store, "--json-lines", "--test", data_url)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert {event["version"] for event in events} == {EVENTS_VERSION}
    kinds = [event["event"] for event in events if event["event"] != "chunk_done"]
    a_pass = ["pass_started", "pass_done"]
    assert kinds == ["run_started", *a_pass, "maps_placed", *a_pass * 3, "run_done", "outcome"]
    assert any(event["event"] == "chunk_done" for event in events)
    outcome, found = events[-1], describe_run(store)
    assert outcome["layers"] == found["layers"]
    assert (outcome["depth"], outcome["state"]) == (found["depth"], "done")
    assert outcome["test"] > 0.5


def test_resume_tells_lines_too(client: Client, data_url: str, tmp_path: Path) -> None:
    """Of what it adds; --quiet changes nothing of them."""
    store = tmp_path / "run"
    assert train(data_url, store, "--quiet").exit_code == 0
    result = run("resume", store, "--max-layers", 3, "--json-lines", "--quiet")
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["layer"] for e in events if e["event"] == "pass_started"] == [3, 3]
    assert len(events[-1]["layers"]) == 3
    assert result.stderr == ""


def test_quiet_leaves_the_outcome(client: Client, data_url: str, tmp_path: Path) -> None:
    """Nothing on standard error; on standard output what there is without it."""
    result = train(data_url, tmp_path / "run", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.startswith("depth ")
    again = run("resume", tmp_path / "run", "--max-layers", 3, "-q", "--json")
    assert again.stderr == ""
    assert json.loads(again.stdout)["state"] == "done"


def test_quiet_still_tells_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """A pass that is made again is a warning, and maps that leave memory are; progress is not."""
    with TerminalProgress(Console(stderr=True, force_terminal=True), quiet=True) as progress:
        progress(MapsPlaced(1, True, True, "in workers' memory"))
        progress(ChunkDone("grow", 1, 0, 10, "w", 1))
        progress(MapsPlaced(2, False, False, "in the store: full"))
        progress(PassRetried("grow", 1, "workers died"))
    said = capsys.readouterr().err
    assert "workers died" in said
    assert "layer 2: maps go in the store: full, from now on" in said
    assert "workers' memory" not in said
    assert "images/s" not in said


@pytest.mark.parametrize("begins", [False, True], ids=["compiling", "at once"])
def test_a_slow_start_is_explained(
    begins: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it takes long, and before the run begins."""
    monkeypatch.setattr("rescnet_dist.cli.progress.STILL_STARTING", 0.2)
    with TerminalProgress(Console(stderr=True)) as progress:
        if begins:
            progress(RunStarted("run", 10, 1, 0, ()))
        progress.waiting.join(5)
    assert ("still starting: " in capsys.readouterr().err) == (not begins)


def test_errors_stay_on_standard_error(tmp_path: Path) -> None:
    """With their exit codes, and nothing on standard output."""
    result = run("train", "digits", "--json-lines", "--filters", 0)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "filters=0 is out of range" in result.stderr
    for command in (["train", "digits"], ["resume", tmp_path]):
        result = run(*command, "--json", "--json-lines")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--json prints one record, --json-lines a line for each event" in result.stderr


def test_lines_of_many_threads_are_whole() -> None:
    """Longer than what a pipe takes at once, read as they come."""
    reader, writer = os.pipe()
    found: list[bytes] = []
    with os.fdopen(writer, "w") as file, os.fdopen(reader, "rb") as pipe:
        reading = threading.Thread(target=lambda: found.extend(pipe))
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
    numbers = [json.loads(line)["n"] for line in found]
    assert sorted(numbers) == sorted(list(range(8)) * 40)


def test_lines_are_there_at_once() -> None:
    """Not when some buffer is full."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file, os.fdopen(reader, "rb") as pipe, JsonLines(file) as lines:
        lines(PassRetried("grow", 1, "why"))
        assert json.loads(pipe.readline())["reason"] == "why"


def test_a_reader_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those who tell, one of whom is the client's own thread, nor the end of a run that
    fails."""
    monkeypatch.setattr("rescnet_dist.cli.json_lines.PATIENCE", 0.1)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        began = time.monotonic()
        with suppress(ZeroDivisionError), JsonLines(file) as lines:
            for _ in range(100):
                lines.write({"x": "x" * 9000})
            raise ZeroDivisionError
        assert time.monotonic() - began < 5
        os.close(reader)  # which ends the thread that waits
        lines._thread.join(5)
        assert not lines._thread.is_alive()


def test_a_reader_that_left_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """What comes after is dropped, and nothing said; other failures are told once."""
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
        assert capsys.readouterr().err.count("no more events are written") == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs pipes as Unix has them")
def test_a_run_goes_on_when_its_reader_leaves(data_url: str, tmp_path: Path) -> None:
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
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 0
    assert said == ""
    assert describe_run(store)["state"] == "done"
