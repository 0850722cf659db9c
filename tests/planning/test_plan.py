"""The plan: estimated and measured memory, its choice, and errors if nothing fits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from peak_memory import read_peak_memory_of_workers

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import WorkersTooSmallError
from rescnet_dist.kernels.cpu.products import MAX_SUMS_BYTES
from rescnet_dist.kernels.gpu_tiles import COPY_SLAB_BYTES
from rescnet_dist.model.architecture import SLAB_BYTES
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.filters.pca import PCA
from rescnet_dist.planning import Plan, Problem, make_plan, peak_memory
from rescnet_dist.planning.choose import ADVISED_MEMORY_MARGIN
from rescnet_dist.planning.requirements import (
    GPU_MEMORY_MARGIN,
    bank_bytes,
    chunk_bytes,
    device_memory,
    max_resident_accumulators,
    sample_bytes,
    traffic,
)
from rescnet_dist.store import RunStore

MIB = 2**20
SMALL = NetworkSpec(filters=4, block=5, stride=3, first_filter_size=3, max_layers=2)
CIFAR = NetworkSpec(filters=16, max_layers=2)
WORKERS = Workers(count=2, slots=2, threads=1, machine_threads=1, memory=848 * MIB)
MANY = Problem(images=100_000, image_shape=(32, 32, 3), classes=10)


def write_images(folder: Path, n: int, shape: tuple[int, int, int], dtype: str) -> str:
    """Write a Zarr store of n random images of 10 classes; return its URL."""
    rng, url = np.random.default_rng(0), str(folder / "data.zarr")
    group = zarr.open_group(url, mode="w")
    images = group.create_array("images", shape=(n, *shape), dtype=dtype, chunks=(64, *shape))
    for start in range(0, n, 64):
        stop = min(start + 64, n)
        images[start:stop] = rng.integers(0, 255, (stop - start, *shape)).astype(dtype)
    group.create_array("labels", data=np.arange(n) % 10, chunks=(64,))
    return url


# Spec, number, shape and dtype of the images, run, and threads of the one worker.
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
    "whitened images": (
        SMALL.replace(bank="pca@zca"),
        *(120, (28, 28, 2), "uint8", RunSpec(chunk_images=40, accumulators=2), 1),
    ),
    "large images of floats": (
        CIFAR.replace(filters=8, block=32, stride=16),
        *(240, (96, 96, 3), "float32", RunSpec(chunk_images=60), 1),
    ),
    "blocks at every pixel": (
        CIFAR.replace(filters=8, stride=1, max_layers=1),
        *(16, (512, 512, 1), "uint8", RunSpec(chunk_images=1), 1),
    ),
    "two towers": (
        CIFAR.replace(filters=4, local_contrast=True, block=32, stride=16, max_layers=2),
        *(1024, (64, 64, 12), "uint8", RunSpec(chunk_images=512), 1),
    ),
    "two threads": (CIFAR, 2000, (32, 32, 3), "uint8", RunSpec(chunk_images=400), 2),
    "tiles": (
        CIFAR.replace(filters=32, filter_size=1, max_layers=1),
        *(80, (32, 32, 3), "uint8", RunSpec(tile_features=2048, chunk_images=20), 1),
    ),
    "cg": (
        CIFAR.replace(filters=32, filter_size=1, max_layers=1, solver="cg", cg_iterations=2),
        *(2000, (32, 32, 3), "uint8", RunSpec(chunk_images=200), 1),
    ),
    "kernel": (
        CIFAR.replace(head="kernel-ridge", max_layers=1),
        *(5000, (32, 32, 3), "uint8", RunSpec(chunk_images=500), 1),
    ),
    "cg of histograms": (
        CIFAR.replace(
            filters=16, max_layers=1, solver="cg", cg_iterations=1, features="binary-hash"
        ),
        *(1500, (32, 32, 3), "uint8", RunSpec(chunk_images=300), 2),
    ),
}


FAST_CASES = ("small",)


@pytest.mark.parametrize(
    "case",
    [case if case in FAST_CASES else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_peak_memory_of_workers_matches_the_plan(tmp_path: Path, case: str) -> None:
    """Peak resident memory is between half of the estimate and the estimate."""
    spec, n, shape, dtype, run, threads = CASES[case]
    url = write_images(tmp_path, n, shape, dtype)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=threads,
            processes=True,
            memory_limit="6GiB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        planned = rd.plan(url, spec=spec, run=run, measure=False)
        clf = ResCNetClassifier(spec, run=run, store=tmp_path / "run").fit(url)
        (peak,) = read_peak_memory_of_workers(client)
    ratio = peak / planned.peak_memory
    print(f"{case}: {peak / MIB:.0f} of {planned.peak_memory / MIB:.0f} MiB, {ratio:.2f}")
    assert 0.5 <= ratio <= 1.0
    assert clf.network_.architecture.feature_count(1) == planned.features
    assert RunStore.open(tmp_path / "run").attributes()["plan"] == planned.plan.to_dict()


# choosing ---------------------------------------------------------------------------------------


@pytest.fixture
def small_workers() -> Iterator[Client]:
    """Yield a client of two worker processes of 736 MiB each."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit="736MiB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_less_memory_gives_smaller_chunks_then_tiles() -> None:
    """Every plan fits its workers, and is divided no further than necessary."""
    chunks, tiles = [], []
    for memory in (16_000, 2_000, 1_000, 880, 780, 720, 690):
        workers = replace(WORKERS, memory=memory * MIB)
        plan = make_plan(MANY, CIFAR, RunSpec(), workers)
        assert peak_memory(MANY, CIFAR, plan, workers) <= workers.budget
        chunks.append(plan.chunk_images)
        tiles.append(plan.tile_features or math.inf)
    assert chunks[0] > chunks[4]
    assert tiles == sorted(tiles, reverse=True)
    assert tiles[0] == math.inf > tiles[-1]


