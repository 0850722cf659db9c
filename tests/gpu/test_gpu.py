"""On a GPU: kernels and whole runs against those of the processor; run with `pytest -m gpu`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.kernels import (
    Backend,
    Bank,
    FeatureMoments,
    extract_features,
    local_contrast,
    ridge_regression,
    to_host,
)
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.patches import patch_statistics
from rescnet_dist.planning.requirements import device_memory
from rescnet_dist.planning.tier import cached_bytes
from rescnet_dist.store import RunStore, read_layer
from rescnet_dist.train import Event, PassDone, loop
from rescnet_dist.train.state import RunState

pytestmark = pytest.mark.gpu

CLOSE = {"float32": 2e-5, "split": 2e-5, "half": 3e-3}  # relative
GPU = RunSpec(array_backend="cupy", validation=0.2, checkpoint_every=2)
SPEC = NetworkSpec.preset("digits").replace(
    filters=8, first_filter_size=5, max_layers=5, learning_rate=0.4
)
CHANGES: list[dict[str, Any]] = [
    {},
    {"store_dtype": "float16", "local_contrast": True, "pairs": "tower", "rectify": True},
]


@pytest.fixture(scope="module")
def backend() -> Backend:
    """That of CuPy; whoever asks for these tests without a GPU is told so."""
    backend = Backend("cupy")
    backend.prepare()
    return backend


def relative(one: Any, other: Any) -> float:
    """How far two arrays are apart, as a share of the second."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize(
    "change",
    [
        {"filters": 12, "block": 8, "stride": 4},
        {"filters": 50, "block": 16, "stride": 1},
        {"filters": 72, "block": 16, "stride": 4},
        {"filters": 30, "local_contrast": True, "pairs": "tower"},
        {"filters": 9, "block": 7, "stride": 3, "zscore": "block", "pool": "mean", "power": True},
    ],
    ids=["stride 4", "stride 1", "72 filters", "towers", "block, mean, power"],
)
def test_features_are_those_of_the_processor(backend: Backend, change: dict[str, Any]) -> None:
    """Flat channels and all, in every way of pooling."""
    spec = NetworkSpec(**change)
    maps = np.random.default_rng(0).normal(size=(20, 32, 32, spec.filters)).astype(np.float32)
    maps[3, :, :, 2] = -1.0  # nothing is left of it
    maps[4] += 100.0  # large beside its variance
    found = backend.get(extract_features(backend.put(maps), spec))
    assert relative(found, extract_features(maps, spec)) < 1e-4


@pytest.mark.parametrize("matmul_precision", CLOSE)
def test_maps_and_patch_moments_are_those_of_the_processor(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Of a later layer: maps beside images."""
    maps = rng.normal(size=(30, 32, 32, 20)).astype(np.float32)
    images = rng.random((30, 32, 32, 3)).astype(np.float32)
    bank = Bank(
        np.full(23, -0.5), np.full(23, 0.3), rng.normal(size=(3, 3, 23, 24)) / 14,
        rng.normal(size=24),
    )  # fmt: skip
    expected = bank.maps(LayerInput.of(images, maps))
    moments = patch_statistics(LayerInput.of(images, maps), 3)[2]
    there = LayerInput.of(backend.put(images), backend.put(maps))
    with Backend("cupy", matmul_precision).working():
        assert relative(backend.get(bank.maps(there)), expected) < CLOSE[matmul_precision]
        found = to_host(patch_statistics(there, 3)[2])
    assert found.count == moments.count
    assert relative(found.scatter, moments.scatter) < CLOSE[matmul_precision]


@pytest.mark.parametrize("matmul_precision", CLOSE)
@pytest.mark.parametrize(("size", "filters"), [(3, 72), (5, 60), (13, 75), (3, 151)])
def test_any_number_of_filters_makes_the_maps_of_the_processor(
    backend: Backend, size: int, filters: int, matmul_precision: str, rng: np.random.Generator
) -> None:
    """More than a block of threads holds, and in two towers that see some of the channels each."""
    maps = rng.normal(size=(5, 32, 32, filters)).astype(np.float32)
    images = rng.random((5, 32, 32, 6)).astype(np.float32)
    channels, half = filters + 6, filters // 2
    whole = rng.normal(size=(size, size, channels, filters)) / (size * channels**0.5)
    towers = np.zeros_like(whole)
    for mine, seen in (
        (slice(half), [*range(half), *range(filters, filters + 3)]),
        (slice(half, None), [*range(half, filters), *range(filters + 3, channels)]),
    ):
        towers[:, :, seen, mine] = whole[:, :, seen, mine]
    there = LayerInput.of(backend.put(images), backend.put(maps))
    for made in (whole, towers):
        bank = Bank(rng.normal(size=channels), rng.random(channels), made, rng.normal(size=filters))
        expected = bank.maps(LayerInput.of(images, maps))
        with Backend("cupy", matmul_precision).working():
            assert relative(backend.get(bank.maps(there)), expected) < CLOSE[matmul_precision]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_patches_of_any_size_are_those_of_the_processor(
    backend: Backend, size: int, rng: np.random.Generator
) -> None:
    """Of images whose rows are no whole number of segments, and of one channel; the least, the
    largest and the mean too."""
    images = rng.normal(size=(600, 11, 13, 1)).astype(np.float32)
    low, high, moments = patch_statistics(LayerInput.of(images), size)
    found = tuple(map(to_host, patch_statistics(LayerInput.of(backend.put(images)), size)))
    assert np.array_equal(found[0], low)
    assert np.array_equal(found[1], high)
    assert relative(found[2].mean, moments.mean) < 1e-6
    assert relative(found[2].scatter, moments.scatter) < CLOSE["split"]


@pytest.mark.parametrize("slab", [2**20, None], ids=["many slabs", "one slab"])
def test_sums_over_many_images_keep_their_digits(
    backend: Backend, slab: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as a chunk of a large GPU has, whose products are summed in single precision; matrix
    units round towards zero as they do it, by 6e-9 of the sum for each image."""
    from rescnet_dist.gpu import patches

    if slab:
        monkeypatch.setattr(patches, "PATCH_SLAB_BYTES", slab)
    many = 2 * patches.MOST_SUMMED
    images = (rng.random((many, 6, 6, 2)) + 3).astype(np.float32)
    whole = images.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (1, 2))
    rows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 18)
    centered = rows - rows.mean(axis=0)
    found = to_host(patch_statistics(LayerInput.of(backend.put(images)), 3)[2])
    assert relative(found.scatter, centered.T @ centered) < 3 * CLOSE["split"]


