"""The benchmark cases: the code that is timed, the peers it is compared with, and its bar."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from rescnet_dist.bench import engine, exported, gpu, peers, prediction
from rescnet_dist.bench.engine import BENCH_CLASSES
from rescnet_dist.bench.timing import (
    LONG_TURNS,
    SECONDS_SUFFIX,
    Result,
    best_seconds,
    compare_with_products,
    run_on_all_cores,
    seconds_in_turns,
    split_evenly,
)
from rescnet_dist.cluster import available_cores
from rescnet_dist.kernels import (
    CovarianceProduct,
    FeatureMoments,
    InputSums,
    LayerInput,
    PatchMoments,
    Standardizer,
    convolve,
    one_hot,
    one_vs_rest_lda,
    patch_moments,
    patch_scatter,
    pca_filters,
    second_order_features,
)
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.kernels.discriminant import Whitening
from rescnet_dist.model import Architecture, LayerStatistics
from rescnet_dist.planning import Problem
from rescnet_dist.planning.speed import random_layer
from rescnet_dist.spec import NetworkSpec

Array = np.ndarray[Any, np.dtype[Any]]

PYRAMID_LEVELS = (4, 2, 1)
MAX_PASS_RATIO = 1.3 if platform.machine() in ("aarch64", "arm64") else 1.5
MAX_PRODUCT_RATIO = 1.43  # 1/0.7: at least 0.7 of the rate of sgemm


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark case.

    Attributes
    ----------
    name : str
        The name of the case on the command line.
    run : callable
        run(quick) measures the case and returns a list of `Result`; quick is a reduced form.
    on_gpu : bool
        Whether the case needs a GPU.
    """

    name: str
    run: Callable[[bool], list[Result]]
    on_gpu: bool = False


def make_textures(rng: np.random.Generator, n: int, side: int, channels: int) -> Array:
    """Return random images (n, side, side, channels) with correlated neighboring pixels."""
    from scipy.ndimage import gaussian_filter

    noise = rng.normal(size=(n, side, side, channels)).astype(np.float32)
    return np.ascontiguousarray(gaussian_filter(noise, (0, 1.5, 1.5, 0)))


def gather_statistics(gather: Callable[[slice], Any], n: int) -> Any:
    """Return statistics of n images, gathered on all cores and merged."""
    return reduce(lambda one, other: one.merge(other), run_on_all_cores(gather, split_evenly(n)))


def compare_with_torch(
    name: str, ours: Callable[[], Any], theirs: Callable[[], Any], n: int, bar: float
) -> list[Result]:
    """Return the time per image of ours, and of PyTorch if it is installed."""
    seconds, *others = seconds_in_turns((ours, theirs) if peers.torch() else (ours,))
    return [Result(name, seconds / n, {"PyTorch": others[0] / n if others else None}, bar=bar)]


# kernels ----------------------------------------------------------------------------------------


def scatter(n: int, side: int, channels: int, size: int, bar: float, quick: bool) -> list[Result]:
    """Time the moments of all patches."""
    n = n // 20 if quick else n
    images = make_textures(np.random.default_rng(0), n, side, channels)
    tensor = peers.tensor(images) if peers.torch() else None

    def ours() -> None:
        gather_statistics(lambda part: patch_scatter(images[part], size), n)

    name = f"patch scatter, {channels} channels {side}×{side}, k={size}"
    return compare_with_torch(name, ours, lambda: peers.patch_scatter(tensor, size), n, bar)


