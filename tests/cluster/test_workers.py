"""Workers of a cluster: their number and their GPUs."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import ClusterError
from rescnet_dist.cluster import Workers, list_workers, workers
from rescnet_dist.cluster.workers import (
    SWITCH_INTERVAL_SECONDS,
    _prepare_workers,
    _smallest_gpu_share,
    shorten_switch_interval,
)
from rescnet_dist.errors import ClusterLostError
from rescnet_dist.kernels import Backend


def test_workers_are_listed_by_the_scheduler(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's copy is replaced now and then by an answer without workers."""
    monkeypatch.setattr(Client, "scheduler_info", lambda *_args, **_more: {"workers": {}})
    present = Workers.from_worker_info(list_workers(client))
    assert present
    assert present.count == len(client.nthreads())


@pytest.mark.parametrize(
    ("gpus", "share"),
    [
        ([None], None),
        ([("a", "0", 80, 80)], 80),
        ([("a", "0", 80, 80), ("a", "0", 80, 80), ("b", "0", 80, 80)], 40),
        ([("a", "0", 80, 30), ("a", "0", 80, 30)], 30),  # the limit of each process
        ([("a", "0", 80, 60), ("a", "0", 80, 60)], 40),
        ([("a", "0", 80, 100), ("b", "0", 80, 70)], 70),
    ],
)
def test_gpu_memory_is_divided_by_the_workers_that_share_it(
    gpus: list[Any], share: int | None
) -> None:
    """Or it is what a process may use, if that is less."""
    assert _smallest_gpu_share(gpus) == share


@pytest.mark.parametrize(("before", "after"), [(0.005, SWITCH_INTERVAL_SECONDS), (2e-4, 2e-4)])
def test_switch_interval_is_only_shortened(before: float, after: float) -> None:
    """A user may have chosen a shorter one."""
    kept = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        shorten_switch_interval()
        assert sys.getswitchinterval() == pytest.approx(after, rel=0.02)
    finally:
        sys.setswitchinterval(kept)


def test_gpu_workers_must_have_one_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan for the memory of a GPU is for one task."""
    monkeypatch.setattr(Backend, "prepare", lambda _: None)
    monkeypatch.setattr(Backend, "memory", lambda _: ("gpu", 2**30, 2**30))
    with pytest.raises(
        ClusterError, match=r"workers with 2 threads\. Start them with --nthreads 1"
    ):
        Workers.from_client(client, Backend("cupy"))


def test_workers_that_are_lost_before_they_are_prepared(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one that can be resumed from."""
    monkeypatch.setattr(Client, "nthreads", lambda _: {})
    with pytest.raises(ClusterLostError, match=r"has lost all its workers\. Start workers"):
        _prepare_workers(client, Backend())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "not replaced"])
def test_workers_that_are_lost_while_they_are_prepared(
    is_replaced: bool, started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that joins later is prepared; without one, the error can be resumed from."""
    monkeypatch.setattr(workers, "LOST_WORKERS_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(workers, "WORKER_TIMEOUT_SECONDS", 60 if is_replaced else 1)
    began = tmp_path / "began"

    class SlowBackend(Backend):
        """Its first preparation does not end."""

        def prepare(self) -> None:
            if not began.exists():
                began.touch()
                time.sleep(600)

    scheduler, file = started.scheduler()
    worker = started.worker(file)
    with (
        Client(scheduler_file=str(file), set_as_default=False) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.wait_for_workers(1, timeout=60)
        prepared = pool.submit(_prepare_workers, client, SlowBackend())
        while not began.exists():
            time.sleep(0.01)
        started.kill(worker)
        while client.nthreads():
            time.sleep(0.01)
        if is_replaced:
            started.worker(file)
        try:
            if is_replaced:
                assert prepared.result(timeout=60)[1] >= 1
            else:
                with pytest.raises(ClusterLostError, match="has lost all its workers"):
                    prepared.result(timeout=60)
        finally:
            started.kill(scheduler)  # ends a wait that has not ended, as of the thread
