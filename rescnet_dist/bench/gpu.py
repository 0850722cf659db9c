"""Benchmarks of whole runs on a GPU: the seconds of a layer."""

from __future__ import annotations

import numpy as np

from rescnet_dist.bench.engine import NO_VALIDATION, layer_seconds, make_spec
from rescnet_dist.bench.timing import SECONDS_SUFFIX, Result
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