def test_plan_fits_exactly_at_its_memory_limit() -> None:
    """One byte less gives the next smaller plan."""
    plan = make_plan(MANY, CIFAR, RunSpec(), WORKERS)
    need = peak_memory(MANY, CIFAR, plan, WORKERS)
    exactly = replace(WORKERS, memory=need, share=1.0)
    assert make_plan(MANY, CIFAR, RunSpec(), exactly) == plan
    below = replace(exactly, memory=need - 1)
    smaller = make_plan(MANY, CIFAR, RunSpec(), below)
    assert smaller != plan
    assert peak_memory(MANY, CIFAR, smaller, below) < need


def test_memory_of_a_plan_is_independent_of_the_number_of_images() -> None:
    """Ten times the images need the same memory."""
    plan = make_plan(MANY, CIFAR, RunSpec(), WORKERS)
    more = replace(MANY, images=10 * MANY.images)
    larger = make_plan(more, CIFAR, RunSpec(), WORKERS)
    assert larger == replace(plan, images=more.images)
    assert peak_memory(more, CIFAR, larger, WORKERS) == peak_memory(MANY, CIFAR, plan, WORKERS)


@pytest.mark.parametrize(
    ("filters", "images", "slots", "accumulators"),
    [
        (50, 4_000, 1, 1),  # 17,150 features
        (50, 8_000, 1, 4),
        (50, 4_000, 2, 2),
        (50, 50_000, 16, 16),
        (50, 128_000, 16, 64),
        (12, 4_000, 1, 4),  # 924 features, whose accumulators are small
    ],
)
def test_large_accumulators_are_folded_from_many_images(
    filters: int, images: int, slots: int, accumulators: int
) -> None:
    """To allocate and merge them would take a tenth of the pass with 1,000 images each."""
    spec = NetworkSpec.preset("cifar10").replace(filters=filters, block=16, stride=4)
    workers = replace(WORKERS, count=slots, slots=slots, memory=None)
    run_spec = RunSpec(chunk_images=100)
    plan = make_plan(Problem(images, (32, 32, 3), 10), spec, run_spec, workers)
    assert plan.accumulators == accumulators