def products(quick: bool) -> list[Result]:
    """Time convolution and patch scatter, 50 filters on 53 channels, relative to sgemm's rate."""
    n, filters, size = 10 if quick else 200, 50, 3
    rng = np.random.default_rng(0)
    maps, images = make_textures(rng, n, 32, filters), make_textures(rng, n, 32, 3)
    weights, bias = rng.normal(size=(size, size, filters + 3, filters)), np.zeros(filters)

    def convolution() -> None:
        run_on_all_cores(
            lambda part: convolve(LayerInput.of(images[part], maps[part]), weights, bias),
            split_evenly(n),
        )

    def moments(part: slice) -> PatchMoments:
        inputs = LayerInput.of(images[part], maps[part])
        return patch_moments(inputs, size, InputSums.of(inputs))

    operations = convolution_operations(32, 32, filters + 3, filters, size)
    scatter_operations = patch_operations(32, 32, filters + 3, size)
    return [
        compare_with_products(
            f"{name}, 53 channels, k=3, relative to its operations at the rate of sgemm",
            action,
            count,
            MAX_PRODUCT_RATIO,
            items=n,
        )
        for name, action, count in (
            ("convolution to 50", convolution, operations),
            ("patch scatter", lambda: gather_statistics(moments, n), scatter_operations),
        )
    ]


