"""The readiness of a worker: not before its preloads are done, so not before kernels are loaded."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import dask
from distributed import Client, LocalCluster

from rescnet_dist.deploy.pods import WORKER_HTTP_ROUTES

# Asks the worker that it prepares whether it is ready, and writes the answer to a file.
PRELOAD = """
import asyncio
import pathlib
import urllib.error
import urllib.request

def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code

async def dask_setup(worker):
    url = f"http://127.0.0.1:{{worker.http_server.port}}"
    codes = [await asyncio.to_thread(ask, f"{{url}}/{{page}}") for page in ("health", "ready")]
    pathlib.Path({path!r}).write_text(f"{{url}}/ready {{codes}}")
"""


def test_worker_is_ready_after_its_preloads(tmp_path: Path) -> None:
    """Its process answers before, at `/health`."""
    path = tmp_path / "answer"
    with (
        dask.config.set({"distributed.worker.http.routes": list(WORKER_HTTP_ROUTES)}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            preload=[PRELOAD.format(path=str(path))],
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=30)
        url, codes = path.read_text().split(" ", 1)
        assert codes == "[200, 503]"
        with urllib.request.urlopen(url, timeout=10) as response:
            assert response.read() == b"running"
