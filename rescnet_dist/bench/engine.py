"""Benchmarks of whole runs on local clusters: overhead, workers, layers and images."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from rescnet_dist.bench.timing import Result
from rescnet_dist.cluster import Workers, available_cores
from rescnet_dist.data import training_set
from rescnet_dist.kernels import LayerInput
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.lifecycle import begin_or_resume, check_run
from rescnet_dist.model import fit_bank, fit_head, layer_pixels
from rescnet_dist.planning import Problem, make_plan
from rescnet_dist.planning.division import Division, divide_cores
from rescnet_dist.planning.speed import random_layer
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import NetworkSpec, RunSpec

Array = np.ndarray[Any, np.dtype[Any]]

BENCH_CLASSES = 10
NO_VALIDATION = RunSpec(validation=0.0)


def make_images(n: int) -> tuple[Array, Array]:
    """Return noisy images (n, 32, 32, 3) uint8 of 10 classes, and labels (n,)."""
    rng, labels = np.random.default_rng(0), np.arange(n) % BENCH_CLASSES
    means = rng.integers(60, 190, (BENCH_CLASSES, 32, 32, 3))
    noise = rng.standard_normal((n, 32, 32, 3), np.float32)
    noise *= 60
    noise += means.astype(np.float32)[labels]
    return np.clip(noise, 0, 255, out=noise).astype(np.uint8), labels


def layer_seconds(
    workers: int,
    n: int,
    spec: NetworkSpec,
    run_spec: RunSpec = NO_VALIDATION,
    memory_limit: str | None = None,
    threads: int = 1,
) -> list[float]:
    """Return the seconds of each layer of a run on n images and `workers` workers.

    Workers have no memory limit by default; "auto" gives each its share of the machine's memory.
    """
    images, labels = make_images(n)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            dashboard_address="127.0.0.1:0",
            memory_limit=memory_limit,
        ) as cluster,
        Client(cluster) as client,
    ):
        checked = check_run(f"{folder}/run", spec, run_spec, training_set(images, labels))
        run = begin_or_resume(checked, client)
        return [layer["seconds"] for layer in describe_run(run.url)["layers"]]


def make_spec(filters: int, layers: int) -> NetworkSpec:
    """Return a network that always grows `layers` layers, whatever its accuracy."""
    return NetworkSpec.preset("cifar10").replace(
        filters=filters,
        block=16,
        stride=4,
        max_layers=layers,
        patience=None,
        stop_at_zero_error=False,
        ridge=1.0,
    )


def kernel_seconds(n: int, spec: NetworkSpec) -> float:
    """Return the seconds of the kernels alone for a later layer of the same run.

    They run in one thread of this process, chunk by chunk, on random maps in memory.
    """
    images, labels = make_images(n)
    problem = Problem(n, images.shape[1:], BENCH_CLASSES)
    one = Workers(count=1, slots=1, threads=1, machine_threads=1, memory=None)
    groups = make_plan(problem, spec, RunSpec(), one).groups()
    growing = random_layer(problem, spec)
    architecture = growing.architecture
    pixels = layer_pixels(images, growing.image_scale, architecture)
    maps = growing.bank.maps(LayerInput.of(pixels, make_maps(n, growing.architecture.map_count(1))))
    scores, train = np.zeros((n, BENCH_CLASSES), np.float32), np.ones(n, bool)
    with blas_threads(1):
        begin = time.perf_counter()
        statistics = growing.empty(scatter=True)
        for start, stop in (chunk for group in groups for chunk in group.chunks()):
            rows, class_offsets = (
                slice(start, stop),
                np.bincount(labels[:start], minlength=BENCH_CLASSES),
            )
            statistics = statistics.fold(
                growing.step(
                    images[rows], maps[rows], scores[rows], labels[rows], train[rows], class_offsets
                )
            )
        assert statistics.features
        assert statistics.inputs
        fit_head(statistics.features, architecture, 1.0)
        fit_bank(statistics.inputs, architecture, 3)
        return time.perf_counter() - begin


def make_maps(n: int, filters: int) -> Array:
    """Return random maps (n, 32, 32, filters)."""
    return np.random.default_rng(1).random((n, 32, 32, filters), np.float32)


def workers(quick: bool) -> list[Result]:
    """Compare one worker with the kernels alone, and two cores with one.

    A worker of one thread solves with all cores of the machine, unless `solve_threads` is less.
    """
    n, spec = (80, make_spec(4, 2)) if quick else (4000, make_spec(50, 2))
    one, two = (
        layer_seconds(count, n, spec, NO_VALIDATION.replace(solve_threads=count))[-1]
        for count in (1, 2)
    )
    return [
        Result(
            "a layer on one worker, relative to its kernels alone",
            layer_seconds(1, n, spec)[-1],
            floor=kernel_seconds(n, spec),
            bar=1.06,
            at_most=True,
        ),
        Result("a layer on two cores, compared with one", two, {"one core": one}, bar=1.85),
    ]


def cores(quick: bool) -> list[Result]:
    """Compare the cores divided between workers as commands do with other divisions.

    For few features, whose accumulators are small, and for many.
    """
    count = available_cores()
    others = {Division(count // threads, threads) for threads in (1, 4, count)}
    results = []
    for n, filters in ((80, 4),) if quick else ((6000, 12), (2400, 40)):
        spec = make_spec(filters, 3)
        problem = Problem(n, (32, 32, 3), BENCH_CLASSES)
        chosen = divide_cores(problem, spec, cores=count)
        seconds = {
            division: min(layer_seconds(division.workers, n, spec, threads=division.threads)[1:])
            for division in sorted({chosen, *others}, reverse=True)
            if division.workers * division.threads == count
        }
        own = seconds.pop(chosen)
        name = f"a layer of {problem.features(spec):,} features with {chosen} threads"
        results.append(
            Result(name, own, {f"{division} threads": seconds[division] for division in seconds})
        )
    return results


def depth(quick: bool) -> list[Result]:
    """Compare a late layer with an early one, on the line through the layers from one to the other.

    Its slope is the median of those between all pairs of layers (Theil-Sen), as others who use the
    machine for some seconds slow down several layers in a row. The result is the median of runs.
    """
    from scipy.stats import theilslopes  # slow to import

    early, late, tries = (4, 8, 1) if quick else (5, 40, 3)
    spec, layers = make_spec(8, late), np.arange(early, late + 1)
    lines = list[tuple[float, float]]()
    for _ in range(tries):
        seconds = layer_seconds(available_cores(), 80 if quick else 2000, spec)[early - 1 :]
        slope, intercept, *_ = map(float, theilslopes(seconds, layers))
        lines.append((intercept + slope * early, intercept + slope * late))
    first, last = sorted(lines, key=lambda line: line[1] / line[0])[tries // 2]
    name = f"layer {late}, relative to layer {early}"
    return [Result(name, last, floor=first, bar=1.1, at_most=True)]


def images(quick: bool) -> list[Result]:
    """Compare a layer on four times the images with one on the images."""
    n, spec = (40, make_spec(4, 2)) if quick else (1500, make_spec(16, 3))
    single, fourfold = (min(layer_seconds(available_cores(), k * n, spec)[1:]) for k in (1, 4))
    return [Result("a layer on 4 × the images", fourfold, floor=single, bar=4.2, at_most=True)]


def stored_maps(quick: bool) -> list[Result]:
    """Compare a layer with maps in a store on the local disk with one that has them in memory.

    And features that are computed once with those that are computed twice, at stride 1, where they
    take longest. Workers without a memory limit do not keep features of stored maps.
    """
    n, spec = (80, make_spec(4, 3)) if quick else (4000, make_spec(24, 4))
    dense, stored = spec.replace(stride=1), NO_VALIDATION.replace(maps="store")

    def seconds(spec: NetworkSpec, run_spec: RunSpec, limit: str | None = "auto") -> float:
        return min(layer_seconds(available_cores(), n, spec, run_spec, limit)[1:])

    memory = seconds(spec, NO_VALIDATION.replace(maps="memory"))
    twice = seconds(dense, stored, None)
    return [
        Result(
            "a layer with maps in the store, relative to memory",
            seconds(spec, stored),
            floor=memory,
            bar=1.25,
            at_most=True,
        ),
        Result(
            "a layer with maps in the store at stride 1, features computed once",
            seconds(dense, stored),
            {"computed twice": twice},
        ),
    ]
