"""What is wrong with a job is in its log, with what to do; and nothing is half-written."""

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

USER_ERROR = 2
LATER = {"backoff": 600.0}  # a container that has failed is not started again within a test


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A few digits in a folder."""
    return stored_digits(tmp_path_factory.mktemp("digits"), 120, 60)


@pytest.fixture
def job(s3: None, client: Client, digits: str) -> Callable[..., list[Manifest]]:
    """Renders a small job on data that are in the S3 server, at its URL unless another is given."""
    data = "s3://runs/bad-jobs/data.zarr"
    if not fsspec.filesystem("s3").exists(data):
        done = run("data", "import", digits, data)
        assert done.exit_code == 0, done.output

    def rendered(store: str, data: str = data, *more: str) -> list[Manifest]:
        return render(
            *("--data", data, "--store", store, "--preset", "digits", "--images", "120x28x28x1"),
            *("--filters", "4", "--max-layers", "2", "--workers", "1", "--chunk-images", "30"),
            *("--endpoint", os.environ["AWS_ENDPOINT_URL"], *more),
        )

    return rendered


def changed(manifests: list[Manifest], part: str, **fields: Any) -> list[Manifest]:
    """Manifests in which the container of the scheduler, the worker or the job has other fields, as
    somebody has edited them."""
    manifests = copy.deepcopy(manifests)
    (document,) = (d for d in manifests if d["kind"] == "DaskJob")
    spec = document["spec"]["job" if part == "job" else "cluster"]["spec"]
    (container,) = (spec if part == "job" else spec[part]["spec"])["containers"]
    container.update(fields)
    return manifests


def refused(there: Cluster, driver: Pod) -> str:
    """The log of a job that is refused, as one line of what is wrong, without a traceback."""
    wait_until(lambda: driver.exits, there, 120)
    assert driver.exits[0] == USER_ERROR, driver.log
    assert "Traceback" not in driver.log
    (problem,) = (line for line in driver.log.splitlines() if line.startswith("error: "))
    return problem


def joined(there: Cluster, *workers: Pod) -> None:
    """Wait until workers have joined their cluster."""
    for worker in workers:
        wait_until(lambda worker=worker: "Registered to" in worker.log, there)


def stored(url: str) -> list[str]:
    """All that is at a URL of the S3 server, but for empty folders, which SeaweedFS keeps."""
    files = fsspec.filesystem("s3")
    files.invalidate_cache()
    there = files.find(url, detail=True) if files.exists(url) else {}
    return [name for name, facts in there.items() if facts["size"]]


# the store ----------------------------------------------------------------------------------------


def test_wrong_keys(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]]
) -> None:
    """The Secret is there, and the server refuses what is in it; which is not repeated."""
    wrong = s3_secret | {"AWS_SECRET_ACCESS_KEY": "a-wrong-word"}
    there = deploy(job("s3://runs/bad-jobs/keys"), wrong, **LATER)
    problem = refused(there, there.start_driver())
    assert "s3://runs/bad-jobs/data.zarr cannot be reached: The request signature" in problem
    assert "Check the URL, the network and your permissions" in problem
    assert "a-wrong-word" not in problem
    assert not stored("s3://runs/bad-jobs/keys")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "data"),
    [
        ("s3://no-such-bucket/run", None),
        ("s3://runs/bad-jobs/bucket", "s3://no-such-bucket/data.zarr"),
    ],
)
def test_a_wrong_bucket(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]],
    store: str, data: str | None,
) -> None:  # fmt: skip
    """Of the store or the data: named at once, not when a cluster has come; and not made."""
    there = deploy(job(store, *([data] if data else [])), s3_secret, **LATER)
    problem = refused(there, there.start_driver())
    assert f"There is no bucket for {data or store}" in problem
    assert "Check the URL and the endpoint, or create the bucket first" in problem
    assert not fsspec.filesystem("s3").exists("no-such-bucket")
    assert not stored(store)


# images -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_image_without_the_package(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Its workers do not start, and say why; the job says where to look. Workers that do without
    what the manifest loads are named."""
    store = "s3://runs/bad-jobs/without"
    images = {"plain-dask:1": other_image(tmp_path / "plain", rescnet_dist=None)}
    good = job(store)
    there = deploy(changed(good, "worker", image="plain-dask:1"), s3_secret, images)
    there.start_scheduler()
    (worker,) = there.start_workers()
    driver = there.start_driver("--wait", "8s")
    problem = refused(there, driver)
    assert "has had no worker for 8 s" in problem
    assert "the log of one that does not come says why" in problem
    assert worker.exits[0] != 0
    assert "No module named 'rescnet_dist'" in worker.log
    assert not stored(store)

    arguments = there.spec["worker"]["spec"]["containers"][0]["args"]
    at = arguments.index("--preload")
    plain = changed(good, "worker", image="plain-dask:1", args=arguments[:at] + arguments[at + 2 :])
    there = deploy(plain, s3_secret, images, **LATER)
    there.start_scheduler()
    (worker,) = there.start_workers()
    joined(there, worker)
    problem = refused(there, there.start_driver())
    assert f"{worker.name} (tls://{worker.ip}:8789) has rescnet-dist (not installed)" in problem
    assert "Install the same versions everywhere, best by one image" in problem
    assert not stored(store)


