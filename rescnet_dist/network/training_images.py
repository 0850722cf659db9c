"""The training images of a network whose heads compare images with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.data import RowBlock, Rows, RowTable
from rescnet_dist.kernels import Augmentation, augment_images
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.store import Location, RunStore, read_region, write_region

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
        waiting: list[Array] = []
        for part in self.read():
            waiting.append(part)
            while sum(map(len, waiting)) >= size:
                joined = np.concatenate(waiting)
                yield joined[:size]
                waiting = [joined[size:]]
        rest = np.concatenate(waiting) if waiting else np.zeros(0)
        if len(rest):
            yield rest

    def in_memory(self) -> TrainingImages:
        """Return the same images, read into memory."""
        return ImagesInMemory(np.concatenate(list(self.read())))

    def save(self, location: Location, count: int) -> None:
        """Write the images to a saved network.

        Parameters
        ----------
        location : Location
            The folder of the network.
        count : int
            The number of images.

        """
        start, array = 0, None
        for part in self.read():
            if array is None:
                chunk = max(1, SAVED_CHUNK_BYTES // part[0].nbytes)
                shape = (count, *part.shape[1:])
                location.create_array(PATH, shape, part.dtype, chunk, DIMS, compress=True)
                array = location.open_array(PATH, write=True)
            write_region(array, start, part[: count - start])
            start += len(part)


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

    @property
    def nbytes(self) -> int:
        """No bytes: the images are in the store."""
        return 0

    def read(self) -> Iterator[Array]:
        """Yield the images chunk by chunk."""
        array = self.location.open_array(PATH)
        count, step = array.shape[0], array.chunks[0]
        for start in range(0, count, step):
            yield read_region(array, start, min(start + step, count))


@dataclass(frozen=True, slots=True)
class RunImages(TrainingImages):
    """Training images of a run, whose copies are made again; pickled as a URL."""

    location: Location
    table: RowTable
    augment: AugmentSpec
    seed: int

    @property
    def nbytes(self) -> int:
        """No bytes: the images are in the store."""
        return 0

    def read(self) -> Iterator[Array]:
        """Yield the images and their copies block by block."""
        run, table = RunStore(self.location), self.table
        (images, offset), changes = run.images(), Augmentation(**self.augment.copy_options)
        labels, train = run.data_array("labels"), run.data_array("train")
        for block in range(len(table.starts) - 1):
            first, last = table.image_range(block)
            own = (read_region(array, first, last) for array in (labels, train))
            rows = RowBlock.of(table, block, *own).rows(table.starts[block], table.rows)
            rows = _select_trained(rows)
            if len(rows.image):
                originals = read_region(images, offset + first, offset + last)
                copied = originals[rows.image - first]
                yield augment_images(copied, rows.image, rows.copy, changes, self.seed)


def _select_trained(rows: Rows) -> Rows:
    """Return the rows of training images."""
    return Rows(
        *(values[rows.train] for values in (rows.image, rows.copy, rows.labels, rows.train))
    )
