"""Tasks of a layer whose head is solved by conjugate gradients over its features.

The pass over the images has written the features to the run's work area. After it, each iteration
is a pass over the features: its tasks multiply those of their group of images with the directions
of the iteration, and the last task computes the next weights and directions from the sum of the
products. There are two versions of these, of which an iteration reads one and writes the other, so
that its tasks can be run again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from rescnet_dist.errors import CorruptDataError
from rescnet_dist.kernels import (
    CovarianceProduct,
    FeatureMoments,
    Iterate,
    Standardizer,
    Whitening,
    record_columns,
)
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.model import Tally, check_features, fit_bank, fit_head
from rescnet_dist.planning.plan import Group
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import Checksums, checksum, read_block, write_block
from rescnet_dist.train import object_cache
from rescnet_dist.train.chunk_cache import ChunkCache
from rescnet_dist.train.chunks import Chunk, Reader, feature_path
from rescnet_dist.train.grown import WORK_PREFIX
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.object_cache import load_state
from rescnet_dist.train.overlap import read_ahead
from rescnet_dist.train.passes import (
    ChecksummedStatistics,
    Pass,
    grow_group,
    size_of_fields,
    store_bank,
    store_head,
)
from rescnet_dist.train.task import Array, Task
from rescnet_dist.train.task_events import log_io, log_solving, reports_retries

ITERATION = "iterate"  # name of the pass
MOMENT_DIMS: dict[str, tuple[str, ...]] = {
    "count": (),
    "mean": ("feature",),
    "squares": ("feature",),
    "cross": ("target", "feature"),
    "target_sums": ("target",),
}


# after the pass over the images -----------------------------------------------------------------


@reports_retries
def finish_features(task: Task, merged: ChecksummedStatistics) -> tuple[Tally, Checksums]:
    """Fit the next layer's bank; store the moments of the features.

    Return the tally of the layers before, the checksums to commit, and those of the work area.
    """
    state, statistics = load_state(task), merged.statistics
    log_solving(task, "grow")
    with blas_threads(state.plan.solve_threads):
        if statistics.inputs:
            store_bank(task, fit_bank(statistics.inputs, state.architecture, task.layer + 1))
    moments = statistics.features
    check_features(moments, state.architecture)
    values = {
        name: (dims, np.asarray(getattr(moments, name))) for name, dims in MOMENT_DIMS.items()
    }
    task.run.location.write_small("work/moments", values)
    work, lasting = merged.checksums.split(WORK_PREFIX)
    return statistics.tally, task.run.store_checksums(task.layer, lasting).merge(work)


class CorruptWorkError(CorruptDataError):
    """What is stored in the work area of a run is incomplete, altered or stale.

    The features of the layer have to be computed again; nothing else of the run is damaged.
    """


@contextmanager
def _reading_work() -> Iterator[None]:
    """Raise CorruptWorkError if what the body reads of the work area is damaged."""
    try:
        yield
    except CorruptDataError as error:
        raise CorruptWorkError(str(error)) from None


@_reading_work()
def _read_moments(task: Task) -> FeatureMoments:
    """Read the moments of the features of the task's layer."""
    found = task.run.location.read_small("work/moments", tuple(MOMENT_DIMS))
    count = float(found.pop("count"))
    return FeatureMoments(count, scatter=None, **found)


def _standardize(moments: FeatureMoments, state: RunState) -> Standardizer:
    """Return the standardization of features with these moments."""
    assert moments.squares is not None
    ridge = state.spec.head.ridge
    return Standardizer.of(moments.squares, moments.mean, moments.count, ridge)


def _load_standardizer(task: Task) -> tuple[Array, Standardizer]:
    """Return the means (D,) of the features and their standardization."""

    def load() -> tuple[Array, Standardizer]:
        moments = _read_moments(task)
        return moments.mean, _standardize(moments, load_state(task))

    return object_cache.get(task, "standardizer", load, task.layer)


