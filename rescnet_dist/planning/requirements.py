"""Memory of a worker, traffic and size of the store that a plan needs, by arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rescnet_dist.kernels.cpu.convolution import convolution_bytes
from rescnet_dist.kernels.cpu.products import products_bytes
from rescnet_dist.kernels.gpu_tiles import (
    COPY_SLAB_BYTES,
    copy_image_bytes,
    patch_products_bytes,
)
from rescnet_dist.kernels.samples import PRODUCT_FEATURES
from rescnet_dist.kernels.solving import GPU_PANEL_COLUMNS, MIN_SINGLE_FEATURES, SOLVED_ROWS
from rescnet_dist.model.architecture import GPU_SLAB_BYTES, SLAB_BYTES, Architecture
from rescnet_dist.planning.cg import FEATURE_SLAB_COPIES, SolverCosts, count_merges
from rescnet_dist.planning.plan import Plan
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store.run import MAX_RECORD_CHUNKS

if TYPE_CHECKING:
    from rescnet_dist.cluster.workers import Workers
    from rescnet_dist.data import TrainingSet

# Largest number of copies of each array at the same time. `tests/planning/test_plan.py` compares
# the sum with measurements.
SLAB_COPIES = 3  # features and maps of a slab, and their inputs
EACH_COPIES = 2  # maps and inputs of a slab by channel, for filters on each channel
FEATURE_COPIES = 3  # as computed, those of training images, centered
TILE_COPIES = 7  # in float64
LARGE_ACCUMULATOR_BYTES = 128 * 2**20  # from which on merging them takes long
FACTOR_ACCUMULATORS = 3  # an accumulator, and its factor in double precision
MIN_KERNEL_BYTES = 20 * 2**20  # of the buffers of kernels; those of most networks are smaller
AUGMENT_BYTES = 12 * 2**20  # while augmented copies are made, a slab at a time
# Bytes that the driver sends and receives.
DRIVER_BYTES_PER_PASS = 40_000
DRIVER_BYTES_PER_REPORT = 170  # of a chunk that is done
DRIVER_BYTES_PER_CHECKSUM = 7
DRIVER_BYTES_PER_GROUP = 20  # of the description of a graph, and the lists of workers
DRIVER_BYTES_PER_TASK = 1_000  # of tiles and blocks, whose graphs are sent task by task
MAX_CHUNK_REPORTS = 400  # that reach the driver in a pass; each is of several chunks if need be
FIRST_PASS_BYTES = 48 * 2**20  # by which a process grows in its first pass, whatever it computes
PAIR_COPIES = 3  # of the matrix of all pairs of images: as computed, and in double precision
# Of targets and weights of all images, in double precision: six of conjugate gradients, three of a
# product, and the targets
SAMPLE_COLUMN_COPIES = 10
WORKING_MEMORY_MARGIN = 1.15  # factor for what malloc and the codecs use in addition
GPU_HOST_BYTES = 1500 * 2**20  # of main memory that CUDA and CuPy use in a worker
GPU_CONTEXT_BYTES = 1024 * 2**20  # of GPU memory that CUDA and the workspaces of libraries use
# Copies on a GPU: maps that are read, computed and written; features as computed, those of training
# images, centered, and in half precision; pixels.
GPU_MAP_COPIES, GPU_FEATURE_COPIES, GPU_PIXEL_COPIES = 4, 4, 3
GPU_MEMORY_MARGIN = 1.25  # factor for CuPy's memory pool, which is fragmented


@dataclass(frozen=True, slots=True)
class Problem:
    """The size of the training data.

    Attributes
    ----------
    images : int
        Number of images, copies included.
    image_shape : tuple of int
        Height, width and channels (H, W, d).
    classes : int
        Number of classes.
    itemsize : int, default 1
        Bytes per pixel and channel.
    copies : int, default 0
        Augmented copies of each training image.
    """

    images: int
    image_shape: tuple[int, int, int]
    classes: int
    itemsize: int = 1
    copies: int = 0

    @classmethod
    def of(cls, data: TrainingSet, run_spec: RunSpec) -> Problem:
        """Return the size of the data of a run; the number of validation images is approximate."""
        return cls(
            data.rows(run_spec.validation),
            data.image_shape,
            len(data.classes),
            data.dtype.itemsize,
            data.augment.copies,
        )

    @property
    def image_bytes(self) -> int:
        """Approximate bytes of the images without copies."""
        height, width, channels = self.image_shape
        originals = math.ceil(self.images / (1 + self.copies))
        return originals * height * width * channels * self.itemsize

    def architecture(self, spec: NetworkSpec) -> Architecture:
        """Return the architecture of a network for these images, which is asked for its needs."""
        return _make_architecture(spec, self.image_shape, self.classes)

    def features(self, spec: NetworkSpec) -> int:
        """Return the largest number of features D of a layer."""
        return self.architecture(spec).features

    def maps(self, spec: NetworkSpec) -> int:
        """Return the largest number of maps f of a layer."""
        return self.architecture(spec).max_maps

    def feature_bytes(self, spec: NetworkSpec) -> int:
        """Return the bytes of the features of one image."""
        architecture = self.architecture(spec)
        return architecture.features * architecture.feature_dtype.itemsize

    def map_bytes(self, spec: NetworkSpec) -> int:
        """Return the bytes of one image, all views of it, and its maps, in float32."""
        height, width, _ = self.image_shape
        return 4 * height * width * self.architecture(spec).max_channels


@lru_cache(maxsize=64)  # a search for the largest value that fits asks for many
def _make_architecture(
    spec: NetworkSpec, image_shape: tuple[int, int, int], classes: int
) -> Architecture:
    """Return the architecture of a network for images (H, W, d) of so many classes."""
    return spec.architecture(image_shape, classes)


def peak_memory(problem: Problem, spec: NetworkSpec, plan: Plan, workers: Workers) -> int:
    """Return the largest number of resident bytes of a worker, even if it is the last one left."""
    if workers.gpu_memory is not None:
        height, width, channels = problem.image_shape
        maps = 3 * 4 * height * width * problem.maps(spec)  # being written to the store
        images = (2 * problem.itemsize + 4) * height * width * channels
        staged = plan.chunk_images * (maps + images) + bank_bytes(problem, spec)
        if costs := SolverCosts.of(problem.architecture(spec), plan):
            solving = max(costs.task_bytes + costs.chunk_bytes, costs.solve_bytes)
            staged = max(staged + costs.chunk_bytes, solving)
        staged += fitted_view_bytes(problem, spec)
        return int(workers.resident + GPU_HOST_BYTES + WORKING_MEMORY_MARGIN * staged)
    threads = min(workers.threads, plan.accumulators)
    working = threads * chunk_bytes(problem, spec, plan)
    if costs := SolverCosts.of(problem.architecture(spec), plan):
        sums = max_resident_accumulators(plan, threads) * vector_accumulator_bytes(problem, spec)
        solving = threads * (costs.task_bytes + costs.chunk_bytes) + sums
        working = max(working + sums, solving, costs.solve_bytes)
    elif spec.head.fits_samples:
        working += sample_bytes(problem, spec) + pair_bytes(problem, spec, PAIR_COPIES)
    elif plan.tile_features:
        tile = min(plan.tile_features, problem.features(spec))
        tiles = TILE_COPIES * 8 * tile**2 + 4 * 4 * tile * plan.chunk_images
        sums = max_resident_accumulators(plan, threads) * vector_accumulator_bytes(problem, spec)
        working = max(working, workers.threads * tiles) + sums
    else:
        accumulator = 4 * problem.features(spec) ** 2 + vector_accumulator_bytes(problem, spec)
        working += max_resident_accumulators(plan, threads) * accumulator
    working += bank_bytes(problem, spec) + head_bytes(problem, spec)
    working += fitted_view_bytes(problem, spec)
    working = max(working, view_pass_bytes(problem, spec, plan, threads))
    return int(workers.resident + FIRST_PASS_BYTES + WORKING_MEMORY_MARGIN * working)


def device_memory(problem: Problem, spec: NetworkSpec, plan: Plan) -> int:
    """Return the bytes of its GPU that a worker uses, without the maps that are kept there."""
    height, width, _ = problem.image_shape
    architecture = problem.architecture(spec)
    features, pixels = architecture.features, 4 * height * width * architecture.pixel_channels
    per_image = GPU_MAP_COPIES * 4 * height * width * architecture.max_maps
    per_image += GPU_PIXEL_COPIES * pixels
    whole = 0
    if costs := SolverCosts.of(architecture, plan):
        per_image += GPU_FEATURE_COPIES * problem.feature_bytes(spec)
        slab = FEATURE_SLAB_COPIES * 4 * plan.chunk_images * features
        working = max(plan.chunk_images * per_image, costs.task_bytes + costs.chunk_bytes + slab)
    elif spec.head.fits_samples:
        per_image += GPU_FEATURE_COPIES * 4 * features
        working = plan.chunk_images * per_image
        # Each is allocated once and whole.
        single = problem.images >= MIN_SINGLE_FEATURES
        whole = sample_bytes(problem, spec)
        whole += pair_bytes(problem, spec, 1 if single else PAIR_COPIES)
        whole += diagonal_bytes(problem.images)
    else:
        per_image += GPU_FEATURE_COPIES * 4 * features
        if architecture.feature_dtype == np.float16:  # until they are folded in float32
            per_image += problem.feature_bytes(spec)
        working = plan.chunk_images * per_image
        # The factor of many features is in single precision, in a copy of the scatter.
        factor = 2 if features >= MIN_SINGLE_FEATURES else FACTOR_ACCUMULATORS
        working += max_resident_accumulators(plan, 1, factor) * 4 * features**2
        working += diagonal_bytes(features)
    working += max(
        patch_products_bytes(
            architecture.filter_size(layer),
            height,
            width,
            1 if architecture.patch_channels(layer) == 1 else architecture.input_channels(layer),
            plan.chunk_images,
        )
        for layer in architecture.bank_layers
    )
    working += 2 * vector_accumulator_bytes(problem, spec) + bank_bytes(problem, spec)
    working += extractor_bytes(problem, spec, plan.chunk_images) + head_bytes(problem, spec)
    slab_images = min(plan.chunk_images, max(1, GPU_SLAB_BYTES // architecture.image_bytes))
    working += each_bytes(problem, spec, slab_images)
    if architecture.feature_dtype != np.float32:  # heads get them in float32
        working += 4 * slab_images * features
    working += fitted_view_bytes(problem, spec)
    working = max(working, view_pass_bytes(problem, spec, plan, 1))
    working += copies_bytes(problem, plan)
    return int(GPU_CONTEXT_BYTES + GPU_MEMORY_MARGIN * working) + whole


def copies_bytes(problem: Problem, plan: Plan) -> int:
    """Return the bytes of its GPU that augmented copies of a chunk need at most."""
    if not problem.copies:
        return 0
    image = math.prod(problem.image_shape) * problem.itemsize
    making = copy_image_bytes(problem.image_shape, np.dtype(f"u{problem.itemsize}"))
    slab = min(max(COPY_SLAB_BYTES, making), plan.chunk_images * making)
    # First the originals, at most as many as rows, and the rows; then the rows and their copies.
    return 2 * plan.chunk_images * image + slab


def sample_bytes(problem: Problem, spec: NetworkSpec) -> int:
    """Return the bytes of the features of all images, for heads that compare images."""
    itemsize = np.dtype(spec.store_dtype).itemsize
    return problem.images * itemsize * problem.features(spec)


def pair_bytes(problem: Problem, spec: NetworkSpec, copies: int) -> int:
    """Return the bytes of the matrix of all pairs of images, in so many copies, and its solve."""
    columns = SAMPLE_COLUMN_COPIES * 8 * problem.architecture(spec).targets
    panel = 3 * 4 * PRODUCT_FEATURES  # of features whose products are summed
    return problem.images * (copies * 4 * problem.images + columns + panel)


def diagonal_bytes(side: int) -> int:
    """Return the bytes of blocks on the diagonal, and of inverses, that a GPU solves with."""
    blocks = math.ceil(side / GPU_PANEL_COLUMNS) if side >= MIN_SINGLE_FEATURES else 0
    return blocks * 4 * GPU_PANEL_COLUMNS * (GPU_PANEL_COLUMNS + SOLVED_ROWS)


def chunk_bytes(problem: Problem, spec: NetworkSpec, plan: Plan) -> int:
    """Return the bytes that one task uses for its current chunk."""
    height, width, channels = problem.image_shape
    n, architecture = plan.chunk_images, problem.architecture(spec)
    # As stored, as read and normalized, and those of the next chunk.
    pixels = 3 * problem.itemsize * channels + 4 * architecture.pixel_channels
    images = pixels * height * width
    # Of the previous layer: this chunk and the next. New ones: this chunk and the previous one.
    maps = 4 * 4 * height * width * architecture.max_maps
    # A slab has at least one image, whatever its size.
    slab = max(min(SLAB_BYTES, n * problem.map_bytes(spec)), problem.map_bytes(spec))
    augmenting = AUGMENT_BYTES if problem.copies else 0
    # With tiles or conjugate gradients, features are written while the next ones are computed.
    features = 4 * architecture.features * (FEATURE_COPIES + bool(plan.tile_features))
    if architecture.feature_dtype == np.float16:  # until they are folded in float32
        features += problem.feature_bytes(spec)
    if architecture.head.iterative_solver:
        features = problem.feature_bytes(spec) * (FEATURE_COPIES + 1)
    per_image = images + maps + features + 64 * problem.classes
    buffers = max(kernel_bytes(problem, spec, layer) for layer in architecture.bank_layers)
    slab_images = min(n, max(1, SLAB_BYTES // architecture.image_bytes))
    buffers += each_bytes(problem, spec, slab_images)
    extracting = extractor_bytes(problem, spec, slab_images)
    if architecture.feature_dtype != np.float32:
        extracting += 4 * slab_images * architecture.features  # as heads get them
    return n * per_image + SLAB_COPIES * slab + buffers + augmenting + extracting


def each_bytes(problem: Problem, spec: NetworkSpec, images: int) -> int:
    """Return the bytes that filters on each channel need to compute the maps of so many images."""
    is_each = any(part.channels == "each" for part in spec.bank)
    return EACH_COPIES * images * problem.map_bytes(spec) if is_each else 0


def extractor_bytes(problem: Problem, spec: NetworkSpec, images: int) -> int:
    """Return the bytes that feature extractors need for so many images, beyond their result.

    The features of several extractors are copied to one array.
    """
    (height, width, _), architecture = problem.image_shape, problem.architecture(spec)
    extractors = architecture.extractors
    joined = 4 * images * architecture.features if len(extractors) > 1 else 0
    return joined + max(
        extractor.workspace_bytes(images, height, width, architecture.tower_maps(layer))
        for extractor in extractors
        for layer in architecture.distinct_layers
    )


def fitted_view_bytes(problem: Problem, spec: NetworkSpec) -> int:
    """Return the bytes of what views learn from the images, which workers keep."""
    return sum(view.fitted_bytes(problem.image_shape) for view in spec.views)


def view_pass_bytes(problem: Problem, spec: NetworkSpec, plan: Plan, threads: int) -> int:
    """Return the bytes that the passes in which views learn use on so many threads."""
    views, shape = [view for view in spec.views if view.passes], problem.image_shape
    if not views:
        return 0
    copies = max(view.copies for view in views)
    images = plan.chunk_images * math.prod(shape) * (2 * problem.itemsize + 4 * copies)
    statistics = sum(view.statistics_bytes(shape) for view in views)
    sums = max_resident_accumulators(plan, threads) * statistics
    return threads * images + sums + sum(view.workspace_bytes(shape) for view in views)


def kernel_bytes(problem: Problem, spec: NetworkSpec, layer: int) -> int:
    """Return the bytes of the buffers of convolution and patch products, on the CPU."""
    (height, width, _), architecture = problem.image_shape, problem.architecture(spec)
    size, inputs = architecture.filter_size(layer), architecture.input_channels(layer)
    if architecture.patch_channels(layer) == 1:
        inputs = 1
    shape = height, width, inputs, size
    used = max(convolution_bytes(*shape, architecture.map_count(layer)), products_bytes(*shape))
    return max(MIN_KERNEL_BYTES, used)


def vector_accumulator_bytes(problem: Problem, spec: NetworkSpec) -> int:
    """Return the bytes of an accumulator without the scatter matrix."""
    architecture = problem.architecture(spec)
    head = architecture.head
    targets = 0 if head.fits_samples else architecture.targets
    vectors = targets + (2 if head.iterative_solver or head.fits_samples else 1)
    return 2 * 8 * architecture.features * vectors


def head_bytes(problem: Problem, spec: NetworkSpec) -> int:
    """Return the bytes that the fit of the head needs, beyond the accumulator and its factor."""
    architecture = problem.architecture(spec)
    return architecture.head.workspace_bytes(architecture.features, architecture.classes)


def accumulator_bytes(problem: Problem, spec: NetworkSpec, plan: Plan | None = None) -> int:
    """Return the bytes of an accumulator in memory.

    Without a plan, it is that of all images, with a scatter matrix that is not cut into tiles.
    """
    scatter = scatter_bytes(problem, spec, plan)
    if spec.head.fits_samples:
        scatter = sample_bytes(problem, spec) // (plan.accumulators if plan else 1)
    architecture = problem.architecture(spec)
    gathered = max(
        (
            sum(learner.statistics_bytes(group) for learner, group in architecture.groups(layer))
            for layer in architecture.bank_layers[1:]
        ),
        default=0,
    )
    return scatter + vector_accumulator_bytes(problem, spec) // 2 + gathered


def sent_bytes(problem: Problem, spec: NetworkSpec, plan: Plan) -> int:
    """Return the bytes of an accumulator as it is sent, with the triangle of a scatter matrix."""
    whole = accumulator_bytes(problem, spec, plan)
    return whole - scatter_bytes(problem, spec, plan) // 2


def scatter_bytes(problem: Problem, spec: NetworkSpec, plan: Plan | None = None) -> int:
    """Return the bytes of the scatter matrix of an accumulator, 0 if it has none."""
    if (plan and plan.tile_features) or spec.head.iterative_solver or spec.head.fits_samples:
        return 0
    return 4 * problem.features(spec) ** 2


def max_resident_accumulators(plan: Plan, threads: int, factor: int = FACTOR_ACCUMULATORS) -> int:
    """Return the largest number of accumulators in one worker.

    These are the ones being filled, those waiting for their partner in the tree, and two with
    their sum; or those that one and its factor take as much memory as.
    """
    if plan.accumulators == 1:
        return factor
    waiting = math.ceil(math.log2(max(plan.accumulators, 1))) + plan.split_every - 2
    limit = plan.accumulators + math.ceil(plan.accumulators / plan.split_every)
    return max(factor, min(threads + 1 + waiting, limit))


def bank_bytes(problem: Problem, spec: NetworkSpec) -> int:
    """Return the bytes that the filter learners need, of the first or of later layers."""
    architecture = problem.architecture(spec)
    return max(
        sum(learner.workspace_bytes(group) for learner, group in architecture.groups(layer))
        for layer in architecture.bank_layers
    )


def layer_bytes(problem: Problem, spec: NetworkSpec) -> int:
    """Return the bytes of the weights of a layer in the store."""
    architecture = problem.architecture(spec)
    if spec.head.fits_samples:  # weights and corrections of all images
        return 8 * (problem.images * problem.classes + architecture.features)
    return 4 * architecture.targets * architecture.features


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that are moved and stored, and the number of tasks.

    Attributes
    ----------
    read, written : int
        Bytes per layer that are read from and written to the store.
    network : int
        Bytes per layer that the reductions send between workers, if none joins or is lost.
    driver : int
        Bytes per layer that reach the driver.
    store : int
        Largest number of bytes in the store.
    tasks : int
        Tasks per layer.
    """

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
    features_in_memory: bool = False,
    stored: int = 2,
) -> Traffic:
    """Return the traffic of a layer and the size of the store.

    `stored` is the largest number of layers whose maps are in the store at the same time. If maps
    stay in memory, none are read, and only the layers that are stored write. Conjugate gradients
    read no features if these stay in memory.
    """
    height, width, _ = problem.image_shape
    n, features = problem.images, problem.features(spec)
    images = problem.image_bytes
    itemsize = np.dtype(spec.store_dtype).itemsize
    maps = n * (itemsize * height * width * problem.maps(spec) + 4 * problem.classes)
    read, written = images + maps, maps if stored else 0
    if in_memory:
        read = 0
    pass_tasks = plan.accumulators + count_merges(plan) + 1
    solve_tasks = work = checksums = 0
    network = (plan.accumulators - 1) * sent_bytes(problem, spec, plan)
    if costs := SolverCosts.of(problem.architecture(spec), plan):
        read, written, network = read + costs.read, written + costs.written, network + costs.network
        read += 0 if features_in_memory else costs.feature_reads
        solve_tasks, work, checksums = costs.tasks, costs.work, costs.driver
    elif plan.tile_features:
        side = min(plan.tile_features, features)
        blocks = math.ceil(features / side)
        tiles, tile = blocks * (blocks + 1) // 2, 8 * side**2
        written += 4 * n * features + 2 * tiles * tile
        factor_reads = sum(2 * j + 1 for j in range(blocks) for _ in range(j, blocks))
        read += (blocks + 1) * 4 * n * features + (tiles + factor_reads + 2 * tiles) * tile
        solve_tasks = 2 * tiles + 2
        work = 4 * n * features + 2 * tiles * tile
    return Traffic(
        read=read,
        written=written,
        network=network,
        driver=pass_driver_bytes(plan) + checksums + solve_tasks * DRIVER_BYTES_PER_TASK,
        store=images
        + stored * maps
        + work
        + spec.max_layers * layer_bytes(problem, spec)
        + fitted_view_bytes(problem, spec),
        tasks=pass_tasks + solve_tasks,
    )


def pass_driver_bytes(plan: Plan) -> int:
    """Return the bytes that the driver sends and receives in a pass over the images."""
    checksums = 2 * plan.chunks if plan.chunks <= MAX_RECORD_CHUNKS else 0
    return (
        DRIVER_BYTES_PER_PASS
        + min(plan.chunks, MAX_CHUNK_REPORTS) * DRIVER_BYTES_PER_REPORT
        + checksums * DRIVER_BYTES_PER_CHECKSUM
        + plan.accumulators * DRIVER_BYTES_PER_GROUP
    )
