"""Tasks of a layer whose head is solved by block coordinate descent over its features.

The pass over the images has written the features to the run's work area. After it, one task per
block of features factorizes the covariance of the block. Each step of the descent is a pass of its
own: its tasks add the change of the last step to the predictions of their group of images, and
multiply the features of the next block with them; then one task solves for the new weights of that
block. Predictions and weights have two versions, of which a step reads one and writes the other,
so that its tasks can be run again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import or_
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from rescnet_dist.kernels import (
    FeatureBlock,
    FeatureMoments,
    Standardizer,
    Whitening,
    descend_block,
    factor_block,
    record_columns,
)
from rescnet_dist.model import Tally, fit_bank, fit_head
from rescnet_dist.planning.blocks import SPAN_BYTES
from rescnet_dist.planning.plan import Group
from rescnet_dist.reduce import blas_threads
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import Checksums, checksum, read_block, read_chunks, write_block
from rescnet_dist.train import object_cache
from rescnet_dist.train.chunks import Chunk, Reader
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
from rescnet_dist.train.task_events import log_io, log_solving

COLUMNS_PATH = "work/columns"  # of the checksums of the right-hand sides, by block
MOMENT_DIMS: dict[str, tuple[str, ...]] = {
    "count": (),
    "mean": ("feature",),
    "squares": ("feature",),
    "cross": ("target", "feature"),
    "target_sums": ("target",),
}


# after the pass over the images -----------------------------------------------------------------


def finish_features(task: Task, merged: ChecksummedStatistics) -> tuple[Tally, Checksums]:
    """Fit the next layer's bank; store moments and right-hand sides for the descent.

    Return the tally of the layers before, and all checksums, those of the work area included.
    """
    run, state, statistics = task.run, load_state(task), merged.statistics
    log_solving(task, "grow")
    moments, architecture = statistics.features, state.architecture
    with blas_threads(state.plan.solve_threads):
        if statistics.inputs:
            store_bank(task, fit_bank(statistics.inputs, architecture, task.layer + 1))
        standardizer = _standardize(moments, state)
        head, classes = architecture.head, architecture.classes
        columns = record_columns(
            lambda whitening: head.fit(moments, classes, whitening), moments, standardizer
        )
    values = {
        name: (dims, np.asarray(getattr(moments, name))) for name, dims in MOMENT_DIMS.items()
    }
    run.location.write_small("work/moments", values)
    target, checksums = run.work("columns", write=True), merged.checksums
    for block in state.feature_blocks(task.layer):
        write_block(target, (block.start, 0), columns[block])
        checksums = checksums.plus({COLUMNS_PATH: columns[block]})
    return statistics.tally, checksums


def _standardize(moments: FeatureMoments, state: RunState) -> Standardizer:
    """Return the standardization of features with these moments."""
    assert moments.squares is not None
    ridge = state.spec.head.ridge
    return Standardizer.of(moments.squares, moments.mean, moments.count, ridge)


def _read_moments(task: Task) -> FeatureMoments:
    """Read the moments of the features of the task's layer."""
    found = task.run.location.read_small("work/moments", tuple(MOMENT_DIMS))
    count = float(found.pop("count"))
    return FeatureMoments(count, scatter=None, **found)


def _load_standardizer(task: Task) -> tuple[Array, Standardizer]:
    """Return the means (D,) of the features and their standardization."""

    def load() -> tuple[Array, Standardizer]:
        moments = _read_moments(task)
        return moments.mean, _standardize(moments, load_state(task))

    return object_cache.get(task, "standardizer", load, task.layer)


