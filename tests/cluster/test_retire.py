"""A worker that is told to stop hands over what it has, and one that starts compiles first."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import pytest
from distributed import Client

from rescnet_dist.cluster import retire as leaving
from rescnet_dist.cluster import warmup


def test_what_a_worker_holds_survives_it(started: Any) -> None:
    """As the others have it once `leave` has returned; the worker is not given anything more."""
    _, file = started.scheduler()
    doomed = started.worker(file, "--name", "doomed")
    started.worker(file, "--name", "other")
    address = json.loads(file.read_text())["address"]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        # which would differ if they were computed again
        futures = [client.submit(uuid.uuid4, workers=["doomed"], pure=False) for _ in range(8)]
        before = client.gather(futures)
        told = os.environ | {"DASK_SCHEDULER_ADDRESS": address, "DASK_WORKER_NAME": "doomed"}
        done = subprocess.run(
            [sys.executable, "-m", "rescnet_dist.cluster.retire"],
            env=told, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0
        assert done.stderr.startswith("left: tcp://")
        started.kill(doomed)
        assert client.gather(futures) == before


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "RESCNET_WORKER_NAME is not set"),
        ({"DASK_WORKER_NAME": "nobody"}, "DASK_SCHEDULER_ADDRESS is not set"),
        (
            {"DASK_WORKER_NAME": "nobody", "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1"},
            "Connection refused",
        ),
    ],
)
def test_leaving_never_fails(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Without a name, an address, or a scheduler that answers; which is not waited for, as it goes
    with the workers when a job ends."""
    monkeypatch.delenv("DASK_WORKER_NAME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    address = variables.get("DASK_SCHEDULER_ADDRESS")
    began = time.monotonic()
    with dask.config.set({"scheduler-address": address}):
        leaving.main()
    assert time.monotonic() - began < 2
    told = capsys.readouterr().err
    assert told.startswith("left without a word: ")
    assert said in told


def test_a_worker_compiles_before_it_takes_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, so that it answers the probes meanwhile."""
    called: list[bool] = []
    monkeypatch.setattr(warmup, "prepare", lambda: called.append(True))
    with ThreadPoolExecutor(1) as thread:  # as a browser of other tests may have this one's loop
        thread.submit(asyncio.run, warmup.dask_setup(None)).result()
    assert called == [True]
