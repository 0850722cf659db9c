"""The chunks a task works on: read as they were committed, rebuilt where they are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
import zarr

from rescnet_dist.cluster.workers import forget_old_profiles
from rescnet_dist.data import RowBlock, Rows
from rescnet_dist.errors import DamagedError, RescnetError, StoreError
from rescnet_dist.kernels import augmented, feature_blocks, replayed
from rescnet_dist.planning.plan import Group
from rescnet_dist.reduce import trim_memory
from rescnet_dist.store import (
    Checksums,
    RunStore,
    StoredLayers,
    checksum,
    patiently,
    read_image_scale,
    read_region,
    write_block,
    write_region,
)
from rescnet_dist.train.observed import Meter
from rescnet_dist.train.report import report
from rescnet_dist.train.state import RunState, Task

Array = np.ndarray[Any, np.dtype[Any]]

LOOK_AGAIN = (0.2, 1.0)  # seconds before a chunk that looks damaged is read again


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
    """Reads what was committed with the data and with one step, for the chunks of one group; its
    meter counts the bytes."""

    task: Task
    group: Group
    state: RunState
    step: int
    checksums: dict[str, list[int]] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)

    @classmethod
    def of(cls, task: Task, group: Group, state: RunState, step: int) -> Reader:
        """The reader of a step that is committed."""
        run = task.run
        checksums = run.checksums(0) | (run.checksums(step) if step else {})
        return cls(task, group, state, step, checksums)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of the group, in order."""
        table, before = self.state.rows, self.task.before
        blocks: dict[int, RowBlock] = {}
        for start, stop in self.group.chunks():
            needed = table.blocks(start, stop)
            blocks = {number: blocks.get(number) or self._block(number) for number in needed}
            rows = reduce(Rows.concatenated, (b.rows(start, stop) for b in blocks.values()))
            trim_memory()
            forget_old_profiles()
            yield Chunk(start, stop, rows, before)
            before = before + np.bincount(rows.labels[rows.train], minlength=self.state.classes)

    def _block(self, number: int) -> RowBlock:
        """Labels of a block of images, and which of them are trained on."""
        run, table = self.task.run, self.state.rows
        labels, train = (
            self._read(run.data_array(name), *table.images_of(number), f"data/{name}", number)
            for name in ("labels", "train")
        )
        return RowBlock.of(table, number, labels, train)

    def images(self, source: tuple[zarr.Array[Any], int], chunk: Chunk) -> Array:
        """The images (n, H, W, d) of a chunk: from the run's array and the row of its first, and
        copies of them as the run augments them."""
        (array, first), rows, state = source, chunk.rows, self.state
        start, stop = int(rows.image[0]), int(rows.image[-1]) + 1

        def copies(images: Array) -> Array:
            images = images[rows.image - start]
            return augmented(images, rows.image, rows.copy, state.augment, state.run_spec.seed)

        try:
            return self._read(
                array, first + start, first + stop, "data/images", self._number(chunk.start),
                copies if state.augment.copies else None,
            )  # fmt: skip
        except DamagedError as error:
            problem = str(error)
        if state.augment.copies:
            problem += " (or copies of them come out otherwise, as with another NumPy or processor)"
        raise DamagedError(
            f"{problem}; put the images back as they were when the run began, or train on others "
            "in another store"
        )

    def maps_and_scores(self, chunk: Chunk) -> tuple[Array, Array]:
        """Maps (n, H, W, f) of the step's layer and the scores (n, C) that entered it; rebuilt from
        the layers before, and written again, if they are lost."""
        run, start, stop = self.task.run, chunk.start, chunk.stop
        arrays, number = (run.maps(self.step), run.scores(self.step)), self._number(start)
        try:
            maps, scores = (self._read(a, start, stop, a.path, number) for a in arrays)
        except DamagedError as error:
            lost = error
        else:
            return maps.astype(np.float32, copy=False), scores
        return self._rebuilt(chunk, lost)

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
                return patiently(lambda: read_region(array, start, stop, expected, change), what)
            except DamagedError:
                time.sleep(wait)  # a store that is just starting may not see all it has
        return patiently(lambda: read_region(array, start, stop, expected, change), what)

    def _expected(self, path: str, number: int) -> int | None:
        chunks = self.checksums.get(path)
        if not chunks:
            return None
        if number >= len(chunks):
            raise StoreError(
                f"commits/{self.step:04d}.json has {len(chunks)} checksums of {path}, and chunk "
                f"{number} is read: the record is damaged; remove it, then resume the run, which "
                "makes it again"
            )
        return chunks[number]

    def _rebuilt(self, chunk: Chunk, lost: DamagedError) -> tuple[Array, Array]:
        run, layer, start = self.task.run, self.step, chunk.start
        layers = StoredLayers(run.place, layer)
        images = self.images(run.images(), chunk)
        maps, scores = patiently(
            lambda: replayed(
                images, layers, read_image_scale(run.place), self.state.spec, self.state.classes
            ),
            f"reading the layers of {run}",
        )
        places = run.maps(layer, write=True), run.scores(layer, write=True)
        stored = maps.astype(places[0].dtype, copy=False), scores
        for array, values in zip(places, stored, strict=True):
            if checksum(values) != self._expected(array.path, self._number(start)):
                raise DamagedError(
                    f"{lost}; what the stored layers give for them is not what was committed "
                    "either, as with another release of rescnet_dist, NumPy or its BLAS, or "
                    "another processor: resume where the run was trained"
                )
        for array, values in zip(places, stored, strict=True):
            write(array, start, values, run)
        report(self.task, "rebuilt", layer=layer, start=start, stop=chunk.stop, reason=str(lost))
        return maps, scores


def write(array: zarr.Array[Any], start: int, values: Array, run: RunStore) -> None:
    """Write whole chunks of rows, with patience."""
    patiently(lambda: write_region(array, start, values), f"{array.path} of {run}")


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
            patiently(
                partial(write_to, found[feature_path(number)]), f"{self.array.path} of {self.run}"
            )
        return Checksums().plus(found)


def feature_path(block: int) -> str:
    """What the checksums of one block of the work area's features go by."""
    return f"work/features/{block}"


class ChunkError(RuntimeError):
    """A chunk could not be worked on for a reason of its own; the message names both."""


@contextmanager
def naming(group: Group, chunk: Chunk) -> Iterator[None]:
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
