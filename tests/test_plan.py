"""The plan: what it says of memory is what workers take, and what does not fit is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.store import RunStore
from rescnet_dist.train import Problem, Workers

MIB = 2**20
SMALL = NetworkSpec(filters=4, block=5, stride=3, first_filter_size=3, max_layers=2)
CIFAR = NetworkSpec(filters=16, max_layers=2)
WORKERS = Workers(count=2, slots=2, threads=1, least_threads=1, memory=768 * MIB)
MANY = Problem(images=100_000, image_shape=(32, 32, 3), classes=10)


def images_at(folder: Path, n: int, shape: tuple[int, int, int], dtype: str) -> str:
    """The URL of a Zarr store of n noise images of 10 classes."""
    rng, url = np.random.default_rng(0), str(folder / "data.zarr")
    group = zarr.open_group(url, mode="w")
    images = group.create_array("images", shape=(n, *shape), dtype=dtype, chunks=(64, *shape))
    for start in range(0, n, 64):
        stop = min(start + 64, n)
        images[start:stop] = rng.integers(0, 255, (stop - start, *shape)).astype(dtype)
    group.create_array("labels", data=np.arange(n) % 10, chunks=(64,))
    return url


def peak_resident() -> int:
    """Bytes that were resident in this process at most; run on workers."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


# name: spec, images, shape and dtype of the data, run, threads of the one worker
CASES: dict[str, tuple[NetworkSpec, int, tuple[int, int, int], str, RunSpec, int]] = {
    "small": (SMALL, 200, (14, 14, 1), "uint8", RunSpec(), 1),
    "large chunks": (CIFAR, 2400, (32, 32, 3), "uint8", RunSpec(chunk_images=1200), 1),
    "many features": (
        CIFAR.replace(filters=32, filter_size=1, max_layers=1),
        *(80, (32, 32, 3), "uint8", RunSpec(chunk_images=20, accumulators=2), 1),
    ),
    "many accumulators": (
        CIFAR.replace(filters=24, filter_size=1, stride=8, levels=(2, 1), max_layers=1),
        *(96, (32, 32, 3), "uint8", RunSpec(chunk_images=12, accumulators=8), 1),
    ),
    "many patches": (
        CIFAR.replace(filters=40, lda_draws=30, block=8, levels=(1,)),
        *(300, (16, 16, 3), "uint8", RunSpec(), 1),
    ),
    "large filters": (
        SMALL.replace(filters=12, filter_size=9, first_filter_size=13, lda_fraction=0.0),
        *(300, (28, 28, 1), "uint8", RunSpec(), 1),
    ),
    "large images of floats": (
        CIFAR.replace(filters=8, block=32, stride=16),
        *(240, (96, 96, 3), "float32", RunSpec(chunk_images=60), 1),
    ),
    "two threads": (CIFAR, 2000, (32, 32, 3), "uint8", RunSpec(chunk_images=400), 2),
    "tiles": (
        CIFAR.replace(filters=32, filter_size=1, max_layers=1),
        *(80, (32, 32, 3), "uint8", RunSpec(tile_features=2048, chunk_images=20), 1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_workers_take_what_the_plan_says(tmp_path: Path, case: str) -> None:
    """Peak resident memory lies between half of the planned figure and all of it."""
    spec, n, shape, dtype, run, threads = CASES[case]
    url = images_at(tmp_path, n, shape, dtype)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=threads, processes=True, memory_limit="6GiB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        planned = rd.plan(url, spec=spec, run=run, measure=False)
        clf = ResCNetClassifier(spec, run=run, store=tmp_path / "run").fit(url)
        (measured,) = client.run(peak_resident).values()
    ratio = measured / planned.peak_memory
    print(f"{case}: {measured / MIB:.0f} of {planned.peak_memory / MIB:.0f} MiB, {ratio:.2f}")
    assert 0.5 <= ratio <= 1.0
    assert clf.network_.layers[0].classifier.weights.shape[2] == planned.features
    assert RunStore.open(tmp_path / "run").attributes()["plan"] == planned.plan.to_dict()