def test_a_gpu_has_the_matrix_of_all_pairs_once() -> None:
    """More images need the bytes of its larger side squared, and less than 100 KB each."""
    spec, gpu = CIFAR.replace(head="kernel-ridge"), Plan(1000, 10, 1, 2, 1)
    few, many = (Problem(images, (32, 32, 3), 10) for images in (100_000, 110_000))
    grown = device_memory(many, spec, gpu) - device_memory(few, spec, gpu)
    row = sample_bytes(many, spec) / many.images + 100_000
    assert 0 <= grown - 4 * (many.images**2 - few.images**2) < 10_000 * row


@pytest.mark.parametrize(
    ("accumulators", "split_every", "threads", "expected"),
    [(1, 2, 1, 3), (2, 2, 1, 3), (4, 2, 1, 4), (8, 2, 1, 5), (4, 2, 4, 6), (64, 2, 1, 8)],
)
def test_resident_accumulators(
    accumulators: int, split_every: int, threads: int, expected: int
) -> None:
    """Counted by hand: being filled, waiting for a partner, and two with their sum."""
    plan = Plan(1000, 10, accumulators, split_every, 1)
    assert max_resident_accumulators(plan, threads) == expected


@pytest.mark.parametrize(
    ("spec", "run", "message"),
    [
        (CIFAR, RunSpec(chunk_images=5000), "chunk_images=5000 by chunk_images of at most {}"),
        (
            CIFAR.replace(filters=24),
            RunSpec(accumulators=500, chunk_images=100, tile_features=4096),
            "tile_features=4096 by tile_features of at most {}",
        ),
        (
            CIFAR.replace(filters=600, lda_fraction=0.9, filter_size=5),
            RunSpec(),
            "filters=600 by filters of at most {}",
        ),
    ],
)
def test_error_of_a_run_that_does_not_fit_has_a_value_that_does(
    spec: NetworkSpec, run: RunSpec, message: str
) -> None:
    """With a margin, because workers grow; one more than that value does not fit."""
    with pytest.raises(WorkersTooSmallError, match=message.format(r"(\d+)")) as caught:
        make_plan(MANY, spec, run, WORKERS)
    assert f"of each worker's {WORKERS.memory // MIB} MiB" in str(caught.value)
    value = int(re.search(message.format(r"(\d+)"), str(caught.value))[1])
    name = message.split("=")[0]

    def with_value(changed: int, memory: float) -> Plan:
        network = spec.replace(filters=changed) if name == "filters" else spec
        settings = run if name == "filters" else run.replace(**{name: changed})
        return make_plan(MANY, network, settings, replace(WORKERS, memory=int(memory)))

    with_value(value, WORKERS.memory)
    with_value(value, WORKERS.memory / ADVISED_MEMORY_MARGIN)
    with pytest.raises(WorkersTooSmallError):
        with_value(value + 1, WORKERS.memory / ADVISED_MEMORY_MARGIN)
    needed = int(
        re.search(r"workers of at least ([\d,]+) MiB", str(caught.value))[1].replace(",", "")
    )
    make_plan(MANY, spec, run, replace(WORKERS, memory=needed * MIB))
    grown = replace(WORKERS, memory=needed * MIB, resident=WORKERS.resident + 8 * MIB)
    make_plan(MANY, spec, run, grown)


