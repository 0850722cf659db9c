"""The CuPy backend, and a cluster whose worker uses the GPU."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Client, LocalCluster

from rescnet_dist.kernels import Backend


@pytest.fixture(scope="module")
def backend() -> Backend:
    """Return the CuPy backend; these tests fail without a GPU."""
    backend = Backend("cupy")
    backend.prepare()
    return backend


@pytest.fixture(scope="module")
def client() -> Any:
    """Return the client of a cluster with one worker, which uses the GPU."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            memory_limit="32GiB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
