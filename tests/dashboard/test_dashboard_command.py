"""`rescnet dashboard`: serves on loopback, ends by signals, and rejects what is not a run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import zarr
from click.testing import CliRunner

from rescnet_dist.cli import main
from rescnet_dist.dashboard import StoredRun
from rescnet_dist.dashboard import server as dashboard_server
from rescnet_dist.dashboard.server import StoredRuns
from rescnet_dist.errors import StoreReadError


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_command_serves_until_a_signal(run: Path, started: Any, end: signal.Signals) -> None:
    """It ends with code 0, serves a page, and listens on loopback only."""
    process = started.start(sys.executable, "-m", "rescnet_dist", "dashboard", run, "--port", "0")
    started.wait_until(lambda: "Ctrl-C" in started.read_output(), process)
    (url,) = re.findall(r"page\s+(http://127.0.0.1:\d+/)\n", started.read_output())
    assert b"rescnet: small" in urllib.request.urlopen(url).read()
    sockets = psutil.Process(process.pid).net_connections()
    assert {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    process.send_signal(end)
    assert process.wait(20) == 0
    assert "Traceback" not in started.read_output()


def test_interrupt_as_soon_as_the_page_is_printed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends well, too, as scripts wait for that line."""
    monkeypatch.setattr("click.echo", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert CliRunner().invoke(main, ["dashboard", str(run), "--port", "0"]).exit_code == 0


def missing_store(folder: Path, _run: Path) -> str:
    """A URL with nothing at it."""
    return str(folder / "nothing")


def empty(folder: Path, _run: Path) -> str:
    """An empty folder."""
    return str(folder)


def other_group(folder: Path, _run: Path) -> str:
    """A Zarr group that is not a run."""
    zarr.open_group(folder / "other", mode="w")
    return str(folder / "other")


def newer_version(folder: Path, run: Path) -> str:
    """A run of a later release."""
    shutil.copytree(run, folder / "newer")
    zarr.open_group(folder / "newer", mode="a").attrs["format_version"] = 99
    return str(folder / "newer")


def half_written(folder: Path, run: Path) -> str:
    """A run whose data are not completely written."""
    shutil.copytree(run, folder / "half")
    del zarr.open_group(folder / "half", mode="a").attrs["data_complete"]
    return str(folder / "half")


def damaged(folder: Path, run: Path) -> str:
    """A run with a truncated commit record."""
    shutil.copytree(run, folder / "damaged")
    (folder / "damaged/commits/0001.json").write_text('{"step"')
    return str(folder / "damaged")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (missing_store, "There is no Zarr group at"),
        (empty, "There is no Zarr group at"),
        (other_group, "is not a rescnet-run store"),
        (newer_version, "has format version 99"),
        (half_written, "has not started: its data are still being written"),
        (damaged, "0001.json"),
    ],
)
def test_bad_store_is_rejected(
    run: Path, tmp_path: Path, case: Callable[[Path, Path], str], expected: str
) -> None:
    """With a message, not a traceback; also together with a good run."""
    url = case(tmp_path, run)
    for urls in ([url], [str(run), url]):
        failed = CliRunner().invoke(main, ["dashboard", *urls, "--port", "0"])
        assert failed.exit_code == 2
        assert failed.output.startswith("error: ")
        assert expected in failed.output
        assert len(failed.output.splitlines()) == 1


@pytest.mark.usefixtures("s3")
def test_bucket_without_access_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message does not contain the secret."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    failed = CliRunner().invoke(main, ["dashboard", "s3://runs/one", "--port", "0"])
    assert failed.exit_code in (2, 75)
    assert failed.output.startswith("error: ")
    assert "s3://runs/one" in failed.output
    assert "a-wrong-secret" not in failed.output


def test_lost_store_is_noted(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last view of the run stays; once the store is back, it is read again."""
    monkeypatch.setattr(dashboard_server, "REFRESH_DONE_SECONDS", 0.0)
    shutil.copytree(run, tmp_path / "run")
    runs = StoredRuns([str(tmp_path / "run")])
    (tmp_path / "run").rename(tmp_path / "away")
    deadline = time.monotonic() + 30
    while not runs.views()[0].notes:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "There is no Zarr group" in runs.views()[0].notes[0]
    assert len(runs.views()[0].layers) == 3
    (tmp_path / "away").rename(tmp_path / "run")
    while runs.views()[0].notes:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "value"), [("observed", "x"), ("residual", 5), ("seconds", None), ("observed", [1])]
)
def test_damaged_record_raises(run: Path, tmp_path: Path, name: str, value: Any) -> None:
    """As StoreReadError; a page that is already served continues."""
    shutil.copytree(run, tmp_path / "run")
    runs = StoredRuns([str(tmp_path / "run")])
    location = tmp_path / "run/commits/0002.json"
    location.write_text(json.dumps(json.loads(location.read_text()) | {name: value}))
    if name != "seconds":
        with pytest.raises(StoreReadError, match=rf"0002.json is damaged \({name} is "):
            StoredRun(str(tmp_path / "run")).view()
    assert len(runs.views()[0].layers) == 3


def test_other_run_at_the_same_url_is_read_anew(run: Path, tmp_path: Path) -> None:
    """Though it has as many layers: none of the old run is shown."""
    shutil.copytree(run, tmp_path / "run")
    stored = StoredRun(str(tmp_path / "run"))
    stored.view()
    for record in (tmp_path / "run/commits").glob("*.json"):
        text = json.loads(record.read_text())
        record.write_text(json.dumps(text | {"seconds": 100.0, "finished": 1.0}))
    assert [layer.seconds for layer in stored.view().layers] == [100.0] * 3


def test_committed_records_are_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of hundreds of layers in a bucket is read every two seconds."""
    stored = StoredRun(str(run))
    assert len(stored.view().layers) == 3
    record = run / "commits/0002.json"
    text = record.read_text()
    try:
        record.write_text("not read again")
        assert len(stored.view().layers) == 3
    finally:
        record.write_text(text)
