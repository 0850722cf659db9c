"""The rows of a run: each image, followed by the augmented copies of training images."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_IMAGES = 65_536  # whose labels are read at a time
MAX_ROWS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class RowTable:
    """Which image and which copy of it each row is; made from blocks of `block` images.

    `starts` has the first row of each block, followed by the number of rows. `checksums` are those
    of the blocks of the run's labels, of its mask of training images and of its weights, if any, by
    path. `draws_per_weight` is how many times an image of weight 1 is repeated for random draws;
    None if images have no weights.
    """

    images: int
    copies: int
    block: int
    starts: tuple[int, ...]
    checksums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    draws_per_weight: float | None = None

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
        weighted = self.draws_per_weight is not None
        return {
            "images": self.images,
            "copies": self.copies,
            "block": self.block,
            "starts": list(self.starts),
            "checksums": {path: list(values) for path, values in self.checksums.items()},
        } | ({"draws_per_weight": self.draws_per_weight} if weighted else {})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RowTable:
        """Create a table from the values of `to_dict`; raise ValueError if they contradict."""
        table = cls(
            int(values["images"]),
            int(values["copies"]),
            int(values["block"]),
            tuple(int(start) for start in values["starts"]),
            {path: tuple(checksums) for path, checksums in values["checksums"].items()},
            values.get("draws_per_weight"),
        )
        table._check()
        return table

    def _check(self) -> None:
        """Raise ValueError if no images and copies of them have these rows."""
        if self.images < 1 or self.copies < 0 or self.block < 1:
            raise ValueError(
                f"{self.images} images in blocks of {self.block} with {self.copies} copies each"
            )
        blocks = math.ceil(self.images / self.block)
        if len(self.starts) != blocks + 1 or self.starts[0] != 0 or self.rows > MAX_ROWS:
            raise ValueError(f"the first rows of {blocks} blocks are {self.starts}")
        for block, (start, stop) in enumerate(pairwise(self.starts)):
            first, last = self.image_range(block)
            added, images = stop - start - (last - first), last - first
            if not 0 <= added <= images * self.copies or (self.copies and added % self.copies):
                raise ValueError(
                    f"block {block} of {images} images with {self.copies} copies each has "
                    f"{stop - start} rows"
                )
        if self.copies > self.rows - self.images:
            raise ValueError(f"no training image has {self.copies} copies")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows: their image (n,), copy (n,), labels (n,) as codes, and train (n,) bool.

    Copy 0 is the image itself. In a run with weights, weights (n,) float64 say as how many images
    each row counts, and repeats (n,) int how many times it is repeated for random draws.
    """

    image: Array
    copy: Array
    labels: Array
    train: Array
    weights: Array | None = None
    repeats: Array | None = None

    @property
    def image_range(self) -> tuple[int, int]:
        """The first image of the rows, which are consecutive, and the one after their last."""
        return int(self.image[0]), int(self.image[-1]) + 1

    def concatenate(self, later: Rows) -> Rows:
        """Return these rows followed by later ones."""
        pairs = {f.name: (getattr(self, f.name), getattr(later, f.name)) for f in fields(self)}
        return Rows(
            **{name: np.concatenate(pair) for name, pair in pairs.items() if pair[0] is not None}
        )

    def count_classes(self, classes: int) -> Array:
        """Return the number of training rows of each class (C,), repetitions included."""
        labels = self.labels[self.train]
        if self.repeats is None:
            return np.bincount(labels, minlength=classes)
        counts = np.zeros(classes, np.int64)
        np.add.at(counts, labels, self.repeats[self.train])
        return counts


@dataclass(frozen=True, slots=True)
class RowBlock:
    """One block of images: labels (b,), train (b,) bool, and the first row (b + 1,) of each.

    In a run with weights it has weights (b,) and repeats (b,), too.
    """

    first_image: int
    labels: Array
    train: Array
    first_row: Array
    weights: Array | None = None
    repeats: Array | None = None

    @classmethod
    def of(
        cls,
        table: RowTable,
        block: int,
        labels: Array,
        train: Array,
        weights: Array | None = None,
    ) -> RowBlock:
        """Return the block of a table with these labels, training mask and weights, (b,) each."""
        first_image, _ = table.image_range(block)
        per_image = 1 + table.copies * train.astype(np.int64)
        first_row = table.starts[block] + np.concatenate([[0], np.cumsum(per_image)])
        repeats = None
        if weights is not None and table.draws_per_weight is not None:
            repeats = np.maximum(1, np.rint(weights * table.draws_per_weight)).astype(np.int64)
        return cls(first_image, labels, train, first_row, weights, repeats)

    def rows(self, start: int, stop: int) -> Rows:
        """Return those of the rows start to stop that are in this block."""
        rows = np.arange(max(start, self.first_row[0]), min(stop, self.first_row[-1]))
        index = np.searchsorted(self.first_row, rows, side="right") - 1
        return Rows(
            self.first_image + index,
            rows - self.first_row[index],
            self.labels[index],
            self.train[index],
            None if self.weights is None else self.weights[index],
            None if self.repeats is None else self.repeats[index],
        )


def read_rows(
    table: RowTable, chunks: Iterable[tuple[int, int]], read_block: Callable[[int], RowBlock]
) -> Iterator[Rows]:
    """Read the rows of chunks.

    Parameters
    ----------
    table : RowTable
        The rows of the run.
    chunks : iterable of (int, int)
        The first row of each chunk and the one after its last, in ascending order.
    read_block : callable
        Reads the block of a number. Each block is read once, and kept while chunks need it.

    Yields
    ------
    Rows
        The rows of each chunk.
    """
    blocks: dict[int, RowBlock] = {}
    for start, stop in chunks:
        needed = table.blocks(start, stop)
        blocks = {number: blocks.get(number) or read_block(number) for number in needed}
        yield reduce(Rows.concatenate, (block.rows(start, stop) for block in blocks.values()))
