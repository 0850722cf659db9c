"""Retired workers move their results to others, and new workers compile kernels first."""

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

from rescnet_dist.cluster import retire, warmup


def test_retired_worker_moves_its_results(started: Any) -> None:
    """Other workers have them afterwards, and the worker gets no more tasks."""
    _, file = started.scheduler()
    doomed = started.worker(file, "--name", "doomed")
    started.worker(file, "--name", "other")
    address = json.loads(file.read_text())["address"]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        # These would differ if they were computed again.
        futures = [client.submit(uuid.uuid4, workers=["doomed"], pure=False) for _ in range(8)]
        before = client.gather(futures)
        environment = {"DASK_SCHEDULER_ADDRESS": address, "DASK_WORKER_NAME": "doomed"}
        done = subprocess.run(
            [sys.executable, "-m", "rescnet_dist.cluster.retire"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0
        assert done.stderr.startswith("retired: tcp://")
        started.kill(doomed)
        assert client.gather(futures) == before


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, "RESCNET_WORKER_NAME is not set"),
        ({"DASK_WORKER_NAME": "nobody"}, "DASK_SCHEDULER_ADDRESS is not set"),
        (
            {"DASK_WORKER_NAME": "nobody", "DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1"},
            "Connection refused",
        ),
    ],
)
def test_retiring_never_fails(
    variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Without a name, an address or a scheduler; a scheduler that is gone is not waited for."""
    monkeypatch.delenv("DASK_WORKER_NAME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    address = variables.get("DASK_SCHEDULER_ADDRESS")
    started = time.monotonic()
    with dask.config.set({"scheduler-address": address}):
        retire.main()
    assert time.monotonic() - started < 2
    output = capsys.readouterr().err
    assert output.startswith("not retired: ")
    assert reason in output


def test_worker_compiles_before_it_takes_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, so that the worker answers probes meanwhile."""
    called: list[bool] = []
    monkeypatch.setattr(warmup, "prepare", lambda: called.append(True))
    with ThreadPoolExecutor(1) as thread:  # a browser of other tests may use this thread's loop
        thread.submit(asyncio.run, warmup.dask_setup(None)).result()
    assert called == [True]
