"""The chunks a task works on: read as they were committed, rebuilt where they are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import zarr

from rescnet_dist.cluster.workers import limit_profiler
from rescnet_dist.data import RowBlock, Rows
from rescnet_dist.errors import CorruptDataError, RescnetError, StoreError
from rescnet_dist.kernels import Backend, augment_images, feature_blocks, replay_layers
from rescnet_dist.planning.plan import Group
from rescnet_dist.reduce import trim_memory
from rescnet_dist.store import (
    Checksums,
    RunStore,
    StoredLayers,
    checksum,
    read_image_scale,
    read_region,
    with_retries,
    write_block,
    write_region,
)
from rescnet_dist.train.cache import ChunkCache, ChunkState
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.state import RunState, Task
from rescnet_dist.train.task_events import report

Array = np.ndarray[Any, np.dtype[Any]]

LOOK_AGAIN = (0.2, 1.0)  # seconds before a chunk that looks damaged is read again
UNSAVED = "unsaved/"  # what the names of things that are not stored begin with


def unsaved(layer: int) -> str:
    """What the checksums of scores that are not stored go by."""
    return f"{UNSAVED}scores/{layer:04d}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows start to stop, and before (C,), the rows of each class to train on ahead of them."""

    start: int
    stop: int
    rows: Rows
    before: Array

    @property
    def labels(self) -> Array:
        """Codes (n,)."""
        return self.rows.labels

    @property
    def train(self) -> Array:
        """Which rows (n,) are trained on."""
        return self.rows.train


