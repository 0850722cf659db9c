"""Rendered commands as processes: encrypted, healthy, and retired by their hook."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import dask
import pytest
from distributed import Client
from kubelet import Cluster, render, wait_until

from rescnet_dist.deploy.pods import DASHBOARD_PORT

SMALL = ("--data", "digits", "--store", "s3://bucket/run", "--workers", "1")


def test_cluster_of_rendered_commands(deploy: Callable[..., Cluster]) -> None:
    """The pods connect by TLS only and respond to their probes and to the autoscaler.

    A worker is retired by its preStop hook.
    """
    cluster = deploy(render("--kind", "cluster", *SMALL))
    scheduler, (worker,) = cluster.start_scheduler(), cluster.start_workers()
    wait_until(lambda: "Registered to" in worker.log, cluster)
    with Client(cluster.address, security=cluster.security, set_as_default=False) as client:
        (found,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert found["name"] == worker.environment["DASK_WORKER_NAME"] == worker.name
        arguments = worker.container["args"]
        limit = int(arguments[arguments.index("--memory-limit") + 1])
        assert found["memory_limit"] == limit
        assert client.submit(dask.config.get, "distributed.worker.memory.target").result() == 0.6
    code = (
        "import sys; from distributed import Client; "
        f"Client('{cluster.address.replace('tls', 'tcp')}', timeout=3)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode != 0

    assert scheduler.is_healthy("readinessProbe")
    assert scheduler.is_healthy("livenessProbe")
    assert worker.is_healthy("startupProbe")
    assert worker.is_healthy("livenessProbe")
    assert json.loads(scheduler.get(DASHBOARD_PORT, "/api/v1/adaptive_target")) == {"workers": 0}
    worker.evict()
    cluster.stop()
    assert "retired: tls://127." in (worker.folder / "hook").read_text()
    for pod in (worker, scheduler):
        assert pod.exits == [0], pod.log
        assert not list((pod.folder / "root").iterdir())


def test_job_without_credentials(deploy: Callable[..., Cluster]) -> None:
    """It logs that it has none, as the Secret is optional to Kubernetes, and can be restarted."""
    cluster = deploy(render(*SMALL, "--tries", "1"), backoff=60)
    driver = cluster.start_driver()
    wait_until(lambda: driver.exits, cluster)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        assert variable not in driver.environment
    assert driver.exits[0] in (2, 75)
    assert "Unable to locate credentials" in driver.log  # of fsspec, as no region is set
    assert "Traceback" not in driver.log


@pytest.mark.slow
def test_worker_with_a_taken_name_is_restarted(deploy: Callable[..., Cluster]) -> None:
    """Its Deployment gives it the name of the previous worker, which may still be running."""
    cluster = deploy(render("--kind", "cluster", *SMALL))
    cluster.start_scheduler()
    (previous,) = cluster.start_workers()
    wait_until(lambda: "Registered to" in previous.log, cluster)
    replacement = cluster.start_pod(previous.name, previous.spec)
    wait_until(lambda: replacement.exits, cluster)
    assert replacement.exits[0] != 0
    assert "name taken" in replacement.log
    previous.evict()
    wait_until(lambda: "Registered to" in replacement.last_log(), cluster)
