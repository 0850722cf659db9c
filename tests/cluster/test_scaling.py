"""Workers that are held: what the scheduler answers to autoscalers, and a cluster that adapts."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

import rescnet_dist as rd
from rescnet_dist.cluster import Workers, keep_workers
from rescnet_dist.cluster.scaling import LOST_HOLD_SECONDS, Hold, HoldsPlugin, held_workers


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The clock of the plugin."""
    return Clock()


@pytest.fixture
def plugin(clock: Clock) -> HoldsPlugin:
    """A plugin without a scheduler."""
    return HoldsPlugin(clock)


def test_dasks_number_counts_as_long_as_nobody_holds_workers(plugin: HoldsPlugin) -> None:
    """And again once workers are released."""
    assert plugin.target(lambda: 7) == 7
    plugin.holds["a"] = Hold("client", 3, may_grow=False)
    assert plugin.target(lambda: 7) == plugin.target(lambda: 0) == 3
    del plugin.holds["a"]
    assert plugin.target(lambda: 7) == 7


def test_numbers_of_clients_are_added(plugin: HoldsPlugin) -> None:
    """Of one client, the largest counts: a run inside of a hold needs no more workers."""
    plugin.holds["a"] = Hold("one", 3, may_grow=False)
    plugin.holds["b"] = Hold("one", 2, may_grow=True)
    assert plugin.target(lambda: 9) == 3  # Dask may not add any
    plugin.holds["c"] = Hold("two", 4, may_grow=False)
    assert plugin.target(lambda: 9) == 7
    assert [plugin.held(client) for client in ("one", "two", "three")] == [3, 4, 0]


def test_a_run_without_a_number_keeps_what_dask_adds(plugin: HoldsPlugin) -> None:
    """The number rises with Dask's, and does not fall before the end of the run."""
    plugin.holds["a"] = Hold("client", 1, may_grow=True)
    assert [plugin.target(lambda n=n: n) for n in (0, 3, 1, 2)] == [1, 3, 3, 3]  # type: ignore[misc]
    plugin.holds.clear()
    assert plugin.target(lambda: 1) == 1
    plugin.holds["b"] = Hold("client", 1, may_grow=True)
    assert plugin.target(lambda: 0) == 1


def test_workers_of_a_dead_driver_are_kept_for_the_next(plugin: HoldsPlugin, clock: Clock) -> None:
    """For five minutes; they are not added to those of the next driver."""
    plugin.holds["a"] = Hold("dead", 32, may_grow=False)
    plugin.remove_client(None, "dead")
    assert plugin.target(lambda: 0) == 32
    assert plugin.target(lambda: 40) == 40  # for tasks of others
    plugin.holds["b"] = Hold("next", 32, may_grow=False)
    assert plugin.target(lambda: 0) == 32
    plugin.holds.pop("b")
    clock.now = LOST_HOLD_SECONDS + 1
    assert plugin.target(lambda: 0) == 0
    assert not plugin.holds


def test_client_that_connects_again_keeps_its_workers(plugin: HoldsPlugin, clock: Clock) -> None:
    """Its connection was lost, and not the client."""
    plugin.holds["a"] = Hold("client", 3, may_grow=False)
    plugin.remove_client(None, "client")
    plugin.add_client(None, "client")
    clock.now = LOST_HOLD_SECONDS + 1
    assert plugin.target(lambda: 0) == 3


@pytest.fixture(scope="module")
def adaptive() -> Iterator[tuple[Client, Any]]:
    """An idle adaptive cluster without workers, and its autoscaler."""
    with LocalCluster(
        n_workers=0, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        adaptive = cluster.adapt(minimum=0, maximum=3, interval="20ms", wait_count=2)
        with Client(cluster, set_as_default=False) as client:
            yield client, adaptive


def wait_for_count(client: Client, count: int) -> None:
    """Wait until a cluster has a number of workers.

    Dask keeps a worker that has a result, and the last one of a run is in a reference cycle.
    """
    gc.collect()
    deadline = time.monotonic() + 30
    while len(client.nthreads()) != count:
        assert time.monotonic() < deadline, client.nthreads()
        time.sleep(0.01)


def test_held_workers_start_on_an_idle_cluster(adaptive: tuple[Client, Any]) -> None:
    """`wait_for_workers` alone would wait forever; they leave once they are released."""
    client, _ = adaptive
    with rd.hold_workers(client, 2):
        client.wait_for_workers(2, timeout=30)
        assert held_workers(client) == 2
        with keep_workers(client, 1):  # of a run
            assert (
                client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.adaptive_target())
                == 2
            )
    assert held_workers(client) == 0
    wait_for_count(client, 0)


def test_run_keeps_its_workers_and_is_planned_for_them(
    adaptive: tuple[Client, Any], tmp_path: Any
) -> None:
    """No worker is removed between the passes of a run; all are at its end."""
    client, autoscaler = adaptive
    images, labels = rd.load_digits()
    with client.as_current(), rd.hold_workers(client, 2):
        assert Workers.from_client(client).count == 2
        client.wait_for_workers(2, timeout=30)
        before = len(autoscaler.log)
        spec = rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=1)
        rd.ResCNetClassifier(spec, store=str(tmp_path / "run")).fit(images[:60], labels[:60])
        changes = [entry for _, entry in list(autoscaler.log)[before:]]
        assert not [entry for entry in changes if entry.get("status") == "down"]
        assert len(client.nthreads()) == 2
    wait_for_count(client, 0)


def test_a_number_below_one_raises(client: Client) -> None:
    """It would end the run's workers."""
    with (
        pytest.raises(rd.SpecError, match=r"workers=0 cannot be held\. Give at least 1"),
        rd.hold_workers(client, 0),
    ):
        pass
