"""Workers as a run finds them: which there are, their GPUs, and Dask's profiler on them."""

from __future__ import annotations

from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from rescnet_dist import ClusterError
from rescnet_dist.cluster import Workers, list_workers, workers
from rescnet_dist.cluster.workers import _least_of_a_gpu
from rescnet_dist.kernels import Backend


def test_workers_are_there_whatever_the_client_keeps_of_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which Dask replaces now and then, by an answer without any."""
    monkeypatch.setattr(Client, "scheduler_info", lambda *_args, **_more: {"workers": {}})
    found = Workers.among(list_workers(client))
    assert found
    assert found.count == len(client.nthreads())


@pytest.mark.parametrize(
    ("gpus", "least"),
    [
        ([None], None),
        ([("a", "0", 80, 80)], 80),
        ([("a", "0", 80, 80), ("a", "0", 80, 80), ("b", "0", 80, 80)], 40),
        ([("a", "0", 80, 30), ("a", "0", 80, 30)], 30),  # each its own limit
        ([("a", "0", 80, 60), ("a", "0", 80, 60)], 40),
        ([("a", "0", 80, 100), ("b", "0", 80, 70)], 70),
    ],
)
def test_workers_count_on_their_part_of_a_gpu(gpus: list[Any], least: int | None) -> None:
    """Or on what they may take, where that is less."""
    assert _least_of_a_gpu(gpus) == least


def test_workers_of_a_gpu_have_one_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is planned of its memory is for one task."""
    monkeypatch.setattr(Backend, "prepare", lambda _: None)
    monkeypatch.setattr(Backend, "memory", lambda _: ("gpu", 2**30, 2**30))
    with pytest.raises(ClusterError, match="workers of 2 threads: start them with --nthreads 1"):
        Workers.of(client, Backend("cupy"))


@pytest.mark.parametrize("deadlocks", [False, True])
def test_workers_take_no_profiles_where_that_can_stop_python(
    deadlocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keep few of them where it cannot."""
    monkeypatch.setattr(workers, "PROFILER_DEADLOCKS", deadlocks)
    with (
        dask.config.set({"distributed.worker.profile.enabled": True}),
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        (worker,) = cluster.workers.values()
        assert worker.periodic_callbacks["profile"].is_running()
        for _ in range(2):
            client.submit(workers.limit_profiler, pure=False).result(timeout=30)
        client.run(lambda: None)  # behind what was put onto the worker's loop
        assert worker.periodic_callbacks["profile"].is_running() != deadlocks
        assert worker.profile_history.maxlen == workers.PROFILES
        assert worker.profile_keys_history.maxlen == workers.PROFILES
    workers.limit_profiler()  # where there is no worker