def test_train_and_plan_raise_the_same_error(small_workers: Client, tmp_path: Path) -> None:
    """Nothing is written."""
    X, y = load_digits()
    run, spec = RunSpec(chunk_images=5000), NetworkSpec.preset("digits")
    messages = []
    for action in (
        lambda: rd.plan(X, y, spec, run=run, measure=False),
        lambda: ResCNetClassifier(spec, run=run, store=tmp_path / "run").fit(X, y),
    ):
        with pytest.raises(
            WorkersTooSmallError, match="chunk_images=5000 by chunk_images of"
        ) as caught:
            action()
        messages.append(re.sub(r"[\d,]+ MiB|at most \d+", "", str(caught.value)))
    assert messages[0] == messages[1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_small_memory_limit_gives_tiles_and_the_same_result(
    small_workers: Client, tmp_path: Path
) -> None:
    """A scatter matrix of over 100 MiB on workers of 736 MiB gives the same scores in tiles."""
    X, y = (array[:160] for array in load_digits())
    spec = NetworkSpec(filters=23, block=7, stride=4, max_layers=1, filter_size=1, ridge=0.3)
    tiled = ResCNetClassifier(spec, store=tmp_path / "tiled").fit(X, y)
    plan = RunStore.open(tmp_path / "tiled").attributes()["plan"]
    assert plan["tile_features"] is not None
    features = tiled.network_.layers[0].head.arrays["weights"].shape[2]
    assert 4 * features**2 > 100 * MIB
    assert features > 2 * plan["tile_features"]
    assert max(read_peak_memory_of_workers(small_workers)) < 736 * MIB
    assert not (tmp_path / "tiled" / "work").exists()
    one_piece = RunSpec(
        chunk_images=plan["chunk_images"], accumulators=plan["accumulators"], solve_threads=1
    )
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        whole = ResCNetClassifier(spec, store=tmp_path / "whole", run=one_piece).fit(X, y)
    assert RunStore.open(tmp_path / "whole").attributes()["plan"]["tile_features"] is None
    np.testing.assert_allclose(tiled.decision_function(X), whole.decision_function(X), atol=2e-4)


@pytest.mark.parametrize("head", [pytest.param("classify", marks=pytest.mark.slow), "regress"])
def test_tiles_give_the_same_network_as_one_matrix(
    client: Client, tmp_path: Path, head: str
) -> None:
    """Tiles that do not divide the features, three layers, validation images; and on resume."""
    X, y = (array[:200] for array in load_digits())
    X = X[:, ::2, ::2]
    spec = SMALL.replace(max_layers=3, head=head, ridge=0.3, learning_rate=0.5)
    run = RunSpec(chunk_images=60, accumulators=2, solve_threads=1, validation=0.2)
    whole = ResCNetClassifier(spec, run=run).fit(X, y)
    tiles = run.replace(tile_features=50)
    tiled = ResCNetClassifier(spec, run=tiles).fit(X, y)
    np.testing.assert_allclose(tiled.decision_function(X), whole.decision_function(X), atol=1e-4)
    assert tiled.accuracies_ == whole.accuracies_
    fewer = spec.replace(max_layers=1)
    ResCNetClassifier(fewer, run=tiles, store=tmp_path / "run").fit(X, y)
    resumed = ResCNetClassifier.resume(tmp_path / "run", max_layers=3)
    np.testing.assert_array_equal(resumed.decision_function(X), tiled.decision_function(X))


# forecasts --------------------------------------------------------------------------------------


def test_forecast_has_all_estimates(client: Client, tmp_path: Path) -> None:
    """As text and as JSON-serializable values; no file is left over."""
    X, y = (array[:300] for array in load_digits())
    forecast = rd.plan(X, y, "digits", store=tmp_path / "run", validation=0.1)
    text = str(forecast)
    for name in ("features", "chunks", "tasks", "memory", "driver", "traffic", "store", "time"):
        assert f"\n{name} " in text
    assert forecast.features == 2520
    assert forecast.layer_seconds > 0
    assert forecast.seconds == pytest.approx(4 * forecast.layer_seconds)
    values = forecast.to_dict()
    assert values["plan"]["chunk_images"] == forecast.plan.chunk_images
    assert not list(tmp_path.iterdir())


def test_estimated_store_size_matches_the_run(client: Client, tmp_path: Path) -> None:
    """Within a tenth: images, twice the maps, and the layers."""
    X, y = (array[:400] for array in load_digits())
    spec, run = NetworkSpec.preset("digits").replace(max_layers=2), RunSpec(keep_maps="all")
    forecast = rd.plan(X, y, spec, run=run, measure=False)
    ResCNetClassifier(spec, run=run, store=tmp_path / "run").fit(X, y)
    stored = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert stored == pytest.approx(forecast.traffic.store, rel=0.1)


@pytest.mark.slow
def test_estimated_time_matches_the_measured_time(tmp_path: Path) -> None:
    """Within a factor of two, for the pass of the second layer of two networks."""
    X, y = (array[:3000] for array in load_digits())
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        for name, spec in {
            "few features": NetworkSpec.preset("digits").replace(max_layers=2),
            "many features": NetworkSpec(filters=32, block=7, max_layers=2, ridge=0.3),
        }.items():
            estimated = rd.plan(X, y, spec, store=tmp_path / name).layer_seconds
            ResCNetClassifier(spec, store=tmp_path / name).fit(X, y)
            measured = RunStore.open(tmp_path / name).commits()[2]["seconds"]
            print(f"{name}: estimated {estimated:.1f} s, measured {measured:.1f} s")
            assert 0.5 < measured / estimated < 2


def test_traffic_counts_tiles() -> None:
    """Features are written once, and read once per block and once more."""
    plan = Plan(MANY.images, 100, 4, 2, 1)
    one = traffic(MANY, CIFAR, plan)
    tiled = traffic(MANY, CIFAR, replace(plan, tile_features=512))
    assert one.tasks == 4 + 3 + 1
    assert tiled.tasks == one.tasks + 2 * 10 + 2  # 1,680 features are 4 blocks, 10 tiles
    features = 4 * MANY.images * 1680
    assert tiled.written > one.written + features
    assert tiled.read > one.read + 5 * features


EACH = NetworkSpec(bank="pca+each", filters=8, filter_size=3, max_layers=2)


def test_plan_covers_the_filters_of_the_layer_after_the_last() -> None:
    """They are learned too, and on each channel they are more than those of the layers before."""
    problem = Problem(1000, (32, 32, 3), 10)
    maps = 8 * (8 + 3)
    next_bank = 8 * 9 * (maps + 3) * 8 * (maps + 3)
    assert next_bank < bank_bytes(problem, EACH) < 5 * next_bank
    assert bank_bytes(problem, EACH.replace(heads="last")) < next_bank / 10
    channel = PCA().workspace_bytes(FilterGroup(2, range(8), (0,), 1, 3, (32, 32)))
    statistics = bank_bytes(problem, EACH.replace(max_layers=1)) - 3 * 8 * 9 * 11 * 88
    assert statistics == 11 * channel  # a chunk has the moments of each channel for itself


def test_slabs_of_large_images_are_of_one_image() -> None:
    large = Problem(1000, (512, 512, 3), 10)
    spec, plan = EACH.replace(bank="pca"), Plan(1000, 1, 1, 2, 1)
    image = large.map_bytes(spec)
    assert image > 2 * SLAB_BYTES
    maps = 4 * 4 * 512 * 512 * 8  # two chunks of maps that are read, two that are written
    assert chunk_bytes(large, spec, plan) > 3 * image + maps


def test_plan_counts_the_sums_of_large_filters() -> None:
    """Each thread has those of all displacements, of as many channels as fit their limit."""
    plan = Plan(1000, 1, 1, 2, 1)
    small, large = (
        chunk_bytes(MANY, CIFAR.replace(filters=50, filter_size=size), plan) for size in (3, 7)
    )
    assert large - small >= MAX_SUMS_BYTES - 20 * MIB


def test_plan_counts_the_sums_of_many_blocks() -> None:
    """Blocks at every pixel of a large image have more sums than the image has maps."""
    large, plan = Problem(1000, (512, 512, 1), 10), Plan(1000, 1, 1, 2, 1)
    spec = CIFAR.replace(filters=8)
    few, many = (chunk_bytes(large, spec.replace(stride=stride), plan) for stride in (16, 1))
    assert many - few > 330 * MIB


def test_plan_counts_the_copies_that_are_made_on_a_gpu() -> None:
    """Chunks of few images need less than a slab; wide integers are changed in more bytes."""
    spec = NetworkSpec.preset("cifar10").replace(stride=4)

    def count_bytes(chunk_images: int, itemsize: int, copies: int) -> int:
        problem = Problem(100_000, (32, 32, 3), 10, itemsize, copies)
        return device_memory(problem, spec, Plan(100_000, chunk_images, 4, 2, 1))

    pixels = 32 * 32 * 3
    for chunk_images, itemsize, making in ((100, 1, 14), (100, 4, 32), (20_000, 1, None)):
        one, none = (count_bytes(chunk_images, itemsize, copies) for copies in (1, 0))
        slab = COPY_SLAB_BYTES if making is None else making * pixels * chunk_images
        expected = GPU_MEMORY_MARGIN * (slab + 2 * itemsize * pixels * chunk_images)
        assert one - none == pytest.approx(expected, abs=2)
