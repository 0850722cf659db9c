"""Test kernels and whole runs on a GPU against the CPU; run with `pytest -m gpu`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.events import Event, PassDone
from rescnet_dist.kernels import (
    Augmentation,
    Backend,
    CovarianceProduct,
    FeatureMoments,
    Iterate,
    Standardizer,
    augment_images,
    convolve_each,
    local_contrast,
    ridge_regression,
    to_host,
)
from rescnet_dist.kernels.arrays import on_gpu
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.copy_parameters import PADDINGS
from rescnet_dist.kernels.cpu import solve as cpu_solve
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.model import Bank, BankStatistics, Observation, View, put_views
from rescnet_dist.model.features.binary_hash import BinaryHash
from rescnet_dist.model.features.covariance_root import CovarianceRoot
from rescnet_dist.model.features.first_order import FirstOrder
from rescnet_dist.model.heads.kernel_ridge import KernelRidge
from rescnet_dist.model.heads.linear import LinearHead
from rescnet_dist.model.views.global_contrast import GlobalContrast
from rescnet_dist.model.views.zca import ZCA
from rescnet_dist.planning.placement import Placement, PlacementCause
from rescnet_dist.planning.requirements import (
    Problem,
    device_memory,
    diagonal_bytes,
    pair_bytes,
)
from rescnet_dist.planning.tier import cached_bytes
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RunStore, read_layer
from rescnet_dist.train import loop, verify_run
from tests.kernels.test_augment import (
    AUGMENTED_DTYPES,
    COMBINED_CHANGES,
    SINGLE_CHANGES,
    make_any_images,
)
from tests.patch_statistics import patch_statistics

pytestmark = pytest.mark.gpu

TOLERANCE = {"float32": 2e-5, "split": 2e-5, "half": 3e-3}  # relative error by matmul_precision
GPU_RUN = RunSpec(array_backend="cupy", validation=0.2, checkpoint_every=2)
SPEC = NetworkSpec.preset("digits").replace(
    filters=8, first_filter_size=5, max_layers=5, learning_rate=0.4
)
CHANGES: list[dict[str, Any]] = [
    {},
    {"store_dtype": "float16", "local_contrast": True, "pairs": "tower", "rectify": True},
    {"bank": "pca:0.5@zca,pca:0.5@gcn"},
]


@pytest.fixture(scope="module")
def backend() -> Backend:
    """Return the CuPy backend; these tests fail without a GPU."""
    backend = Backend("cupy")
    backend.prepare()
    return backend


def relative_error(one: Any, other: Any) -> float:
    """Return the distance of two arrays, relative_error to the norm of the second."""
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
def test_features_equal_those_of_the_cpu(backend: Backend, change: dict[str, Any]) -> None:
    """This holds for constant channels, and for all kinds of pooling."""
    spec = NetworkSpec(**change)
    maps = np.random.default_rng(0).normal(size=(20, 32, 32, spec.filters)).astype(np.float32)
    maps[3, :, :, 2] = -1.0  # constant after the ReLU
    maps[4] += 100.0  # large relative to its variance
    extract = spec.architecture(maps.shape[1:], 2).extract
    found = backend.get(extract(backend.put(maps), 1))
    assert relative_error(found, extract(maps, 1)) < 1e-4


@pytest.mark.parametrize(
    "extractor",
    [
        FirstOrder(levels=(3, 2, 1)),
        FirstOrder("absolute", pools="mean", power=True),
        FirstOrder("soft-threshold", 0.3),
        FirstOrder("none", pools="max"),
        BinaryHash(),
        BinaryHash(block=16, levels=(4, 2, 1)),
        BinaryHash(bits=3, levels=(3, 1), pool="sum", cells="even"),
    ],
    ids=repr,
)
def test_features_have_the_bits_of_the_cpu(
    backend: Backend, extractor: FirstOrder | BinaryHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floats are summed in the same order; several slabs of images are hashed."""
    monkeypatch.setattr("rescnet_dist.kernels.gpu.hashing.HASH_SLAB_BYTES", 7 * 4 * 6 * 1440)
    maps = np.random.default_rng(0).normal(size=(20, 32, 29, 48)).astype(np.float32)
    maps[3] = 0
    found = extractor(backend.put(maps), (48,))
    assert found.dtype == extractor.dtype
    assert np.array_equal(backend.get(found), extractor(maps, (48,)))


