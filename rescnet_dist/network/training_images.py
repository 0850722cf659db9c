"""The training images of a network whose heads compare images with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rescnet_dist.data import RowBlock, Rows, RowTable
from rescnet_dist.errors import CorruptDataError
from rescnet_dist.kernels import Augmentation, augment_images
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.store import Location, RunStore, checksum, read_region, write_region

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
    def read(self) -> Iterator[Array]:
        """Yield all images (n, H, W, d), in parts of any size."""

    def batches(self, size: int) -> Iterator[Array]:
        """Yield all images in batches.

        Parameters
        ----------
        size : int
            The largest number of images of a batch.

        Yields
        ------
        ndarray of shape (n, H, W, d)
            The next images.
        """
        waiting, missing = list[Array](), size
        for part in self.read():
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
        if found != count:
            raise CorruptDataError(
                f"The network was trained on {count:,} images, of which {found:,} were found. "
                "Restore the data that it was trained on, or train again."
            )
        return checksums


@dataclass(frozen=True, slots=True)
class ImagesInMemory(TrainingImages):
    """Training images (N, H, W, d) in memory."""

    images: Array

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        return self.images.nbytes

    def read(self) -> Iterator[Array]:
        """Yield all images at once."""
        yield self.images

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

    def read(self) -> Iterator[Array]:
        """Yield the images chunk by chunk; raise CorruptDataError if any are altered."""
        array = self.location.open_array(PATH)
        count, step = array.shape[0], array.chunks[0]
        starts = range(0, count, step)
        if len(self.checksums) != len(starts):
            raise CorruptDataError(
                f"{self.location.url} is damaged: {PATH} has {len(starts)} chunks, of which "
                f"{len(self.checksums)} have checksums. Restore it from a copy, or save the "
                "network again."
            )
        for start, expected in zip(starts, self.checksums, strict=True):
            try:
                yield read_region(array, start, min(start + step, count), expected)
            except CorruptDataError as error:
                raise CorruptDataError(
                    f"{self.location.url} is damaged. {error} Restore it from a copy, or save the "
                    "network again."
                ) from None


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

    def read(self) -> Iterator[Array]:
        """Yield the images and their copies chunk by chunk; raise CorruptDataError if altered."""
        run, changes = RunStore(self.location), Augmentation(**self.augment.copy_options)
        (images, offset), checksums = run.images(), run.checksums(0).get("data/images", ())
        for number, rows in enumerate(self._read_rows(run)):
            start, stop = int(rows.image[0]), int(rows.image[-1]) + 1

            def augment(originals: Array, rows: Rows = rows, start: int = start) -> Array:
                copied = originals[rows.image - start]
                return augment_images(copied, rows.image, rows.copy, changes, self.seed)

            expected = checksums[number] if number < len(checksums) else None
            change = augment if self.augment.copies else None
            try:
                chunk = read_region(images, offset + start, offset + stop, expected, change)
            except CorruptDataError as error:
                raise CorruptDataError(self._explain(str(error))) from None
            yield chunk[rows.train]

    def _read_rows(self, run: RunStore) -> Iterator[Rows]:
        """Yield the rows of each chunk of the run; labels are not read, and all 0."""
        table, train = self.table, run.data_array("train")
        blocks: dict[int, RowBlock] = {}

        def read_block(block: int) -> RowBlock:
            checksums = table.checksums.get("data/train")
            own = read_region(
                train, *table.image_range(block), checksums[block] if checksums else None
            )
            return RowBlock.of(table, block, np.zeros(len(own), np.int64), own)

        for start in range(0, table.rows, self.chunk_images):
            stop = min(start + self.chunk_images, table.rows)
            needed = table.blocks(start, stop)
            blocks = {number: blocks.get(number) or read_block(number) for number in needed}
            yield reduce(Rows.concatenate, (block.rows(start, stop) for block in blocks.values()))

    def _explain(self, problem: str) -> str:
        """Return the message for images that are not those that were committed."""
        remedy = "Restore the data that the network was trained on, or train again."
        if self.augment.copies:
            problem = problem.rstrip(".") + (
                ", or their augmented copies differ, as with another NumPy or processor."
            )
            remedy += " A network that is saved where it was trained has all copies."
        return f"{problem} {remedy}"
