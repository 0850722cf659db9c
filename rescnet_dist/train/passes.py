"""The passes over the data as tasks: read, compute, write and fold chunks; then merge and solve.

Each function here runs on a worker. It gets the run's URL and small numbers, reads everything else
from the run store, and can be run again at any time with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from operator import add
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from rescnet_dist.data import check_finite
from rescnet_dist.kernels import (
    FeatureMoments,
    LayerInput,
    to_host,
)
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.model import (
    Bank,
    BankStatistics,
    FittedHead,
    GrowingLayer,
    LayerStatistics,
    Observation,
    State,
    Tally,
    TrainingRows,
    advance,
    fit_bank,
    fit_first_bank,
    fit_head,
    fit_image_scale,
    raw_pixels,
)
from rescnet_dist.model.view import PixelRange
from rescnet_dist.planning.plan import Group
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import (
    Checksums,
    read_bank,
    read_head,
    write_bank,
    write_head,
    write_image_scale,
)
from rescnet_dist.train import object_cache
from rescnet_dist.train.chunk_cache import EMPTY, ChunkCache, ChunkState
from rescnet_dist.train.chunks import (
    Chunk,
    FeatureWriter,
    Reader,
    Saver,
    chunk_error_context,
    unsaved_scores_path,
)
from rescnet_dist.train.object_cache import load_image_scale, load_state, load_views
from rescnet_dist.train.overlap import read_ahead, write_behind
from rescnet_dist.train.task import Array, Task
from rescnet_dist.train.task_events import (
    log_chunk_done,
    log_chunk_started,
    log_solving,
    log_task_done,
    reports_retries,
)

# counting ---------------------------------------------------------------------------------------


@reports_retries
def count_group(task: Task, group: Group, _cache: ChunkCache | None = None) -> list[Array]:
    """Count the training rows of each class (C,) in a group of chunks; return a list of one.

    Rows are repeated in proportion to their weights, if any.
    """
    state = load_state(task)
    reader, counts = Reader(task, group, state, 0), np.zeros(state.classes, np.int64)
    for chunk in reader.chunks():
        counts += chunk.rows.count_classes(state.classes)
    return [counts]


def stack_counts(_task: Task, counts: list[Array]) -> Array:
    """Return the counts of all groups (G, C)."""
    return np.stack(counts)


# the survey -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChecksummedStatistics:
    """Statistics of consecutive chunks, and the checksums of what was read or written of them."""

    statistics: Any
    checksums: Checksums

    def merge(self, later: ChecksummedStatistics) -> ChecksummedStatistics:
        """Return the statistics and checksums of these chunks and of those that follow them."""
        # Merges are bound by memory. Threads of BLAS would wait actively after each of them.
        with blas_threads(1):
            statistics = self.statistics.merge(later.statistics)
        return ChecksummedStatistics(statistics, self.checksums.merge(later.checksums))


@dataclass(frozen=True, slots=True)
class SurveyStatistics:
    """Statistics of the pixels that the first layer sees, and the extremes of the images."""

    inputs: BankStatistics
    extremes: PixelRange

    def merge(self, other: SurveyStatistics) -> SurveyStatistics:
        """Return the statistics of both sets of images."""
        return SurveyStatistics(
            self.inputs.merge(other.inputs), self.extremes.merge(other.extremes)
        )


@reports_retries
def survey_group(
    task: Task, group: Group, cache: ChunkCache | None = None
) -> ChecksummedStatistics:
    """Compute the statistics of the raw images of a group, for the first layer's filters.

    The checksums are those of the images, which all later passes must find unchanged.
    """
    state = load_state(task)
    architecture, images = state.architecture, task.run.images()
    statistics, checksums = BankStatistics.empty(architecture, 1, state.backend.xp), Checksums()
    extremes, views = PixelRange.empty(state.image_shape[2]), load_views(task)
    reader = Reader(task, group, state, 0, cache=cache or ChunkCache())  # nothing is committed yet
    with blas_threads(1), state.backend.working():
        for chunk in reader.chunks():
            with chunk_error_context(group, chunk):
                with reader.meter.timing("read"):
                    raw, on_device = reader.read_both(images, chunk)
                    reader.cache_images(chunk, on_device)
                with reader.meter.timing("compute"):
                    check_finite(raw, chunk.rows.image)  # copied images were checked before
                    observed = Observation(
                        LayerInput.of(
                            raw_pixels(on_device, architecture, views), None, chunk.weights
                        ),
                        chunk.labels,
                        chunk.train,
                        chunk.class_offsets,
                        task.counts,
                        chunk.repeats,
                        filter_images=architecture.filter_images,
                    )
                    statistics = statistics.merge(BankStatistics.of(observed, architecture, 1))
                    extremes = extremes.merge(PixelRange.of(raw[chunk.train]))
                    checksums = checksums.plus({"data/images": raw})
            log_chunk_done(task, "survey", chunk.start, chunk.stop)
        with reader.meter.timing("compute"):
            statistics = to_host(statistics)
    log_task_done(task, "survey", reader.meter)
    return ChecksummedStatistics(SurveyStatistics(statistics, extremes), checksums)


@reports_retries
def finish_survey(task: Task, merged: ChecksummedStatistics) -> Checksums:
    """Fit and store the image normalization and the first bank; return checksums to commit."""
    state, statistics = load_state(task), merged.statistics
    log_solving(task, "survey")
    with blas_threads(state.plan.solve_threads):
        scale = fit_image_scale(statistics.extremes, state.architecture, load_views(task))
        bank = fit_first_bank(statistics.inputs, scale, state.architecture)
    write_image_scale(task.run.location, scale)
    object_cache.put(task, "image scale", scale)
    store_bank(task, bank)
    return task.run.store_checksums(task.layer, merged.checksums)


# growing a layer --------------------------------------------------------------------------------


@reports_retries
def grow_group(task: Task, group: Group, cache: ChunkCache | None = None) -> ChecksummedStatistics:
    """Compute scores, maps and statistics of a layer for a group of chunks, in one sweep.

    If the scatter of the features is too large, they are written to the work area instead.
    """
    run, layer, state = task.run, task.layer, load_state(task)
    growing = _load_growing_layer(task, state)
    reader = Reader.of(task, group, state, layer - 1, cache)
    images = object_cache.get(task, "images", run.images)
    backend, meter = state.backend, reader.meter
    saver = Saver.of(task, state) if task.save_maps else None
    feature_writer = None
    if state.writes_features and state.architecture.has_head(layer):
        feature_writer = FeatureWriter.of(run, state, layer)
    statistics = growing.empty(scatter=feature_writer is None, xp=backend.xp)
    checksums = Checksums()

    def read(chunk: Chunk) -> tuple[Array, ChunkState]:
        pixels = reader.get_images(images, chunk)
        return pixels, reader.read_state(images, chunk) if layer > 1 else EMPTY

    def write(chunk: Chunk, new: ChunkState, features: Array | None) -> Checksums:
        with chunk_error_context(group, chunk):
            if saver:
                written = saver.save(chunk, new, meter)
            else:
                written = Checksums().plus({unsaved_scores_path(layer): backend.get(new.scores)})
            if feature_writer and features is not None:
                written = written.merge(feature_writer.write(chunk.start, features))
                meter.written += features.nbytes
        log_chunk_done(task, "grow", chunk.start, chunk.stop)
        return written

    with blas_threads(1), backend.working(), write_behind() as writer:
        for chunk, get_value in read_ahead(reader.chunks(), read):
            log_chunk_started(task, "grow", chunk.start)
            with chunk_error_context(group, chunk):
                with meter.timing("read"):
                    pixels, old = get_value()
                with meter.timing("compute"):
                    grown = growing.step(
                        pixels,
                        old.maps,
                        old.scores,
                        chunk.labels,
                        chunk.train,
                        chunk.class_offsets,
                        old_features=old.features,
                        weights=chunk.weights,
                        repeats=chunk.repeats,
                        numbers=chunk.rows.image,
                        first_row=chunk.start,
                    )
                    del pixels, old
                    statistics = statistics.fold(grown)
            new = ChunkState(layer, grown.maps, grown.scores, None)
            reader.cache_state(chunk, replace(new, features=grown.features))
            features = grown.features if feature_writer else None
            if not saver:
                new = replace(new, maps=None)  # the last reference, if the cache has a copy
            pending_write = partial(write, chunk, new, features)
            del grown, features, new  # the pending write holds the only references
            with meter.timing("write"):
                checksums = checksums.merge(writer.put(pending_write) or Checksums())
            del pending_write
        with meter.timing("compute"):
            statistics = statistics.copy_small_to_host()
            if feature_writer:
                statistics = to_host(statistics)  # nothing in it is large
        with meter.timing("write"):
            checksums = checksums.merge(writer.wait() or Checksums())
    log_task_done(task, "grow", meter)
    return ChecksummedStatistics(statistics, checksums)


def _load_growing_layer(task: Task, state: RunState) -> GrowingLayer:
    """Read the layer being grown from the run store."""
    location, layer = task.run.location, task.layer
    return GrowingLayer(
        architecture=state.architecture,
        number=layer,
        image_scale=load_image_scale(task),
        bank=object_cache.get(task, "bank", lambda: read_bank(location, layer), layer),
        previous=_load_head(task, state, layer - 1) if layer > state.spec.first_head else None,
        class_counts=task.counts,
    )


def _load_head(task: Task, state: RunState, layer: int) -> FittedHead:
    """Read the head of a layer, unless this worker has it cached."""
    dims = state.spec.head.arrays
    return object_cache.get(task, "head", lambda: read_head(task.run.location, layer, dims), layer)


@reports_retries
def finish_layer(task: Task, merged: ChecksummedStatistics) -> tuple[Tally, Checksums]:
    """Fit and store the layer's head and the next layer's bank.

    Return the tally of the layers before it and the checksums to commit. The last layer fits the
    next bank too, as the run may be resumed with more layers, unless only the last has a head.
    """
    state, statistics = load_state(task), merged.statistics
    architecture, rate = state.architecture, state.spec.learning_rate_at(task.layer)
    log_solving(task, "grow")

    def fit_next_bank() -> None:
        if statistics.inputs:
            store_bank(task, fit_bank(statistics.inputs, architecture, task.layer + 1))

    with (
        blas_threads(state.plan.solve_threads),
        state.backend.working(),
        write_behind() as background,
    ):
        # A GPU leaves the processor idle. On a processor the two fits would compete for the cores.
        if state.backend.on_gpu:
            background.put(fit_next_bank)
        head = fit_head(statistics.features, architecture, rate) if statistics.features else None
        if not state.backend.on_gpu:
            fit_next_bank()
        background.wait()
    if head:
        store_head(task, head)
    return statistics.tally, task.run.store_checksums(task.layer, merged.checksums)


def store_head(task: Task, head: FittedHead) -> None:
    """Store and cache the head of the task's layer."""
    layer = task.layer
    write_head(task.run.location, layer, head, load_state(task).spec.head.arrays)
    object_cache.put(task, "head", head, layer)