@pytest.mark.parametrize("filters", [37, 128, 136])  # of which 136 do not fit into shared memory
@pytest.mark.parametrize("precision", ["float32", "half"])
@pytest.mark.parametrize(
    "extractor",
    [
        CovarianceRoot(),
        CovarianceRoot(7, 3, 1, 0.1, False, (3, 2), "even", "max"),
        CovarianceRoot(29, 4, 3, levels=(1,), pools="mean"),
    ],
    ids=repr,
)
def test_roots_equal_those_of_the_cpu(
    backend: Backend,
    extractor: CovarianceRoot,
    precision: str,
    filters: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With channels that are constant, in several slabs of images.

    In shared memory, no bit depends on the number of images.
    """
    monkeypatch.setattr("rescnet_dist.kernels.covariance_root.ROOT_SLAB_BYTES", 50_000_000)
    maps = np.random.default_rng(0).normal(size=(20, 32, 29, filters)).astype(np.float32)
    maps[3, :, :, 2] = -1.0  # constant after the ReLU
    maps[4] = 0
    with replace(backend, matmul_precision=precision).working():
        found = backend.get(extractor(backend.put(maps), (filters,)))
        again = backend.get(extractor(backend.put(maps), (filters,)))
        few = backend.get(extractor(backend.put(maps[:7]), (filters,)))
    assert np.array_equal(again, found)
    in_shared_memory = precision == "half" and filters <= 128 and extractor.block * filters < 3000
    assert not in_shared_memory or np.array_equal(few, found[:7])
    assert relative_error(found, extractor(maps, (filters,))) < (
        1e-4 if precision == "float32" else 0.02
    )


def test_filters_on_each_channel_equal_those_of_the_cpu(
    backend: Backend, rng: np.random.Generator
) -> None:
    """Maps and the moments of one channel, of maps and images."""
    maps = rng.normal(size=(9, 16, 15, 5)).astype(np.float32)
    images = rng.random((9, 16, 15, 2)).astype(np.float32)
    filters, bias, low = rng.normal(size=(5, 5, 8)) / 5, rng.normal(size=8), rng.normal(size=7)
    arguments = (0, 4, 6), filters, bias, low, np.ones(7)
    expected = convolve_each(LayerInput.of(images, maps), *arguments)
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps))
    with backend.working():
        found = backend.get(convolve_each(gpu_inputs, *arguments))
        moments = to_host(patch_statistics(gpu_inputs.take([6]), 5)[2])
    assert relative_error(found, expected) < 2e-5
    reference = patch_statistics(LayerInput.of(images, maps).take([6]), 5)[2]
    assert relative_error(moments.scatter, reference.scatter) < 2e-5


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_maps_and_patch_moments_equal_those_of_the_cpu(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """The input is that of a later layer: maps and images."""
    maps = rng.normal(size=(30, 32, 32, 20)).astype(np.float32)
    images = rng.random((30, 32, 32, 3)).astype(np.float32)
    bank = Bank(
        np.full(23, -0.5),
        np.full(23, 0.3),
        rng.normal(size=(3, 3, 23, 24)) / 14,
        rng.normal(size=24),
    )
    expected = bank.maps(LayerInput.of(images, maps))
    moments = patch_statistics(LayerInput.of(images, maps), 3)[2]
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps))
    with Backend("cupy", matmul_precision).working():
        assert (
            relative_error(backend.get(bank.maps(gpu_inputs)), expected)
            < TOLERANCE[matmul_precision]
        )
        found = to_host(patch_statistics(gpu_inputs, 3)[2])
    assert found.count == moments.count
    assert relative_error(found.scatter, moments.scatter) < TOLERANCE[matmul_precision]


@pytest.mark.parametrize("name", ["cca", "lda", "residual-metric"])
def test_statistics_of_learners_equal_those_of_the_cpu(
    backend: Backend, name: str, rng: np.random.Generator
) -> None:
    """Of two towers in a later layer, in two chunks that are merged on the GPU."""
    spec = NetworkSpec(filters=8, bank=f"{name}:0.5,{name}:0.5@contrast")
    architecture = spec.architecture((16, 16, 1), 3)
    images = rng.random((20, 16, 16, 2)).astype(np.float32)
    maps = rng.normal(size=(20, 16, 16, 8)).astype(np.float32)
    scores = rng.normal(size=(20, 3)).astype(np.float32)
    labels, train = np.arange(20) % 3, np.arange(20) % 7 != 0
    counts = np.bincount(labels[train], minlength=3)

    def gather(put: Any, xp: Any) -> Any:
        total = BankStatistics.empty(architecture, 2, xp)
        for rows in (slice(12), slice(12, 20)):
            inputs = LayerInput.of(put(images[rows]), put(maps[rows]))
            observed = labels[rows], train[rows], 0 * counts, counts, None, put(scores[rows])
            chunk = Observation(inputs, *observed)
            total = total.merge(BankStatistics.of(chunk, architecture, 2))
        return to_host(total)

    expected = list_arrays(gather(np.asarray, np))
    with Backend("cupy", "float32").working():
        found = list_arrays(gather(backend.put, backend.xp))
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < TOLERANCE["float32"]


def list_arrays(value: Any) -> list[Any]:
    """Return all arrays that statistics hold."""
    if is_dataclass(value):
        return [a for field in fields(value) for a in list_arrays(getattr(value, field.name))]
    if isinstance(value, tuple):
        return [array for part in value for array in list_arrays(part)]
    return [value] if isinstance(value, np.ndarray) else []


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize(("size", "filters"), [(3, 72), (5, 60), (13, 75), (3, 151)])
def test_any_number_of_filters_gives_the_maps_of_the_cpu(
    backend: Backend, size: int, filters: int, matmul_precision: str, rng: np.random.Generator
) -> None:
    """There are more filters than a block of threads holds, in one tower or in two."""
    maps = rng.normal(size=(5, 32, 32, filters)).astype(np.float32)
    images = rng.random((5, 32, 32, 6)).astype(np.float32)
    channels, half = filters + 6, filters // 2
    whole = rng.normal(size=(size, size, channels, filters)) / (size * channels**0.5)
    towers = np.zeros_like(whole)
    for own, channels_used in (
        (slice(half), [*range(half), *range(filters, filters + 3)]),
        (slice(half, None), [*range(half, filters), *range(filters + 3, channels)]),
    ):
        towers[:, :, channels_used, own] = whole[:, :, channels_used, own]
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps))
    for weights in (whole, towers):
        low, scale = rng.normal(size=channels), rng.random(channels)
        bank = Bank(low, scale, weights, rng.normal(size=filters))
        expected = bank.maps(LayerInput.of(images, maps))
        with Backend("cupy", matmul_precision).working():
            assert (
                relative_error(backend.get(bank.maps(gpu_inputs)), expected)
                < TOLERANCE[matmul_precision]
            )


@pytest.mark.parametrize("size", [1, 2, 5])
def test_patches_of_any_size_equal_those_of_the_cpu(
    backend: Backend, size: int, rng: np.random.Generator
) -> None:
    """Minimum, maximum, mean and scatter are compared.

    The rows of the images are not a whole number of segments, and there is one channel.
    """
    images = rng.normal(size=(600, 11, 13, 1)).astype(np.float32)
    low, high, moments = patch_statistics(LayerInput.of(images), size)
    found = tuple(map(to_host, patch_statistics(LayerInput.of(backend.put(images)), size)))
    assert np.array_equal(found[0], low)
    assert np.array_equal(found[1], high)
    assert relative_error(found[2].mean, moments.mean) < 1e-6
    assert relative_error(found[2].scatter, moments.scatter) < TOLERANCE["split"]


@pytest.mark.parametrize("slab", [2**20, None], ids=["many slabs", "one slab"])
def test_sums_over_many_images_are_accurate(
    backend: Backend, slab: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test as many images as a chunk has on a large GPU, summed in single precision.

    Matrix units round towards zero when they sum, by 6e-9 of the sum for each image.
    """
    from rescnet_dist.kernels.gpu import patches

    if slab:
        monkeypatch.setattr(patches, "PATCH_SLAB_BYTES", slab)
    n = 2 * patches.MAX_SUMMED_IMAGES
    images = (rng.random((n, 6, 6, 2)) + 3).astype(np.float32)
    whole = images.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (1, 2))
    rows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 18)
    centered = rows - rows.mean(axis=0)
    found = to_host(patch_statistics(LayerInput.of(backend.put(images)), 3)[2])
    assert relative_error(found.scatter, centered.T @ centered) < 3 * TOLERANCE["split"]


