"""A rendered job whose pods are taken away at random ends with the network of a laptop's run."""

from __future__ import annotations

import os
import random
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
from models import assert_same_bits
from models import read_model as model

from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

SEED = int(os.environ.get("RESCNET_CHAOS_SEED", "20260729"))


@dataclass(frozen=True)
class Strike:
    """What was done to whom, when it had what to do, after how many commits."""

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


def laptop_run(job: Cluster, data: str, store: Path) -> dict[str, Any]:
    """The network that `rescnet train` makes in this process, of data and a store in folders, by
    the options of the job."""
    arguments = job.document["spec"]["job"]["spec"]["containers"][0]["args"]
    done = run("train", data, "--store", store, *arguments[arguments.index("--preset") :])
    assert done.exit_code == 0, done.output
    return dict(model(store))


def job_of(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], tmp_path: Path, count: int,
    *options: Any,
) -> tuple[Cluster, str, str]:  # fmt: skip
    """A job on so many digits that are put into the S3 server; with it the URL of its store, and of
    the same data in a folder."""
    digits, where = stored_digits(tmp_path, count, 100), f"s3://runs/{tmp_path.name}"
    local = str(tmp_path / "imported.zarr")
    for location in (local, f"{where}/data.zarr"):
        done = run("data", "import", digits, location, "--chunk-images", 100)
        assert done.exit_code == 0, done.output
    manifests = render(
        *("--data", f"{where}/data.zarr", "--store", f"{where}/run", "--preset", "digits"),
        *("--endpoint", os.environ["AWS_ENDPOINT_URL"], *options),
    )
    return deploy(manifests, s3_secret), f"{where}/run", local


class Reaper:
    """Takes pods away from a job, at moments in which they have work to do."""

    def __init__(self, job: Cluster, store: str, client: Client, rng: random.Random) -> None:
        self.job, self.store, self.client, self.rng = job, store, client, rng
        self.began, self.strikes = time.monotonic(), list[Strike]()

    def strike(self, kind: str, layer: int) -> None:
        """At a random moment of the pass that makes a layer: take a worker that is at work away,
        with notice ("evict") or with its node ("lose"), or end the driver while some worker is at
        work, by SIGTERM ("terminate") or SIGKILL ("kill")."""
        wait_until(lambda: self.commits() >= layer, self.job, 180)
        time.sleep(self.rng.uniform(0, 2))
        wait_until(self.at_work, self.job, 180, every=0.02)
        busy, commits = self.at_work(), self.commits()
        seconds = time.monotonic() - self.began
        if kind in ("evict", "lose"):
            victim = self.rng.choice(sorted(busy))
            pod, tasks = self.job.replace(victim, notice=kind == "evict"), busy[victim]
        else:
            assert self.job.driver
            pod, tasks = self.job.driver, tuple(sorted({t for ts in busy.values() for t in ts}))
            ends = len(pod.exits)
            pod.signal(signal.SIGTERM if kind == "terminate" else signal.SIGKILL)
            wait_until(lambda: len(pod.exits) > ends, self.job)
        self.strikes.append(Strike(kind, pod, tasks, commits, seconds))

    def commits(self) -> int:
        """Steps that are committed: the survey, and layers."""
        return len(RunStore.open(self.store).commits())

    def at_work(self) -> dict[str, tuple[str, ...]]:
        """The passes over images that each worker takes part in just now."""
        assert self.job.driver
        assert not self.job.driver.ended.is_set(), self.job.driver.log
        tasks: dict[str, tuple[str, ...]] = {}
        for address, keys in self.client.processing().items():
            names = {str(key[0] if isinstance(key, tuple) else key) for key in keys}
            at = address.split("://")[1].split(":")[0]
            tasks[at] = tuple(sorted(name.rsplit("-", 1)[0] for name in names if "-fold-" in name))
        workers = self.job.workers.items()
        return {name: tasks[pod.ip] for name, pod in workers if tasks.get(pod.ip)}

    def told(self) -> str:
        """What the strikes were, and what they cost."""
        records = RunStore.open(self.store).commits()
        redone = [record["observed"]["redone"] for record in records[1:]]
        chunks = RunStore.open(self.store).attributes()["plan"]
        chunks = -(-chunks["images"] // chunks["chunk_images"])
        seconds = [round(record["seconds"], 1) for record in records[1:]]
        lines = [f"seed {SEED}", *map(str, self.strikes)]
        lines += [f"chunks done again in each layer, of {chunks}: {redone}; seconds: {seconds}"]
        for pod in self.job.pods:
            lines.append(
                f"{pod.name} ({pod.ip}): exits {pod.exits}, at most {pod.peak / MIB:.0f} MiB of "
                f"{pod.memory_limit / MIB:.0f} MiB"
            )
        assert self.job.driver
        return "\n".join([*lines, "--- log of the driver", self.job.driver.log])


@pytest.mark.slow
def test_a_job_ends_with_the_same_network_whoever_is_taken_away(
    deploy: Callable[..., Cluster], s3_secret: dict[str, str], client: Client, tmp_path: Path
) -> None:
    """Workers with notice and with their node, and the driver by each signal, at random times in
    passes: the bits are those of a laptop's run in a folder."""
    rng = random.Random(SEED)
    kinds = ["evict"] * 4 + ["lose", "terminate", "kill"]
    rng.shuffle(kinds)
    layers = len(kinds) + 2
    job, store, local = job_of(
        deploy, s3_secret, tmp_path, 1200, "--workers", 3, "--filters", 8, "--max-layers", layers,
        "--no-stop-at-zero-error", "--chunk-images", 40, "--accumulators", 9,
    )  # fmt: skip
    driver = job.start()
    wait_until(lambda: "layer 1" in driver.log, job, 180)
    with Client(job.address, security=job.security, set_as_default=False) as watching:
        reaper = Reaper(job, store, watching, rng)
        for layer, kind in enumerate(kinds, start=2):
            reaper.strike(kind, layer)
    wait_until(driver.ended.is_set, job, 400)
    ended = time.monotonic()
    job.stop()
    print(reaper.told(), f"\nall pods gone {time.monotonic() - ended:.1f} s after the job")
    assert sorted(driver.exits) == [-9, 0, 75], driver.log
    assert driver.exits[-1] == 0
    assert "Traceback" not in driver.log
    assert "is retried: " not in driver.log  # no pass has failed, whoever was taken away
    assert all(strike.tasks for strike in reaper.strikes)  # in the middle of passes
    assert len({strike.commits for strike in reaper.strikes}) > len(kinds) / 2  # of several
    for strike in reaper.strikes:
        if strike.kind == "evict":
            assert strike.pod.seconds_to_end
            assert strike.pod.seconds_to_end < strike.pod.grace + 2, strike
    for pod in job.pods:
        margin = 1 if pod.name in job.workers else 1.5
        assert margin * pod.peak < pod.memory_limit, pod.name
        assert not list((pod.folder / "root").iterdir()), pod.name
    assert verify_run(store) == []
    assert_same_bits(model(store), laptop_run(job, local, tmp_path / "laptop"))
