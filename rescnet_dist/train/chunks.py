"""Chunks of images as tasks read and write them, with lost maps and scores rebuilt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zarr

from rescnet_dist.cluster.profiler import limit_profiler
from rescnet_dist.data import RowBlock, Rows, copy_maker, describe_altered_images, read_rows
from rescnet_dist.errors import CorruptDataError, RescnetError, StoreError
from rescnet_dist.kernels import Backend, to_host
from rescnet_dist.model import State, TrainingRows, initial_state, replay
from rescnet_dist.planning.plan import Group
from rescnet_dist.reduce import trim_memory
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import (
    Checksums,
    RunStore,
    StoredLayers,
    checksum,
    read_region,
    write_block,
    write_region,
)
from rescnet_dist.train import object_cache
from rescnet_dist.train.chunk_cache import ChunkCache, ChunkState
from rescnet_dist.train.metrics import TaskMeter
from rescnet_dist.train.object_cache import load_image_scale
from rescnet_dist.train.task import Task
from rescnet_dist.train.task_events import send

Array = np.ndarray[Any, np.dtype[Any]]

REREAD_WAIT_SECONDS = (0.2, 1.0)  # before a chunk that looks damaged is read again
UNSAVED_PREFIX = "unsaved/"  # of the checksum paths of arrays that are not stored


def unsaved_scores_path(layer: int) -> str:
    """Return the path in commit records of the checksums of scores that are not stored."""
    return f"{UNSAVED_PREFIX}scores/{layer:04d}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows start to stop of a run; class_offsets (C,) counts the training rows of each class before
    them, repetitions included."""

    start: int
    stop: int
    rows: Rows
    class_offsets: Array

    @property
    def labels(self) -> Array:
        """Class codes (n,)."""
        return self.rows.labels

    @property
    def train(self) -> Array:
        """Mask (n,) of the rows that are trained on."""
        return self.rows.train

    @property
    def weights(self) -> Array | None:
        """As how many images each row (n,) counts; None if each counts once."""
        return self.rows.weights

    @property
    def repeats(self) -> Array | None:
        """How many times each row (n,) is repeated for random draws; None for once."""
        return self.rows.repeats