@pytest.mark.slow
def test_other_versions_on_the_cluster(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Another release of this package in the workers' image, of Dask in the scheduler's."""
    store, old = "s3://runs/bad-jobs/versions", "rescnet-dist:0.0.9"
    images = {
        old: other_image(tmp_path / "old", rescnet_dist="0.0.9"),
        "older-dask:1": other_image(tmp_path / "older", distributed="2024.1.0"),
    }
    manifests = changed(job(store), "worker", image=old)
    there = deploy(
        changed(manifests, "scheduler", image="older-dask:1"), s3_secret, images, **LATER
    )
    there.start_scheduler()
    worker, other = there.start_workers(2)
    joined(there, worker, other)
    problem = refused(there, there.start_driver())
    assert "The cluster's versions differ from this process's (rescnet-dist 0." in problem
    assert "scheduler has distributed 2024.1.0; " in problem
    assert f"{worker.name} (tls://{worker.ip}:8789)" in problem
    assert f"{other.name} (tls://{other.ip}:8789)" in problem
    assert " have rescnet-dist 0.0.9. " in problem
    assert "best by one image" in problem
    assert not stored(store)


# memory -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_that_are_too_small(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], job: Callable[..., list[Manifest]]
) -> None:
    """Refused before anything is written, and where a run is gone on with; it goes on once they are
    as large as the manifest says."""
    store = "s3://runs/bad-jobs/small"
    there = deploy(job(store), s3_secret, **LATER)
    there.start_scheduler()
    (small,) = there.start_workers(1, memory_limit="400MiB")
    joined(there, small)
    problem = refused(there, there.start_driver())
    assert "of each worker's 400 MiB may be used before Dask spills" in problem
    assert "use workers of at least " in problem.lower()
    assert not stored(store)

    small.evict()
    (good,) = there.start_workers(1)
    driver = there.start_driver()
    wait_until(lambda: "layer 1/2" in driver.log, there)
    driver.kill()
    good.evict()
    before = stored(store)
    (small,) = there.start_workers(1, memory_limit="400MiB")
    joined(there, small)
    problem = refused(there, there.start_driver())
    assert "The run keeps the plan it started with, and these workers are too" in problem
    assert "of each worker's 400 MiB may be used before Dask spills" in problem
    assert "use workers of at least " in problem.lower()
    assert [f for f in stored(store) if "claims" not in f] == [
        f for f in before if "claims" not in f
    ]

    small.evict()
    there.start_workers(1)
    driver = there.start_driver()
    wait_until(driver.ended.is_set, there)
    assert driver.exits == [0], driver.log
    assert "resuming after layer 1" in driver.log
