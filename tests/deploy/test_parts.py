"""The rendered commands, with their environment, as processes: encrypted, healthy, and leaving."""

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


def test_a_cluster_of_rendered_commands(deploy: Callable[..., Cluster]) -> None:
    """Its parts find one another by TLS only, answer their probes and the autoscaler's question,
    and a worker leaves by its own hook."""
    there = deploy(render("--kind", "cluster", *SMALL))
    scheduler, (worker,) = there.start_scheduler(), there.start_workers()
    wait_until(lambda: "Registered to" in worker.log, there)
    with Client(there.address, security=there.security, set_as_default=False) as client:
        (found,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert found["name"] == worker.environment["DASK_WORKER_NAME"] == worker.name
        arguments = worker.container["args"]
        limit = int(arguments[arguments.index("--memory-limit") + 1])
        assert found["memory_limit"] == limit
        assert client.submit(dask.config.get, "distributed.worker.memory.target").result() == 0.6
    unencrypted = [sys.executable, "-c", "import sys; from distributed import Client; "
                   f"Client('{there.address.replace('tls', 'tcp')}', timeout=3)"]  # fmt: skip
    assert subprocess.run(unencrypted, capture_output=True).returncode != 0

    assert scheduler.healthy("readinessProbe")
    assert scheduler.healthy("livenessProbe")
    assert worker.healthy("startupProbe")
    assert worker.healthy("livenessProbe")
    assert json.loads(scheduler.get(DASHBOARD_PORT, "/api/v1/adaptive_target")) == {"workers": 0}
    worker.evict()
    there.stop()
    assert "left: tls://127." in (worker.folder / "hook").read_text()
    for pod in (worker, scheduler):
        assert pod.exits == [0], pod.log
        assert not list((pod.folder / "root").iterdir())


def test_a_job_without_credentials_says_so(deploy: Callable[..., Cluster]) -> None:
    """In its log, as the Secret is optional to Kubernetes; and may be started again."""
    there = deploy(render(*SMALL), backoff=60)
    driver = there.start_driver()
    wait_until(lambda: driver.exits, there)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        assert variable not in driver.environment
    assert driver.exits[0] in (2, 75)
    assert "Unable to locate credentials" in driver.log
    assert "Traceback" not in driver.log


@pytest.mark.slow
def test_a_worker_that_follows_too_soon_is_restarted(deploy: Callable[..., Cluster]) -> None:
    """As its Deployment gives it the name of the one before, which may not have gone yet."""
    there = deploy(render("--kind", "cluster", *SMALL))
    there.start_scheduler()
    (before,) = there.start_workers()
    wait_until(lambda: "Registered to" in before.log, there)
    after = there.start_pod(before.name, before.spec)
    wait_until(lambda: after.exits, there)
    assert after.exits[0] != 0
    assert "name taken" in after.log
    before.evict()
    wait_until(lambda: "Registered to" in after.last_log(), there)
