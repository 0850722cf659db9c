"""How work on a GPU is cut, and what it takes or cannot hold: arithmetic, for those who plan."""

from __future__ import annotations

from dataclasses import dataclass

from rescnet_dist.errors import SpecError
from rescnet_dist.spec import NetworkSpec

WANTED, MOST_HELD = 44 * 1024, 48 * 1024  # bytes that a block of threads is to hold, and may
LINE = 8  # neighbours in a row that a thread works on
MOST_THREADS = 512
FEW_CHANNELS, DEPTH = 8, 16  # matrix units take 16 at a time, so that fewer would be wasted on them
SEGMENT_CHANNELS = 4  # that those of segments of pixels are filled up to a multiple of
TILE = 16  # pixels along the side of what a block of threads works on there


def on_matrix_units(size: int, channels: int, filters: int, products: str) -> bool:
    """Whether filters (size, size, channels, filters) are for a GPU's matrix units."""
    side, wide = TILE + size - 1, -(-filters // 8) * 8
    held = 2 * 2 * (DEPTH + 8) * (side**2 + size * wide)
    return products != "float32" and channels >= FEW_CHANNELS and held <= MOST_HELD


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


def check_gpu_holds(spec: NetworkSpec, image_shape: tuple[int, int, int], products: str) -> None:
    """Refuse filters that are too many, or too large, for the convolution on a GPU."""
    height, width, channels = image_shape
    for layer, name in ((1, "first_filter_size"), (2, "filter_size")):
        size, inputs = getattr(spec, name), spec.channels_of_layer(layer, channels)
        if on_matrix_units(size, inputs, spec.filters, products):
            continue
        if not Tile.of(size, spec.filters, height, width).depth:
            fewer = range(spec.filters - 1, 0, -1)
            most = next((n for n in fewer if Tile.of(size, n, height, width).depth), 0)
            remedy = f"at most {most} filters, or " if most else ""
            raise SpecError(
                f"filters={spec.filters} with {name}={size} are more than a GPU holds at a time: "
                f"use {remedy}a smaller {name}, or leave array_backend out"
            )


def segment_sums_bytes(size: int, height: int, width: int, channels: int) -> int:
    """Bytes of the products of segments of pixels, at most, that products of size×size patches of
    images (H, W, c) are made from on a GPU."""
    length = max(1, size - 1)
    each = length * -(-channels // SEGMENT_CHANNELS) * SEGMENT_CHANNELS
    beside = 3 if size > 1 else 2
    return 4 * height * (-(-width // length) + 1) * beside * each**2