def test_chunk_without_training_images_adds_nothing(backend: Backend) -> None:
    """All of its images are held out."""
    images, train = np.zeros((5, 8, 8, 3), np.float32), np.zeros(5, bool)
    expected = patch_statistics(LayerInput.of(images).select(train), 3)
    found = patch_statistics(LayerInput.of(backend.put(images)).select(train), 3)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert np.array_equal(to_host(one), other)
    assert found[2].count == expected[2].count == 0


@pytest.mark.parametrize("view", [GlobalContrast(), ZCA(), ZCA(gcn=False)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_learned_views_equal_those_of_the_cpu(
    backend: Backend, view: View, dtype: str, rng: np.random.Generator
) -> None:
    """What they learn, with weights, and the pixels; numbers stay in the memory of the host."""
    images = rng.random((60, 9, 8, 3)).cumsum(axis=1)
    images, weights = (images * 20).astype(dtype), rng.uniform(0.5, 2, 60)
    known: list[dict[str, Any]] = []
    for xp, put in ((np, np.asarray), (backend.xp, backend.put)):
        learned: dict[str, Any] = {}
        for _ in range(view.passes):
            with backend.working():
                one, two = (
                    view.observe(
                        view.empty((9, 8, 3), learned, xp),
                        put(images[rows]),
                        learned,
                        weights[rows],
                    )
                    for rows in (slice(25), slice(25, None))
                )
                learned = to_host(view.fit(one.merge(two), learned))
        known.append(learned)
    for name in view.arrays:
        assert relative_error(known[1][name], known[0][name]) < 1e-3
    on_gpu = put_views({view.name: known[0]}, backend)[view.name]
    found = backend.get(view(backend.put(images), on_gpu))
    assert relative_error(found, view(images, known[0])) < 1e-4


@pytest.mark.parametrize("slab", [20_000, None], ids=["many slabs", "one slab"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", AUGMENTED_DTYPES)
def test_copies_have_the_bits_of_the_cpu(
    backend: Backend,
    rng: np.random.Generator,
    dtype: str,
    padding: str,
    slab: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For every kind of change, of images of several shapes; copies stay on the GPU."""
    if slab:
        monkeypatch.setattr("rescnet_dist.kernels.augment.COPY_SLAB_BYTES", slab)
    for shape in ((9, 11, 3), (1, 5, 3), (32, 32, 1)):
        images = make_any_images(rng, (30, *shape), dtype)
        index, copy = rng.integers(0, 10**6, 30), rng.integers(0, 5, 30)
        for options in [*SINGLE_CHANGES.values(), *COMBINED_CHANGES.values()]:
            if shape[2] != 3:
                options = {key: value for key, value in options.items() if key != "saturation"}
            changes = Augmentation(padding=padding, **options)
            found = augment_images(backend.put(images), index, copy, changes, 7)
            assert on_gpu(found)
            expected = augment_images(images, index, copy, changes, 7)
            assert backend.get(found).dtype == expected.dtype
            assert backend.get(found).tobytes() == expected.tobytes(), (shape, options)


def test_local_contrast_equals_that_of_the_cpu(backend: Backend, rng: np.random.Generator) -> None:
    """One image is constant."""
    images = rng.integers(0, 255, (40, 32, 32, 3)).astype(np.uint8)
    images[3] = 7
    found = backend.get(local_contrast(backend.put(images)))
    assert relative_error(found, local_contrast(images)) < 1e-5


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_ridge_regression_equals_that_of_the_cpu(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Moments of three chunks are merged from two parts and solved.

    There are enough features for single precision with refinement.
    """
    features = rng.normal(size=(3000, 2500)).astype(np.float32)
    features += 2 * rng.normal(size=(3000, 1)).astype(np.float32)
    targets = rng.normal(size=(3000, 4)).astype(np.float32)
    parts = np.array_split(np.arange(3000), 3)

    def fit_weights(xp: Any) -> Any:
        first, second = (FeatureMoments.empty(2500, 4, xp=xp) for _ in range(2))
        for rows in parts[:2]:
            first = first.fold(xp.asarray(features[rows]), xp.asarray(targets[rows]))
        second = second.fold(xp.asarray(features[parts[2]]), xp.asarray(targets[parts[2]]))
        return ridge_regression(first.merge(second), 1.0)[0]

    with Backend("cupy", matmul_precision).working():
        error = relative_error(backend.get(fit_weights(backend.xp)), fit_weights(np))
        assert error < 10 * TOLERANCE[matmul_precision]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("side", [2000, 2048, 2500, 3072, 3073])  # in single precision from 2048 on
def test_solutions_equal_those_of_the_cpu(
    backend: Backend, side: int, overwrite: bool, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Only the lower triangle is read, and it is overwritten only if that is allowed.

    The solution of a single column does not depend on others.
    """
    scatter, columns = make_scatter(rng, side, 1.0), rng.normal(size=(side, 5))
    _, expected = cpu_solve.whiten(scatter, np.zeros(side), 4000.0, 0.5)
    operations = get_operations(backend.put(columns))
    square = operations.new_square(side, np.dtype(np.float32))
    square[...] = backend.put(np.tril(scatter) + np.triu(np.full_like(scatter, 1e30), 1))
    with Backend("cupy", matmul_precision).working():
        _, solve = operations.whiten(
            square, backend.put(np.zeros(side)), 4000.0, 0.5, overwrite=overwrite
        )
        found = [backend.get(solve(backend.put(columns))) for _ in range(2)]
        single = backend.get(solve(backend.put(columns[:, :1])))
    assert relative_error(found[0], expected(columns)) < 1e-5
    assert relative_error(single, expected(columns[:, :1])) < 1e-5
    assert np.array_equal(*found)
    kept = np.array_equal(np.tril(backend.get(square)), np.tril(scatter))
    assert kept == (not overwrite or side < 2048)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("ridge", "precisions"),
    [(1.0, ["half"]), (1e-3, ["half", "split"]), (1e-3, ["half", "float64"])],
)
def test_factors_of_more_precision_are_tried_in_turn(
    backend: Backend,
    ridge: float,
    precisions: list[str],
    overwrite: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Features that share most of their variance: half precision needs a large ridge.

    Each factor is that of the same matrix, which the one before has overwritten.
    """
    from rescnet_dist.kernels.gpu import solve as gpu_solve

    tried: list[str] = []
    factorize, factorize_double = gpu_solve.InPlaceFactor.factorize, gpu_solve.factorize_double
    monkeypatch.setattr(
        gpu_solve.InPlaceFactor,
        "factorize",
        lambda *arguments: tried.append(arguments[-1]) or factorize(*arguments),
    )
    monkeypatch.setattr(
        gpu_solve,
        "factorize_double",
        lambda *arguments: tried.append("float64") or factorize_double(*arguments),
    )
    single = tuple(name for name in precisions if name != "float64")
    if "float64" in precisions:
        monkeypatch.setitem(gpu_solve.FACTOR_PRECISIONS, "half", single)
    scatter, columns = make_scatter(rng, 2500, 0.03), rng.normal(size=(2500, 3))
    square = gpu_solve.as_square(backend.put(scatter))
    with Backend("cupy", "half").working():
        scale, solve = gpu_solve.whiten(
            square, backend.put(np.zeros(2500)), 4000.0, ridge, overwrite=overwrite
        )
        found = backend.get(solve(backend.put(columns)))
    root = backend.get(scale) / np.sqrt(4000)
    covariance = scatter.astype(np.float64) * root * root[:, None] + ridge * np.eye(2500)
    assert tried == precisions
    assert relative_error(covariance @ found, columns) < 1e-6


def make_scatter(rng: np.random.Generator, side: int, deviation: float) -> Any:
    """Return the scatter of 4,000 samples of features that share a part, and this own deviation."""
    features = deviation * rng.normal(size=(4000, side)) + rng.normal(size=(4000, 1))
    features -= features.mean(axis=0)
    return (features.T @ features).astype(np.float32)


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_conjugate_gradients_equal_those_of_the_cpu(
    backend: Backend, matmul_precision: str, dtype: type, rng: np.random.Generator
) -> None:
    """Three iterations, with weights and a feature without variance."""
    features = rng.poisson(3, size=(1500, 1100)).astype(dtype)
    features[:, 5] = 1
    weights = rng.uniform(0.5, 2, 1500)
    targets = rng.normal(size=(1500, 4)).astype(np.float32)

    def solve(xp: Any) -> Any:
        own = xp.asarray(features)
        moments = FeatureMoments.empty(1100, 4, scatter=False, squares=True, xp=xp)
        moments = to_host(moments.fold(own, xp.asarray(targets), weights))
        standardizer = Standardizer.of(moments.squares, moments.mean, moments.count, 0.1)
        centered = moments.cross - moments.target_sums[:, None] * moments.mean
        state = Iterate.first((centered * standardizer.scale / moments.count).T)
        for _ in range(3):
            product = CovarianceProduct.empty(
                state.directions, moments.mean, standardizer, own.dtype, xp
            )
            for rows in (slice(0, 700), slice(700, 1500)):
                product.add(own[rows], weights[rows])
            state = state.step(to_host(product.value()), standardizer)
        return state.solution

    expected = solve(np)
    with Backend("cupy", matmul_precision).working():
        assert relative_error(solve(backend.xp), expected) < 10 * TOLERANCE[matmul_precision]


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_counts_equal_those_of_the_cpu(
    backend: Backend, weighted: bool, rng: np.random.Generator
) -> None:
    """Features are bytes."""
    counts = rng.poisson(3, size=(600, 300)).astype(np.uint8)
    targets = rng.normal(size=(600, 4)).astype(np.float32)
    weights = 10 ** rng.uniform(-1.5, 1.5, 600) if weighted else None
    expected = FeatureMoments.empty(300, 4).fold(counts, targets, weights)
    empty = FeatureMoments.empty(300, 4, xp=backend.xp)
    with backend.working():
        found = to_host(empty.fold(backend.put(counts), backend.put(targets), weights))
    assert relative_error(found.mean, expected.mean) < 1e-6
    assert relative_error(found.cross, expected.cross) < 1e-4
    scatter, expected_scatter = np.tril(found.scatter), np.tril(expected.scatter)
    assert relative_error(scatter, expected_scatter) < TOLERANCE["split"]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_weighted_moments_equal_those_of_the_cpu(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """Weights differ by a factor of a thousand; some images are not selected."""
    maps = rng.normal(size=(600, 12, 11, 20)).astype(np.float32)
    images = rng.random((600, 12, 11, 3)).astype(np.float32)
    weights, train = 10 ** rng.uniform(-1.5, 1.5, 600), rng.random(600) < 0.8
    expected = patch_statistics(LayerInput.of(images, maps, weights).select(train), 3)
    gpu_inputs = LayerInput.of(backend.put(images), backend.put(maps), weights).select(train)
    features = rng.normal(size=(600, 300)).astype(np.float32)
    targets = rng.normal(size=(600, 4)).astype(np.float32)

    def fold(xp: Any) -> FeatureMoments:
        moments = FeatureMoments.empty(300, 4, xp=xp)
        for rows in (slice(0, 350), slice(350, 600)):
            chunk = xp.asarray(features[rows]), xp.asarray(targets[rows])
            moments = moments.fold(*chunk, weights[rows])
        return to_host(moments)

    with Backend("cupy", matmul_precision).working():
        found = tuple(map(to_host, patch_statistics(gpu_inputs, 3)))
        moments = fold(backend.xp)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    assert found[2].count == pytest.approx(expected[2].count)
    assert relative_error(found[2].mean, expected[2].mean) < 1e-6
    assert relative_error(found[2].scatter, expected[2].scatter) < TOLERANCE[matmul_precision]
    on_cpu = fold(np)
    assert relative_error(moments.mean, on_cpu.mean) < 1e-6
    assert relative_error(moments.cross, on_cpu.cross) < 1e-4
    assert relative_error(moments.target_sums, on_cpu.target_sums) < 1e-10
    scatter, on_cpu_scatter = np.tril(moments.scatter), np.tril(on_cpu.scatter)
    assert relative_error(scatter, on_cpu_scatter) < TOLERANCE[matmul_precision]


def fit(store: Path, run: RunSpec, spec: NetworkSpec = SPEC, **options: Any) -> ResCNetClassifier:
    """Train a classifier on digits."""
    images, labels = (array[:900] for array in load_digits())
    return ResCNetClassifier(spec, store=store, run=run, **options).fit(images, labels)


@pytest.fixture(scope="module")
def client() -> Any:
    """Return the client of a cluster with one worker, which uses the GPU."""
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
def cpu_classifier(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train the same run on the CPU."""
    return fit(tmp_path_factory.mktemp("cpu") / "run", GPU_RUN.replace(array_backend="numpy"))


@pytest.mark.parametrize("matmul_precision", ["float32", "split", "half"])
def test_run_equals_run_on_the_cpu(
    client: Client, backend: Backend, cpu_classifier: Any, tmp_path: Path, matmul_precision: str
) -> None:
    """Depth is equal, scores within 1e-3; "half" has fewer digits."""
    images, _ = load_digits()
    clf = fit(tmp_path / "run", GPU_RUN.replace(matmul_precision=matmul_precision))
    assert clf.depth_ == cpu_classifier.depth_
    expected = cpu_classifier.decision_function(images)
    assert (clf.network_.backend.on_gpu, clf.network_.backend.matmul_precision) == (
        True,
        matmul_precision,
    )
    error = relative_error(clf.decision_function(images), expected)
    print(f"{matmul_precision}: relative error {error:.1e}")
    allowed = 2e-2 if matmul_precision == "half" else 1e-3
    assert error < allowed
    host_cache_bytes = ResCNetClassifier.load(tmp_path / "run").decision_function(images)
    assert relative_error(clf.decision_function(images), host_cache_bytes) < allowed


@pytest.mark.parametrize("features", ["second-order", "binary-hash"])
def test_run_with_conjugate_gradients_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path, features: str
) -> None:
    """Features in single precision and in 8 bits."""
    spec = SPEC.replace(features=features, solver="cg", cg_iterations=3, max_layers=2)
    images, _ = load_digits()
    scores = [
        fit(tmp_path / name, GPU_RUN.replace(array_backend=name), spec).decision_function(images)
        for name in ("cupy", "numpy")
    ]
    assert relative_error(*scores) < 1e-3


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("pcanet", [4, 4]),
        ("pcanet+", 8),
        ("ldanet", [4, 4]),
        ("dctnet", [4, 4]),
        ("randnet", [4, 4]),
        ("ccanet", [4, 8]),
        ("multilayer-pcanet", 8),
    ],
)
def test_presets_of_the_family_predict_as_on_the_cpu(
    client: Client, backend: Backend, tmp_path: Path, name: str, filters: Any
) -> None:
    """Rounding changes the sign of a few pixels, and so a few counts."""
    changes: dict[str, Any] = {"filters": filters, "max_layers": 2}
    if name != "multilayer-pcanet":
        changes |= {"hash_bits": 4, "hash_block": 7, "cg_tolerance": 1e-5}
    spec = NetworkSpec.preset(name).replace(**changes)
    images, labels = load_digits()
    scores = [
        fit(tmp_path / own, GPU_RUN.replace(array_backend=own), spec).decision_function(images)
        for own in ("cupy", "numpy")
    ]
    found, expected = (values.argmax(axis=1) for values in scores)
    assert np.mean(found == expected) > 0.99
    assert np.mean(expected[900:] == labels[900:]) > 0.8


def test_two_towers_equal_those_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """Maps are rectified, and there are three feature extractors."""
    spec = SPEC.replace(
        local_contrast=True,
        rectify=True,
        max_layers=3,
        features="second-order,first-order,covariance-root",
        root_block=7,
    )
    images, _ = load_digits()
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    assert relative_error(other.decision_function(images), one.decision_function(images)) < 1e-3


@pytest.mark.parametrize("head", ["leave-one-out", "classify-leave-one-out"])
def test_leave_one_out_run_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path, head: str
) -> None:
    """The random signs are those of the CPU."""
    spec = SPEC.replace(head=head, max_layers=3)
    images, _ = load_digits()
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    assert relative_error(other.decision_function(images), one.decision_function(images)) < 1e-3


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize("count", [500, 2500])  # with refinement from 2048 on
def test_kernel_ridge_equals_that_of_the_cpu(
    backend: Backend, matmul_precision: str, count: int, rng: np.random.Generator
) -> None:
    """Weights, corrections of training and of validation images, and comparisons."""
    features = rng.normal(size=(count, 300)).astype(np.float32)
    targets = np.concatenate([features[:, :3] > 1, np.sign(features[:, 3:67])], axis=1)
    train, head = np.arange(count) % 10 > 0, KernelRidge()

    def fit_head(xp: Any) -> list[Any]:
        samples = FeatureSamples.empty(300, "float32", xp)
        for part in np.array_split(np.arange(count), 3):
            own = xp.asarray(features[part]), xp.asarray(targets[part].astype(np.float32))
            samples = samples.fold(int(part[0]), *own, train[part])
        arrays = head.fit_samples(samples, 3)
        rows = xp.asarray(features)
        trained = rows[xp.asarray(np.flatnonzero(train))]
        blocks = [(slice(0, 100), trained[:100]), (slice(100, None), trained[100:])]
        compared = sum(head.compare(arrays, rows[:50], blocks))
        bound = xp.asarray(head.bound(arrays))
        return [backend.get(values) for values in (*arrays.values(), compared, bound)]

    with Backend("cupy", matmul_precision).working():
        for found, expected in zip(fit_head(backend.xp), fit_head(np), strict=True):
            assert relative_error(found, expected) < 10 * TOLERANCE[matmul_precision]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_memory_of_kernel_ridge_stays_within_the_plan(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """The matrix of all pairs and its factor are in the same memory."""
    xp, count, features = backend.xp, 20_000, 5000
    pool = xp.get_default_memory_pool()
    spec = SPEC.replace(head="kernel-ridge")
    problem = Problem(count, (32, 32, 3), 10)
    head, targets = spec.head, problem.architecture(spec).targets
    assert isinstance(head, KernelRidge)
    generator = xp.random.default_rng(0)
    samples = FeatureSamples.empty(features, "float16", xp)
    for start in range(0, count, 1000):
        own = generator.standard_normal((1000, features), np.float32)
        signs = xp.sign(generator.standard_normal((1000, targets), np.float32))
        samples = samples.fold(start, own, signs, np.ones(1000, bool))
    del own, signs
    pool.free_all_blocks()
    before = pool.total_bytes()
    with Backend("cupy", matmul_precision).working():
        head.fit_samples(samples, 10)
    used = pool.total_bytes() - before
    planned = pair_bytes(problem, spec, 1) + diagonal_bytes(count)
    print(f"used {used / 2**30:.2f} GiB, planned {planned / 2**30:.2f} GiB")
    assert 4 * count**2 < used < planned < 8 * count**2


def test_kernel_ridge_run_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """Training and prediction, which runs the training images forward on the GPU."""
    spec = SPEC.replace(head="kernel-ridge", max_layers=3)
    images, _ = load_digits()
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    expected = one.decision_function(images[:500])
    assert relative_error(other.decision_function(images[:500]), expected) < 1e-3
    on_gpu = other.network_.on("cupy")
    assert relative_error(on_gpu.scores(images[:500]), expected) < 1e-3


def test_comparisons_stay_within_the_memory(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """A task has as many images, and a group as many training images, as memory allows.

    CuPy raises an error beyond its limit. The data have the shapes of CIFAR-10.
    """
    rng, pool = np.random.default_rng(0), backend.xp.get_default_memory_pool()
    images = rng.integers(0, 255, (32_000, 32, 32, 3), dtype=np.uint8)
    spec = NetworkSpec(
        filters=64,
        features="covariance-root",
        head="kernel-ridge",
        max_layers=2,
        store_dtype="float16",
        stop_at_zero_error=False,
    )
    run = RunSpec(array_backend="cupy", keep_maps="none", validation=0.04)
    clf = ResCNetClassifier(spec, store=tmp_path / "run", run=run)
    network = clf.fit(images, rng.integers(0, 10, len(images))).network_.on("cupy")
    expected = network.scores(images[:100])
    limit = 12 * 2**30
    pool.free_all_blocks()
    pool.set_limit(limit)
    try:
        count = network.predictor.task_images
        assert 5000 < count < 10_000
        scores = network.scores(images[:count])
        print(f"used {pool.total_bytes() / 2**30:.1f} GiB of {limit / 2**30:.0f}")
        assert pool.total_bytes() > 0.5 * limit
    finally:
        pool.set_limit(0)
    assert relative_error(scores[:100], expected) < 1e-3


def test_weighted_run_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """Weights of images and balanced classes are multiplied."""
    images, labels = load_digits()
    weights = np.random.default_rng(0).uniform(0.1, 5, 900)
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (
        ResCNetClassifier(
            SPEC.replace(max_layers=3), store=tmp_path / name, run=run, class_weight="balanced"
        ).fit(images[:900], labels[:900], sample_weight=weights)
        for name, run in runs.items()
    )
    assert relative_error(other.decision_function(images), one.decision_function(images)) < 1e-3


def test_run_makes_the_copies_of_the_cpu(client: Client, backend: Backend, tmp_path: Path) -> None:
    """Checksums of the images are equal, and scores that are averaged over copies nearly so."""
    copies = AugmentSpec(copies=2, flip=True, shift=2, rotate=10.0, contrast=0.2, noise=0.02)
    run, spec = GPU_RUN.replace(matmul_precision="float32"), SPEC.replace(max_layers=2)
    run = run.replace(chunk_images=500)  # checksums are those of chunks
    clf = fit(tmp_path / "gpu", run, spec, augment=copies)
    on_cpu = run.replace(array_backend="numpy", matmul_precision="split")
    cpu = fit(tmp_path / "cpu", on_cpu, spec, augment=copies)
    found, expected = (
        RunStore.open(tmp_path / name).checksums(0)["data/images"] for name in ("gpu", "cpu")
    )
    assert len(found) > 2
    assert found == expected
    assert verify_run(tmp_path / "gpu") == []
    images, _ = load_digits()
    scores = clf.decision_function(images[900:1000], augment=copies)
    on_host = cpu.decision_function(images[900:1000], augment=copies)
    assert relative_error(scores, on_host) < 1e-3


def read_weights(url: Path) -> list[Any]:
    """Read filters and classifier weights of all layers of a run."""
    run = RunStore.open(url)
    layers = [read_layer(run.location, n, LinearHead.arrays) for n in range(1, len(run.commits()))]
    return [
        array for layer in layers for array in (layer.bank.filters, layer.head.arrays["weights"])
    ]


class Stopped(KeyboardInterrupt):
    """Raised by a listener to stop a run."""


@pytest.mark.parametrize("change", CHANGES, ids=["plain", "half maps, towers", "learned views"])
@pytest.mark.parametrize("maps", ["memory", "store"])
def test_resumed_run_equals_uninterrupted_run(
    client: Client, backend: Backend, tmp_path: Path, maps: str, change: dict[str, Any]
) -> None:
    """All weights are equal bit for bit, with maps on the GPU or in the store."""
    spec = SPEC.replace(**change)
    fit(tmp_path / "whole", GPU_RUN.replace(keep_maps="none"), spec)

    def stop(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 3):
            raise Stopped

    with pytest.raises(Stopped):
        fit(tmp_path / "run", GPU_RUN.replace(maps=maps), spec, listeners=[stop])
    ResCNetClassifier.resume(tmp_path / "run")
    found, expected = read_weights(tmp_path / "run"), read_weights(tmp_path / "whole")
    assert len(found) == len(expected) == 10
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_maps_in_main_memory_change_no_bit(
    client: Client, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the chunks have no room on the GPU; their maps are copied there and back."""
    spec = SPEC.replace(local_contrast=True, rectify=True, store_dtype="float16")
    run = GPU_RUN.replace(chunk_images=100)
    fit(tmp_path / "gpu", run, spec)
    choose, offload, offloaded = loop.choose_tier, Backend.offload, []

    def choose_host(*arguments: Any) -> Any:
        tier = choose(*arguments)
        assert tier.in_memory
        placement = Placement(
            PlacementCause.FITS_WITH_HOST,
            True,
            tier.cached_bytes,
            tier.cached_bytes // 2,
            host_free_bytes=tier.cached_bytes,
        )
        return replace(tier, features=False, placement=placement)

    def count(self: Backend, array: Any) -> Any:
        offloaded.append(array.nbytes)
        return offload(self, array)

    monkeypatch.setattr(loop, "choose_tier", choose_host)
    monkeypatch.setattr(Backend, "offload", count)
    fit(tmp_path / "host", run, spec)
    chunks = RunState.of(RunStore.open(tmp_path / "host")).plan.chunks
    assert chunks / 4 < len(offloaded) / spec.max_layers < chunks
    found, expected = read_weights(tmp_path / "host"), read_weights(tmp_path / "gpu")
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_two_workers_merge_their_accumulators(
    backend: Backend, cpu_classifier: Any, tmp_path: Path
) -> None:
    """Accumulators are sent between workers; each worker uses half of the GPU."""
    images, _ = load_digits()
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        clf = fit(tmp_path / "run", GPU_RUN)
        state = RunState.of(RunStore.open(tmp_path / "run"))
        assert state.plan.accumulators == 2
    assert clf.depth_ == cpu_classifier.depth_
    expected = cpu_classifier.decision_function(images)
    assert relative_error(clf.decision_function(images), expected) < 1e-3


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
    """The peak memory of CuPy's pool is compared with the plan.

    The data have the shapes of CIFAR-10 with mirror images, N = 100,000, some of them held out.
    """
    if not features:
        tier = loop.choose_tier
        monkeypatch.setattr(loop, "choose_tier", lambda *a: replace(tier(*a), features=False))
    pool = backend.xp.get_default_memory_pool()
    pool.free_all_blocks()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (100_000, 32, 32, 3), dtype=np.uint8)
    spec = NetworkSpec.preset("cifar10").replace(
        stride=4, head="regress", max_layers=2, stop_at_zero_error=False, **change
    )
    run = RunSpec(array_backend="cupy", keep_maps="none", validation=0.04)
    clf = ResCNetClassifier(spec, store=tmp_path / "run", run=run)
    clf.fit(images, rng.integers(0, 10, 100_000))
    store = RunStore.open(tmp_path / "run")
    state = RunState.of(store)
    problem = state.problem(1)
    planned = device_memory(problem, spec, state.plan)
    planned += cached_bytes(problem, spec, 100_000, features=features)
    print(f"used {pool.total_bytes() / 2**30:.1f} GiB, planned {planned / 2**30:.1f} GiB")
    assert 0.4 * planned < pool.total_bytes() < planned
