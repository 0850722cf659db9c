"""Fixtures of the training tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import cache_cases
import pytest
from distributed import Client, LocalCluster
from fault_cases import ONE_GROUP, Model, fit
from models import read_model
from training_cases import (
    CASES,
    Array,
    fit_case,
)

from rescnet_dist.events import Event, Listener, PassDone
from rescnet_dist.kernels.cpu.threads import blas_threads


@pytest.fixture(scope="session")
def reference_models(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> dict[str, dict[str, Array]]:
    """Models trained by two threads in this process, whose main thread has used BLAS."""
    with blas_threads(1):
        pass
    with Client(threads_cluster):
        return {case: fit_case(tmp_path_factory.mktemp(case) / "run", case) for case in CASES}


@pytest.fixture(scope="session")
def fault_free_model(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Model:
    """Return the model of a run without faults."""
    store = tmp_path_factory.mktemp("fault-free") / "run"
    with Client(threads_cluster):
        fit(store)
    return read_model(store)


@pytest.fixture(scope="session")
def one_group_model(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Model:
    """Return the model of a run without faults, with another order of sums."""
    store = tmp_path_factory.mktemp("one-group") / "run"
    with Client(threads_cluster):
        fit(store, run=ONE_GROUP)
    return read_model(store)


@pytest.fixture(scope="session")
def reference_weights(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> list[Any]:
    """Return the weights learned with all maps in the store."""
    store = tmp_path_factory.mktemp("reference-weights") / "run"
    with Client(threads_cluster):
        cache_cases.fit(store, run=cache_cases.RUN.replace(maps="store"))
    assert cache_cases.list_stored_layers(store) == [1, 2, 3, 4, 5, 6, 7]
    return cache_cases.read_weights(store)


@pytest.fixture
def kill_worker() -> Iterator[Listener]:
    """Start two worker processes; return a listener that kills one once layer 4 is committed."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):

        def listen(event: Event) -> None:
            if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 4):
                os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

        yield listen
        assert client.status == "running"
