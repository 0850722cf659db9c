"""The embedded cluster of commands: how the cores of this machine are divided between workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cluster import connect
from tests.commands import SMALL, run, stored_digits

CORES = 12
COMMANDS: dict[str, Callable[[str, Path], tuple[Any, ...]]] = {
    "train": lambda data, folder: ("train", data, "--store", folder / "new", *SMALL),
    "plan": lambda data, folder: ("plan", data, "--store", folder / "new", *SMALL, "--no-measure"),
    "resume": lambda data, folder: ("resume", folder / "run", "--max-layers", "3"),
    "ablate": lambda data, folder: ("ablate", "rate", data, "-o", folder / "new", *SMALL),
}


class ClusterStartedError(Exception):
    """Raised instead of starting a cluster."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Pretend that this machine has many cores; return the workers and threads of clusters."""
    sizes = list[tuple[int, int]]()

    def start(**options: Any) -> LocalCluster:
        sizes.append((options["n_workers"], options["threads_per_worker"]))
        raise ClusterStartedError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)), raising=False)
    monkeypatch.setattr(connect, "LocalCluster", start)
    monkeypatch.setattr("rescnet_dist.cli.clusters.start_fork_server", lambda: False)
    return sizes


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_divide_cores_by_the_network(
    name: str,
    tmp_path: Path,
    threads_cluster: LocalCluster,
    request: pytest.FixtureRequest,
) -> None:
    """Accumulators of a small network are small, so that workers have several threads."""
    data = stored_digits(tmp_path, 60, 60)
    if name == "resume":
        with Client(threads_cluster):
            assert run("train", data, "--store", tmp_path / "run", *SMALL).exit_code == 0
    started = request.getfixturevalue("started")
    result = run(*COMMANDS[name](data, tmp_path))
    assert isinstance(result.exception, ClusterStartedError), result.output
    assert started == [(3, 4)]


def test_one_worker_for_each_core_by_default(started: list[tuple[int, int]]) -> None:
    """Of commands that train no network."""
    with pytest.raises(ClusterStartedError), cluster({}):
        pass
    assert started == [(CORES, 1)]


def test_cores_are_divided_for_an_embedded_cluster_only(
    threads_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a named cluster, GPUs, or the current client of Dask."""

    def divide() -> Any:
        raise AssertionError

    with cluster({"scheduler": threads_cluster.scheduler_address}, divide=divide) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    with Client(threads_cluster) as current, cluster({}, divide=divide) as client:
        assert client is current

    def start() -> LocalCluster:
        raise ClusterStartedError

    monkeypatch.setattr(connect, "_gpu_cluster", start)
    with pytest.raises(ClusterStartedError), cluster({}, gpus=True, divide=divide):
        pass
