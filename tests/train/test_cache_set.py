"""The caches of groups on workers: kept by one task, and freed with the driver."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from distributed import Client, LocalCluster

from rescnet_dist.train import cache_set
from rescnet_dist.train.cache_set import CacheLayer, CacheSet

GROUPS = 6


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def started_cluster() -> Iterator[LocalCluster]:
    """Yield a cluster whose workers are in this process."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with two workers, however many the test before has left."""
    started_cluster.scale(2)
    wait_until(lambda: len(started_cluster.scheduler.workers) == 2)
    return started_cluster


@pytest.mark.parametrize(("per_layer", "keepers"), [(512, 1), (2, 3)])
def test_caches_stay_until_they_move_or_their_driver_is_gone(
    cluster: LocalCluster, per_layer: int, keepers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler has each cache, the driver few futures. Those that need not move stay."""
    monkeypatch.setattr(cache_set, "MAX_CACHES_PER_LAYER", per_layer)
    tasks = cluster.scheduler.tasks

    def cached() -> dict[str, str]:
        found = sorted(key for key in tasks if key.startswith("rescnet-cache-"))
        return {key: next(iter(tasks[key].who_has)).address for key in found}

    with Client(cluster, set_as_default=False) as driver:
        caches = CacheSet(driver, ["fold"])
        caches.distribute([100] * GROUPS, is_stored=True)
        first, workers = caches.keys, cached()
        assert list(workers) == list(first)
        assert [*workers.values()] == sorted(3 * [*driver.nthreads()])
        assert not any(tasks[key].worker_restrictions for key in first)
        assert len(driver.futures) == keepers
        before = set(driver.futures)

        cluster.scale(3)
        driver.wait_for_workers(3)
        caches.distribute([100] * GROUPS, is_stored=False)
        assert caches.keys == first
        caches.distribute([100] * GROUPS, is_stored=True)
        kept = set(first) & set(caches.keys)
        assert len(kept) == 4
        wait_until(lambda: cached().keys() == set(caches.keys))
        assert {key: cached()[key] for key in kept} == {key: workers[key] for key in kept}
        assert sorted(cached().values()) == sorted(2 * [*driver.nthreads()])
        assert len(driver.futures) == keepers
        parts = zip(*([iter(zip(first, caches.keys, strict=True))] * per_layer), strict=False)
        unchanged = [all(old == new for old, new in part) for part in parts]
        assert len(before & set(driver.futures)) == sum(unchanged)  # these were not sent again

        driver.close()
        wait_until(lambda: not cached())


def test_caches_return_after_workers_are_lost(cluster: LocalCluster) -> None:
    """Under their keys, also if no worker was left; those of another driver stay."""
    tasks = cluster.scheduler.tasks

    def are_cached(keys: Sequence[str]) -> bool:
        return all(tasks[key].state == "memory" for key in keys)

    with (
        Client(cluster, set_as_default=False) as driver,
        Client(cluster, set_as_default=False) as other,
    ):
        caches, others = CacheSet(driver, ["fold"]), CacheSet(other, ["fold"])
        for created in (caches, others):
            created.distribute([100] * GROUPS, is_stored=True)
        first = caches.keys
        for left in (1, 0):
            cluster.scale(left)
            wait_until(lambda left=left: len(driver.nthreads()) == left)
            if left:
                wait_until(lambda: are_cached(first))
        assert not are_cached(first)
        cluster.scale(2)
        wait_until(lambda: are_cached(first) and are_cached(others.keys))
        caches.distribute([100] * GROUPS, is_stored=False)
        assert caches.keys == first
        driver.close()
        wait_until(lambda: not any(key in tasks for key in first))
        assert are_cached(others.keys)


def test_layer_weighs_a_few_bytes_per_cache() -> None:
    """However many workers have joined."""
    groups = 4000
    keys = [f"rescnet-cache-0123456789ab-{group}" for group in range(groups)]
    created = {
        group: (10**9, f"tcp://10.0.{group // 800}.7:40123") for group in range(0, groups, 2)
    }
    layer = CacheLayer("rescnet-caches-0123456789ab", keys, created, None)
    packed = pickle.dumps(layer)
    assert len(packed) < 8 * groups
    unpacked = pickle.loads(packed)
    assert dict(unpacked) == dict(layer)
    assert len(unpacked) == len(created) + 1
    assert unpacked.annotations["workers"](keys[2]) == ["tcp://10.0.0.7:40123"]
    assert unpacked.annotations["workers"](layer.name) is None
