"""Jobs that cannot run: the log has the problem and the remedy, and nothing is written."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from commands import run, stored_digits
from distributed import Client
from images import other_image
from kubelet import Cluster, Manifest, Pod, render, wait_until

USER_ERROR, RESUMABLE = 2, 75
NO_RESTART = {"backoff": 600.0}  # a failed container is not restarted during a test


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A few digits in a folder."""
    return stored_digits(tmp_path_factory.mktemp("digits"), 120, 60)


@pytest.fixture
def job(s3: None, client: Client, digits: str) -> Callable[..., list[Manifest]]:
    """Return a function that renders a small job on data in the S3 server, or at another URL."""
    data = "s3://runs/bad-jobs/data.zarr"
    if not fsspec.filesystem("s3").exists(data):
        done = run("data", "import", digits, data)
        assert done.exit_code == 0, done.output

    def render_job(store: str, data: str = data, *options: str) -> list[Manifest]:
        return render(
            *("--data", data, "--store", store, "--preset", "digits", "--images", "120x28x28x1"),
            *("--filters", "4", "--max-layers", "2", "--workers", "1", "--chunk-images", "30"),
            *("--endpoint", os.environ["AWS_ENDPOINT_URL"], "--tries", "1", *options),
        )

    return render_job


def change_container(manifests: list[Manifest], part: str, **fields: Any) -> list[Manifest]:
    """Return manifests with other fields in the container of a part: scheduler, worker or job."""
    manifests = copy.deepcopy(manifests)
    (document,) = (d for d in manifests if d["kind"] == "DaskJob")
    spec = document["spec"]["job" if part == "job" else "cluster"]["spec"]
    (container,) = (spec if part == "job" else spec[part]["spec"])["containers"]
    container.update(fields)
    return manifests


def wait_for_error(cluster: Cluster, driver: Pod, code: int = USER_ERROR) -> str:
    """Wait until a job fails; return its error, which must come without a traceback."""
    wait_until(lambda: driver.exits, cluster, 120)
    assert driver.exits == [code], driver.log
    assert "Traceback" not in driver.log
    errors = [r["message"] for r in driver.records() if r["level"] == "ERROR"]
    problem, last = errors
    assert last == f"try 1 of 1 ended with exit code {code}; giving up"
    return str(problem)


def describe(worker: Pod) -> str:
    """Return the name and address of a worker, as in errors."""
    return f"{worker.environment['RESCNET_WORKER_NAME']} (tls://{worker.ip}:8789)"


def wait_for_workers(cluster: Cluster, *workers: Pod) -> None:
    """Wait until workers have joined the cluster."""
    for worker in workers:
        wait_until(lambda worker=worker: "Registered to" in worker.log, cluster)


def list_files(url: str) -> list[str]:
    """List the files at a URL of the S3 server, without the empty folders that SeaweedFS keeps."""
    files = fsspec.filesystem("s3")
    files.invalidate_cache()
    found = files.find(url, detail=True) if files.exists(url) else {}
    return [name for name, entry in found.items() if entry["size"]]


# the store ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wrong_keys(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]]
) -> None:
    """The server rejects the keys of the Secret; the error does not contain them."""
    wrong = s3_secret | {"AWS_SECRET_ACCESS_KEY": "a-wrong-word"}
    cluster = deploy(job("s3://runs/bad-jobs/keys"), wrong, **NO_RESTART)
    problem = wait_for_error(cluster, cluster.start_driver())
    assert (
        "s3://runs/bad-jobs/data.zarr cannot be reached: 403 Forbidden, SignatureDoesNotMatch"
        in problem
    )
    assert "Check them, and whether your permissions include this URL" in problem
    assert "a-wrong-word" not in problem
    assert not list_files("s3://runs/bad-jobs/keys")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "data"),
    [
        ("s3://no-such-bucket/run", None),
        ("s3://runs/bad-jobs/bucket", "s3://no-such-bucket/data.zarr"),
    ],
)
def test_wrong_bucket(
    deploy: Callable[..., Cluster],
    s3_secret: dict[str, str],
    job: Callable[..., list[Manifest]],
    store: str,
    data: str | None,
) -> None:
    """Of the store or the data: an error before the cluster is up, and no bucket is created."""
    cluster = deploy(job(store, *([data] if data else [])), s3_secret, **NO_RESTART)
    problem = wait_for_error(cluster, cluster.start_driver())
    assert f"There is no bucket for {data or store}" in problem
    assert "Check the URL and the endpoint, or create the bucket first" in problem
    assert not fsspec.filesystem("s3").exists("no-such-bucket")
    assert not list_files(store)


