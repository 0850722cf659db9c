"""Benchmarks on a GPU: the seconds of a layer of a run, and of augmented copies."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.bench.engine import NO_VALIDATION, layer_seconds, make_images, make_spec
from rescnet_dist.bench.timing import SECONDS_SUFFIX, Result, best_seconds
from rescnet_dist.kernels import Augmentation, augment_images
from rescnet_dist.planning.backend import get_backend

GPU_RUN_LAYERS = 8
# Maps stay in memory, as in a run whose next checkpoint is far away
GPU_RUN_SPEC = NO_VALIDATION.replace(array_backend="cupy", maps="memory", checkpoint_every=1000)


def layer(n: int, stride: int, bar: float, quick: bool) -> list[Result]:
    """Time a layer with the shapes of CIFAR-10, 50 filters in blocks of 16, as part of a run.

    The first layers, for which kernels are compiled, and the last one, whose maps are stored, do
    not count.
    """
    get_backend(GPU_RUN_SPEC).prepare()  # fails without a GPU, before any data are generated
    n, filters = (200, 8) if quick else (n, 50)
    spec = make_spec(filters, GPU_RUN_LAYERS).replace(stride=stride, head="regress")
    seconds = layer_seconds(1, n, spec, GPU_RUN_SPEC)[2:-1]
    name = f"a layer on a GPU, N={n:,}, stride {stride}{SECONDS_SUFFIX}"
    return [Result(name, float(np.median(seconds)), floor=1.0, bar=bar, at_most=True)]


COPIES = {
    "flips and shifts": Augmentation(flip=True, shift=4),
    "rotations and scales": Augmentation(rotate=10.0, scale=0.1),
    "colors": Augmentation(brightness=0.3, contrast=0.3, saturation=0.3),
}


def copies(quick: bool) -> list[Result]:
    """Compare augmented copies that are made on a GPU with those of one thread of the CPU."""
    backend, n = get_backend(GPU_RUN_SPEC), 200 if quick else 50_000
    backend.prepare()
    images, _ = make_images(n)
    on_gpu, index, copy = backend.put(images), np.arange(n), np.ones(n, np.int64)

    def make_copies(originals: Any, changes: Augmentation) -> None:
        augment_images(originals, index, copy, changes, 0)
        backend.xp.cuda.Device().synchronize()

    results = []
    for name, changes in COPIES.items():
        ours, cpu = (best_seconds(partial(make_copies, x, changes)) for x in (on_gpu, images))
        name = f"copies of {n:,} images on a GPU, {name}"
        results.append(Result(name, ours, {"one CPU thread": cpu}))
    return results
