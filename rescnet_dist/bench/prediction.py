"""Benchmarks of prediction: one image, many images relative to training, and a GPU."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import dask.array as da
import numpy as np

from rescnet_dist.bench.timing import (
    SECONDS_SUFFIX,
    Result,
    best_seconds,
    run_on_all_cores,
    split_evenly,
)
from rescnet_dist.data import Images
from rescnet_dist.model import Bank, FittedHead, ImageScale, Layer, State, advance, initial_state
from rescnet_dist.network import Network
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.spec import NetworkSpec, RunSpec

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_IMAGES = 170  # of the stored images that a GPU predicts


def make_network(
    spec: NetworkSpec, image_shape: tuple[int, int, int], classes: int, depth: int
) -> Network:
    """Return a network of random layers. Filters have unit norm, so that maps keep their range."""
    rng, architecture = np.random.default_rng(0), spec.architecture(image_shape, classes)
    layers = []
    for number in range(1, 1 + min(depth, 3)):
        inputs, size = architecture.input_channels(number), architecture.filter_size(number)
        maps = architecture.map_count(number)
        filters = rng.standard_normal((size, size, inputs, maps), np.float32)
        filters /= np.sqrt((filters**2).sum(axis=(0, 1, 2)))
        bank = Bank(np.zeros(inputs), np.ones(inputs), filters, np.zeros(maps))
        weights = rng.standard_normal((1, classes, architecture.feature_count(number)), np.float32)
        arrays = {
            "weights": weights / architecture.feature_count(number),
            "intercept": np.zeros((1, classes)),
            "present": np.ones((1, classes), bool),
            "share": np.ones(1),
        }
        layers.append(Layer(bank, FittedHead(arrays, 0.1)))
    layers += [layers[1 + number % 2] for number in range(depth - len(layers))]
    channels = image_shape[2]
    scale = ImageScale(np.zeros(channels), np.full(channels, 1 / 255))
    return Network(spec, np.arange(classes), image_shape, scale, tuple(layers))


def make_photos(n: int, image_shape: tuple[int, int, int]) -> Array:
    """Return random images (n, H, W, d) uint8 with structure of several pixels."""
    height, width, channels = image_shape
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 128, (n, -(-height // 4), -(-width // 4), channels), np.uint8)
    photos = coarse.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width]
    return np.asarray(photos + rng.integers(0, 128, photos.shape, np.uint8))


def one_image(quick: bool) -> list[Result]:
    """Time one image of 28×28 through 40 layers of 8 filters, of a loaded network."""
    depth = 3 if quick else 40
    spec = NetworkSpec(filters=8, filter_size=3, block=7, stride=4, head="regress")
    image = make_photos(1, (28, 28, 1))
    with tempfile.TemporaryDirectory() as folder:
        make_network(spec, image.shape[1:], 10, depth).save(f"{folder}/network")
        Network.load(f"{folder}/network").scores(Images(image))  # loads the compiled kernels
        start = time.perf_counter()
        network = Network.load(f"{folder}/network")
        network.scores(Images(image))
        first = time.perf_counter() - start
        again = best_seconds(lambda: network.scores(Images(image)), 20)
    name = f"one image, {depth} layers of 8 filters"
    return [
        Result(f"{name}{SECONDS_SUFFIX}", again, floor=1.0, bar=0.01, at_most=True),
        Result(
            f"{name}, load and first one{SECONDS_SUFFIX}",
            first,
            floor=1.0,
            bar=1.0,
            at_most=True,
        ),
    ]


def many_images(quick: bool) -> list[Result]:
    """Time images of 32×32×3 through layers of 50 filters, relative to that part of training.

    In training, a pass computes maps and features of a layer for a chunk of images, and updates
    their scores by the features of the layer before.
    """
    n, depth, filters = (100, 2, 8) if quick else (1000, 5, 50)
    spec = NetworkSpec(filters=filters, filter_size=3, block=16, stride=4, head="regress")
    photos = make_photos(n, (32, 32, 3))
    network = make_network(spec, photos.shape[1:], 10, depth)

    def predict() -> None:
        network.scores(Images(photos))

    def train_forward(part: slice) -> None:
        previous: FittedHead | None = None
        state: State = initial_state(photos[part], network.image_scale, network.architecture)
        for layer in network.layers:
            state = advance(
                network.architecture, state, head=previous, bank=layer.bank, features=True
            )
            previous = layer.head
        advance(network.architecture, state, head=previous)

    floor = best_seconds(lambda: run_on_all_cores(train_forward, split_evenly(n)), 2)
    name = f"prediction of {n:,} images, relative to that part of training"
    return [Result(name, best_seconds(predict, 2), floor=floor, bar=1.15, at_most=True)]


def on_gpu(quick: bool) -> list[Result]:
    """Time 10,000 stored images of 64×64×3 through 92 stored layers of 84 filters on a GPU."""
    get_backend(RunSpec(array_backend="cupy")).prepare()  # fails without a GPU
    n, depth, filters = (300, 3, 8) if quick else (10_000, 92, 84)
    spec = NetworkSpec(
        filters=filters, filter_size=3, block=32, stride=8, levels=(2,), head="regress"
    )
    photos = make_photos(n, (64, 64, 3))
    with tempfile.TemporaryDirectory() as folder:
        make_network(spec, photos.shape[1:], 200, depth).save(f"{folder}/network")
        chunks = (CHUNK_IMAGES, *photos.shape[1:])
        da.from_array(photos, chunks).to_zarr(f"{folder}/images")
        warm = Network.load(f"{folder}/network").on("cupy", "half")
        np.asarray(warm.scores(Images(photos[:100])))  # compiles the kernels
        start = time.perf_counter()
        network = Network.load(f"{folder}/network").on("cupy", "half")
        np.asarray(network.scores(Images(da.from_zarr(f"{folder}/images"))))
        seconds = time.perf_counter() - start
    name = f"prediction of {n:,} images on a GPU, {depth} layers{SECONDS_SUFFIX}"
    return [Result(name, seconds, floor=1.0, bar=25.0, at_most=True)]
