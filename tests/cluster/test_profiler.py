"""Dask's profiler in workers."""

from __future__ import annotations

import dask
import pytest
from distributed import Client, LocalCluster

from rescnet_dist.cluster import profiler


@pytest.mark.parametrize("deadlocks", [False, True])
def test_profiler_is_stopped_if_it_can_deadlock(
    deadlocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its history is limited."""
    monkeypatch.setattr(profiler, "PROFILER_DEADLOCKS", deadlocks)
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
            client.submit(profiler.limit_profiler, pure=False).result(timeout=30)
        client.run(lambda: None)  # after the callbacks on the worker's loop
        assert worker.periodic_callbacks["profile"].is_running() != deadlocks
        assert worker.profile_history.maxlen == profiler.PROFILE_HISTORY_SECONDS
        assert worker.profile_keys_history.maxlen == profiler.PROFILE_HISTORY_SECONDS
    profiler.limit_profiler()  # does nothing outside of a worker