@dataclass(frozen=True, slots=True)
class Reader:
    """Gives what was committed with the data and with one step, for the chunks of one group: from
    the shelf of the group where it is there, else from the store. Its meter counts the bytes read.
    """

    task: Task
    group: Group
    state: RunState
    step: int
    checksums: dict[str, list[int]] = field(default_factory=dict)
    shelf: ChunkCache = field(default_factory=ChunkCache)
    meter: TaskMeter = field(default_factory=TaskMeter)

    @classmethod
    def of(
        cls, task: Task, group: Group, state: RunState, step: int, shelf: ChunkCache | None = None
    ) -> Reader:
        """The reader of a step that is committed."""
        run, checksums = task.run, task.run.checksums(0)
        for number in {step, min(task.stored, step)} - {0}:
            committed = run.checksums(number)
            for path, chunks in committed.items():
                if len(chunks) != state.plan.chunks:
                    raise StoreError(
                        f"commits/{number:04d}.json has {len(chunks)} checksums of {path}, which "
                        f"has {state.plan.chunks} chunks: the record is damaged; remove it, then "
                        "resume the run, which makes it again"
                    )
            checksums |= committed
        return cls(task, group, state, step, checksums, shelf or ChunkCache())

    @property
    def backend(self) -> Backend:
        """Where the arrays are that this gives."""
        return self.state.backend

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of the group, in order."""
        found = []
        for chunk in self.shelf.chunks or self._read_chunks():
            found.append(chunk)
            trim_memory()
            limit_profiler()
            yield chunk
        if self.task.keep:
            self.shelf.chunks = found

    def _read_chunks(self) -> Iterator[Chunk]:
        table, before = self.state.rows, self.task.before
        blocks: dict[int, RowBlock] = {}
        for start, stop in self.group.chunks():
            needed = table.blocks(start, stop)
            blocks = {number: blocks.get(number) or self._block(number) for number in needed}
            rows = reduce(Rows.concatenate, (b.rows(start, stop) for b in blocks.values()))
            yield Chunk(start, stop, rows, before)
            before = before + np.bincount(rows.labels[rows.train], minlength=self.state.classes)

    def _block(self, number: int) -> RowBlock:
        """Labels of a block of images, and which of them are trained on."""
        run, table = self.task.run, self.state.rows
        labels, train = (
            self._read(run.data_array(name), *table.image_range(number), f"data/{name}", number)
            for name in ("labels", "train")
        )
        return RowBlock.of(table, number, labels, train)

    def images(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> Array:
        """The images (n, H, W, d) of a chunk: from the run's array and the row of its first, and
        copies of them as the run augments them."""
        kept: Array | None = self.shelf.images.get(chunk.start)
        if kept is None:
            kept = self.backend.put(self.read_images(source, chunk))
            self.keep_images(chunk, kept)
        return kept

    def keep_images(self, chunk: Chunk, images: Array) -> None:
        """Keep the images (n, H, W, d) of a chunk on the shelf, if the task keeps anything."""
        if self.task.keep:
            self.shelf.put_images(chunk.start, images, self.backend)

    def keep(self, chunk: Chunk, held: ChunkState) -> None:
        """Keep what a layer made of a chunk on the shelf, if the task keeps anything, and features
        only if it keeps those."""
        if self.task.keep:
            features = held.features if self.task.features else None
            packed = replace(held.with_maps_in(self.state.spec.store_dtype), features=features)
            self.shelf.put(chunk.start, packed, self.backend)

    def read_images(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> Array:
        """As `images`, from the store, in NumPy's arrays."""
        (array, first), rows, state = source, chunk.rows, self.state
        start, stop = int(rows.image[0]), int(rows.image[-1]) + 1

        def copies(images: Array) -> Array:
            images = images[rows.image - start]
            return augment_images(images, rows.image, rows.copy, state.augment, state.run_spec.seed)

        try:
            return self._read(
                array, first + start, first + stop, "data/images", self._number(chunk.start),
                copies if state.augment.copies else None,
            )  # fmt: skip
        except CorruptDataError as error:
            problem = str(error)
        if state.augment.copies:
            problem += " (or copies of them come out otherwise, as with another NumPy or processor)"
        raise CorruptDataError(
            f"{problem}; put the images back as they were when the run began, or train on others "
            "in another store"
        )

    def held(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> ChunkState:
        """What the step's layer made of a chunk: from the shelf, from the store, or made again from
        the last that is there. What is lost of the store is written again."""
        task, step = self.task, self.step
        found = self.shelf.take(chunk.start, step)
        if found and found.layer == step:
            return found
        if task.stored < step:
            return self._caught_up(source, chunk, found)
        try:
            maps, scores = self._stored(chunk, step)
        except CorruptDataError as error:
            lost = error
        else:
            return ChunkState(step, maps, scores, None)
        return self._rebuilt(source, chunk, lost)

    def _stored(self, chunk: Chunk, layer: int) -> tuple[Array, Array]:
        """The maps (n, H, W, f) of a layer and the scores (n, C) that entered it, as stored."""
        run, number = self.task.run, self._number(chunk.start)
        arrays = run.maps(layer), run.scores(layer)
        maps, scores = (self._read(a, chunk.start, chunk.stop, a.path, number) for a in arrays)
        return self.backend.put(maps), self.backend.put(scores)

    def _caught_up(
        self, source: tuple[zarr.Array[Any], int], chunk: Chunk, found: ChunkState | None
    ) -> ChunkState:
        """What the step's layer made of a chunk, from what was found of a layer before, or else
        from the last that is stored."""
        stored = self.task.stored
        begun = None if found is None else (found.maps, found.scores)
        first = found.layer if found else 0
        if stored > first and self.task.run.has_maps(stored):
            with suppress(CorruptDataError):  # what is lost is replayed, from the images
                begun, first = self._stored(chunk, stored), stored
        maps, scores = self._replayed(source, chunk, begun, first)
        paths = unsaved(self.step), f"scores/{self.step:04d}"  # those of a layer that was stored
        found_so = (self._expected(path, self._number(chunk.start)) for path in paths)
        expected = next((sums for sums in found_so if sums is not None), None)
        reason = f"in no store, and in memory no longer; made again from layer {first}"
        if expected is not None and checksum(self.backend.get(scores)) != expected:
            reason += (
                ", with other last digits than were committed, as on another processor or with "
                "another NumPy"
            )
        rows = {"start": chunk.start, "stop": chunk.stop}
        report(self.task, "rebuilt", layer=self.step, reason=reason, **rows)
        return ChunkState(self.step, maps, scores, None)

    def _replayed(
        self,
        source: tuple[zarr.Array[Any], int],
        chunk: Chunk,
        begun: tuple[Array, Array] | None,
        first: int,
    ) -> tuple[Array, Array]:
        """The step's maps (n, H, W, f) and the scores (n, C) that entered it, from those of layer
        `first`, or from the images (0)."""
        run, state = self.task.run, self.state
        images, stored = self.images(source, chunk), StoredLayers(run.location, self.step)

        def replay() -> tuple[Array, Array]:
            layers = (stored[number - 1] for number in range(max(first, 1), self.step + 1))
            scale = read_image_scale(run.location)
            return replay_layers(images, layers, scale, state.spec, state.classes, begun)

        with self.backend.working():
            return with_retries(replay, f"reading the layers of {run}")

    def _number(self, start: int) -> int:
        """The number of the chunk that begins with row `start`."""
        return start // self.group.chunk_images

    def _read(
        self,
        array: zarr.Array[Any],
        start: int,
        stop: int,
        path: str,
        number: int,
        change: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Rows of an array; refused if they are not what was committed as this chunk of `path`."""
        expected = self._expected(path, number)
        self.meter.count_read(array, stop - start)
        what = f"reading {array.path} of {self.task.run}"
        for wait in LOOK_AGAIN:
            try:
                return with_retries(lambda: read_region(array, start, stop, expected, change), what)
            except CorruptDataError:
                time.sleep(wait)  # a store that is just starting may not see all it has
        return with_retries(lambda: read_region(array, start, stop, expected, change), what)

    def _expected(self, path: str, number: int) -> int | None:
        chunks = self.checksums.get(path)
        if not chunks:
            return None
        if number >= len(chunks):
            raise StoreError(
                f"commits/0000.json has {len(chunks)} checksums of {path}, and chunk {number} is "
                "read: the record is damaged; remove it, then resume the run, which makes it again"
            )
        return chunks[number]

    def _rebuilt(
        self, source: tuple[zarr.Array[Any], int], chunk: Chunk, lost: CorruptDataError
    ) -> ChunkState:
        run, layer, start = self.task.run, self.step, chunk.start
        maps, scores = self._replayed(source, chunk, None, 0)
        places = run.maps(layer, write=True), run.scores(layer, write=True)
        get = self.backend.get
        stored = get(maps).astype(places[0].dtype, copy=False), get(scores)
        for array, values in zip(places, stored, strict=True):
            if checksum(values) != self._expected(array.path, self._number(start)):
                raise CorruptDataError(
                    f"{lost}; what the stored layers give for them is not what was committed "
                    "either, as with another release of rescnet_dist, NumPy or its BLAS, or "
                    "another processor: resume where the run was trained"
                )
        for array, values in zip(places, stored, strict=True):
            write(array, start, values, run)
        report(self.task, "rebuilt", layer=layer, start=start, stop=chunk.stop, reason=str(lost))
        return ChunkState(layer, maps, scores, None)


def write(array: zarr.Array[Any], start: int, values: Array, run: RunStore) -> None:
    """Write whole chunks of rows, with patience."""
    with_retries(lambda: write_region(array, start, values), f"{array.path} of {run}")


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes the maps and scores of a layer to the store."""

    run: RunStore
    maps: zarr.Array[Any]
    scores: zarr.Array[Any]
    backend: Backend

    @classmethod
    def of(cls, task: Task, state: RunState) -> Saver:
        """The saver of the task's layer."""
        run, layer = task.run, task.layer
        arrays = run.maps(layer, write=True), run.scores(layer, write=True)
        return cls(run, *arrays, state.backend)

    def save(self, chunk: Chunk, made: ChunkState, meter: TaskMeter) -> Checksums:
        """Write what was made of a chunk; returns its checksums."""
        get = self.backend.get
        maps, scores = get(made.maps).astype(self.maps.dtype, copy=False), get(made.scores)
        write(self.maps, chunk.start, maps, self.run)
        write(self.scores, chunk.start, scores, self.run)
        meter.written += maps.nbytes + scores.nbytes
        return Checksums().plus({self.maps.path: maps, self.scores.path: scores})


@dataclass(frozen=True, slots=True)
class FeatureWriter:
    """Writes the features of the layer being grown to the run's work area, in blocks of columns."""

    run: RunStore
    array: zarr.Array[Any]
    blocks: list[slice]

    @classmethod
    def of(cls, run: RunStore, state: RunState) -> FeatureWriter:
        """The writer of a run whose plan has tiles."""
        blocks = feature_blocks(state.features, state.plan.tile_features or state.features)
        return cls(run, run.work("features", write=True), blocks)

    def write(self, start: int, features: Array) -> Checksums:
        """Write the features (n, D) of the images from `start`; returns checksums by block."""
        found = {}
        for number, columns in enumerate(self.blocks):
            found[feature_path(number)] = np.ascontiguousarray(features[:, columns])
            write_to = partial(write_block, self.array, (start, columns.start))
            with_retries(
                partial(write_to, found[feature_path(number)]), f"{self.array.path} of {self.run}"
            )
        return Checksums().plus(found)


def feature_path(block: int) -> str:
    """What the checksums of one block of the work area's features go by."""
    return f"work/features/{block}"


class ChunkError(RuntimeError):
    """A chunk could not be worked on for a reason of its own; the message names both."""


@contextmanager
def chunk_error_context(group: Group, chunk: Chunk) -> Iterator[None]:
    """Name the chunk in errors that do not say themselves what is wrong."""
    try:
        yield
        return
    except RescnetError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
    number = chunk.start // group.chunk_images
    raise ChunkError(f"chunk {number} (images {chunk.start} to {chunk.stop}): {cause}")
