"""What a plan needs, by arithmetic alone: memory of a worker, traffic and size of the store."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rescnet_dist.cluster.workers import Workers
from rescnet_dist.data import TrainingSet
from rescnet_dist.kernels import features_per_layer, targets_per_layer
from rescnet_dist.kernels.convolution import PATCH_BYTES
from rescnet_dist.kernels.gpu_tiles import patch_products_bytes
from rescnet_dist.kernels.layer import SLAB_BYTES
from rescnet_dist.kernels.products import ROW_WINDOW_BYTES
from rescnet_dist.planning.plan import Plan
from rescnet_dist.spec import NetworkSpec, RunSpec

# How often each thing is there at the same time at most; `tests/planning/test_plan.py` measures the sum.
SLABS = 3  # of features and maps, and what they are made of
FEATURES = 3  # as computed, those to train on, centered
COPYING = 12 * 2**20  # bytes while copies are made, a slab at a time
SAMPLES = 4  # of the patches for stacked-LDA: two to merge, merged, rescaled
PATCH_SCATTERS = 6
TILES = 7  # in float64
PER_PASS, PER_CHUNK, PER_TASK = 20_000, 600, 1_000  # bytes that the driver sends and gets
FIRST_PASS = 48 * 2**20  # bytes that a process takes more for its first pass, whatever it is
MARGIN = 1.15  # for what malloc and the codecs hold beside
# on a GPU
GPU_PROCESS = 1500 * 2**20  # bytes of the machine's memory that CUDA and CuPy take in a worker
GPU_CONTEXT = 1024 * 2**20  # bytes of the GPU's that they and the libraries' workspaces take
# how often each is there at most: maps that are read, made and written; features, those that are
# trained on, these about their mean, and their halves
GPU_MAPS, GPU_FEATURES, GPU_PIXELS = 4, 4, 3
GPU_MARGIN = 1.25  # for what CuPy keeps to be used again, in pieces


@dataclass(frozen=True, slots=True)
class Problem:
    """What is trained on, in numbers: images of (H, W, d), with the copies made of them, pixels of
    `itemsize` bytes, and classes."""

    images: int
    image_shape: tuple[int, int, int]
    classes: int
    itemsize: int = 1
    copies: int = 0

    @classmethod
    def of(cls, data: TrainingSet, run_spec: RunSpec) -> Problem:
        """The data of a run, where images are held out about as many as will be."""
        return cls(
            data.rows(run_spec.validation), data.image_shape, len(data.classes),
            data.dtype.itemsize, data.augment.copies,
        )  # fmt: skip

    @property
    def image_bytes(self) -> int:
        """Bytes of the images themselves, without copies, about."""
        height, width, channels = self.image_shape
        originals = math.ceil(self.images / (1 + self.copies))
        return originals * height * width * channels * self.itemsize

    def features(self, spec: NetworkSpec) -> int:
        """Features D of a layer."""
        return features_per_layer(*self.image_shape[:2], spec)

    def map_bytes(self, spec: NetworkSpec) -> int:
        """Bytes of one image, as layers see it, and its maps, in float32."""
        height, width, channels = self.image_shape
        return 4 * height * width * spec.input_channels(2, channels)


def peak_memory(problem: Problem, spec: NetworkSpec, plan: Plan, workers: Workers) -> int:
    """Bytes that are resident in a worker at most, were it the last one left."""
    if workers.gpu_memory is not None:
        height, width, channels = problem.image_shape
        maps = 3 * 4 * height * width * spec.filters  # on their way to the store
        images = (2 * problem.itemsize + 4) * height * width * channels
        staged = plan.chunk_images * (maps + images) + bank_memory(problem, spec)
        return int(workers.resident + GPU_PROCESS + MARGIN * staged)
    threads = min(workers.threads, plan.accumulators)
    working = threads * chunk_memory(problem, spec, plan)
    if plan.tile_features:
        tile = min(plan.tile_features, problem.features(spec))
        tiles = TILES * 8 * tile**2 + 4 * 4 * tile * plan.chunk_images
        kept = accumulators_held(plan, threads) * small_accumulator(problem, spec)
        working = max(working, workers.threads * tiles) + kept
    else:
        one = 4 * problem.features(spec) ** 2 + small_accumulator(problem, spec)
        working += accumulators_held(plan, threads) * one
    return int(workers.resident + FIRST_PASS + MARGIN * (working + bank_memory(problem, spec)))


def device_memory(problem: Problem, spec: NetworkSpec, plan: Plan) -> int:
    """Bytes that one worker takes of its GPU, beside the maps that wait there."""
    height, width, channels = problem.image_shape
    features = problem.features(spec)
    pixels = 4 * height * width * spec.input_channels(1, channels)
    each = GPU_MAPS * 4 * height * width * spec.filters + GPU_FEATURES * 4 * features
    each += GPU_PIXELS * pixels
    working = plan.chunk_images * each + accumulators_held(plan, 1) * 4 * features**2
    working += max(
        patch_products_bytes(
            spec.filter_size_at(layer), height, width, spec.input_channels(layer, channels),
            plan.chunk_images,
        )
        for layer in (1, 2)
    )  # fmt: skip
    working += 2 * small_accumulator(problem, spec) + bank_memory(problem, spec)
    return int(GPU_CONTEXT + GPU_MARGIN * working)


def chunk_memory(problem: Problem, spec: NetworkSpec, plan: Plan) -> int:
    """Bytes that one task holds of the chunk it works on."""
    height, width, channels = problem.image_shape
    n, features = plan.chunk_images, problem.features(spec)
    # as stored, as read and normalized, and those of the next chunk
    images = (3 * problem.itemsize + 4 * spec.views) * height * width * channels
    # of the layer before, of this chunk and the next; new ones, of this chunk and the one before
    maps = 4 * 4 * height * width * spec.filters
    slab = min(SLAB_BYTES, n * problem.map_bytes(spec))
    copying = COPYING if problem.copies else 0
    copies = FEATURES + bool(plan.tile_features)  # which are written while the next are made
    each = images + maps + copies * 4 * features + 64 * problem.classes
    most = max(laid_out(problem, spec, layer) for layer in (1, 2))
    return n * each + SLABS * slab + most + copying


def laid_out(problem: Problem, spec: NetworkSpec, layer: int) -> int:
    """Bytes of the patches and strips of pixels that are laid out at a time: of one image at
    least, whatever its size."""
    height, width, channels = problem.image_shape
    size, inputs = spec.filter_size_at(layer), spec.input_channels(layer, channels)
    patches = 4 * height * width * size**2 * inputs
    strips = 8 * height * width * (2 * size - 1) * inputs
    return max(PATCH_BYTES, patches) + max(ROW_WINDOW_BYTES, strips)


def small_accumulator(problem: Problem, spec: NetworkSpec) -> int:
    """Bytes of an accumulator beside the scatter matrix."""
    return 2 * 8 * problem.features(spec) * (targets_per_layer(problem.classes, spec) + 1)


def accumulator_bytes(problem: Problem, spec: NetworkSpec, plan: Plan) -> int:
    """Bytes of an accumulator, as it travels."""
    whole = 0 if plan.tile_features else 4 * problem.features(spec) ** 2
    channels = spec.input_channels(2, problem.image_shape[2])
    return whole + small_accumulator(problem, spec) // 2 + 8 * (spec.filter_size**2 * channels) ** 2


def accumulators_held(plan: Plan, threads: int) -> int:
    """Accumulators in one worker at most: those being filled, those that wait for their partner in
    the tree, and two with their sum; or one and its factor in double precision, which is as much
    as three."""
    waiting = math.ceil(math.log2(max(plan.accumulators, 1))) + plan.split_every - 2
    most = plan.accumulators + math.ceil(plan.accumulators / plan.split_every)
    return max(3, min(threads + 1 + waiting, most))


def bank_memory(problem: Problem, spec: NetworkSpec) -> int:
    """Bytes of what the filters are learned from: patch scatter, and patches for stacked-LDA."""
    channels, total = problem.image_shape[2], 0
    for layer in (1, 2):
        directions = spec.filter_size_at(layer) ** 2 * spec.input_channels(layer, channels)
        draws = spec.lda_draws * sum(t.lda for t in spec.layer_towers(layer, channels))
        sample = draws * (spec.lda_positives + spec.lda_negatives) * directions * 4
        total = max(total, SAMPLES * sample + PATCH_SCATTERS * 8 * directions**2)
    return total


# traffic and size of the store ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per layer that are read from and written to the store, that the reductions move between
    workers at most and that reach the driver, bytes the store takes at most, tasks per layer."""

    read: int
    written: int
    network: int
    driver: int
    store: int
    tasks: int