def store_bank(task: Task, bank: Bank) -> None:
    """Store and cache the filter bank of the layer after the task's layer."""
    layer = task.layer + 1
    write_bank(task.run.location, layer, bank)
    object_cache.put(task, "bank", bank, layer)


# scoring the last layer -------------------------------------------------------------------------


@reports_retries
def score_group(task: Task, group: Group, cache: ChunkCache | None = None) -> Tally:
    """Tally the errors of the network with `task.layer` layers on a group of chunks."""
    run, layer, state = task.run, task.layer, load_state(task)
    architecture, head = state.architecture, _load_head(task, state, layer)
    reader, tally = Reader.of(task, group, state, layer, cache), Tally.empty(state.backend.xp)
    read_state = partial(reader.read_state, object_cache.get(task, "images", run.images))
    with blas_threads(1), state.backend.working():
        for chunk, get_value in read_ahead(reader.chunks(), read_state):
            with chunk_error_context(group, chunk):
                with reader.meter.timing("read"):
                    old = get_value()
                with reader.meter.timing("compute"):
                    training = TrainingRows(
                        chunk.labels, chunk.train, chunk.rows.image, chunk.start
                    )
                    before = State(None, old.maps, old.scores, old.features, layer, training)
                    scores = advance(architecture, before, head=head).scores
                    counted = chunk.labels, chunk.train, architecture.head.target
                    tally = tally.merge(Tally.of(scores, *counted, chunk.weights))
                reader.cache_state(chunk, old)
                del old
            log_chunk_done(task, "score", chunk.start, chunk.stop)
        with reader.meter.timing("compute"):
            tally = to_host(tally)
    log_task_done(task, "score", reader.meter)
    return tally


