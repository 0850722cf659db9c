"""Short measurements of the speed of a cluster and its store for a given network."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from distributed import Client

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.kernels import FeatureMoments, Whitening
from rescnet_dist.kernels.cpu.blas import add_scatter
from rescnet_dist.kernels.cpu.cholesky import cholesky
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.model import (
    Architecture,
    Bank,
    FittedHead,
    GrowingLayer,
    ImageScale,
    fit_head,
)
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import Problem, accumulator_bytes
from rescnet_dist.planning.tree import MERGE_BYTES_PER_SECOND
from rescnet_dist.spec import NetworkSpec
from rescnet_dist.store import Location, read_region, write_region

PRODUCT_SIZE = 1536  # rows and columns of the scatter matrix that is timed
FACTOR_SIZES = (512, 1024, 2048, 4096)  # rows and columns of matrices whose factorization is timed
FACTOR_SECONDS = 0.05  # of a factorization, after which no larger matrix is timed
SAMPLE_SECONDS = 1.0  # of computing on images on each slot, approximately
STORE_SAMPLE_BYTES = 16 * 2**20  # written and read once
PASS_OVERHEAD_SECONDS = 1.0  # of scheduling, opening and committing
ITERATION_OVERHEAD_SECONDS = 0.05  # of scheduling and committing an iteration of a solver
TASK_OVERHEAD_SECONDS = 0.003  # of the scheduler, which handles one task after the other
# Of the rate of the scatter matrix, reached by products of features with narrow matrices.
NARROW_PRODUCT_FRACTION = 0.5
# Of the rate in single precision, reached by tiles; measured with 4,096 features in tiles of 512.
DOUBLE_RATE_FRACTION = 0.44
MAX_TIMED_SLOTS = 16  # that are timed at the same time


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of a cluster.

    Attributes
    ----------
    image_seconds : float
        Seconds per image of the pass of a layer, without the scatter matrix.
    product_rate : float
        Operations per second of a matrix product on one thread.
    factor_rate : float
        Operations per second of a factorization on `threads` threads.
    write_rate, read_rate : float
        Bytes per second to and from the store.
    threads : int, default 1
        Threads of the factorization.
    """

    image_seconds: float
    product_rate: float
    factor_rate: float
    write_rate: float
    read_rate: float
    threads: int = 1

    def layer_seconds(
        self,
        problem: Problem,
        spec: NetworkSpec,
        plan: Plan,
        workers: Workers,
        *,
        in_memory: bool = False,
        features_in_memory: bool = False,
    ) -> float:
        """Estimate the seconds of a layer whose maps and features are stored or stay in memory."""
        slots = workers.slots
        height, width, channels = problem.image_shape
        features, busy = problem.features(spec), min(slots, plan.accumulators)
        maps = np.dtype(spec.store_dtype).itemsize * height * width * problem.maps(spec)
        store = maps / self.write_rate + maps / self.read_rate
        store += height * width * channels * problem.itemsize / self.read_rate
        if in_memory:
            store = 0.0
        # Computing and store access overlap.
        scatter_seconds = 0.0 if spec.head.fits_samples else features**2 / self.product_rate
        per_image = max(self.image_seconds + scatter_seconds, store)
        scatter = features**2 * problem.images / self.product_rate
        solve = self.solve_seconds(problem, spec)
        # The merges on the longest path of the tree, which are sequential.
        merges = math.ceil(math.log(max(plan.accumulators, 1), plan.split_every))
        if workers.count > 1:
            merges = max(merges, math.ceil((plan.accumulators - 1) / workers.count))
        merge = merges * accumulator_bytes(problem, spec, plan) / MERGE_BYTES_PER_SECOND
        if solver := spec.head.iterative_solver:
            # Each iteration has two products with narrow matrices.
            targets, stored = problem.architecture(spec).targets, problem.feature_bytes(spec)
            products = 4 * features * targets / (NARROW_PRODUCT_FRACTION * self.product_rate)
            reads = 0.0 if features_in_memory else stored / self.read_rate
            iteration = problem.images * max(products, reads)
            per_image = max(self.image_seconds, store) + stored / self.write_rate
            return (
                PASS_OVERHEAD_SECONDS
                + problem.images * per_image / busy
                + solver.iterations * (iteration / busy + ITERATION_OVERHEAD_SECONDS)
            )
        if not plan.tile_features:
            return PASS_OVERHEAD_SECONDS + problem.images * per_image / busy + merge + solve
        # One thread per tile. A tile is the product of two blocks, not of one with itself, which
        # takes twice the operations.
        blocks = -(-features // plan.tile_features)
        per_byte = (blocks + 1) / self.read_rate + 1 / self.write_rate
        traffic = 4 * problem.images * features * per_byte
        tiles = blocks * (blocks + 1) // 2
        return (
            PASS_OVERHEAD_SECONDS
            + problem.images * max(self.image_seconds, store) / busy
            + (2 * scatter + traffic) / min(slots, tiles)
            + self.tiled_solve_seconds(features, plan.tile_features, slots)
            + 2 * tiles * TASK_OVERHEAD_SECONDS
        )

    def tiled_solve_seconds(self, features: int, tile: int, slots: int) -> float:
        """Estimate the seconds of a factorization in tiles, one thread each, in double precision.

        The tiles of a column wait for those of the columns before: with many slots, the longest
        path through them counts.
        """
        rate = DOUBLE_RATE_FRACTION * self.factor_rate / self.threads
        work = features**3 / 3 + tile * features**2 / 2
        longest = 2 * tile * features**2 + 4 / 3 * tile**2 * features
        return max(work / slots, longest) / rate

    def solve_seconds(self, problem: Problem, spec: NetworkSpec) -> float:
        """Estimate the seconds of the factorization of a scatter matrix that is kept whole.

        For heads that compare images, it is that of the matrix of all pairs, with its products.
        """
        if spec.head.fits_samples:
            products = problem.images**2 * problem.features(spec)
            rate = self.threads * self.product_rate
            return products / rate + problem.images**3 / 3 / self.factor_rate
        return problem.features(spec) ** 3 / 3 / self.factor_rate

    def with_threads(self, threads: int) -> Speed:
        """Return the speed with another number of threads of the factorization.

        The rate is proportional to the threads, which is nearly true for large matrices.
        """
        rate = self.factor_rate * threads / self.threads
        return replace(self, factor_rate=rate, threads=threads)


def calibrate(
    client: Client, problem: Problem, spec: NetworkSpec, workers: Workers, store: str | None
) -> Speed:
    """Measure the speed of a cluster on all its threads at the same time, and that of the store.

    Images are random ones of the shape of `problem`. With a store URL, an object next to the store
    is written, read and removed; without one, the store is taken to be infinitely fast.
    """
    slots = min(workers.slots, MAX_TIMED_SLOTS)
    image_tasks = [
        client.submit(_measure_image_seconds, problem, spec, index, pure=False)
        for index in range(slots)
    ]
    image_seconds = float(np.mean(client.gather(image_tasks)))
    product_tasks = [
        client.submit(_measure_product_rate, index, pure=False) for index in range(slots)
    ]
    product_rate = float(np.mean(client.gather(product_tasks)))
    threads = workers.machine_threads
    size = problem.images if spec.head.fits_samples else problem.features(spec)
    factor_rate = client.submit(_measure_factor_rate, size, threads, pure=False).result()
    write_rate, read_rate = float("inf"), float("inf")
    if store is not None:
        write_rate, read_rate = client.submit(_measure_store_rates, store, pure=False).result()
    return Speed(image_seconds, product_rate, factor_rate, write_rate, read_rate, threads)


def _measure_image_seconds(problem: Problem, spec: NetworkSpec, seed: int) -> float:
    """Measure the seconds per image of a later layer's pass, without the scatter matrix."""
    height, width, channels = problem.image_shape
    growing, rng = random_layer(problem, spec), np.random.default_rng(seed)
    statistics = growing.empty(scatter=False)
    maps = growing.architecture.map_count(growing.number - 1)

    def run(n: int) -> None:
        labels = np.arange(n) % problem.classes
        chunk = growing.step(
            rng.integers(0, 255, (n, height, width, channels)).astype(np.float32),
            rng.normal(size=(n, height, width, maps)).astype(np.float32) if maps else None,
            np.zeros((n, problem.classes), np.float32),
            labels,
            np.ones(n, bool),
            np.zeros(problem.classes, np.int64),
        )
        statistics.fold(chunk)

    with blas_threads(1):
        run(2)  # warm up
        n, seconds = 4, _time(lambda: run(4))
        while seconds < SAMPLE_SECONDS / 3 and n < 1024:
            n = min(1024, max(2 * n, int(0.5 * SAMPLE_SECONDS / max(seconds, 1e-4) * n)))
            seconds = _time(lambda n=n: run(n))  # type: ignore[misc]
    return seconds / n


def random_layer(problem: Problem, spec: NetworkSpec) -> GrowingLayer:
    """Return a later layer with random filters, after one whose head adds nothing.

    It is the second one, or the first from which on all layers have the same number of filters.
    """
    channels = problem.image_shape[2]
    rng, architecture = np.random.default_rng(0), problem.architecture(spec)
    layer = architecture.distinct_layers[-1]
    inputs, size = architecture.input_channels(layer), architecture.filter_size(layer)
    maps = architecture.map_count(layer)
    bank = Bank(
        np.zeros(inputs),
        np.ones(inputs),
        rng.normal(size=(size, size, inputs, maps)),
        np.zeros(maps),
    )
    # Heads that compare images know the updates of all images of a run.
    has_previous = layer > spec.first_head and not spec.head.fits_samples
    class_counts = np.full(problem.classes, max(1, problem.images // problem.classes))
    return GrowingLayer(
        architecture=architecture,
        number=layer,
        image_scale=ImageScale(
            np.zeros(channels),
            np.full(channels, 1 / 255),
            {view.name: view.untrained(problem.image_shape) for view in architecture.views},
        ),
        bank=bank,
        previous=_make_head(architecture, layer - 1) if has_previous else None,
        class_counts=class_counts,
    )


def _make_head(architecture: Architecture, layer: int) -> FittedHead:
    """Return a head fitted to features that carry no information, without a factorization."""
    features, targets = architecture.feature_count(layer), architecture.targets
    whitening = Whitening(np.zeros(features), np.zeros(features), np.zeros_like)
    moments = FeatureMoments.empty(features, targets, scatter=False)
    moments = replace(moments, count=2, target_sums=np.ones(targets))
    return fit_head(moments, architecture, 1.0, whitening)


def _measure_product_rate(seed: int) -> float:
    """Measure the operations per second, n·D² each, of a scatter matrix on one thread."""
    features = np.random.default_rng(seed).normal(size=(256, PRODUCT_SIZE)).astype(np.float32)
    total = np.zeros((PRODUCT_SIZE, PRODUCT_SIZE), np.float32, order="F")

    def run() -> None:
        add_scatter(total, features)

    with blas_threads(1):
        run()
        return 256 * PRODUCT_SIZE**2 / min(_time(run) for _ in range(3))


def _measure_factor_rate(size: int, threads: int) -> float:
    """Measure the operations per second, D³/3, of a Cholesky factorization, D at most `size`.

    It is that of one thread at least: on cores that others use, BLAS threads wait for each other,
    and small matrices take 200 times as long as on one thread, large ones not.
    """
    return max(_time_factorizations(size, count) for count in {1, threads})


def _time_factorizations(size: int, threads: int) -> float:
    """Return the operations per second of the first matrix that takes long enough to be timed.

    Matrices grow, as large ones would take seconds where BLAS threads wait for each other.
    """
    rate = 0.0
    with blas_threads(threads):
        for side in (min(side, size) for side in FACTOR_SIZES):
            matrix = np.ones((side, side), np.float32, order="F")
            np.einsum("ii->i", matrix)[...] += side
            # The first factorization may start threads.
            seconds = min(_time(partial(cholesky, matrix.copy(order="F"))) for _ in range(2))
            rate = side**3 / 3 / seconds
            if side == size or seconds > FACTOR_SECONDS:
                break
    return rate


def _measure_store_rates(url: str) -> tuple[float, float]:
    """Measure the bytes per second written to and read from a location next to a store."""
    location = Location.of(f"{url.rstrip('/')}-calibration-{uuid.uuid4().hex[:8]}")
    values = np.random.default_rng(0).random((STORE_SAMPLE_BYTES // 2**14, 2**12), np.float32)
    try:
        location.create_array(
            "maps", values.shape, "float32", len(values) // 2, ("a", "b"), compress=False
        )
        written = _time(lambda: write_region(location.open_array("maps", write=True), 0, values))
        read = _time(lambda: read_region(location.open_array("maps"), 0, len(values)))
    finally:
        location.remove()
    return values.nbytes / written, values.nbytes / read


def _time(action: Callable[[], Any]) -> float:
    """Return the seconds that a function takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
