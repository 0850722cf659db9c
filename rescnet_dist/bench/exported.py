"""Benchmark of prediction by an exported network, in onnxruntime, compared with our own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from rescnet_dist.bench.engine import BENCH_CLASSES, make_images, make_spec
from rescnet_dist.bench.prediction import make_network
from rescnet_dist.bench.timing import Result, best_seconds
from rescnet_dist.cluster import available_cores
from rescnet_dist.data import Images
from rescnet_dist.network import Network

Array = np.ndarray[Any, np.dtype[Any]]

RUNTIME_BATCH_IMAGES = 64  # that onnxruntime gets at a time; more are not faster


def open_session(network: Network) -> Callable[[Array], Array]:
    """Return a function from images (n, H, W, d) of uint8 to scores (n, C), by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.onnx")
        network.to_onnx(path, dtype="uint8")
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Array) -> Array:
        batches = range(0, len(images), RUNTIME_BATCH_IMAGES)
        parts = [images[start : start + RUNTIME_BATCH_IMAGES] for start in batches]
        return np.concatenate([session.run(["scores"], {"images": part})[0] for part in parts])

    return run


def exported(quick: bool) -> list[Result]:
    """Time the scores of images, by our own prediction and by onnxruntime."""
    n, filters, depth = (16, 4, 2) if quick else (256, 50, 4)
    images, _ = make_images(n)
    spec = make_spec(filters, depth).replace(head="regress")
    network = make_network(spec, images.shape[1:], BENCH_CLASSES, depth)
    ours = best_seconds(lambda: network.scores(Images(images)))
    theirs: dict[str, float | None] = {"onnxruntime": None}
    if find_spec("onnx") and find_spec("onnxruntime"):
        run = open_session(network)
        theirs["onnxruntime"] = best_seconds(lambda: run(images))
    return [Result(f"prediction, {n} images, {depth} layers of {filters} filters", ours, theirs)]
