"""The training images of a network whose heads compare images with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import zarr

from rescnet_dist.data import (
    RowBlock,
    Rows,
    RowTable,
    copy_maker,
    describe_altered_images,
    read_rows,
)
from rescnet_dist.errors import CorruptDataError, StorePermissionError, StoreReadError
from rescnet_dist.kernels import Backend
from rescnet_dist.model.forward import check_sample_count
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.store import (
    Location,
    RunStore,
    StoredArray,
    checksum,
    read_region,
    write_region,
)

Array = np.ndarray[Any, np.dtype[Any]]

PATH = "training_images"  # in a saved network
DIMS = ("training_image", "y", "x", "channel")
SAVED_CHUNK_BYTES = 16 * 2**20


class TrainingImages(ABC):
    """Training images with their augmented copies, in the order of the run."""

    __slots__ = ()

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of those that are in memory."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of images that are there, without reading them."""

    @abstractmethod
    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield images start to stop, all by default, as (n, H, W, d) in parts of any size."""

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield images in batches.

        Parameters
        ----------
        size : int
            The largest number of images of a batch.
        start : int, default 0
            The first image.
        stop : int, optional
            The image after the last; all that are there by default.

        Yields
        ------
        ndarray of shape (n, H, W, d)
            The next images.
        """
        waiting, missing = list[Array](), size
        for part in self.read(start, stop):
            while len(part) >= missing:
                yield np.concatenate([*waiting, part[:missing]]) if waiting else part[:missing]
                part, waiting, missing = part[missing:], [], size
            if len(part):
                waiting.append(part)
                missing -= len(part)
        if waiting:
            yield np.concatenate(waiting)

    def in_memory(self) -> TrainingImages:
        """Return the same images, read into memory."""
        return ImagesInMemory(np.concatenate(list(self.read())))

    def save(self, location: Location, count: int) -> list[int]:
        """Write the images to a saved network.

        Parameters
        ----------
        location : Location
            The folder of the network.
        count : int
            The number of images that the heads were fitted to.

        Returns
        -------
        list of int
            The checksums of the chunks.

        Raises
        ------
        CorruptDataError
            If there are more or fewer images.
        """
        image = next(self.batches(1))
        chunk = max(1, SAVED_CHUNK_BYTES // image.nbytes)
        location.create_array(
            PATH, (count, *image.shape[1:]), image.dtype, chunk, DIMS, compress=True
        )
        array, found, checksums = location.open_array(PATH, write=True), 0, list[int]()
        for batch in self.batches(chunk):
            if len(batch) == min(chunk, count - found):  # others are reported below
                write_region(array, found, batch)
                checksums.append(checksum(batch))
            found += len(batch)
        check_sample_count(count, found)
        return checksums


@dataclass(frozen=True, slots=True)
class ImagesInMemory(TrainingImages):
    """Training images (N, H, W, d) in memory."""

    images: Array

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        return self.images.nbytes

    def count(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield the images at once."""
        yield self.images[start:stop]

    def in_memory(self) -> TrainingImages:
        """Return these images."""
        return self


@dataclass(frozen=True, slots=True)
class SavedImages(TrainingImages):
    """Training images that are stored with a network; pickled as a URL."""

    location: Location
    checksums: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """No bytes: the images are in the store."""
        return 0

    def count(self) -> int:
        """Return the number of stored images."""
        return int(self.location.open_array(PATH).shape[0])

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield the images chunk by chunk; raise CorruptDataError if any are altered."""
        array = self.location.open_array(PATH)
        count, step = array.shape[0], array.chunks[0]
        starts, stop = range(0, count, step), count if stop is None else stop
        if len(self.checksums) != len(starts):
            raise CorruptDataError(
                f"{self.location} is damaged: {PATH} has {len(starts)} chunks, of which "
                f"{len(self.checksums)} have checksums. Restore it from a copy, or save the "
                "network again."
            )
        for first, expected in zip(starts, self.checksums, strict=True):
            if first + step <= start or first >= stop:
                continue
            try:
                chunk = read_region(array, first, min(first + step, count), expected)
            except CorruptDataError as error:
                raise CorruptDataError(
                    f"{self.location} is damaged. {error} Restore it from a copy, or save the "
                    "network again."
                ) from None
            yield chunk[max(0, start - first) : stop - first]


@dataclass(frozen=True, slots=True)
class RunImages(TrainingImages):
    """Training images of a run, whose copies are made again; pickled as a URL.

    They are read in the chunks of the run, whose checksums were committed.
    """

    location: Location
    table: RowTable
    chunk_images: int
    augment: AugmentSpec
    seed: int

    @property
    def nbytes(self) -> int:
        """No bytes: the images are in the store."""
        return 0

    def count(self) -> int:
        """Return the number of training images and their copies."""
        return sum(int(rows.train.sum()) for rows in self._iter_rows(RunStore(self.location)))

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Array]:
        """Yield the images and their copies chunk by chunk; raise CorruptDataError if altered."""
        run, stop = RunStore(self.location), self.table.rows if stop is None else stop
        (images, offset), checksums = self._open(run), run.checksums(0).get("data/images", ())
        before = 0  # training images
        for number, rows in enumerate(self._iter_rows(run)):
            first, before = before, before + int(rows.train.sum())
            if before <= start:
                continue
            if first >= stop:
                return
            expected = checksums[number] if number < len(checksums) else None
            change = copy_maker(rows, self.augment, self.seed, Backend())
            lowest, highest = rows.image_range
            try:
                chunk = read_region(images, offset + lowest, offset + highest, expected, change)
            except CorruptDataError as error:
                remedy = self._describe_remedy(run)
                raise describe_altered_images(error, self.augment, remedy) from None
            yield chunk[rows.train][max(0, start - first) : stop - first]

    def _open(self, run: RunStore) -> tuple[StoredArray, int]:
        """Open the images; see `RunStore.images`."""
        try:
            return run.images()
        except StorePermissionError:
            raise
        except StoreReadError as error:
            raise StoreReadError(
                "The network compares images with its training images, which are not there. "
                f"{error} {self._describe_remedy(run)}"
            ) from None

    def _iter_rows(self, run: RunStore) -> Iterator[Rows]:
        """Yield the rows of each chunk of the run."""
        count, step = self.table.rows, self.chunk_images
        read_block = partial(self._read_block, run.data_array("train"))
        chunks = ((start, min(start + step, count)) for start in range(0, count, step))
        return read_rows(self.table, chunks, read_block)

    def _read_block(self, train: zarr.Array[Any], block: int) -> RowBlock:
        """Read the training mask of a block of images; labels are not read, and all 0."""
        checksums = self.table.checksums.get("data/train")
        expected = checksums[block] if checksums else None
        mask = read_region(train, *self.table.image_range(block), expected)
        return RowBlock.of(self.table, block, np.zeros(len(mask), np.int64), mask)

    def _describe_remedy(self, run: RunStore) -> str:
        """Return what to do about images that are not those that were committed."""
        remedy = (
            f"Restore the data at {run.images_url}, which the network was trained on, or train "
            "again. A network that was saved before the data changed has its training images."
        )
        if self.augment.copies:
            remedy += " If it was saved where it was trained, it has all copies."
        return remedy
