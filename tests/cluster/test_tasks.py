"""Independent calls: by threads of this process, or by tasks of Dask."""

from __future__ import annotations

import threading
from typing import Any

import dask
import pytest
from distributed import LocalCluster

from rescnet_dist.cluster.tasks import call_each, uses_own_threads


@pytest.mark.parametrize("name", ["scheduler", "pool", "num_workers"])
def test_configuration_of_dask_is_kept(name: str) -> None:
    with dask.config.set({name: 1}):
        assert not uses_own_threads()


def test_current_client_is_used(threads_cluster: LocalCluster) -> None:
    with threads_cluster.get_client():
        assert not uses_own_threads()
    assert uses_own_threads()


def describe(first: int, second: str = "") -> tuple[int, str, str]:
    """Return the arguments and the name of the thread."""
    if first < 0:
        raise ValueError(f"{first} is negative")
    return first, second, threading.current_thread().name


@pytest.mark.parametrize("scheduler", [None, "synchronous"])
def test_calls_return_in_order(scheduler: Any) -> None:
    """Those of Dask's synchronous scheduler are in this thread, others are not."""
    with dask.config.set(scheduler=scheduler):
        results = call_each(describe, [(number, str(number)) for number in range(20)])
        assert call_each(describe, []) == []
        with pytest.raises(ValueError, match="-1 is negative"):
            call_each(describe, [(0,), (-1,), (2,)])
    assert [result[:2] for result in results] == [(number, str(number)) for number in range(20)]
    here = threading.current_thread().name
    assert {name == here for _, _, name in results} == {scheduler is not None}


def test_cluster_of_the_client_is_used(threads_cluster: LocalCluster) -> None:
    with threads_cluster.get_client():
        ((_, _, name),) = call_each(describe, [(1,)])
    assert "Dask-" in name