# images -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_image_without_the_package(
    deploy: Callable[..., Cluster],
    s3_secret: dict[str, str],
    job: Callable[..., list[Manifest]],
    tmp_path: Path,
) -> None:
    """Workers do not start and log the reason; the job refers to their log.

    Workers that start without the preload, our page and our logs are listed in the error.
    """
    store = "s3://runs/bad-jobs/without"
    images = {"plain-dask:1": other_image(tmp_path / "plain", rescnet_dist=None)}
    good = job(store)
    cluster = deploy(change_container(good, "worker", image="plain-dask:1"), s3_secret, images)
    cluster.start_scheduler()
    (worker,) = cluster.start_workers()
    driver = cluster.start_driver("--wait", "8s")
    problem = wait_for_error(cluster, driver, RESUMABLE)
    assert "has had no worker for 8 s" in problem
    assert "if one does not join, see its log" in problem
    assert worker.exits[0] != 0
    assert "Unable to configure formatter 'rescnet_dist.logs.JsonFormatter'" in worker.log
    assert not list_files(store)

    (container,) = cluster.spec["worker"]["spec"]["containers"]
    arguments = container["args"]
    index = arguments.index("--preload")
    args = arguments[:index] + arguments[index + 2 :]
    ours = ("DASK_LOGGING", "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES")
    env = [entry for entry in container["env"] if entry["name"] not in ours]
    plain = change_container(good, "worker", image="plain-dask:1", args=args, env=env)
    cluster = deploy(plain, s3_secret, images, **NO_RESTART)
    cluster.start_scheduler()
    (worker,) = cluster.start_workers()
    wait_for_workers(cluster, worker)
    problem = wait_for_error(cluster, cluster.start_driver())
    assert f"{describe(worker)} has rescnet-dist (not installed)" in problem
    assert "Install the same versions everywhere, for example with one container image" in problem
    assert not list_files(store)


@pytest.mark.slow
def test_other_versions_on_the_cluster(
    deploy: Callable[..., Cluster],
    s3_secret: dict[str, str],
    job: Callable[..., list[Manifest]],
    tmp_path: Path,
) -> None:
    """Another release of this package in the workers' image, of Dask in the scheduler's."""
    store, old = "s3://runs/bad-jobs/versions", "rescnet-dist:0.0.9"
    images = {
        old: other_image(tmp_path / "old", rescnet_dist="0.0.9"),
        "older-dask:1": other_image(tmp_path / "older", distributed="2024.1.0"),
    }
    manifests = change_container(job(store), "worker", image=old)
    manifests = change_container(manifests, "scheduler", image="older-dask:1")
    cluster = deploy(manifests, s3_secret, images, **NO_RESTART)
    cluster.start_scheduler()
    worker, other = cluster.start_workers(2)
    wait_for_workers(cluster, worker, other)
    problem = wait_for_error(cluster, cluster.start_driver())
    assert "The cluster's versions differ from this process's (rescnet-dist 0." in problem
    assert "scheduler has distributed 2024.1.0; " in problem
    assert f"{describe(worker)}, {describe(other)} have rescnet-dist 0.0.9. " in problem
    assert "with one container image" in problem
    assert not list_files(store)


# memory -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_too_small_workers(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]]
) -> None:
    """An error before anything is written, and when a run is resumed.

    The run is resumed once workers have the size of the manifest.
    """
    store = "s3://runs/bad-jobs/small"
    cluster = deploy(job(store), s3_secret, **NO_RESTART)
    cluster.start_scheduler()
    (small,) = cluster.start_workers(1, memory_limit="400MiB")
    wait_for_workers(cluster, small)
    problem = wait_for_error(cluster, cluster.start_driver())
    assert "of each worker's 400 MiB may be used before Dask spills" in problem
    assert "Use workers of at least " in problem
    assert not list_files(store)

    small.evict()
    (good,) = cluster.start_workers(1)
    driver = cluster.start_driver()
    wait_until(driver.last_layer, cluster)
    driver.kill()
    good.evict()
    before = list_files(store)
    (small,) = cluster.start_workers(1, memory_limit="400MiB")
    wait_for_workers(cluster, small)
    problem = wait_for_error(cluster, cluster.start_driver())
    assert "The run keeps the plan it started with, and these workers are too" in problem
    assert "of each worker's 400 MiB may be used before Dask spills" in problem
    assert "Use workers of at least " in problem
    assert [f for f in list_files(store) if "claims" not in f] == [
        f for f in before if "claims" not in f
    ]

    small.evict()
    cluster.start_workers(1)
    driver = cluster.start_driver()
    wait_until(driver.ended.is_set, cluster)
    assert driver.exits == [0], driver.log
    (resumed,) = (r for r in driver.records() if r["message"] == "run resumed")
    assert resumed["layers"] == 1