# reading features -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive chunks whose features are read together.

    weights (n,) says as how many training images each row counts; None if each counts once.
    """

    start: int
    stop: int
    weights: Array | None

    @classmethod
    def of(cls, chunks: list[Chunk]) -> Span:
        """Return the span of some chunks."""
        train = np.concatenate([chunk.train for chunk in chunks])
        weights = None if train.all() else train.astype(np.float64)
        if chunks[0].weights is not None:
            weights = train * np.concatenate([chunk.weights for chunk in chunks])
        return cls(chunks[0].start, chunks[-1].stop, weights)


def iter_spans(chunks: Iterable[Chunk], columns: int) -> Iterator[Span]:
    """Yield spans of chunks, each of as many rows of so many features as fit `SPAN_BYTES`."""
    pending: list[Chunk] = []
    for chunk in chunks:
        if pending and 4 * columns * (chunk.stop - pending[0].start) > SPAN_BYTES:
            yield Span.of(pending)
            pending = []
        pending.append(chunk)
    if pending:
        yield Span.of(pending)


@dataclass(frozen=True, slots=True)
class FeatureReader:
    """Reads one block of the features in the work area; checksums are those of a group's chunks."""

    array: Any
    group: Group
    columns: slice
    checksums: tuple[int, ...]
    meter: TaskMeter

    def read(self, span: Span) -> Array:
        """Return the features (n, b) of a span."""
        rows, start = self.group.chunk_images, self.group.start
        numbers = slice((span.start - start) // rows, -(-(span.stop - start) // rows))
        block = slice(span.start, span.stop), self.columns
        values = read_chunks(self.array, block, rows, self.checksums[numbers])
        self.meter.read += values.nbytes
        return values


# the factors of the blocks ----------------------------------------------------------------------


def factorize_block(task: Task, block: int, checksums: tuple[int, ...]) -> dict[int, int]:
    """Factorize the covariance of a block of features, and store the factor.

    checksums are those of the features of the block. Return the checksum of the factor by block.
    """
    run, state = task.run, load_state(task)
    blocks, backend = state.feature_blocks(task.layer), state.backend
    columns = blocks[block]
    all_chunks = Group(0, 0, state.plan.images, state.plan.chunk_images)
    reader = Reader.of(task, all_chunks, state, 0)
    meter, width = reader.meter, columns.stop - columns.start
    features = FeatureReader(run.work("features"), all_chunks, columns, checksums, meter)
    moments = FeatureMoments.empty(width, 0, xp=backend.xp)
    with blas_threads(1), backend.working():
        spans = iter_spans(reader.read_chunks(), width)
        for span, get_values in read_ahead(spans, features.read):
            values, weights = get_values(), span.weights
            if weights is not None:
                values, weights = values[weights > 0], weights[weights > 0]
            on_device = backend.put(values)
            moments = moments.fold(on_device, backend.xp.zeros((len(values), 0)), weights)
        factor = backend.get(factor_block(moments, _load_standardizer(task)[1], columns))
    factor = np.ascontiguousarray(np.tril(factor))
    padded = np.pad(factor, ((0, 0), (0, blocks[0].stop - width)))
    write_block(run.work("factor", write=True), (columns.start, 0), padded)
    meter.written += padded.nbytes
    log_io(task, "factorize", meter)
    return {block: checksum(padded)}


def _return_checksums(_task: Task, checksums: dict[int, int]) -> dict[int, int]:
    """Return the checksums of all factors unchanged."""
    return checksums


# the steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the descent: a block of features, in a sweep over all of them, both from 0."""

    sweep: int
    block: int
    blocks: int

    @classmethod
    def at(cls, number: int, blocks: int) -> Step:
        """Return the step of a number, from 0."""
        return cls(*divmod(number, blocks), blocks)

    @property
    def number(self) -> int:
        """The number of the step, from 0."""
        return self.sweep * self.blocks + self.block

    @property
    def previous(self) -> Step:
        """The step before."""
        return Step.at(self.number - 1, self.blocks)


@dataclass(frozen=True, slots=True)
class StepPart:
    """What a group's task of a step expects in the work area: checksums; None is for zeros.

    `features` and `changed_features` are those of the step's block and of the previous step's
    block, by chunk; `weights` those of the previous step's block after and before that step.
    """

    step: Step
    features: tuple[int, ...]
    changed_features: tuple[int, ...]
    predictions: int | None
    weights: tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Products:
    """Products (b, K) of features and predictions, and the checksums of these, by group."""

    products: Array
    predictions: tuple[int, ...] = ()

    def merge(self, later: Products) -> Products:
        """Return the products of these groups and of those that follow them."""
        return Products(self.products + later.products, self.predictions + later.predictions)


sizeof.register(Products, size_of_fields)


def multiply_group(task: Task, group: Group, part: StepPart | None = None) -> Products:
    """Update the predictions of a group by the last step; multiply the next features with them.

    The predictions of the first step are zeros, and so are its products: it has no parts.
    """
    run, state = task.run, load_state(task)
    blocks, backend, targets = (
        state.feature_blocks(task.layer),
        state.backend,
        state.architecture.targets,
    )
    if part is None:
        return Products(np.zeros((blocks[0].stop, targets)))
    step, last = part.step, part.step.previous
    columns, changed = blocks[step.block], blocks[last.block]
    reader = Reader.of(task, group, state, 0)
    meter, array = reader.meter, run.work("features")
    factor = FeatureReader(array, group, columns, part.features, meter)
    changed_factor = FeatureReader(array, group, changed, part.changed_features, meter)

    def read(span: Span) -> tuple[Array, Array]:
        values = factor.read(span)
        return values, values if changed == columns else changed_factor.read(span)

    mean, standardizer = _load_standardizer(task)
    own, other = (FeatureBlock(mean[c], standardizer.scale[c]) for c in (columns, changed))
    version = last.number % 2
    rows = slice(group.start, group.stop)
    predictions = np.zeros((group.stop - group.start, targets), np.float32)
    if part.predictions is not None:
        place = slice(version, version + 1), rows
        predictions = read_block(run.work("predictions"), place, part.predictions)[0]
        meter.read += predictions.nbytes
    change = _read_change(task, last, changed, part.weights, meter)
    with blas_threads(1), backend.working():
        predictions = backend.put(predictions)
        products = backend.xp.zeros((columns.stop - columns.start, targets))
        width = max(columns.stop - columns.start, changed.stop - changed.start)
        for span, get_values in read_ahead(iter_spans(reader.read_chunks(), width), read):
            features, changed_features = (backend.put(values) for values in get_values())
            inside = slice(span.start - group.start, span.stop - group.start)
            predictions[inside] += other.multiply(changed_features, change)
            products += own.multiply_transposed(features, predictions[inside], span.weights)
        stored = backend.get(predictions)[None]
        result = backend.get(products)
    write_block(run.work("predictions", write=True), (step.number % 2, group.start, 0), stored)
    meter.written += stored.nbytes
    log_io(task, "descend", meter)
    return Products(result, (checksum(stored),))


def _read_change(
    task: Task, step: Step, columns: slice, expected: tuple[int, int | None], meter: TaskMeter
) -> Array:
    """Return the change (b, K) of the weights of a block by a step."""
    new, old = (
        _read_weights(task, sweep, columns, value, meter)
        for sweep, value in zip((step.sweep, step.sweep - 1), expected, strict=True)
    )
    return new - old


def _read_weights(
    task: Task, sweep: int, columns: slice, expected: int | None, meter: TaskMeter
) -> Array:
    """Read the weights (b, K) of a block after a sweep; zeros if nothing is expected."""
    if expected is None:
        return np.zeros((columns.stop - columns.start, load_state(task).architecture.targets))
    place = slice(sweep % 2, sweep % 2 + 1), columns
    values = read_block(task.run.work("solution"), place, expected)[0]
    meter.read += values.nbytes
    return values


@dataclass(frozen=True, slots=True)
class StepResult:
    """Checksums of predictions, by group, and weights that a step has stored.

    `change` and `norm` are the sums of squares of the change of the weights, and of the new ones.
    """

    predictions: tuple[int, ...]
    weights: int
    change: float
    norm: float


@dataclass(frozen=True, slots=True)
class StepSolve:
    """The last task of a step; checksums of columns, factor and weights of its block."""

    step: Step
    columns: int
    factor: int
    weights: int | None

    def __call__(self, task: Task, merged: Products) -> StepResult:
        """Solve for the new weights of the block, and store them."""
        run, state, step, meter = task.run, load_state(task), self.step, TaskMeter()
        block, backend = state.feature_blocks(task.layer)[step.block], state.backend
        columns = read_block(run.work("columns"), (block,), self.columns)
        factor = read_block(run.work("factor"), (block,), self.factor)
        meter.read += columns.nbytes + factor.nbytes
        old = _read_weights(task, step.sweep - 1, block, self.weights, meter)
        width, products = block.stop - block.start, merged.products
        with blas_threads(state.plan.solve_threads), backend.working():
            lower = backend.xp.asfortranarray(backend.put(factor[:, :width]))
            right, product, start = (backend.put(values) for values in (columns, products, old))
            standardizer = _load_standardizer(task)[1]
            new = backend.get(descend_block(lower, right, product, start, standardizer))
        write_block(run.work("solution", write=True), (step.sweep % 2, block.start, 0), new[None])
        meter.written += new.nbytes
        log_io(task, "descend", meter)
        change, norm = (float((values**2).sum()) for values in (new - old, new))
        return StepResult(merged.predictions, checksum(new), change, norm)


# the head ---------------------------------------------------------------------------------------


def fit_solution(task: Task, sweep: int, checksums: tuple[int, ...]) -> None:
    """Fit and store the head with the weights after a sweep, whose checksums are by block."""
    state, meter = load_state(task), TaskMeter()
    blocks, moments = state.feature_blocks(task.layer), _read_moments(task)
    pairs = zip(blocks, checksums, strict=True)
    solution = np.concatenate([_read_weights(task, sweep, *pair, meter) for pair in pairs])
    scale = _load_standardizer(task)[1].scale
    whitening = Whitening(moments.mean, scale, lambda _columns: solution)
    rate = state.spec.learning_rate_at(task.layer)
    with blas_threads(state.plan.solve_threads):
        store_head(task, fit_head(moments, state.architecture, rate, whitening))
    log_io(task, "fit", meter)


def _return_nothing(_task: Task, _result: None) -> None:
    """Do nothing: the head is stored."""


GROW_FOR_BLOCKS = Pass("grow", grow_group, ChecksummedStatistics.merge, finish_features)
FACTORIZE = Pass("factorize", factorize_block, or_, _return_checksums)
FIT = Pass("fit", fit_solution, or_, _return_nothing)


def make_step_pass(solve: StepSolve) -> Pass:
    """Return the pass of a step."""
    return Pass("descend", multiply_group, Products.merge, solve)
