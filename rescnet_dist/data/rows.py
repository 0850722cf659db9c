"""The rows of a run: every image once, and the copies of those to train on right behind it."""

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

    starts: the first row of each block, and behind them the number of rows. checksums: those of the
    blocks of the run's labels and of its mask of training images, by path.
    """

    images: int
    copies: int
    block: int
    starts: tuple[int, ...]
    checksums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Images, with the copies of those to train on."""
        return self.starts[-1]

    def blocks(self, start: int, stop: int) -> range:
        """The blocks that rows start to stop lie in."""
        return range(bisect_right(self.starts, start) - 1, bisect_right(self.starts, stop - 1))

    def images_of(self, block: int) -> tuple[int, int]:
        """First image of a block and the one behind its last."""
        return block * self.block, min((block + 1) * self.block, self.images)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {
            "images": self.images,
            "copies": self.copies,
            "block": self.block,
            "starts": list(self.starts),
            "checksums": {path: list(found) for path, found in self.checksums.items()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RowTable:
        """The inverse of `to_dict`."""
        checksums = {path: tuple(found) for path, found in values["checksums"].items()}
        return cls(
            int(values["images"]), int(values["copies"]), int(values["block"]),
            tuple(int(start) for start in values["starts"]), checksums,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows: their image (n,), copy (n,) from 0, the image itself, labels (n,) as codes, and
    train (n,) bool."""

    image: Array
    copy: Array
    labels: Array
    train: Array

    def concatenate(self, later: Rows) -> Rows:
        """These and the rows behind them."""
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
        """The block of a table with these labels (b,) and mask (b,)."""
        first_image, _ = table.images_of(block)
        per_image = 1 + table.copies * train.astype(np.int64)
        first_row = table.starts[block] + np.concatenate([[0], np.cumsum(per_image)])
        return cls(first_image, labels, train, first_row)

    def rows(self, start: int, stop: int) -> Rows:
        """Those of the rows start to stop that lie in this block."""
        wanted = np.arange(max(start, self.first_row[0]), min(stop, self.first_row[-1]))
        location = np.searchsorted(self.first_row, wanted, side="right") - 1
        return Rows(
            self.first_image + location,
            wanted - self.first_row[location],
            self.labels[location],
            self.train[location],
        )