def finish_score(_task: Task, tally: Tally) -> Tally:
    """Return the tally unchanged."""
    return tally


# storing what is in memory ----------------------------------------------------------------------


@reports_retries
def save_group(task: Task, group: Group, cache: ChunkCache | None = None) -> Checksums:
    """Store the last layer's maps and scores of a group, which are in memory only.

    Return their checksums.
    """
    state, checksums = load_state(task), Checksums()
    reader = Reader.of(task, group, state, task.layer, cache)
    saver, images = Saver.of(task, state), object_cache.get(task, "images", task.run.images)
    with blas_threads(1):
        for chunk in reader.chunks():
            with chunk_error_context(group, chunk):
                saved = saver.save(chunk, reader.read_state(images, chunk), reader.meter)
                checksums = checksums.merge(saved)
            log_chunk_done(task, "save", chunk.start, chunk.stop)
    log_task_done(task, "save", reader.meter)
    return checksums


@reports_retries
def finish_save(task: Task, checksums: Checksums) -> Checksums:
    """Return the checksums to commit."""
    return task.run.store_checksums(task.layer, checksums)


# sizes of the accumulators: Dask cannot see them, and would move and keep them as if they were free


def size_of_fields(value: Any) -> int:
    """Return the bytes of a value: of dataclasses and tuples, those of all they hold."""
    if is_dataclass(value):
        return sum(size_of_fields(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return sum(map(size_of_fields, value))
    return int(sizeof(value))


# What these hold is counted by `size_of_fields` too, such as the statistics of filter learners.
for _accumulator_class in (
    FeatureMoments,
    FeatureSamples,
    LayerStatistics,
    Checksums,
    ChecksummedStatistics,
):
    sizeof.register(_accumulator_class, size_of_fields)


# the passes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over all images: fold(task, group, cache) of each group, merge of two accumulators,
    and finish(task, accumulator).

    Passes over features have other arguments of each fold.

    With `lazy_finish`, finish builds a graph of several tasks instead; see `fold_graph`.
    """

    name: str
    fold: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[..., Any]
    lazy_finish: bool = False


COUNT = Pass("count", count_group, add, stack_counts)
SURVEY = Pass("survey", survey_group, ChecksummedStatistics.merge, finish_survey)
GROW = Pass("grow", grow_group, ChecksummedStatistics.merge, finish_layer)
SCORE = Pass("score", score_group, Tally.merge, finish_score)
SAVE = Pass("save", save_group, Checksums.merge, finish_save)
CACHED_PASSES = (COUNT, SURVEY, GROW, SCORE, SAVE)  # passes that take the cache of their group
