"""The passes over the data, as tasks: read a chunk, compute, write, fold; then merge and solve.

Each function here runs on a worker. It gets the run's URL and small numbers, reads what else it
needs from the run store, and can be run again at any time with the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from operator import add
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.sizeof import sizeof
from distributed import get_worker

from rescnet_dist.data import check_finite, validation_members
from rescnet_dist.kernels import (
    BankStatistics,
    FeatureMoments,
    GrowingLayer,
    LayerStatistics,
    PatchMoments,
    PatchSample,
    Tally,
    draws_of_layer,
    fit_bank,
    fit_classifier,
    fit_image_scale,
    updated_scores,
)
from rescnet_dist.reduce import blas_threads
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import (
    Checksums,
    RunStore,
    read_bank,
    read_classifier,
    read_image_scale,
    read_region,
    write_bank,
    write_classifier,
    write_image_scale,
    write_region,
)
from rescnet_dist.train.plan import Group, Plan

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Task:
    """What every task of a pass knows: the run, the layer it works on (0: the survey), and how
    many training images of each class there are in each group (G, C)."""

    run: RunStore
    layer: int
    counts: tuple[tuple[int, ...], ...] = ()

    @property
    def class_counts(self) -> Array:
        """Training images of each class (C,)."""
        return np.asarray(np.array(self.counts, np.int64).sum(axis=0))

    def ahead(self, group: Group) -> Array:
        """Training images of each class (C,) in the groups before this one."""
        return np.asarray(np.array(self.counts, np.int64)[: group.index].sum(axis=0))


@dataclass(frozen=True, slots=True)
class RunState:
    """The attributes of a run, read once per task."""

    spec: NetworkSpec
    run_spec: RunSpec
    plan: Plan
    classes: int
    image_shape: tuple[int, int, int]

    @classmethod
    def of(cls, run: RunStore) -> RunState:
        """Read the state off the run store."""
        attributes = run.attributes()
        height, width, channels = attributes["image_shape"]
        return cls(
            NetworkSpec.from_dict(attributes["network"]),
            RunSpec.from_dict(attributes["run"]),
            Plan(**attributes["plan"]),
            len(attributes["classes"]["values"]),
            (height, width, channels),
        )

    def input_shape(self, layer: int) -> tuple[int, int, int]:
        """(H, W, c) of the input of a layer."""
        height, width, channels = self.image_shape
        return height, width, channels + (self.spec.filters if layer > 1 else 0)


# counting and splitting -------------------------------------------------------------------------


def count_group(task: Task, group: Group) -> list[Array]:
    """Images of each class (C,) in a group of chunks, as a list of one: those to train on or, where
    a share of them is still to be held out, all."""
    state = RunState.of(task.run)
    labels, train = (
        np.asarray(task.run.data_array(name)[group.start : group.stop])
        for name in ("labels", "train")
    )
    counted = labels if state.run_spec.validation > 0 else labels[train]
    return [np.bincount(counted, minlength=state.classes)]


def split_group(task: Task, group: Group) -> list[Array]:
    """Hold images out for validation and write which are left to train on; returns the training
    images of each class (C,) as a list of one. Until then `task.counts` counts all images."""
    state = RunState.of(task.run)
    labels, train = task.run.data_array("labels"), task.run.data_array("train", write=True)
    before = task.ahead(group)
    counts = np.zeros(state.classes, np.int64)
    for start, stop in group.chunks():
        codes = np.asarray(labels[start:stop])
        held_out = validation_members(codes, before, state.run_spec.validation, state.run_spec.seed)
        write_region(train, start, ~held_out)
        before += np.bincount(codes, minlength=state.classes)
        counts += np.bincount(codes[~held_out], minlength=state.classes)
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


def survey_group(task: Task, group: Group) -> Checked:
    """Statistics of the raw images of a group of chunks, for the first layer's filters, and the
    checksums of the data that all later passes must find."""
    state = RunState.of(task.run)
    size = state.spec.size_of_layer(1)
    draws = draws_of_layer(
        state.spec, state.run_spec.seed, 1, task.class_counts, state.input_shape(1)
    )
    images = task.run.images()
    statistics, checksums = BankStatistics.empty(state.image_shape[2], size), Checksums()
    with blas_threads(1):
        for (start, stop), labels, train, before in _labelled_chunks(
            task, group, state, Committed(group)
        ):
            raw = read_region(images, start, stop)
            pixels = raw.astype(np.float32)
            check_finite(pixels, start)  # of images that were copied, this has been done
            more = BankStatistics.of(pixels, labels, train, before, draws, size)
            statistics = statistics.merge(more)
            checksums = checksums.plus(
                {"data/images": raw, "data/labels": labels, "data/train": train}
            )
            report_chunk(task, "survey", stop - start)
    return Checked(statistics, checksums)


def finish_survey(task: Task, checked: Checked) -> Checksums:
    """Fit and store the normalisation of the images and the first layer's filters; returns the
    checksums to commit."""
    state, statistics = RunState.of(task.run), checked.statistics
    with blas_threads(state.plan.solve_threads):
        scale = fit_image_scale(statistics, state.spec)
        bank = fit_bank(statistics.rescale(scale.low, scale.scale), state.spec, 1)
    write_image_scale(task.run.place, scale)
    write_bank(task.run.place, 1, bank)
    return checked.checksums


# growing a layer --------------------------------------------------------------------------------


def grow_group(task: Task, group: Group) -> Checked:
    """The pass of a layer over a group of chunks: scores, maps, and statistics in one go."""
    run, layer, state = task.run, task.layer, RunState.of(task.run)
    growing = GrowingLayer(
        spec=state.spec,
        number=layer,
        classes=state.classes,
        image_scale=read_image_scale(run.place),
        bank=read_bank(run.place, layer),
        previous=read_classifier(run.place, layer - 1) if layer > 1 else None,
        draws=draws_of_layer(
            state.spec, state.run_spec.seed, layer + 1, task.class_counts,
            state.input_shape(layer + 1),
        ),
    )  # fmt: skip
    images = run.images()
    old_maps = run.maps(layer - 1) if layer > 1 else None
    old_scores = run.scores(layer - 1) if layer > 1 else None
    new_maps, new_scores = run.maps(layer, write=True), run.scores(layer, write=True)
    known = Committed.of(task, group, layer - 1)
    statistics, checksums = growing.empty(*state.image_shape), Checksums()
    with blas_threads(1):
        for (start, stop), labels, train, before in _labelled_chunks(task, group, state, known):
            maps, scores, statistics = growing.grow(
                statistics,
                known.read(images, start, stop, "data/images"),
                None if old_maps is None else known.read(old_maps, start, stop),
                None if old_scores is None else known.read(old_scores, start, stop),
                labels,
                train,
                before,
            )
            write_region(new_maps, start, maps)
            write_region(new_scores, start, scores)
            checksums = checksums.plus({new_maps.path: maps, new_scores.path: scores})
            report_chunk(task, "grow", stop - start)
    return Checked(statistics, checksums)


def finish_layer(task: Task, checked: Checked) -> tuple[Tally, Checksums]:
    """Fit and store the layer's classifier and the next layer's filters; returns how well the
    layers before it do and the checksums to commit. The last layer's pass does so too, as the run
    may be resumed."""
    state, statistics = RunState.of(task.run), checked.statistics
    with blas_threads(state.plan.solve_threads):
        classifier = fit_classifier(statistics.features, state.spec, task.layer, state.classes)
        bank = fit_bank(statistics.inputs, state.spec, task.layer + 1)
    write_classifier(task.run.place, task.layer, classifier)
    write_bank(task.run.place, task.layer + 1, bank)
    return statistics.tally, checked.checksums


# scoring the last layer -------------------------------------------------------------------------


def score_group(task: Task, group: Group) -> Tally:
    """How well the network with `task.layer` layers does on a group of chunks."""
    run, layer, state = task.run, task.layer, RunState.of(task.run)
    classifier = read_classifier(run.place, layer)
    maps, entering = run.maps(layer), run.scores(layer)
    known = Committed.of(task, group, layer)
    tally = Tally.empty()
    with blas_threads(1):
        for (start, stop), labels, train, _ in _labelled_chunks(task, group, state, known):
            scores = updated_scores(
                classifier, known.read(maps, start, stop),
                known.read(entering, start, stop),
                state.spec, stop - start, state.classes,
            )  # fmt: skip
            tally = tally.merge(Tally.of(scores, labels, train))
            report_chunk(task, "score", stop - start)
    return tally


def finish_score(_task: Task, tally: Tally) -> Tally:
    """The tally as it is."""
    return tally


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
    """A pass over all images: fold(task, group) → accumulator, merge of two, finish(task, all)."""

    name: str
    fold: Callable[[Task, Group], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Task, Any], Any]


COUNT = Pass("count", count_group, add, gathered)
SPLIT = Pass("split", split_group, add, gathered)
SURVEY = Pass("survey", survey_group, Checked.merge, finish_survey)
GROW = Pass("grow", grow_group, Checked.merge, finish_layer)
SCORE = Pass("score", score_group, Tally.merge, finish_score)


# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The checksums that the chunks of a group must have, by path, where they are committed."""

    group: Group
    checksums: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, group: Group, step: int) -> Committed:
        """Those of the data and of a step."""
        return cls(group, task.run.checksums(0) | task.run.checksums(step))

    def read(self, array: Any, start: int, stop: int, path: str | None = None) -> Array:
        """One chunk of an array, by its path in the run; refused if it is not as committed."""
        chunks = self.checksums.get(path or array.path)
        expected = chunks[start // self.group.chunk_images] if chunks else None
        return read_region(array, start, stop, expected)


def _labelled_chunks(
    task: Task, group: Group, state: RunState, known: Committed
) -> Iterator[tuple[tuple[int, int], Array, Array, Array]]:
    """Each chunk (start, stop) of a group with its labels, which of them to train on, and the
    training images of each class (C,) ahead of it."""
    all_labels, all_train = task.run.data_array("labels"), task.run.data_array("train")
    before = task.ahead(group)
    for start, stop in group.chunks():
        labels = known.read(all_labels, start, stop)
        train = known.read(all_train, start, stop)
        yield (start, stop), labels, train, before
        before = before + np.bincount(labels[train], minlength=state.classes)


def report_chunk(task: Task, phase: str, images: int) -> None:
    """Tell the driver that a chunk is done."""
    worker = get_worker()
    message = {
        "phase": phase,
        "layer": task.layer,
        "images": images,
        "memory": worker.monitor.get_process_memory(),
    }
    worker.log_event(progress_topic(task.run), message)


def progress_topic(run: RunStore) -> str:
    """The topic of Dask's event log that a run's progress goes to."""
    return f"rescnet-{tokenize(run.url)}"
