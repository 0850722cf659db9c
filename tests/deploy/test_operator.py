"""Rendered manifests under the Dask operator's own controller, with pods as processes.

The operator runs as its own process, on an API server of the tests (`apiserver.py`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiServer
from commands import run, stored_digits
from kubelet import Cluster, Manifest, find_program, operator, render, wait_until
from node import Node, run_operator

from rescnet_dist.store import RunStore

pytestmark = pytest.mark.slow

Start = Callable[..., tuple[ApiServer, Cluster, Node]]


@pytest.fixture
def start(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], tmp_path: Path
) -> Iterator[Start]:
    """Return a function that applies manifests to a cluster with an operator."""
    operator()  # skips the test if it is not installed
    with ExitStack() as stack:

        def apply(manifests: list[Manifest]) -> tuple[ApiServer, Cluster, Node]:
            api, cluster = ApiServer(), deploy(manifests, s3_secret)
            node = stack.enter_context(run_operator(tmp_path, api, cluster))
            api.apply(manifests)
            return api, cluster, node

        yield apply


def digits(tmp_path: Path, count: int = 120) -> str:
    """Import a few digits into the S3 server; return their URL."""
    url = f"s3://runs/{tmp_path.name}/data.zarr"
    done = run("data", "import", stored_digits(tmp_path, count, 60), url)
    assert done.exit_code == 0, done.output
    return url


def render_small(*options: Any) -> list[Manifest]:
    """Render a small job or cluster on the S3 server."""
    return render(
        *("--preset", "digits", "--images", "120x28x28x1", "--filters", "4", "--max-layers", "3"),
        *("--chunk-images", "20", "--no-stop-at-zero-error"),
        *("--endpoint", os.environ["AWS_ENDPOINT_URL"], *options),
    )


def replicas(api: ApiServer) -> dict[float, int]:
    """Return the numbers of workers that the worker group had, by the time of each change."""
    found: dict[float, int] = {}
    for seconds, _, manifest in api.history:
        if manifest["kind"] == "DaskWorkerGroup":
            number = manifest["spec"]["worker"]["replicas"]
            if not found or [*found.values()][-1] != number:
                found[seconds] = number
    return found


def wait_until_gone(api: ApiServer, node: Node, cluster: Cluster) -> None:
    """Wait until there are no objects but events, and no processes."""

    def left() -> list[Any]:
        return [key for key in api.objects if key[0] != "Event"] + node.processes()

    wait_until(lambda: not left(), cluster, 120)


def test_job_that_cannot_succeed_ends_its_cluster(start: Start, tmp_path: Path) -> None:
    """After the number of tries; then nothing runs, and nothing is left once it is deleted."""
    manifests = render_small(
        *("--data", "s3://no-such-bucket/data.zarr", "--store", "s3://runs/failed/run"),
        *("--workers", 2, "--tries", 2),
    )
    api, cluster, node = start(manifests)
    wait_until(lambda: len(api.find("Pod")) == 4, cluster, 120)  # all parts have started
    job = "DaskJob", "rescnet", "rescnet"
    wait_until(
        lambda: api.objects[job].get("status", {}).get("jobStatus") == "Failed", cluster, 240
    )
    (driver,) = (pod for pod in cluster.pods if pod.name == "rescnet-runner")
    assert "There is no bucket for s3://no-such-bucket" in driver.log
    assert "try 2 of 2 ended with exit code 2; giving up" in driver.log
    assert driver.exits == [2]
    wait_until(lambda: not node.processes(), cluster, 120)
    assert not api.find("DaskCluster")
    assert not api.find("Deployment")
    api.delete_all(manifests)
    wait_until_gone(api, node, cluster)


def test_deadline_ends_a_job(start: Start, tmp_path: Path) -> None:
    """Whatever it does: here it waits for a worker, which never comes."""
    manifests = render_small(
        *("--data", digits(tmp_path), "--store", f"s3://runs/{tmp_path.name}/run"),
        *("--workers", 1, "--deadline", 20),
    )
    (job,) = (d for d in manifests if d["kind"] == "DaskJob")
    job["spec"]["cluster"]["spec"]["worker"]["replicas"] = 0
    api, cluster, node = start(manifests)
    key = "DaskJob", "rescnet", "rescnet"
    wait_until(
        lambda: api.objects[key].get("status", {}).get("jobStatus") == "Failed", cluster, 120
    )
    wait_until(lambda: not node.processes(), cluster, 120)
    assert not api.find("DaskCluster")


def test_deleted_job_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """In the middle of a run, by the manifests that it was started with."""
    manifests = render_small(
        *("--data", digits(tmp_path), "--store", f"s3://runs/{tmp_path.name}/run"),
        *("--workers", 2),
    )
    api, cluster, node = start(manifests)

    def last_layer() -> int:
        return sum(pod.last_layer() for pod in cluster.pods if pod.name == "rescnet-runner")

    wait_until(last_layer, cluster, 240)
    api.delete_all(manifests)
    wait_until_gone(api, node, cluster)


def test_deleted_cluster_leaves_nothing(start: Start) -> None:
    """Nor does its autoscaler. The operator has to run: it marks clusters with a finalizer."""
    manifests = render_small("--kind", "cluster", "--workers", 2)
    api, cluster, node = start(manifests)
    wait_until(lambda: len(api.find("Pod")) == 2, cluster, 120)
    (found,) = api.find("DaskCluster")
    assert found["metadata"]["finalizers"]
    api.delete_all(manifests)
    wait_until_gone(api, node, cluster)


def test_cluster_holds_its_workers_during_a_run_and_ends_when_idle(
    start: Start, tmp_path: Path
) -> None:
    """It has one worker, three until the last layer of a run is done, then one, and then none."""
    data = digits(tmp_path, 300)
    manifests = render_small("--kind", "cluster", "--workers", 3, "--idle-timeout", 90)
    api, cluster, node = start(manifests)

    wait_until(lambda: cluster.pods, cluster, 120)
    environment = cluster.pods[0].environment | {
        name: os.environ[name] for name in os.environ if name.startswith("AWS_")
    }
    command = ["rescnet", "train", data, "--preset", "digits", "--filters", "4"]
    command += ["--max-layers", "12", "--chunk-images", "10", "--no-stop-at-zero-error"]
    command += ["--store", f"s3://runs/{tmp_path.name}/run", "--scheduler", cluster.address]
    driver = subprocess.run(
        find_program([*command, "--workers", "3", "--wait", "4m"], environment),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert driver.returncode == 0, driver.stderr + cluster.collect_logs()
    commits = RunStore.open(f"s3://runs/{tmp_path.name}/run").commits()
    wait_until(lambda: not api.find("DaskCluster"), cluster, 300)
    steps = replicas(api)
    print([f"{seconds - commits[0]['finished']:.1f} s: {n}" for seconds, n in steps.items()])
    assert [*steps.values()][:4] == [1, 3, 2, 1]
    first_removal = [*steps][2]
    assert max(commit["finished"] for commit in commits) < first_removal
    wait_until(lambda: not node.processes(), cluster, 120)
    api.delete_all([d for d in manifests if not d["apiVersion"].startswith("kubernetes.dask.org")])
    wait_until_gone(api, node, cluster)