# the state between two iterations ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredIterate:
    """What is stored after an iteration, whose number is 0 for the start: checksums of arrays.

    `rank` is the number of directions, and `error` a bound of the error of the weights.
    """

    number: int
    rank: int
    error: float
    arrays: Mapping[str, int]

    @_reading_work()
    def read(self, task: Task, name: str, meter: TaskMeter) -> Array:
        """Read one array of the iterate; those of directions are stored with columns of zeros."""
        array = task.run.work(name)
        version = self.number % 2
        values = read_block(array, (slice(version, version + 1),), self.arrays[name])[0]
        meter.read += values.nbytes
        return {
            "solution": values,
            "factor": values[: self.rank],
            "basis": values[:, : self.rank],
            "directions": values[:, : self.rank],
        }[name]


ITERATE_ARRAYS = ("solution", "basis", "directions", "factor")


def _read_iterate(task: Task, stored: StoredIterate, meter: TaskMeter) -> Iterate:
    """Read all arrays of an iterate."""
    return Iterate(**{name: stored.read(task, name, meter) for name in ITERATE_ARRAYS})


def _write_iterate(task: Task, number: int, iterate: Iterate, meter: TaskMeter) -> StoredIterate:
    """Store an iterate, in place of the one before the last."""
    checksums = {}
    for name in ITERATE_ARRAYS:
        array, values = task.run.work(name, write=True), getattr(iterate, name)
        missing = np.subtract(array.shape[1:], values.shape)
        padded = np.ascontiguousarray(np.pad(values, [(0, count) for count in missing]))[None]
        write_block(array, (number % 2, 0, 0), padded)
        meter.written += padded.nbytes
        checksums[name] = checksum(padded)
    error = iterate.error_bound(_load_standardizer(task)[1])
    return StoredIterate(number, len(iterate.factor), error, checksums)


@reports_retries
def start_iterations(task: Task) -> StoredIterate:
    """Find the right-hand sides of the head, and store the state before the first iteration."""
    state, meter, moments = load_state(task), TaskMeter(), _read_moments(task)
    head, classes = state.architecture.head, state.architecture.classes
    with blas_threads(state.plan.solve_threads):
        columns = record_columns(
            lambda whitening: head.fit(moments, classes, whitening),
            moments,
            _load_standardizer(task)[1],
        )
        stored = _write_iterate(task, 0, Iterate.first(columns), meter)
    log_io(task, "start", meter)
    return stored