def features(n: int, stride: int, bar: float, quick: bool) -> list[Result]:
    """Time second-order features of 50 filters on 32×32 pixels, with blocks of 16."""
    n = max(2, n // 16) if quick else n
    maps = make_textures(np.random.default_rng(0), n, 32, 50)
    tensor = peers.tensor(maps) if peers.torch() else None

    def ours() -> None:
        run_on_all_cores(
            lambda part: second_order_features(maps[part], 16, stride, PYRAMID_LEVELS),
            split_evenly(n),
        )

    def theirs() -> None:
        peers.second_order_features(tensor, 16, stride, PYRAMID_LEVELS)

    return compare_with_torch(f"second-order features, stride {stride}", ours, theirs, n, bar)


def discriminants(quick: bool) -> list[Result]:
    """Time one-vs-rest LDA of 20 classes, from features to weights."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    n, width, classes = (400, 300, 4) if quick else (4000, 3000, 20)
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    x = rng.normal(size=(n, width)).astype(np.float32) + rng.normal(size=(classes, width))[labels]
    x = x.astype(np.float32)

    def ours() -> None:
        with blas_threads(available_cores()):
            moments = FeatureMoments.empty(width, classes).fold(x, one_hot(labels, classes))
            one_vs_rest_lda(moments, 0.01)

    start = time.perf_counter()
    with blas_threads(available_cores()):
        for label in range(2):  # all classes take the same time
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.01).fit(x, labels == label)
    all_classes = (time.perf_counter() - start) * classes / 2
    seconds: dict[str, float | None] = {"scikit-learn": all_classes}
    name = f"one-vs-rest LDA, N={n:,} D={width:,} C={classes}"
    return [Result(name, best_seconds(ours), seconds, bar=15)]


def pca(quick: bool) -> list[Result]:
    """Time PCA filters of patches with 53 channels, k=3; slow peers get fewer images."""
    from sklearn.decomposition import IncrementalPCA

    n, peer_images = (20, 2) if quick else (2000, 100)
    images = make_textures(np.random.default_rng(0), n, 32, 53)

    def ours() -> None:
        pca_filters(gather_statistics(lambda part: patch_scatter(images[part], 3), n), 3, 50)

    def incremental() -> None:
        model = IncrementalPCA(50)
        for start in range(0, peer_images, 10):
            patches = peers.unfold(images[start : min(start + 10, peer_images)], 3).reshape(-1, 477)
            model.partial_fit(patches)

    def dask_ml() -> None:
        import dask.array as da
        from dask_ml.decomposition import PCA

        blocks = [
            da.from_array(
                peers.unfold(images[start : min(start + 10, peer_images)], 3).reshape(-1, 477)
            )
            for start in range(0, peer_images, 10)
        ]
        PCA(50, svd_solver="tsqr").fit(da.concatenate(blocks))

    seconds: dict[str, float | None] = {}
    threads = {"IncrementalPCA": available_cores(), "dask-ml": 1}  # dask-ml runs tasks on all cores
    for name, action in (("IncrementalPCA", incremental), ("dask-ml", dask_ml)):
        try:
            with blas_threads(threads[name]):
                seconds[name] = best_seconds(action, 1) / peer_images
        except ImportError:
            seconds[name] = None
    name = f"PCA filters from {n:,} images, 53 channels, k=3"
    return [Result(name, best_seconds(ours, 1) / n, seconds, bar=10)]


# the pass of a layer ------------------------------------------------------------------------------


def layer(quick: bool) -> list[Result]:
    """Time a layer's pass without the factorization, N=2,000, 50 filters on 32×32×3, stride 4."""
    filters, n, chunk = (8, 40, 20) if quick else (50, 2000, 143)  # as planned by default
    spec = NetworkSpec.preset("cifar10").replace(filters=filters, block=16, stride=4)
    shape, rng = (32, 32, 3), np.random.default_rng(0)
    images, maps = make_textures(rng, n, 32, 3), make_textures(rng, n, 32, filters)
    labels, train = np.arange(n) % BENCH_CLASSES, np.ones(n, bool)
    growing = random_layer(Problem(n, shape, BENCH_CLASSES), spec)
    scores = np.zeros((n, BENCH_CLASSES), np.float32)

    def fold(part: slice, statistics: LayerStatistics) -> LayerStatistics:
        for start in range(part.start, part.stop, chunk):
            rows = slice(start, min(start + chunk, part.stop))
            statistics = statistics.fold(
                growing.step(
                    images[rows],
                    maps[rows],
                    scores[rows],
                    labels[rows],
                    train[rows],
                    np.zeros(BENCH_CLASSES, np.int64),
                )
            )
        return statistics

    def ours() -> None:
        # allocated here and not in threads: only the main thread reuses memory that was freed
        empty = [growing.empty(scatter=True) for _ in split_evenly(n)]
        gather_statistics(lambda part: fold(part, empty.pop()), n)

    width = growing.architecture.features
    name = f"pass of a layer, N={n:,} D={width:,}"
    relative = compare_with_products(
        f"{name}, relative to its BLAS operations",
        ours,
        n * pass_operations(growing.architecture),
        MAX_PASS_RATIO,
        turns=LONG_TURNS,
    )
    if not (library := peers.torch()):
        return [Result(name, relative.ours, {"PyTorch": None}, bar=3.0), relative]
    kernel = growing.bank.filters.transpose(3, 2, 0, 1)
    tensors = peers.tensor(images), peers.tensor(maps)
    weights = library.as_tensor(np.ascontiguousarray(kernel, dtype=np.float32))
    targets = library.as_tensor(one_hot(labels, BENCH_CLASSES).astype(np.float32))
    seconds, theirs = seconds_in_turns(
        (ours, lambda: peers.layer_pass(*tensors, weights, targets, 16, 4)), LONG_TURNS
    )
    return [Result(name, seconds, {"PyTorch": theirs}, bar=3.0), relative]


def pass_operations(architecture: Architecture) -> float:
    """Return the operations of matrix products per image in the pass of a later layer.

    They are those of the convolution, the patch scatter by displacements, and the lower triangle of
    the features' scatter.
    """
    height, width, _ = architecture.image_shape
    inputs, size = architecture.input_channels(2), architecture.filter_size(2)
    convolution = convolution_operations(height, width, inputs, architecture.map_count(2), size)
    patches = patch_operations(height, width, inputs, size)
    return convolution + patches + architecture.features**2


def convolution_operations(height: int, width: int, channels: int, filters: int, size: int) -> int:
    """Return the operations of the convolution of an image."""
    return 2 * height * width * size**2 * channels * filters


def patch_operations(height: int, width: int, channels: int, size: int) -> int:
    """Return the operations of the patch scatter of an image by displacements."""
    return 2 * height * width * channels**2 * (size + (size - 1) * (2 * size - 1))


def factorization(quick: bool) -> list[Result]:
    """Time the Cholesky factorization, and solving for 10 targets."""
    width = 5000 if quick else 17_150
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(width, 1024)).astype(np.float32)
    moments = FeatureMoments(
        20_000,
        np.zeros(width),
        np.asfortranarray(factor @ factor.T),
        np.zeros((10, width)),
        np.zeros(10),
    )
    columns = rng.normal(size=(width, 10))

    def ours() -> None:
        with blas_threads(available_cores()):
            Whitening.of(moments, 1.0).solve(columns)

    name = f"factorization and solve, D={width:,}"
    return [compare_with_products(name, ours, width**3 / 3, 1.25, turns=LONG_TURNS)]


