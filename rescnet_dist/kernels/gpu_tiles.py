"""Tile sizes and memory needs of GPU kernels: plain arithmetic, also for planning without a GPU."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.copy_parameters import get_copy_dtype

TARGET_SHARED_BYTES = 44 * 1024  # shared memory that a block of threads should use
MAX_SHARED_BYTES = 48 * 1024  # shared memory that a block of threads can use
LINE_PIXELS = 8  # adjacent pixels of a row that a thread computes
MAX_BLOCK_THREADS = 512
MATRIX_UNIT_CHANNELS = 16  # that matrix units process at a time
MIN_MATRIX_UNIT_CHANNELS = 8  # fewer would leave most of a matrix unit idle
MATRIX_UNIT_TILE_PIXELS = 16  # side of the tile that a block of threads computes on matrix units
SEGMENT_CHANNEL_MULTIPLE = 4  # that the channels of segments of pixels are padded to
PATCH_SLAB_BYTES = 5 * 2**30  # size of the pixels whose patches are processed at a time
HASH_SLAB_BYTES = 512 * 2**20  # size of the codes and counts of images that are hashed at a time
COPY_SLAB_BYTES = 256 * 2**20  # for the images whose copies are made at a time


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of a block of threads in single precision.

    rows and columns of pixels; groups of four filters; depth, the number of channels that are held
    at a time, 0 if not even one fits.
    """

    rows: int
    columns: int
    groups: int
    depth: int

    @classmethod
    def of(cls, size: int, filters: int, height: int, width: int) -> Tile:
        """Return the tile for filters of this size and number on maps (H, W)."""
        groups = -(-filters // 4)
        columns = -(-min(width, 32) // LINE_PIXELS) * LINE_PIXELS
        rows = max(1, min(MAX_BLOCK_THREADS // (groups * (columns // LINE_PIXELS)), 8, height))
        channel_bytes = 4 * ((rows + size - 1) * (columns + size) + 4 * size * size * groups)
        depth = max(1, min(8, TARGET_SHARED_BYTES // channel_bytes))
        return cls(rows, columns, groups, depth if depth * channel_bytes <= MAX_SHARED_BYTES else 0)

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.groups * self.rows * (self.columns // LINE_PIXELS)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch: filters of a layer that are applied together.

    filters are those of the layer; channels (c',) are the input channels they need; matrix_units:
    whether they run on matrix units.
    """

    filters: slice
    channels: Array
    matrix_units: bool


def plan_launches(filters: Array, matmul_precision: str, height: int, width: int) -> list[Launch]:
    """Divide filters (k, k, c, f) on maps (H, W) into kernel launches.

    Filters that share no channel with those before them start a new launch, and a launch has at
    most as many filters as a block of threads holds.

    >>> filters = np.kron(np.eye(2), np.ones((4, 3)))[None, None]  # two towers
    >>> [(x.filters, x.channels.tolist()) for x in plan_launches(filters, "split", 9, 9)]
    [(slice(0, 3, None), [0, 1, 2, 3]), (slice(3, 6, None), [4, 5, 6, 7])]
    """
    size, _, _, count = filters.shape
    uses = (filters != 0).any(axis=(0, 1)).T  # (f, c): whether a filter uses a channel
    towers, tower_channels = [0], uses[0]
    for number, own_channels in enumerate(uses):
        if (
            tower_channels.any()
            and own_channels.any()
            and not (tower_channels & own_channels).any()
        ):
            towers.append(number)
            tower_channels = own_channels
        tower_channels = tower_channels | own_channels
    launches = []
    for first, end in itertools.pairwise([*towers, count]):
        channels = np.flatnonzero(uses[first:end].any(axis=0))
        matrix_units = use_matrix_units(size, len(channels), matmul_precision)
        limit = max_launch_filters(size, end - first, height, width, matrix_units=matrix_units)
        step = -(-(end - first) // -(-(end - first) // limit))
        launches += [
            Launch(slice(start, min(start + step, end)), channels, matrix_units)
            for start in range(first, end, step)
        ]
    return launches


def use_matrix_units(size: int, channels: int, matmul_precision: str) -> bool:
    """Return whether filters (size, size, channels) run on a GPU's matrix units."""
    return (
        matmul_precision != "float32"
        and channels >= MIN_MATRIX_UNIT_CHANNELS
        and _max_matrix_unit_filters(size) > 0
    )


def max_launch_filters(
    size: int, filters: int, height: int, width: int, *, matrix_units: bool
) -> int:
    """Return the number of filters, of this size on maps (H, W), that a block of threads holds.

    It is at most `filters`, and 0 if not even one fits.
    """
    if matrix_units:
        return min(filters, _max_matrix_unit_filters(size))
    fitting = (n for n in range(filters, 0, -1) if Tile.of(size, n, height, width).depth)
    return next(fitting, 0)


def _max_matrix_unit_filters(size: int) -> int:
    """Return the number of filters that fit into shared memory on matrix units."""
    vectors = MAX_SHARED_BYTES // (2 * 2 * (MATRIX_UNIT_CHANNELS + 8))
    filter_vectors = vectors - (MATRIX_UNIT_TILE_PIXELS + size - 1) ** 2
    return max(0, filter_vectors // size // 8 * 8)


def check_gpu_holds(
    name: str, size: int, channels: int, height: int, width: int, matmul_precision: str
) -> None:
    """Check that filters are not too large for the convolution on a GPU.

    Parameters
    ----------
    name : str
        The option that gives the size, for the message.
    size : int
        The side of the filters, in pixels.
    channels : int
        The input channels of a filter that are not always 0.
    height, width : int
        The size of the images, in pixels.
    matmul_precision : {"float32", "split", "half"}
        How matrices are multiplied; see `Backend`.

    Raises
    ------
    SpecError
        If a filter does not fit into the shared memory of a GPU.
    """
    matrix_units = use_matrix_units(size, channels, matmul_precision)
    if not max_launch_filters(size, 1, height, width, matrix_units=matrix_units):
        fitting = (n for n in range(size, 0, -1) if Tile.of(n, 1, height, width).depth)
        raise SpecError(
            f"{name}={size} gives filters that do not fit into the shared memory of a GPU. "
            f"Use at most {next(fitting)}, or leave array_backend out."
        )


@dataclass(frozen=True, slots=True)
class Segments:
    """The division of rows of pixels into segments, for the products of their patches.

    Each row starts with `length` zeros, which also end the row before it, and is padded to whole
    segments of `length` pixels. A last segment of zeros ends the image. size is the side of the
    patches, height and width the size of the images, channels their padded number, and segments
    the number of segments in a row.
    """

    size: int
    height: int
    width: int
    channels: int
    length: int
    segments: int

    @classmethod
    def of(cls, size: int, height: int, width: int, channels: int) -> Self:
        """Return the segments for patches of size×size pixels of images (H, W, c)."""
        length = max(1, size - 1)
        padded = -(-channels // SEGMENT_CHANNEL_MULTIPLE) * SEGMENT_CHANNEL_MULTIPLE
        return cls(size, height, width, padded, length, -(-width // length))

    @property
    def row_pixels(self) -> int:
        """The number of pixels of a row with its margin."""
        return (self.segments + 1) * self.length

    @property
    def pixels(self) -> int:
        """The number of pixels of an image with all margins."""
        return self.height * self.row_pixels + self.length

    def neighbors(self, down: int) -> range:
        """Return the offsets of the segments, `down` rows below, that a segment is multiplied with.

        In its own row those to the left are left out, as they give the same pairs.
        """
        return range(-1 if down else 0, 2)

    @property
    def image_bytes(self) -> int:
        """The size of the pixels of an image, in single precision or in two halves."""
        return 4 * self.pixels * self.channels


def patch_products_bytes(size: int, height: int, width: int, channels: int, images: int) -> int:
    """Return an upper bound of the GPU memory for the products of size×size patches, in bytes.

    It is for images (H, W, c): the pixels of two slabs of images, and the products of segments.
    """
    grid = Segments.of(size, height, width, channels)
    neighbors = max(len(grid.neighbors(down)) for down in range(size))
    sums = 4 * height * (grid.segments + 1) * neighbors * (grid.length * grid.channels) ** 2
    return sums + min(images * grid.image_bytes, 2 * max(PATCH_SLAB_BYTES, grid.image_bytes))


def hash_image_bytes(height: int, width: int, groups: int, bits: int) -> int:
    """Return the bytes of the codes of an image, and of the counts of a block, twice."""
    return 4 * groups * (height * width + 2 * 2**bits)


def copy_image_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes that it takes to make a copy of an image (H, W, d) of a dtype."""
    # as stored, before and after; converted, moved, and after the changes
    return math.prod(shape) * (2 * dtype.itemsize + 3 * get_copy_dtype(dtype).itemsize)