def _load_checksums(task: Task, step: int, kind: str) -> dict[str, list[int]]:
    """Return the checksums committed with a step; a worker keeps the last of each kind."""
    return object_cache.get(task, f"checksums {kind}", lambda: task.run.checksums(step), step)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the data and the state after one committed step, for the chunks of one group.

    Both come from the cache of the group if they are there, otherwise from the store. The meter
    counts the bytes read. Maps and scores that are stored are opened once, by layer.
    """

    task: Task
    group: Group
    state: RunState
    step: int
    checksums: dict[str, list[int]] = field(default_factory=dict)
    cache: ChunkCache = field(default_factory=ChunkCache)
    meter: TaskMeter = field(default_factory=TaskMeter)
    stored: dict[int, tuple[zarr.Array[Any], zarr.Array[Any]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, task: Task, group: Group, state: RunState, step: int, cache: ChunkCache | None = None
    ) -> Reader:
        """Create the reader of a committed step, with the checksums of its commit record."""
        checksums = dict(_load_checksums(task, 0, "survey"))
        for number in {step, min(task.stored_layer, step)} - {0}:
            committed = _load_checksums(task, number, "step" if number == step else "stored")
            for path, chunks in committed.items():
                if len(chunks) != state.plan.chunks:
                    raise StoreError(
                        f"commits/{number:04d}.json has {len(chunks)} checksums of {path}, which "
                        f"has {state.plan.chunks} chunks. The record is damaged; remove it, then "
                        "resume the run, which writes it anew."
                    )
            checksums |= committed
        return cls(task, group, state, step, checksums, cache or ChunkCache())

    @property
    def backend(self) -> Backend:
        """Backend of the arrays that this reader returns."""
        return self.state.backend

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the group, in order, and cache the list of them."""
        chunks = []
        for chunk in self.cache.chunks or self.read_chunks():
            chunks.append(chunk)
            trim_memory()
            limit_profiler()
            yield chunk
        if self.task.cache_maps:
            self.cache.chunks = chunks

    def read_chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the group, reading each block of labels once."""
        table, offsets = self.state.rows, self.task.class_offsets
        read = read_rows(table, self.group.chunks(), self._read_labels)
        for (start, stop), rows in zip(self.group.chunks(), read, strict=True):
            yield Chunk(start, stop, rows, offsets)
            offsets = offsets + rows.count_classes(self.state.classes)

    def _read_labels(self, block: int) -> RowBlock:
        """Read the labels, the training mask and the weights, if any, of a block of images."""
        run, table = self.task.run, self.state.rows
        names = ("labels", "train", *(("weights",) if table.draws_per_weight else ()))
        arrays = (
            self._read(run.data_array(name), *table.image_range(block), f"data/{name}", block)
            for name in names
        )
        return RowBlock.of(table, block, *arrays)

    def get_images(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> Array:
        """Return the images (n, H, W, d) of a chunk, with their augmented copies.

        They come from the cache or from source, the run's array and the row of its first image;
        those that are read are cached.
        """
        cached = self.cache.images  # of an earlier layer, if maps are now in the store
        take = cached.get if self.task.cache_maps else cached.pop
        images: Array | None = take(chunk.start, None)
        if images is None:
            images = self.read_images(source, chunk, self.backend)
            self.cache_images(chunk, images)
        return images

    def cache_images(self, chunk: Chunk, images: Array) -> None:
        """Cache the images (n, H, W, d) of a chunk if the task uses the cache."""
        if self.task.cache_maps:
            self.cache.put_images(chunk.start, images, self.backend)

    def cache_state(self, chunk: Chunk, state: ChunkState) -> None:
        """Cache what the task keeps of the state of a chunk: maps, features, both or nothing."""
        if self.task.cache_maps:
            features = state.features if self.task.cache_features else None
            packed = replace(state.cast_maps(self.state.spec.store_dtype), features=features)
            self.cache.put(chunk.start, packed, self.backend)
        elif self.task.cache_features and state.features is not None:
            self.cache.put_features(chunk.start, state.layer, state.features, self.backend)

    def read_images(
        self, source: tuple[zarr.Array[Any], int], chunk: Chunk, backend: Backend
    ) -> Array:
        """Read the images (n, H, W, d) of a chunk from the store to a backend; augment them there.

        Raise CorruptDataError if they are not the images that were committed.
        """
        (array, first), state = source, self.state
        start, stop = chunk.rows.image_range
        try:
            images = self._read(
                array,
                first + start,
                first + stop,
                "data/images",
                self._chunk_number(chunk.start),
                copy_maker(chunk.rows, state.augment, state.run_spec.seed, backend),
            )
            return backend.put(images)
        except CorruptDataError as error:
            remedy = (
                "Put the images back as they were when the run began, or train on others in "
                "another store."
            )
            altered = describe_altered_images(error, state.augment, remedy)
        raise altered

    def read_both(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> tuple[Array, Array]:
        """Return the images of a chunk, as of `read_images`, on the host and on the backend."""
        backend = self.backend if self.state.augment.copies else Backend()
        images = self.read_images(source, chunk, backend)
        return to_host(images), self.backend.put(images)

    def read_state(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> ChunkState:
        """Return the state of a chunk after the step's layer.

        It comes from the cache (which it leaves), from the store, or is recomputed from the last
        state that is available. Chunks that the store has lost are written again. Maps from the
        store have their features if these are cached.
        """
        task, step = self.task, self.step
        features = self.cache.get_features(chunk.start, step)
        cached = self.cache.pop(chunk.start, step)
        if cached and cached.layer == step:
            return cached
        if task.stored_layer < step:
            return self._advance_state(source, chunk, cached)
        try:
            maps, scores = self._read_stored(chunk, step)
        except CorruptDataError as error:
            lost = error
        else:
            return ChunkState(step, maps, scores, features)
        return self._rebuild_stored(source, chunk, lost)

    def _read_stored(self, chunk: Chunk, layer: int) -> tuple[Array, Array]:
        """Read the maps (n, H, W, f) of a layer and the scores (n, C) that entered it."""
        run, number = self.task.run, self._chunk_number(chunk.start)
        if layer not in self.stored:
            self.stored[layer] = run.maps(layer), run.scores(layer)
        arrays = self.stored[layer]
        maps, scores = (self._read(a, chunk.start, chunk.stop, a.path, number) for a in arrays)
        return self.backend.put(maps), self.backend.put(scores)

    def _advance_state(
        self, source: tuple[zarr.Array[Any], int], chunk: Chunk, cached: ChunkState | None
    ) -> ChunkState:
        """Compute the state after the step's layer from that of an earlier layer.

        The earlier one is the later of the cached state and the last stored one.
        """
        stored_layer = self.task.stored_layer
        initial = None if cached is None else (cached.maps, cached.scores)
        first = cached.layer if cached else 0
        lost = ""  # why maps that should be in the store cannot be used
        if stored_layer > first:
            if self.task.run.has_maps(stored_layer):
                try:
                    initial, first = self._read_stored(chunk, stored_layer), stored_layer
                except CorruptDataError as error:
                    lost = f"{str(error).rstrip('.')}, and "
            elif self.state.run_spec.maps_stay:
                lost = f"the maps of layer {stored_layer} were removed from the store, and "
        maps, scores = self._replay(source, chunk, initial, first)
        # the layer may have been stored since its commit
        paths = unsaved_scores_path(self.step), f"scores/{self.step:04d}"
        checksums = (self._expected_checksum(p, self._chunk_number(chunk.start)) for p in paths)
        expected = next((value for value in checksums if value is not None), None)
        origin = f"layer {first}" if first else "the images"
        kept = "" if self.state.run_spec.maps_stay else ', as keep_maps="none" removes them'
        reason = f"{lost}they are neither in memory nor in the store{kept}; computed from {origin}"
        differs = expected is not None and checksum(self.backend.get(scores)) != expected
        if differs:
            reason += (
                ", differing from the committed values in the last digits, as on another processor "
                "or with another NumPy"
            )
        self._report_rebuilt(chunk, self.step, reason, unexpected=differs or bool(lost))
        return ChunkState(self.step, maps, scores, None)

    def _replay(
        self,
        source: tuple[zarr.Array[Any], int],
        chunk: Chunk,
        initial: tuple[Array, Array] | None,
        first: int,
    ) -> tuple[Array, Array]:
        """Compute the step's maps (n, H, W, f) and the scores (n, C) that entered it.

        initial holds the maps and scores of layer `first`; None and 0 start from the images.
        """
        run, state = self.task.run, self.state
        images, architecture = self.get_images(source, chunk), state.architecture
        spec = state.spec
        stored = StoredLayers(run.location, self.step, spec.head.arrays, spec.first_head)
        layers = (stored[number - 1] for number in range(max(first, 1), self.step + 1))
        scale = load_image_scale(self.task)
        with self.backend.working():
            before = initial_state(images, scale, architecture)
            maps, scores = initial or (None, before.scores)
            rows = TrainingRows(chunk.labels, chunk.train, chunk.rows.image, chunk.start)
            before = State(before.pixels, maps, scores, layer=first, rows=rows)
            after = replay(architecture, before, layers)
        assert after.maps is not None
        return after.maps, after.scores

    def _chunk_number(self, start: int) -> int:
        """Return the number of the chunk that begins with row `start`."""
        return start // self.group.chunk_images

    def _read(
        self,
        array: zarr.Array[Any],
        start: int,
        stop: int,
        path: str,
        number: int,
        transform: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Read rows of an array and apply `transform`, if given.

        Raise CorruptDataError if the result is not what was committed as this chunk of `path`.
        """
        expected = self._expected_checksum(path, number)
        self.meter.count_read(array, stop - start)
        for seconds in REREAD_WAIT_SECONDS:
            try:
                return read_region(array, start, stop, expected, transform)
            except CorruptDataError:
                time.sleep(seconds)  # a store that is just starting may not show all its contents
        return read_region(array, start, stop, expected, transform)

    def _expected_checksum(self, path: str, number: int) -> int | None:
        """Return the committed checksum of a chunk, or None if there is none for `path`."""
        chunks = self.checksums.get(path)
        if not chunks:
            return None
        if number >= len(chunks):
            raise StoreError(
                f"commits/0000.json has {len(chunks)} checksums of {path}, but chunk {number} is "
                "needed. The record is damaged; remove it, then resume the run, which writes it "
                "anew."
            )
        return chunks[number]

    def _rebuild_stored(
        self, source: tuple[zarr.Array[Any], int], chunk: Chunk, lost: CorruptDataError
    ) -> ChunkState:
        """Recompute a chunk that the store has lost from the images, and write it again."""
        run, layer, start = self.task.run, self.step, chunk.start
        arrays = run.maps(layer, write=True), run.scores(layer, write=True)
        maps, scores = self._replay(source, chunk, None, 0)
        get = self.backend.get
        stored = get(maps).astype(arrays[0].dtype, copy=False), get(scores)
        for array, values in zip(arrays, stored, strict=True):
            if checksum(values) != self._expected_checksum(array.path, self._chunk_number(start)):
                raise CorruptDataError(
                    f"{str(lost).rstrip('.')}. Recomputing them from the stored layers does not "
                    "give the committed values either, as with another release of rescnet_dist, "
                    "NumPy or its BLAS, or another processor. Resume where the run was trained."
                )
        for array, values in zip(arrays, stored, strict=True):
            write_region(array, start, values)
        self._report_rebuilt(chunk, layer, str(lost), unexpected=True)
        return ChunkState(layer, maps, scores, None)

    def _report_rebuilt(self, chunk: Chunk, layer: int, reason: str, *, unexpected: bool) -> None:
        """Report that the state of a chunk after a layer was computed again."""
        rows = {"start": chunk.start, "stop": chunk.stop}
        fields = {"layer": layer, "reason": reason, "unexpected": unexpected}
        send(self.task, "rebuilt", **rows, **fields)


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes the maps and scores of a layer to the store."""

    maps: zarr.Array[Any]
    scores: zarr.Array[Any]
    backend: Backend

    @classmethod
    def of(cls, task: Task, state: RunState) -> Saver:
        """Open the arrays of the task's layer for writing."""
        run, layer = task.run, task.layer
        arrays = run.maps(layer, write=True), run.scores(layer, write=True)
        return cls(*arrays, state.backend)

    def save(self, chunk: Chunk, state: ChunkState, meter: TaskMeter) -> Checksums:
        """Write the state of a chunk and return its checksums."""
        get = self.backend.get
        maps, scores = get(state.maps).astype(self.maps.dtype, copy=False), get(state.scores)
        write_region(self.maps, chunk.start, maps)
        write_region(self.scores, chunk.start, scores)
        meter.written += maps.nbytes + scores.nbytes
        return Checksums().plus({self.maps.path: maps, self.scores.path: scores})