def iteration(quick: bool) -> list[Result]:
    """Time the products of an iteration of conjugate gradients with features in 8 bits.

    The floor is the time of the same two products with features in single precision that have been
    standardized before.
    """
    n, width, targets = (1024 if quick else 4096), 4096, 10
    rng = np.random.default_rng(0)
    features = rng.poisson(1.0, (n, width)).astype(np.uint8)
    floats = features.astype(np.float32)
    mean, squares = features.mean(axis=0), n * features.var(axis=0)
    standardizer = Standardizer.of(squares, mean, n, 1.0)
    directions = rng.normal(size=(width, targets))
    single = directions.astype(np.float32)

    def ours() -> None:
        product = CovarianceProduct.empty(directions, mean, standardizer, features.dtype)
        product.add(features)
        product.value()

    def products() -> None:
        floats.T @ (floats @ single)

    with blas_threads(1):
        seconds, floor = seconds_in_turns((ours, products))
    name = f"iteration over {width:,} features in 8 bits, N={n:,}, relative to its BLAS products"
    return [Result(name, seconds, floor=floor, bar=1.5, at_most=True)]


# starting -----------------------------------------------------------------------------------------


def starting(quick: bool) -> list[Result]:
    """Time the import of the classifier after Dask, and the help of two commands."""
    code = (
        "import time, dask.array, distributed; t = time.perf_counter(); "
        "from rescnet_dist import ResCNetClassifier; print(time.perf_counter() - t)"
    )
    tries = 1 if quick else 5

    def import_seconds() -> float:
        run = [sys.executable, "-c", code]
        return float(subprocess.run(run, capture_output=True, check=True, text=True).stdout)

    def help_seconds(command: str) -> float:
        run = [sys.executable, "-m", "rescnet_dist", command, "--help"]
        start = time.perf_counter()
        subprocess.run(run, capture_output=True, check=True)
        return time.perf_counter() - start

    def result(name: str, measure: Callable[[], float], bar: float) -> Result:
        seconds = min(measure() for _ in range(tries))
        return Result(f"{name}{SECONDS_SUFFIX}", seconds, floor=1.0, bar=bar, at_most=True)

    return [
        result("import of ResCNetClassifier after Dask", import_seconds, 0.7),
        *(
            result(f"rescnet {command} --help", partial(help_seconds, command), 0.3)
            for command in ("evaluate", "plan")
        ),
    ]


CASES = (
    Case("scatter", partial(scatter, 200, 32, 53, 3, 5.0)),
    Case("products", products),
    Case("scatter of large patches", partial(scatter, 2000, 28, 1, 13, 8.0)),
    Case("features", partial(features, 64, 4, 10.0)),
    Case("features at stride 1", partial(features, 32, 1, 25.0)),
    Case("discriminants", discriminants),
    Case("filters", pca),
    Case("layer", layer),
    Case("factorization", factorization),
    Case("iteration", iteration),
    Case("starting", starting),
    Case("workers", engine.workers),
    Case("cores", engine.cores),
    Case("depth", engine.depth),
    Case("images", engine.images),
    Case("stored maps", engine.stored_maps),
    Case("onnx", exported.exported),
    Case("one image", prediction.one_image),
    Case("prediction", prediction.many_images),
    Case("prediction on a gpu", prediction.on_gpu, on_gpu=True),
    Case("gpu", partial(gpu.layer, 50_000, 4, 0.35), on_gpu=True),
    Case("gpu at stride 1", partial(gpu.layer, 50_000, 1, 1.0), on_gpu=True),
    Case("gpu with mirror images", partial(gpu.layer, 100_000, 4, 0.9), on_gpu=True),
    Case("copies on a gpu", gpu.copies, on_gpu=True),
)
