"""How work on a GPU is cut, and what it takes or cannot hold: arithmetic, for those who plan."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Self

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.spec import NetworkSpec

WANTED, MOST_HELD = 44 * 1024, 48 * 1024  # bytes that a block of threads is to hold, and may
LINE = 8  # neighbors in a row that a thread works on
MOST_THREADS = 512
FEW_CHANNELS, DEPTH = 8, 16  # matrix units take 16 at a time, so that fewer would be wasted on them
SEGMENT_CHANNELS = 4  # that those of segments of pixels are filled up to a multiple of
PATCH_SLAB_BYTES = 5 * 2**30  # of pixels whose patches are worked on at a time: of a chunk, mostly
TILE = 16  # pixels along the side of what a block of threads works on there


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block of threads works on in single precision: rows and columns of pixels, filters in
    groups of four, and so many channels at a time; 0 where not even one fits."""

    rows: int
    columns: int
    groups: int
    depth: int

    @classmethod
    def of(cls, size: int, filters: int, height: int, width: int) -> Tile:
        """That for filters of this size and number, on maps (H, W)."""
        groups = -(-filters // 4)
        columns = -(-min(width, 32) // LINE) * LINE
        rows = max(1, min(MOST_THREADS // (groups * (columns // LINE)), 8, height))
        each = 4 * ((rows + size - 1) * (columns + size) + 4 * size * size * groups)
        depth = max(1, min(8, WANTED // each))
        return cls(rows, columns, groups, depth if depth * each <= MOST_HELD else 0)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * self.rows * (self.columns // LINE)


@dataclass(frozen=True, slots=True)
class Launch:
    """Filters, of those of a layer, that are made together, from some channels (c',); on matrix
    units or not."""

    filters: slice
    channels: Array
    matrix_units: bool


def launches(filters: Array, matmul_precision: str, height: int, width: int) -> list[Launch]:
    """How filters (k, k, c, f) are made on maps (H, W): filters that have no channel in common with
    those before them begin another launch, and a launch has as many as a block of threads holds.

    >>> filters = np.kron(np.eye(2), np.ones((4, 3)))[None, None]  # two towers
    >>> [(x.filters, x.channels.tolist()) for x in launches(filters, "split", 9, 9)]
    [(slice(0, 3, None), [0, 1, 2, 3]), (slice(3, 6, None), [4, 5, 6, 7])]
    """
    size, _, _, count = filters.shape
    seen = (filters != 0).any(axis=(0, 1)).T
    towers, common = [0], seen[0]
    for number, mine in enumerate(seen):
        if common.any() and mine.any() and not (common & mine).any():
            towers.append(number)
            common = mine
        common = common | mine
    found = []
    for first, end in itertools.pairwise([*towers, count]):
        channels = np.flatnonzero(seen[first:end].any(axis=0))
        units = on_matrix_units(size, len(channels), matmul_precision)
        most = filters_at_once(size, end - first, height, width, matrix_units=units)
        each = -(-(end - first) // -(-(end - first) // most))
        found += [
            Launch(slice(start, min(start + each, end)), channels, units)
            for start in range(first, end, each)
        ]
    return found


def on_matrix_units(size: int, channels: int, matmul_precision: str) -> bool:
    """Whether filters (size, size, channels) are for a GPU's matrix units."""
    return (
        matmul_precision != "float32"
        and channels >= FEW_CHANNELS
        and _most_on_matrix_units(size) > 0
    )


def filters_at_once(size: int, filters: int, height: int, width: int, *, matrix_units: bool) -> int:
    """How many of some filters of this size a block of threads holds at a time, 0 if not one; on
    maps (H, W)."""
    if matrix_units:
        return min(filters, _most_on_matrix_units(size))
    fitting = (n for n in range(filters, 0, -1) if Tile.of(size, n, height, width).depth)
    return next(fitting, 0)


def _most_on_matrix_units(size: int) -> int:
    rows = MOST_HELD // (2 * 2 * (DEPTH + 8)) - (TILE + size - 1) ** 2  # those of filters
    return max(0, rows // size // 8 * 8)


def check_gpu_holds(
    spec: NetworkSpec, image_shape: tuple[int, int, int], matmul_precision: str
) -> None:
    """Refuse filters that are too large for the convolution on a GPU."""
    height, width, channels = image_shape
    for layer, name in ((1, "first_filter_size"), (2, "filter_size")):
        size, inputs = getattr(spec, name), spec.input_channels(layer, channels)
        units = on_matrix_units(size, inputs // spec.views, matmul_precision)
        if not filters_at_once(size, 1, height, width, matrix_units=units):
            fitting = (n for n in range(size, 0, -1) if Tile.of(n, 1, height, width).depth)
            raise SpecError(
                f"{name}={size}: a filter is more than a GPU holds at a time, use at most "
                f"{next(fitting)}, or leave array_backend out"
            )


@dataclass(frozen=True, slots=True)
class Segments:
    """How rows of pixels are cut for the products of their patches: each is begun by `length`
    zeros, which end the row before it as well, and filled up to whole segments of this length. A
    last one of zeros ends all of them."""

    size: int
    height: int
    width: int
    channels: int
    length: int
    segments: int

    @classmethod
    def of(cls, size: int, height: int, width: int, channels: int) -> Self:
        """For patches of size×size pixels of images (H, W, c)."""
        length = max(1, size - 1)
        filled = -(-channels // SEGMENT_CHANNELS) * SEGMENT_CHANNELS
        return cls(size, height, width, filled, length, -(-width // length))

    @property
    def across(self) -> int:
        """Pixels of a row with its margin."""
        return (self.segments + 1) * self.length

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return self.height * self.across + self.length

    def neighbors(self, down: int) -> range:
        """The segments that one is multiplied with, `down` rows below it, by their distance: what
        is to the left in its own row has the same pairs the other way round."""
        return range(-1 if down else 0, 2)

    @property
    def image_bytes(self) -> int:
        """Bytes of the pixels of an image, in single precision or in two halves."""
        return 4 * self.pixels * self.channels


def patch_products_bytes(size: int, height: int, width: int, channels: int, images: int) -> int:
    """Bytes that products of size×size patches of so many images (H, W, c) are made from on a GPU,
    at most: pixels, of two slabs of images at a time, and products of segments of them."""
    cut = Segments.of(size, height, width, channels)
    beside = max(len(cut.neighbors(down)) for down in range(size))
    sums = 4 * height * (cut.segments + 1) * beside * (cut.length * cut.channels) ** 2
    return sums + min(images * cut.image_bytes, 2 * max(PATCH_SLAB_BYTES, cut.image_bytes))
