"""How fast a cluster is at a given network: short measurements on its workers."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from distributed import Client

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.kernels import (
    Bank,
    Classifier,
    GrowingLayer,
    ImageScale,
    draw_layer_patches,
    features_per_layer,
    targets_per_layer,
)
from rescnet_dist.kernels.blas import add_scatter, cholesky
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import Problem, accumulator_bytes
from rescnet_dist.reduce import blas_threads
from rescnet_dist.spec import NetworkSpec
from rescnet_dist.store import Location, read_region, write_region

SIDE, FACTORED = 1536, 3072  # of the matrices whose product and factorization are timed
SAMPLE_SECONDS = 1.0  # that images are worked on for on each slot, about
STORE_BYTES = 16 * 2**20  # written and read again once
MERGED = 0.8e9  # bytes per second of accumulators that travel and are added up, about
PER_PASS = 1.0  # seconds of scheduling, opening and committing
SLOTS = 16  # that are timed at the same time, at most


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds per image of a layer's pass without the scatter, operations per second of a product
    on one thread and of a factorization on `threads`, bytes per second to and from the store."""

    image: float
    product: float
    factorization: float
    written: float
    read: float
    threads: int = 1

    def layer_seconds(
        self,
        problem: Problem,
        spec: NetworkSpec,
        plan: Plan,
        workers: Workers,
        *,
        in_memory: bool = False,
    ) -> float:
        """About how long the pass of a layer takes, one whose maps are stored or stay in memory."""
        slots = workers.slots
        height, width, channels = problem.image_shape
        features, busy = problem.features(spec), min(slots, plan.accumulators)
        maps = np.dtype(spec.store_dtype).itemsize * height * width * spec.filters
        stored = maps / self.written + maps / self.read
        stored += height * width * channels * problem.itemsize / self.read
        if in_memory:
            stored = 0.0
        each = max(self.image + features**2 / self.product, stored)  # at the same time
        scatter = features**2 * problem.images / self.product
        solve = features**3 / 3 / self.factorization
        merges = math.ceil(math.log(max(plan.accumulators, 1), plan.split_every))  # one by one
        if workers.count > 1:
            merges = max(merges, math.ceil((plan.accumulators - 1) / workers.count))
        solve += merges * accumulator_bytes(problem, spec, plan) / MERGED
        if (
            plan.tile_features
        ):  # one thread per tile; a product of two blocks, not of one with itself
            blocks = -(-features // plan.tile_features)
            traffic = 4 * problem.images * features * ((blocks + 1) / self.read + 1 / self.written)
            return (
                PER_PASS + problem.images * max(self.image, stored) / busy
                + (2 * scatter + traffic) / min(slots, blocks) + 2 * solve
            )  # fmt: skip
        return PER_PASS + problem.images * each / busy + solve

    def with_threads(self, threads: int) -> Speed:
        """The speed of factorizations with other threads than those that were measured: as many
        times as fast, which large matrices nearly are."""
        rate = self.factorization * threads / self.threads
        return replace(self, factorization=rate, threads=threads)


def calibrate(
    client: Client, problem: Problem, spec: NetworkSpec, workers: Workers, store: str | None
) -> Speed:
    """Measure the client's cluster on images as those of `problem`, on all its threads at the same
    time, and the store if there is one: an object beside it is written, read and removed."""
    jobs = [
        client.submit(_seconds_per_image, problem, spec, index, pure=False)
        for index in range(min(workers.slots, SLOTS))
    ]
    image = float(np.mean(client.gather(jobs)))
    products = [
        client.submit(_product_rate, index, pure=False)
        for index in range(min(workers.slots, SLOTS))
    ]
    product = float(np.mean(client.gather(products)))
    factorization = client.submit(_factor_rate, workers.machine_threads, pure=False).result()
    written, read = float("inf"), float("inf")
    if store is not None:
        written, read = client.submit(_store_rates, store, pure=False).result()
    return Speed(image, product, factorization, written, read, workers.machine_threads)


def _seconds_per_image(problem: Problem, spec: NetworkSpec, seed: int) -> float:
    """Of the pass of a later layer on made-up images, without the scatter matrix."""
    height, width, channels = problem.image_shape
    growing, rng = random_layer(problem, spec), np.random.default_rng(seed)
    statistics = growing.empty(height, width, channels, scatter=False)

    def run(n: int) -> None:
        labels = np.arange(n) % problem.classes
        chunk = growing.step(
            rng.integers(0, 255, (n, height, width, channels)).astype(np.float32),
            rng.normal(size=(n, height, width, spec.filters)).astype(np.float32),
            np.zeros((n, problem.classes), np.float32), labels, np.ones(n, bool),
            np.zeros(problem.classes, np.int64),
        )  # fmt: skip
        statistics.fold(chunk)

    with blas_threads(1):
        run(2)  # whatever the first time costs
        n, seconds = 4, _seconds(lambda: run(4))
        while seconds < SAMPLE_SECONDS / 3 and n < 1024:
            n = min(1024, max(2 * n, int(0.5 * SAMPLE_SECONDS / max(seconds, 1e-4) * n)))
            seconds = _seconds(lambda n=n: run(n))  # type: ignore[misc]
    return seconds / n


def random_layer(problem: Problem, spec: NetworkSpec) -> GrowingLayer:
    """A second layer with random filters and weights."""
    height, width, channels = problem.image_shape
    rng, inputs, size = (
        np.random.default_rng(0), spec.input_channels(2, channels), spec.filter_size
    )  # fmt: skip
    signs = targets_per_layer(problem.classes, spec) // problem.classes
    features = features_per_layer(height, width, spec)
    return GrowingLayer(
        spec=spec,
        number=2,
        classes=problem.classes,
        image_scale=ImageScale(np.zeros(channels), np.full(channels, 1 / 255)),
        bank=Bank(
            np.zeros(inputs), np.ones(inputs), rng.normal(size=(size, size, inputs, spec.filters)),
            np.zeros(spec.filters),
        ),
        previous=Classifier(
            np.zeros((signs, problem.classes, features), np.float32),
            np.zeros((signs, problem.classes)), np.ones((signs, problem.classes), bool),
            np.ones(signs), 1.0,
        ),
        draws=cache(
            partial(
                draw_layer_patches, spec, 0, 3,
                np.full(problem.classes, max(1, problem.images // problem.classes)),
                problem.image_shape,
            )
        ),
    )  # fmt: skip


def _product_rate(seed: int) -> float:
    """Operations per second, n·D² each, of the product of features with themselves, one thread."""
    features = np.random.default_rng(seed).normal(size=(256, SIDE)).astype(np.float32)
    total = np.zeros((SIDE, SIDE), np.float32, order="F")

    def run() -> None:
        add_scatter(total, features)

    with blas_threads(1):
        run()
        return 256 * SIDE**2 / min(_seconds(run) for _ in range(3))


def _factor_rate(threads: int) -> float:
    """Operations per second, D³/3, of a Cholesky factorization."""
    matrix = np.asarray(np.eye(FACTORED) * FACTORED + 1.0, np.float32, order="F")
    with blas_threads(threads):
        cholesky(matrix.copy(order="F"))
        seconds = [_seconds(partial(cholesky, matrix.copy(order="F"))) for _ in range(2)]
        return FACTORED**3 / 3 / min(seconds)


def _store_rates(url: str) -> tuple[float, float]:
    """Bytes per second written to and read from a place beside a store."""
    location = Location.of(f"{url.rstrip('/')}-calibration-{uuid.uuid4().hex[:8]}")
    values = np.random.default_rng(0).random((STORE_BYTES // 2**14, 2**12), np.float32)
    try:
        location.create_array(
            "maps", values.shape, "float32", len(values) // 2, ("a", "b"), compress=False
        )
        written = _seconds(lambda: write_region(location.open_array("maps", write=True), 0, values))
        read = _seconds(lambda: read_region(location.open_array("maps"), 0, len(values)))
    finally:
        location.remove()
    return values.nbytes / written, values.nbytes / read


def _seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
