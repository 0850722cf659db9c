"""Benchmarks of whole runs on a GPU: how long a layer takes, in seconds."""

from __future__ import annotations

import numpy as np

from rescnet_dist.bench.engine import ALL_IMAGES, layer_seconds, spec_of
from rescnet_dist.bench.timing import Result
from rescnet_dist.kernels import Backend

LAYERS = 8
# maps stay in memory, as where a checkpoint is far off
RUN = ALL_IMAGES.replace(array_backend="cupy", maps="memory", checkpoint_every=1000)


def layer(n: int, stride: int, bar: float, quick: bool) -> list[Result]:
    """A layer of the shapes of CIFAR-10, 50 filters in blocks of 16, all in the run's time but
    kernels that are compiled for the first layers, and maps that are stored with the last."""
    Backend.of(RUN).prepare()  # whoever has no GPU is told so before anything is made up
    n, filters = (200, 8) if quick else (n, 50)
    spec = spec_of(filters, LAYERS).replace(stride=stride, residual="regress")
    seconds = layer_seconds(1, n, spec, RUN)[2:-1]
    name = f"a layer on a GPU, N={n:,}, stride {stride} (bar in seconds)"
    return [Result(name, float(np.median(seconds)), floor=1.0, bar=bar, at_most=True)]
