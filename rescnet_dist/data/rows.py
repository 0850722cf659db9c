"""The rows of a run: each image, followed by the augmented copies of training images."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_IMAGES = 65_536  # whose labels are read at a time


@dataclass(frozen=True, slots=True)
class RowTable:
    """Which image and which copy of it each row is; made from blocks of `block` images.

    `starts` has the first row of each block, followed by the number of rows. `checksums` are those
    of the blocks of the run's labels and of its mask of training images, by path.
    """

    images: int
    copies: int
    block: int
    starts: tuple[int, ...]
    checksums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of images and of copies of training images."""
        return self.starts[-1]

    def blocks(self, start: int, stop: int) -> range:
        """Return the blocks that contain rows start to stop."""
        return range(bisect_right(self.starts, start) - 1, bisect_right(self.starts, stop - 1))

    def image_range(self, block: int) -> tuple[int, int]:
        """Return the first image of a block and the one after its last."""
        return block * self.block, min((block + 1) * self.block, self.images)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-serializable values."""
        return {
            "images": self.images,
            "copies": self.copies,
            "block": self.block,
            "starts": list(self.starts),
            "checksums": {path: list(values) for path, values in self.checksums.items()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RowTable:
        """Create a table from the values of `to_dict`."""
        return cls(
            int(values["images"]),
            int(values["copies"]),
            int(values["block"]),
            tuple(int(start) for start in values["starts"]),
            {path: tuple(checksums) for path, checksums in values["checksums"].items()},
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows: their image (n,), copy (n,), labels (n,) as codes, and train (n,) bool.

    Copy 0 is the image itself.
    """

    image: Array
    copy: Array
    labels: Array
    train: Array

    def concatenate(self, later: Rows) -> Rows:
        """Return these rows followed by later ones."""
        return Rows(
            np.concatenate([self.image, later.image]),
            np.concatenate([self.copy, later.copy]),
            np.concatenate([self.labels, later.labels]),
            np.concatenate([self.train, later.train]),
        )


@dataclass(frozen=True, slots=True)
class RowBlock:
    """One block of images: labels (b,), train (b,) bool, and the first row (b + 1,) of each."""

    first_image: int
    labels: Array
    train: Array
    first_row: Array

    @classmethod
    def of(cls, table: RowTable, block: int, labels: Array, train: Array) -> RowBlock:
        """Return the block of a table with these labels (b,) and training mask (b,)."""
        first_image, _ = table.image_range(block)
        per_image = 1 + table.copies * train.astype(np.int64)
        first_row = table.starts[block] + np.concatenate([[0], np.cumsum(per_image)])
        return cls(first_image, labels, train, first_row)

    def rows(self, start: int, stop: int) -> Rows:
        """Return those of the rows start to stop that are in this block."""
        rows = np.arange(max(start, self.first_row[0]), min(stop, self.first_row[-1]))
        index = np.searchsorted(self.first_row, rows, side="right") - 1
        return Rows(
            self.first_image + index,
            rows - self.first_row[index],
            self.labels[index],
            self.train[index],
        )
