"""The passes over the data, as tasks: read a chunk, compute, write, fold; then merge and solve.

Each function here runs on a worker. It gets the run's URL and small numbers, reads what else it
needs from the run store, and can be run again at any time with the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from operator import add
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from rescnet_dist.data import check_finite
from rescnet_dist.kernels import (
    Bank,
    BankStatistics,
    Classifier,
    FeatureMoments,
    GrowingLayer,
    LayerInput,
    LayerStatistics,
    PatchMoments,
    PatchSample,
    Tally,
    chunk_scores,
    draw_layer_patches,
    fit_bank,
    fit_classifier,
    fit_first_bank,
    fit_image_scale,
    raw_pixels,
    slabs,
    to_host,
)
from rescnet_dist.planning.plan import Group
from rescnet_dist.reduce import blas_threads
from rescnet_dist.store import (
    Checksums,
    read_bank,
    read_classifier,
    read_image_scale,
    with_retries,
    write_bank,
    write_classifier,
    write_image_scale,
)
from rescnet_dist.train import worker_cache
from rescnet_dist.train.cache import EMPTY, ChunkCache, ChunkState
from rescnet_dist.train.chunks import (
    Chunk,
    FeatureWriter,
    Reader,
    Saver,
    chunk_error_context,
    unsaved,
)
from rescnet_dist.train.overlap import read_ahead, write_behind
from rescnet_dist.train.state import Array, RunState, Task
from rescnet_dist.train.task_events import (
    log_chunk_done,
    log_chunk_started,
    log_solving,
    log_task_done,
)
from rescnet_dist.train.worker_cache import load_state

# counting ---------------------------------------------------------------------------------------


def count_group(task: Task, group: Group, _shelf: ChunkCache | None = None) -> list[Array]:
    """Rows of each class (C,) to train on in a group of chunks, as a list of one."""
    state = load_state(task)
    reader, counts = Reader(task, group, state, 0), np.zeros(state.classes, np.int64)
    for chunk in reader.chunks():
        counts += np.bincount(chunk.labels[chunk.train], minlength=state.classes)
    return [counts]


def gathered(_task: Task, counts: list[Array]) -> Array:
    """The counts of all groups (G, C)."""
    return np.stack(counts)


# the survey -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """Statistics of some chunks and the checksums of what was read or written of them; `merge`
    takes those of later chunks."""

    statistics: Any
    checksums: Checksums

    def merge(self, later: Checked) -> Checked:
        """Both together."""
        return Checked(
            self.statistics.merge(later.statistics), self.checksums.merge(later.checksums)
        )


def survey_group(task: Task, group: Group, shelf: ChunkCache | None = None) -> Checked:
    """Statistics of the raw images of a group of chunks, for the first layer's filters, and the
    checksums of the images that all later passes must find."""
    state = load_state(task)
    size = state.spec.filter_size_at(1)
    draws = draw_layer_patches(state.spec, state.run_spec.seed, 1, task.counts, state.image_shape)
    images = task.run.images()
    channels = state.spec.input_channels(1, state.image_shape[2])
    statistics, checksums = BankStatistics.empty(channels, size, state.backend.xp), Checksums()
    reader = Reader(task, group, state, 0, shelf=shelf or ChunkCache())  # nothing is committed yet
    with blas_threads(1), state.backend.working():
        for chunk in reader.chunks():
            with chunk_error_context(group, chunk):
                with reader.meter.timing("read"):
                    raw = reader.read_images(images, chunk)
                    there = state.backend.put(raw)
                    reader.keep_images(chunk, there)
                with reader.meter.timing("compute"):
                    check_finite(raw, chunk.rows.image)  # of those copied, this has been done
                    pixels = raw_pixels(there, state.spec)
                    more = BankStatistics.of(
                        LayerInput.of(pixels), chunk.labels, chunk.train, chunk.before, draws, size
                    )
                    statistics = statistics.merge(more)
                    checksums = checksums.plus({"data/images": raw})
            log_chunk_done(task, "survey", chunk.start, chunk.stop)
        with reader.meter.timing("compute"):
            statistics = to_host(statistics)
    log_task_done(task, "survey", reader.meter)
    return Checked(statistics, checksums)


def finish_survey(task: Task, checked: Checked) -> Checksums:
    """Fit and store the normalization of the images and the first layer's filters; returns the
    checksums to commit."""
    state, statistics = load_state(task), checked.statistics
    log_solving(task, "survey")
    with blas_threads(state.plan.solve_threads):
        scale = fit_image_scale(statistics, state.spec)
        bank = fit_first_bank(statistics, scale, state.spec)
    with_retries(lambda: write_image_scale(task.run.location, scale), f"image_scale of {task.run}")
    worker_cache.put(task, "image scale", scale)
    store_bank(task, bank)
    return checked.checksums


# growing a layer --------------------------------------------------------------------------------


def grow_group(task: Task, group: Group, shelf: ChunkCache | None = None) -> Checked:
    """The pass of a layer over a group of chunks: scores, maps, and statistics in one go.

    Where the plan has tiles, the features are written for them and their scatter is left out.
    """
    run, layer, state = task.run, task.layer, load_state(task)
    growing = with_retries(lambda: _growing(task, state), f"reading layer {layer} of {run}")
    reader = Reader.of(task, group, state, layer - 1, shelf)
    images = worker_cache.get(task, "images", run.images)
    backend, meter = state.backend, reader.meter
    saving = Saver.of(task, state) if task.save else None
    work = FeatureWriter.of(run, state) if state.plan.tile_features else None
    statistics = growing.empty(*state.image_shape, scatter=work is None, xp=backend.xp)
    checksums = Checksums()

    def read(chunk: Chunk) -> tuple[Array, ChunkState]:
        pixels = reader.images(images, chunk)
        return pixels, reader.held(images, chunk) if layer > 1 else EMPTY

    def write_all(chunk: Chunk, made: ChunkState, features: Array | None) -> Checksums:
        with chunk_error_context(group, chunk):
            if saving:
                written = saving.save(chunk, made, meter)
            else:
                written = Checksums().plus({unsaved(layer): backend.get(made.scores)})
            if work and features is not None:
                written = written.merge(work.write(chunk.start, features))
                meter.written += features.nbytes
        log_chunk_done(task, "grow", chunk.start, chunk.stop)
        return written

    with blas_threads(1), backend.working(), write_behind() as behind:
        for chunk, given in read_ahead(reader.chunks(), read):
            log_chunk_started(task, "grow", chunk.start)
            with chunk_error_context(group, chunk):
                with meter.timing("read"):
                    pixels, old = given()
                with meter.timing("compute"):
                    grown = growing.step(
                        pixels, old.maps, old.scores, chunk.labels, chunk.train, chunk.before,
                        old.features,
                    )  # fmt: skip
                    del pixels, old
                    statistics = statistics.fold(grown)
            made = ChunkState(layer, grown.maps, grown.scores, None)
            reader.keep(chunk, replace(made, features=grown.features))
            features = grown.features if work else None
            writing = partial(write_all, chunk, made, features)
            del grown, features, made  # what is written is held until then, and no more
            with meter.timing("write"):
                checksums = checksums.merge(behind.put(writing) or Checksums())
            del writing
        with meter.timing("compute"):
            statistics = statistics.copy_small_to_host()
        with meter.timing("write"):
            checksums = checksums.merge(behind.wait() or Checksums())
    log_task_done(task, "grow", meter)
    return Checked(statistics, checksums)


def _growing(task: Task, state: RunState) -> GrowingLayer:
    """The layer in the making, read from the run store."""
    location, layer = task.run.location, task.layer
    return GrowingLayer(
        spec=state.spec,
        number=layer,
        classes=state.classes,
        image_scale=worker_cache.get(task, "image scale", lambda: read_image_scale(location)),
        bank=worker_cache.get(task, "bank", lambda: read_bank(location, layer), layer),
        previous=_classifier(task, layer - 1) if layer > 1 else None,
        draws=cache(
            partial(
                draw_layer_patches, state.spec, state.run_spec.seed, layer + 1, task.counts,
                state.image_shape,
            )
        ),
    )  # fmt: skip


def _classifier(task: Task, layer: int) -> Classifier:
    """The classifier of a layer."""
    return worker_cache.get(
        task, "classifier", lambda: read_classifier(task.run.location, layer), layer
    )


def finish_layer(task: Task, checked: Checked) -> tuple[Tally, Checksums]:
    """Fit and store the layer's classifier and the next layer's filters; returns how well the
    layers before it do and the checksums to commit. The last layer's pass does so too, as the run
    may be resumed."""
    state, statistics = load_state(task), checked.statistics
    log_solving(task, "grow")

    def next_bank() -> None:
        store_bank(task, fit_bank(statistics.inputs, state.spec, task.layer + 1))

    with (
        blas_threads(state.plan.solve_threads), state.backend.working(),
        write_behind() as behind,
    ):  # fmt: skip
        # a GPU leaves the processor idle; on that, two at a time would be in each other's way
        if state.backend.on_gpu:
            behind.put(next_bank)
        classifier = fit_classifier(statistics.features, state.spec, task.layer, state.classes)
        if not state.backend.on_gpu:
            next_bank()
        behind.wait()
    store_classifier(task, classifier)
    return statistics.tally, checked.checksums


def store_classifier(task: Task, classifier: Classifier) -> None:
    """Store what the pass of a layer has led to: its classifier."""
    run, layer = task.run, task.layer
    with_retries(
        lambda: write_classifier(run.location, layer, classifier), f"layer {layer} of {run}"
    )
    worker_cache.put(task, "classifier", classifier, layer)


def store_bank(task: Task, bank: Bank) -> None:
    """Store what the pass of a layer has led to: the bank of the next."""
    run, layer = task.run, task.layer + 1
    with_retries(lambda: write_bank(run.location, layer, bank), f"layer {layer} of {run}")
    worker_cache.put(task, "bank", bank, layer)


# scoring the last layer -------------------------------------------------------------------------


def score_group(task: Task, group: Group, shelf: ChunkCache | None = None) -> Tally:
    """How well the network with `task.layer` layers does on a group of chunks."""
    run, layer, state = task.run, task.layer, load_state(task)
    classifier = with_retries(lambda: _classifier(task, layer), f"reading layer {layer} of {run}")
    reader, tally = Reader.of(task, group, state, layer, shelf), Tally.empty(state.backend.xp)
    held = partial(reader.held, worker_cache.get(task, "images", run.images))
    with blas_threads(1), state.backend.working():
        for chunk, given in read_ahead(reader.chunks(), held):
            with chunk_error_context(group, chunk):
                with reader.meter.timing("read"):
                    old = given()
                with reader.meter.timing("compute"):
                    seen = state.spec.input_channels(1, state.image_shape[2])
                    cut = slabs(old.maps, seen, state.spec)
                    scores = chunk_scores(
                        classifier, old.maps, old.scores, state.spec, cut, old.features
                    )
                    more = Tally.of(scores, chunk.labels, chunk.train, state.spec.target)
                    tally = tally.merge(more)
                reader.keep(chunk, old)
                del old
            log_chunk_done(task, "score", chunk.start, chunk.stop)
        with reader.meter.timing("compute"):
            tally = to_host(tally)
    log_task_done(task, "score", reader.meter)
    return tally


def finish_score(_task: Task, tally: Tally) -> Tally:
    """The tally as it is."""
    return tally


# storing what is in memory ----------------------------------------------------------------------


def save_group(task: Task, group: Group, shelf: ChunkCache | None = None) -> Checksums:
    """Store the maps and scores of the last layer, which are in memory only, of a group of chunks;
    returns their checksums."""
    state, checksums = load_state(task), Checksums()
    reader = Reader.of(task, group, state, task.layer, shelf)
    saving, images = Saver.of(task, state), worker_cache.get(task, "images", task.run.images)
    with blas_threads(1):
        for chunk in reader.chunks():
            with chunk_error_context(group, chunk):
                checksums = checksums.merge(
                    saving.save(chunk, reader.held(images, chunk), reader.meter)
                )
            log_chunk_done(task, "save", chunk.start, chunk.stop)
    log_task_done(task, "save", reader.meter)
    return checksums


def finish_save(_task: Task, checksums: Checksums) -> Checksums:
    """The checksums as they are."""
    return checksums


# the accumulators' true size, which Dask would not see, or take them for free to move and keep ---


def _size_of_fields(accumulator: Any) -> int:
    return sum(sizeof(getattr(accumulator, field.name)) for field in fields(accumulator))


for _kind in (
    *(FeatureMoments, PatchMoments, PatchSample, BankStatistics, LayerStatistics),
    *(Checksums, Checked),
):
    sizeof.register(_kind, _size_of_fields)


# the passes, declared ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over all images: fold(task, group, shelf) → accumulator, merge of two, finish(task,
    all) or, where that is spread over many tasks, the function that makes them."""

    name: str
    fold: Callable[[Task, Group, ChunkCache | None], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[..., Any]
    spread: bool = False


COUNT = Pass("count", count_group, add, gathered)
SURVEY = Pass("survey", survey_group, Checked.merge, finish_survey)
GROW = Pass("grow", grow_group, Checked.merge, finish_layer)
SCORE = Pass("score", score_group, Tally.merge, finish_score)
SAVE = Pass("save", save_group, Checksums.merge, finish_save)
CACHED_PASSES = (
    COUNT,
    SURVEY,
    GROW,
    SCORE,
    SAVE,
)  # which find on shelves what another has left there