@dataclass(frozen=True, slots=True)
class FeatureWriter:
    """Writes the features of the layer being grown to the run's work area, in blocks of columns."""

    array: zarr.Array[Any]
    blocks: list[slice]

    @classmethod
    def of(cls, run: RunStore, state: RunState, layer: int) -> FeatureWriter:
        """Open the work area of a run, for the features of a layer."""
        return cls(run.work("features", write=True), state.feature_blocks(layer))

    def write(self, start: int, features: Array) -> Checksums:
        """Write the features (n, D) of the images from `start`; return checksums by block."""
        written = {}
        for number, columns in enumerate(self.blocks):
            block = np.ascontiguousarray(to_host(features[:, columns]), self.array.dtype)
            write_block(self.array, (start, columns.start), block)
            written[feature_path(number)] = block
        return Checksums().plus(written)


def feature_path(block: int) -> str:
    """Return the path of the checksums of one block of columns of the work area's features."""
    return f"work/features/{block}"


class ChunkError(RuntimeError):
    """Processing a chunk failed; the message names the chunk and the cause."""


@contextmanager
def chunk_error_context(group: Group, chunk: Chunk) -> Iterator[None]:
    """Raise ChunkError, which names the chunk, for errors that are not RescnetErrors."""
    try:
        yield
        return
    except RescnetError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
    number = chunk.start // group.chunk_images
    raise ChunkError(f"chunk {number} (images {chunk.start} to {chunk.stop}): {cause}")