# an iteration -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeatureReader:
    """Reads the features in the work area; checksums are those of all chunks."""

    array: Any
    checksums: Array
    meter: TaskMeter

    @_reading_work()
    def read(self, chunk: Chunk) -> Array:
        """Return the features (n, D) of a chunk."""
        expected = int(self.checksums[chunk.start // self.array.chunks[0]])
        values = read_block(self.array, (slice(chunk.start, chunk.stop),), expected)
        self.meter.read += values.nbytes
        return values


def _load_checksums(task: Task, chunks: int) -> Array:
    """Return the checksums (chunks,) of the features of the task's layer.

    They are in the record of the pass over the images, which each worker reads once: an iteration
    would send as many bytes through the driver as there are chunks.
    """

    @_reading_work()
    def load() -> Array:
        record = task.run.read_work_record("grown")
        found = []
        if record and record["layer"] == task.layer:
            found = record["work_checksums"].get(feature_path(0), [])
        if len(found) != chunks:
            raise CorruptDataError(
                f"work/grown.json of {task.run} has {len(found)} checksums of the features of "
                f"layer {task.layer}, not {chunks}."
            )
        return np.array(found, np.uint32)

    return object_cache.get(task, "feature checksums", load, task.layer)


@dataclass(frozen=True, slots=True)
class Products:
    """Products (D, r) of the covariance of features and directions."""

    products: Array

    def merge(self, later: Products) -> Products:
        """Return the products of both sets of images."""
        return Products(self.products + later.products)


sizeof.register(Products, size_of_fields)


@reports_retries
def multiply_group(
    task: Task,
    group: Group,
    stored: StoredIterate,
    cache: ChunkCache | None = None,
) -> Products:
    """Multiply the features of a group of chunks, and then their transpose, with the directions."""
    state = load_state(task)
    reader, backend = Reader.of(task, group, state, 0), state.backend
    meter, cache = reader.meter, cache or ChunkCache()
    with _reading_work():
        array = task.run.work("features")
    feature_reader = FeatureReader(array, _load_checksums(task, state.plan.chunks), meter)

    def get_features(chunk: Chunk) -> Array:
        features = cache.get_features(chunk.start, task.layer)
        if features is None:
            features = backend.put(feature_reader.read(chunk))
            if task.cache_features:
                cache.put_features(chunk.start, task.layer, features, backend)
        return features

    directions = stored.read(task, "directions", meter)
    with blas_threads(1), backend.working():
        product = CovarianceProduct.empty(
            directions, *_load_standardizer(task), array.dtype, backend.xp
        )
        for chunk, get_value in read_ahead(reader.read_chunks(), get_features):
            product.add(get_value(), chunk_weights(chunk))
        result = backend.get(product.value())
    log_io(task, ITERATION, meter)
    return Products(result)


def chunk_weights(chunk: Chunk) -> Array | None:
    """Return as how many training images each row (n,) counts; None if each counts once."""
    if chunk.weights is not None:
        return chunk.train * chunk.weights
    return None if chunk.train.all() else chunk.train.astype(np.float64)


@dataclass(frozen=True, slots=True)
class FinishIteration:
    """The last task of an iteration, which has the state before it."""

    stored: StoredIterate

    def __call__(self, task: Task, merged: Products) -> StoredIterate:
        """Compute and store the state after the iteration."""
        return finish_iteration(task, merged, self.stored)


@reports_retries
def finish_iteration(task: Task, merged: Products, stored: StoredIterate) -> StoredIterate:
    """Compute and store the state after the iteration that begins with a stored one."""
    meter, state = TaskMeter(), load_state(task)
    before = _read_iterate(task, stored, meter)
    with blas_threads(state.plan.solve_threads):
        after = before.step(merged.products, _load_standardizer(task)[1])
    after_stored = _write_iterate(task, stored.number + 1, after, meter)
    log_io(task, ITERATION, meter)
    return after_stored


# the head ---------------------------------------------------------------------------------------


@reports_retries
def fit_solution(task: Task, stored: StoredIterate) -> None:
    """Fit and store the head with the weights of an iterate."""
    state, meter, moments = load_state(task), TaskMeter(), _read_moments(task)
    solution = stored.read(task, "solution", meter)
    scale = _load_standardizer(task)[1].scale
    whitening = Whitening(moments.mean, scale, lambda _columns: solution)
    rate = state.spec.learning_rate_at(task.layer)
    with blas_threads(state.plan.solve_threads):
        store_head(task, fit_head(moments, state.architecture, rate, whitening))
    log_io(task, "fit", meter)


def _keep_first(first: Any, _second: Any) -> Any:
    """Return the first of two results; passes of one task never merge."""
    return first


def _return_result(_task: Task, result: Any) -> Any:
    """Return the result of a pass of one task."""
    return result


GROW_FOR_CG = Pass("grow", grow_group, ChecksummedStatistics.merge, finish_features)
START = Pass("start", start_iterations, _keep_first, _return_result)
FIT = Pass("fit", fit_solution, _keep_first, _return_result)


def make_iteration_pass(stored: StoredIterate) -> Pass:
    """Return the pass of the iteration after the one that has stored an iterate."""
    return Pass(ITERATION, multiply_group, Products.merge, FinishIteration(stored))
