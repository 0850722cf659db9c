"""Benchmarks of whole runs on clusters of this machine: overhead, workers, layers and images."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from rescnet_dist.bench.timing import Result
from rescnet_dist.cluster import Workers, available_cores
from rescnet_dist.data import training_set
from rescnet_dist.kernels import LayerInput, fit_bank, fit_classifier, layer_pixels
from rescnet_dist.planning import Problem, make_plan
from rescnet_dist.planning.calibrate import random_layer
from rescnet_dist.reduce import blas_threads
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.train import begin_run, describe_run

Array = np.ndarray[Any, np.dtype[Any]]

CLASSES = 10
ALL_IMAGES = RunSpec(validation=0.0)


def made_up(n: int) -> tuple[Array, Array]:
    """Noisy images (n, 32, 32, 3) uint8 of 10 classes, and labels (n,)."""
    rng, labels = np.random.default_rng(0), np.arange(n) % CLASSES
    means = rng.integers(60, 190, (CLASSES, 32, 32, 3))
    noise = rng.standard_normal((n, 32, 32, 3), np.float32)
    noise *= 60
    noise += means.astype(np.float32)[labels]
    return np.clip(noise, 0, 255, out=noise).astype(np.uint8), labels


def layer_seconds(
    workers: int, n: int, spec: NetworkSpec, run_spec: RunSpec = ALL_IMAGES
) -> list[float]:
    """Seconds of each layer of a run on so many workers of one thread, and on n images."""
    images, labels = made_up(n)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=None
        ) as cluster,
        Client(cluster) as client,
    ):
        run = begin_run(f"{folder}/run", spec, run_spec, training_set(images, labels), client)
        return [layer["seconds"] for layer in describe_run(run.url)["layers"]]


def spec_of(filters: int, layers: int) -> NetworkSpec:
    """A network of so many layers, whatever comes of it."""
    return NetworkSpec.preset("cifar10").replace(
        filters=filters, block=16, stride=4, max_layers=layers, patience=None,
        stop_at_zero_error=False, ridge=1.0,
    )  # fmt: skip


def kernel_seconds(n: int, spec: NetworkSpec) -> float:
    """Seconds that the kernels alone take for a later layer of the same run, in one thread of this
    process, chunk by chunk, with maps that are in memory; those of the layer before are made up."""
    images, labels = made_up(n)
    problem = Problem(n, images.shape[1:], CLASSES)
    one = Workers(count=1, slots=1, threads=1, machine_threads=1, memory=None)
    groups = make_plan(problem, spec, RunSpec(), one).groups()
    growing = random_layer(problem, spec)
    maps = growing.bank.maps(
        LayerInput.of(layer_pixels(images, growing.image_scale, spec), noise(n, spec.filters))
    )
    scores, train = np.zeros((n, CLASSES), np.float32), np.ones(n, bool)
    with blas_threads(1):
        began = time.perf_counter()
        statistics = growing.empty(*problem.image_shape, scatter=True)
        for start, stop in (chunk for group in groups for chunk in group.chunks()):
            rows, before = slice(start, stop), np.bincount(labels[:start], minlength=CLASSES)
            statistics = statistics.fold(
                growing.step(
                    images[rows], maps[rows], scores[rows], labels[rows], train[rows], before
                )
            )
        fit_classifier(statistics.features, spec, 2, CLASSES)
        fit_bank(statistics.inputs, spec, 3)
        return time.perf_counter() - began


def noise(n: int, filters: int) -> Array:
    """Maps (n, 32, 32, filters) of nothing in particular."""
    return np.random.default_rng(1).random((n, 32, 32, filters), np.float32)


def workers(quick: bool) -> list[Result]:
    """One worker beside the kernels alone, and two workers beside one."""
    n, spec = (80, spec_of(4, 2)) if quick else (4000, spec_of(50, 2))
    one, two = (layer_seconds(count, n, spec)[-1] for count in (1, 2))
    return [
        Result("a layer on one worker, beside its kernels alone", one,
               floor=kernel_seconds(n, spec), bar=1.12, at_most=True),
        Result("a layer on two workers, beside one", two, {"one worker": one}, bar=1.75),
    ]  # fmt: skip


def depth(quick: bool) -> list[Result]:
    """A late layer beside an early one, by the medians of those around them."""
    early, late, around = (4, 8, 1) if quick else (5, 40, 3)
    spec = spec_of(8, late + around)
    seconds = layer_seconds(available_cores(), 80 if quick else 2000, spec)

    def about(layer: int) -> float:
        return float(np.median(seconds[layer - around - 1 : layer + around]))

    return [
        Result(f"layer {late}, beside layer {early}", about(late),
               floor=about(early), bar=1.1, at_most=True)
    ]  # fmt: skip


def images(quick: bool) -> list[Result]:
    """Four times the images."""
    n, spec = (40, spec_of(4, 2)) if quick else (1500, spec_of(16, 3))
    few, many = (min(layer_seconds(available_cores(), k * n, spec)[1:]) for k in (1, 4))
    return [Result("a layer on 4 × the images", many, floor=few, bar=4.2, at_most=True)]