def test_a_chunk_without_training_images_adds_nothing(backend: Backend) -> None:
    """As where all of it is held out."""
    images, nobody = np.zeros((5, 8, 8, 3), np.float32), np.zeros(5, bool)
    expected = patch_statistics(LayerInput.of(images).only(nobody), 3)
    found = patch_statistics(LayerInput.of(backend.put(images)).only(nobody), 3)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert np.array_equal(to_host(one), other)
    assert found[2].count == expected[2].count == 0


def test_local_contrast_is_that_of_the_processor(
    backend: Backend, rng: np.random.Generator
) -> None:
    """Of flat images too."""
    images = rng.integers(0, 255, (40, 32, 32, 3)).astype(np.uint8)
    images[3] = 7
    found = backend.get(local_contrast(backend.put(images)))
    assert relative(found, local_contrast(images)) < 1e-5


@pytest.mark.parametrize("matmul_precision", CLOSE)
def test_ridge_regression_is_that_of_the_processor(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Moments of three chunks, merged from two parts, then solved; large enough for single
    precision with refinement."""
    features = rng.normal(size=(3000, 2500)).astype(np.float32)
    features += 2 * rng.normal(size=(3000, 1)).astype(np.float32)
    targets = rng.normal(size=(3000, 4)).astype(np.float32)
    parts = np.array_split(np.arange(3000), 3)

    def fitted(xp: Any) -> Any:
        first, second = (FeatureMoments.empty(2500, 4, xp=xp) for _ in range(2))
        for rows in parts[:2]:
            first = first.fold(xp.asarray(features[rows]), xp.asarray(targets[rows]))
        second = second.fold(xp.asarray(features[parts[2]]), xp.asarray(targets[parts[2]]))
        return ridge_regression(first.merge(second), 1.0)[0]

    with Backend("cupy", matmul_precision).working():
        assert relative(backend.get(fitted(backend.xp)), fitted(np)) < 10 * CLOSE[matmul_precision]


def fit(store: Path, run: RunSpec, spec: NetworkSpec = SPEC, **more: Any) -> ResCNetClassifier:
    """Train on digits."""
    images, labels = (array[:900] for array in load_digits())
    return ResCNetClassifier(spec, store=store, run=run, **more).fit(images, labels)


@pytest.fixture(scope="module")
def client() -> Any:
    """A worker, which has the GPU."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            memory_limit="32GiB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def on_the_processor(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same run without the GPU."""
    return fit(tmp_path_factory.mktemp("cpu") / "run", GPU.replace(array_backend="numpy"))


@pytest.mark.parametrize("matmul_precision", ["float32", "split", "half"])
def test_a_run_gives_what_the_processor_gives(
    client: Client, backend: Backend, on_the_processor: Any, tmp_path: Path, matmul_precision: str
) -> None:
    """Scores within 1e-3, and the same depth; "half" has fewer digits, and is told apart."""
    images, _ = load_digits()
    clf = fit(tmp_path / "run", GPU.replace(matmul_precision=matmul_precision))
    assert clf.depth_ == on_the_processor.depth_
    expected = on_the_processor.decision_function(images)
    assert (clf.network_.backend.on_gpu, clf.network_.backend.matmul_precision) == (
        True,
        matmul_precision,
    )
    apart = relative(clf.decision_function(images), expected)
    print(f"{matmul_precision}: {apart:.1e} apart")
    allowed = 2e-2 if matmul_precision == "half" else 1e-3
    assert apart < allowed
    on_host = ResCNetClassifier.load(tmp_path / "run").decision_function(images)
    assert relative(clf.decision_function(images), on_host) < allowed


def test_two_towers_give_what_the_processor_gives(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """With maps that go on rectified."""
    spec = SPEC.replace(local_contrast=True, rectify=True, max_layers=3)
    images, _ = load_digits()
    runs = {"cpu": GPU.replace(array_backend="numpy"), "gpu": GPU}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    assert relative(other.decision_function(images), one.decision_function(images)) < 1e-3


def weights(url: Path) -> list[Any]:
    """What all layers of a run have learned."""
    run = RunStore.open(url)
    layers = [read_layer(run.location, n) for n in range(1, len(run.commits()))]
    return [array for la in layers for array in (la.bank.filters, la.classifier.weights)]


class Stopped(KeyboardInterrupt):
    """Raised by a listener."""


@pytest.mark.parametrize("change", CHANGES, ids=["plain", "half maps, towers"])
@pytest.mark.parametrize("maps", ["memory", "store"])
def test_a_stopped_run_goes_on_to_the_same_bits(
    client: Client, backend: Backend, tmp_path: Path, maps: str, change: dict[str, Any]
) -> None:
    """Maps on the GPU or in the store: all is the same to the bit, and so is what is replayed."""
    spec = SPEC.replace(**change)
    fit(tmp_path / "whole", GPU.replace(keep_maps="none"), spec)

    def stop(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 3):
            raise Stopped

    with pytest.raises(Stopped):
        fit(tmp_path / "run", GPU.replace(maps=maps), spec, listeners=[stop])
    ResCNetClassifier.resume(tmp_path / "run")
    found, expected = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert len(found) == len(expected) == 10
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_two_workers_merge_what_they_have(
    backend: Backend, on_the_processor: Any, tmp_path: Path
) -> None:
    """Accumulators travel from one to the other; both use the one GPU, half of it each."""
    images, _ = load_digits()
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        clf = fit(tmp_path / "run", GPU)
        state = RunState.of(RunStore.open(tmp_path / "run"))
        assert state.plan.accumulators == 2
    assert clf.depth_ == on_the_processor.depth_
    expected = on_the_processor.decision_function(images)
    assert relative(clf.decision_function(images), expected) < 1e-3


@pytest.mark.parametrize(
    ("change", "features"),
    [(CHANGES[0], True), (CHANGES[1], True), (CHANGES[0], False)],
    ids=["plain", "half maps, towers", "without features"],
)
def test_device_memory_stays_within_the_plan(
    client: Client,
    backend: Backend,
    tmp_path: Path,
    change: dict[str, Any],
    features: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of CIFAR-10's shapes with mirror images, N = 100,000, some held out: what CuPy ever took of
    the GPU."""
    if not features:
        tier = loop.choose_tier
        monkeypatch.setattr(loop, "choose_tier", lambda *a: replace(tier(*a), features=False))
    pool = backend.xp.get_default_memory_pool()
    pool.free_all_blocks()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (100_000, 32, 32, 3), dtype=np.uint8)
    spec = NetworkSpec.preset("cifar10").replace(
        stride=4, residual="regress", max_layers=2, stop_at_zero_error=False, **change
    )
    run = RunSpec(array_backend="cupy", keep_maps="none", validation=0.04)
    clf = ResCNetClassifier(spec, store=tmp_path / "run", run=run)
    clf.fit(images, rng.integers(0, 10, 100_000))
    store = RunStore.open(tmp_path / "run")
    state = RunState.of(store)
    problem = state.problem(1)
    planned = device_memory(problem, spec, state.plan)
    planned += cached_bytes(problem, spec, 100_000, features=features)
    print(f"taken {pool.total_bytes() / 2**30:.1f} GiB, planned {planned / 2**30:.1f} GiB")
    assert 0.4 * planned < pool.total_bytes() < planned
