"""Bounded memory: data larger than the memory of all workers, without growth or spilling."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from peak_memory import read_peak_memory_of_workers

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

MIB = 2**20


def write_images(url: Path, n: int, shape: tuple[int, int, int]) -> str:
    """Write a Zarr store of n images of 10 classes, in batches; return its URL.

    Each class has a smooth pattern, under noise.
    """
    rng, step = np.random.default_rng(0), 500
    height, width, channels = shape
    y, x = np.mgrid[:height, :width][..., None] / height
    waves = [
        np.sin(np.pi * (rng.uniform(1, 4) * y + rng.uniform(1, 4) * x + np.arange(channels)))
        for _ in range(10)
    ]
    patterns = 127 + 60 * np.stack(waves)
    group = zarr.open_group(str(url), mode="w")
    images = group.create_array("images", shape=(n, *shape), dtype="uint8", chunks=(step, *shape))
    group.create_array("labels", data=np.arange(n, dtype="int32") % 10, chunks=(step,))
    for start in range(0, n, step):
        labels = np.arange(start, min(start + step, n)) % 10
        noise = rng.normal(scale=60, size=(len(labels), *shape))
        images[start : start + len(labels)] = np.clip(patterns[labels] + noise, 0, 255)
    return str(url)


@dataclass(frozen=True)
class Outcome:
    """Peak bytes of each worker of a run, planned and spilled bytes, whether all worker processes
    survived, bytes of the maps of one layer, and the accuracy."""

    peaks: list[int]
    planned: int
    spilled: float
    survived: bool
    maps: int
    accuracy: float


def get_spilled_bytes(dask_worker: Any) -> float:
    """Return the bytes that a worker has spilled to disk so far."""
    metrics = dask_worker.data.cumulative_metrics
    return float(sum(v for key, v in metrics.items() if "disk-write" in key and "bytes" in key))


def train_with_limit(
    folder: Path,
    url: str,
    spec: NetworkSpec,
    limit: str,
    run: RunSpec | None = None,
    augment: AugmentSpec | None = None,
) -> Outcome:
    """Train on two new workers with a memory limit each."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit=limit,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        before = sorted(client.run(os.getpid).values())
        planned = rd.plan(url, spec=spec, run=run, augment=augment, measure=False).peak_memory
        clf = ResCNetClassifier(spec, store=folder / "run", run=run, augment=augment).fit(url)
        outcome = Outcome(
            peaks=sorted(read_peak_memory_of_workers(client)),
            planned=planned,
            spilled=sum(client.run(get_spilled_bytes).values()),
            survived=sorted(client.run(os.getpid).values()) == before,
            maps=RunStore.open(folder / "run").maps(spec.max_layers).nbytes,
            accuracy=clf.accuracies_[-1]["train"],
        )
    print(outcome)
    return outcome


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    """Four times as many images take at most 10% more, without spilling or restarts."""
    spec = NetworkSpec(filters=6, block=8, max_layers=2, ridge=0.1)
    outcomes = []
    for n in (1500, 6000):
        url = write_images(tmp_path / f"{n}.zarr", n, (16, 16, 3))
        folder = tmp_path / str(n)
        folder.mkdir()
        outcomes.append(
            train_with_limit(folder, url, spec, "768MiB", RunSpec(validation=0, chunk_images=250))
        )
    small, large = outcomes
    assert max(large.peaks) <= 1.1 * max(small.peaks)
    for outcome in outcomes:
        assert outcome.survived
        assert outcome.spilled == 0
        assert max(outcome.peaks) <= outcome.planned <= 768 * MIB


@pytest.mark.slow
def test_maps_four_times_larger_than_all_memory(tmp_path: Path) -> None:
    """100,000 images on two workers of 768 MiB stay within the planned memory."""
    limit, spec = 768 * MIB, NetworkSpec(filters=16, max_layers=3, stop_at_zero_error=False)
    peaks = {}
    for n in (25_000, 100_000):
        url = write_images(tmp_path / f"{n}.zarr", n, (32, 32, 3))
        folder = tmp_path / str(n)
        folder.mkdir()
        outcome = train_with_limit(folder, url, spec, "768MiB")
        peaks[n] = max(outcome.peaks)
        assert outcome.survived
        assert outcome.spilled == 0
        assert peaks[n] <= outcome.planned <= limit
        if n == 100_000:
            assert outcome.maps >= 4 * 2 * limit
            assert verify_run(folder / "run") == []
        shutil.rmtree(folder)
    assert peaks[100_000] <= 1.1 * peaks[25_000]


@pytest.mark.slow
def test_maps_of_augmented_copies_larger_than_all_memory(tmp_path: Path) -> None:
    """The maps of 20 copies take 4 times the memory of all workers; images are stored once."""
    spec = NetworkSpec.preset("digits").replace(max_layers=2, filters=20, levels=(2, 1))
    limit = 768 * MIB
    augment = AugmentSpec(copies=20, shift=2, rotate=10.0)
    outcome = train_with_limit(tmp_path, "digits", spec, "768MiB", RunSpec(validation=0.1), augment)
    assert outcome.survived
    assert outcome.spilled == 0
    assert max(outcome.peaks) <= outcome.planned <= limit
    assert outcome.maps >= 4 * 2 * limit
    run = RunStore.open(tmp_path / "run")
    assert run.data_array("images").shape[0] == 6000
    assert run.maps(2).shape[0] == 6000 + 20 * int(run.data_array("train")[...].sum())
