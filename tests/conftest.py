"""Shared fixtures: small images, and clusters of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that is the same in every run."""
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def threads_cluster() -> Iterator[Any]:
    """One worker in this process, two threads."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(threads_cluster: Any) -> Iterator[Client]:
    """A client of the in-process cluster, current while the test runs."""
    with Client(threads_cluster) as client:
        yield client