def traffic(
    problem: Problem,
    spec: NetworkSpec,
    plan: Plan,
    *,
    in_memory: bool = False,
    stored: int = 2,
) -> Traffic:
    """What a layer moves, and what the run takes to store, of maps those of so many layers at most.
    Where maps stay in memory nothing is read, and what is written is so by the layers that are
    stored alone."""
    height, width, _ = problem.image_shape
    n, features = problem.images, problem.features(spec)
    images = problem.image_bytes
    itemsize = np.dtype(spec.store_dtype).itemsize
    maps = n * (itemsize * height * width * spec.filters + 4 * problem.classes)
    read, written = images + maps, maps if stored else 0
    if in_memory:
        read = 0
    merges, left = 0, plan.accumulators
    while left > 1:
        left = math.ceil(left / plan.split_every)
        merges += left
    tasks, work = plan.accumulators + merges + 1, 0
    network = (plan.accumulators - 1) * accumulator_bytes(problem, spec, plan)
    if plan.tile_features:
        side = min(plan.tile_features, features)
        blocks = math.ceil(features / side)
        tiles, tile = blocks * (blocks + 1) // 2, 8 * side**2
        written += 4 * n * features + 2 * tiles * tile
        factor_reads = sum(2 * j + 1 for j in range(blocks) for _ in range(j, blocks))
        read += (blocks + 1) * 4 * n * features + (tiles + factor_reads + 2 * tiles) * tile
        tasks += 2 * tiles + 2
        work = 4 * n * features + 2 * tiles * tile
    layer = 4 * targets_per_layer(problem.classes, spec) * features
    return Traffic(
        read=read,
        written=written,
        network=network,
        driver=PER_PASS + plan.chunks * PER_CHUNK + tasks * PER_TASK,
        store=images + stored * maps + work + spec.max_layers * layer,
        tasks=tasks,
    )
