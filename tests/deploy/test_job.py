"""A rendered job whose pods are removed at random gives the network of a local run."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import run, stored_digits
from distributed import Client
from kubelet import MIB, Cluster, Pod, render, wait_until
from models import assert_same_bits, read_model

from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

SEED = int(os.environ.get("RESCNET_CHAOS_SEED", "20260729"))


@dataclass(frozen=True)
class Removal:
    """A removal of a pod: its kind, the pod, its tasks, and the number of commits before."""

    kind: str
    pod: Pod
    tasks: tuple[str, ...]
    commits: int
    seconds: float

    def __str__(self) -> str:
        ended = self.pod.seconds_to_end
        cost = (
            ""
            if self.kind != "evict" or not ended
            else f", gone in {ended:.1f} s of {self.pod.grace:.0f} s"
        )
        tasks = ", ".join(self.tasks)
        return (
            f"{self.seconds:6.1f} s  {self.kind} {self.pod.name} ({self.pod.ip}), after "
            f"{self.commits} commits, at {tasks}{cost}"
        )


def train_locally(job: Cluster, data: str, store: Path) -> dict[str, Any]:
    """Train with the options of the job in this process, on folders; return the network."""
    arguments = job.document["spec"]["job"]["spec"]["containers"][0]["args"]
    done = run("train", data, "--store", store, *arguments[arguments.index("--preset") :])
    assert done.exit_code == 0, done.output
    return dict(read_model(store))


def deploy_job(
    deploy: Callable[..., Cluster],
    s3_secret: dict[str, str],
    tmp_path: Path,
    count: int,
    *options: Any,
) -> tuple[Cluster, str, str]:
    """Deploy a job on `count` digits in the S3 server.

    Returns the job, the URL of its store, and a folder with the same data.
    """
    digits, prefix = stored_digits(tmp_path, count, 100), f"s3://runs/{tmp_path.name}"
    local = str(tmp_path / "imported.zarr")
    for location in (local, f"{prefix}/data.zarr"):
        done = run("data", "import", digits, location, "--chunk-images", 100)
        assert done.exit_code == 0, done.output
    manifests = render(
        *("--data", f"{prefix}/data.zarr", "--store", f"{prefix}/run", "--preset", "digits"),
        *("--endpoint", os.environ["AWS_ENDPOINT_URL"], *options),
    )
    return deploy(manifests, s3_secret), f"{prefix}/run", local


def serves_metrics(driver: Pod) -> bool:
    """Return whether a driver serves the metrics of a run."""
    (port,) = driver.container["ports"]
    try:
        return "rescnet_run_state" in driver.get(port["containerPort"], "/metrics")
    except OSError:
        return False


class Reaper:
    """Removes pods from a job at moments in which they have work to do."""

    def __init__(self, job: Cluster, store: str, client: Client, rng: random.Random) -> None:
        self.job, self.store, self.client, self.rng = job, store, client, rng
        self.started, self.removals = time.monotonic(), list[Removal]()

    def remove(self, kind: str, layer: int) -> None:
        """Remove a pod at a random moment of the pass of a layer.

        Kinds are a busy worker, with notice ("evict") or with its node ("lose"), and the driver
        while a worker is busy, by SIGTERM ("terminate") or SIGKILL ("kill").
        """
        wait_until(lambda: self.commits() >= layer, self.job, 180)
        time.sleep(self.rng.uniform(0, 2))
        wait_until(self.busy_workers, self.job, 180, every=0.02)
        busy, commits = self.busy_workers(), self.commits()
        seconds = time.monotonic() - self.started
        if kind in ("evict", "lose"):
            victim = self.rng.choice(sorted(busy))
            pod, tasks = self.job.replace(victim, notice=kind == "evict"), busy[victim]
        else:
            assert self.job.driver
            pod, tasks = self.job.driver, tuple(sorted({t for ts in busy.values() for t in ts}))
            failures = pod.log.count("ended with exit code")
            pod.signal_child(signal.SIGTERM if kind == "terminate" else signal.SIGKILL)
            wait_until(lambda: pod.log.count("ended with exit code") > failures, self.job)
            wait_until(lambda: serves_metrics(pod), self.job)  # the next try, at the same port
        self.removals.append(Removal(kind, pod, tasks, commits, seconds))

    def commits(self) -> int:
        """Return the number of committed steps: the survey, and layers."""
        return len(RunStore.open(self.store).commits())

    def busy_workers(self) -> dict[str, tuple[str, ...]]:
        """Return the passes over images that each busy worker is computing."""
        assert self.job.driver
        assert not self.job.driver.ended.is_set(), self.job.driver.log
        tasks: dict[str, tuple[str, ...]] = {}
        for address, keys in self.client.processing().items():
            names = {str(key[0] if isinstance(key, tuple) else key) for key in keys}
            ip = address.split("://")[1].split(":")[0]
            tasks[ip] = tuple(sorted(name.rsplit("-", 1)[0] for name in names if "-fold-" in name))
        workers = self.job.workers.items()
        return {name: tasks[pod.ip] for name, pod in workers if tasks.get(pod.ip)}

    def summarize(self) -> str:
        """Return the removals and their cost as text."""
        records = RunStore.open(self.store).commits()
        redone = [record["observed"]["redone"] for record in records[1:]]
        chunks = RunStore.open(self.store).attributes()["plan"]
        chunks = -(-chunks["images"] // chunks["chunk_images"])
        seconds = [round(record["seconds"], 1) for record in records[1:]]
        lines = [f"seed {SEED}", *map(str, self.removals)]
        lines += [f"chunks recomputed in each layer, of {chunks}: {redone}; seconds: {seconds}"]
        for pod in self.job.pods:
            lines.append(
                f"{pod.name} ({pod.ip}): exits {pod.exits}, at most {pod.peak / MIB:.0f} MiB of "
                f"{pod.memory_limit / MIB:.0f} MiB"
            )
        assert self.job.driver
        return "\n".join([*lines, "--- log of the driver", self.job.driver.log])


@pytest.mark.slow
def test_job_with_removed_pods_gives_the_same_bits(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], client: Client, tmp_path: Path
) -> None:
    """Workers with notice and with their node, and the driver by each signal, during passes.

    The network is bit-identical to that of a local run in a folder.
    """
    rng = random.Random(SEED)
    kinds = ["evict"] * 4 + ["lose", "terminate", "kill"]
    rng.shuffle(kinds)
    layers = len(kinds) + 2
    job, store, local = deploy_job(
        *(deploy, s3_secret, tmp_path, 1200),
        *("--workers", 3, "--filters", 8, "--max-layers", layers, "--no-stop-at-zero-error"),
        *("--chunk-images", 40, "--accumulators", 9),
    )
    driver = job.start()
    wait_until(driver.last_layer, job, 180)
    with Client(job.address, security=job.security, set_as_default=False) as monitor:
        reaper = Reaper(job, store, monitor, rng)
        for layer, kind in enumerate(kinds, start=2):
            reaper.remove(kind, layer)
    wait_until(driver.ended.is_set, job, 400)
    ended = time.monotonic()
    job.stop()
    print(reaper.summarize(), f"\nall pods gone {time.monotonic() - ended:.1f} s after the job")
    assert driver.exits == [0], driver.log
    messages = "\n".join(record["message"] for record in driver.records())
    codes = re.findall(r"^try 1 of 6 ended with exit code (\d+); the next", messages, re.MULTILINE)
    assert sorted(codes) == ["137", "75"]
    assert "Traceback" not in driver.log
    assert "pass retried: " not in messages  # no pass has failed
    assert all(removal.tasks for removal in reaper.removals)  # during passes
    assert len({removal.commits for removal in reaper.removals}) > len(kinds) / 2  # of several
    for removal in reaper.removals:
        if removal.kind == "evict":
            assert removal.pod.seconds_to_end
            assert removal.pod.seconds_to_end < removal.pod.grace + 2, removal
    for pod in job.pods:
        margin = 1 if pod.name in job.workers else 1.5
        assert margin * pod.peak < pod.memory_limit, pod.name
        assert not list((pod.folder / "root").iterdir()), pod.name
    assert verify_run(store) == []
    assert_same_bits(read_model(store), train_locally(job, local, tmp_path / "laptop"))
