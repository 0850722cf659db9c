"""What a layer sees: the maps of the layer before it and the image, without putting them together.

The channels of a pixel are those of the maps and then those of the image; which is as if both were
concatenated, but that would be one more pass through memory for each thing that is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module, gpu_kernels, on_gpu
from rescnet_dist.kernels.loading import kernel


@dataclass(frozen=True, slots=True)
class LayerInput:
    """Maps (n, H, W, f), f may be 0, and images (n, H, W, d), of which some rows (m,) are meant;
    both in C order, in single or double precision. c = f + d."""

    maps: Array
    images: Array
    rows: Array

    @classmethod
    def of(cls, images: Array, maps: Array | None = None) -> LayerInput:
        """All images (n, H, W, d), as float32 if they are not float64, behind maps if any."""
        xp = get_array_module(images)
        images = xp.ascontiguousarray(images, np.float64 if images.dtype == "f8" else np.float32)
        if maps is None:
            maps = xp.empty((*images.shape[:3], 0), images.dtype)
        return cls(xp.ascontiguousarray(maps, images.dtype), images, np.arange(len(images)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, c)."""
        _, height, width, channels = self.images.shape
        return height, width, self.maps.shape[3] + channels

    def only(self, which: Array | slice) -> LayerInput:
        """Some of the rows."""
        return replace(self, rows=self.rows[which])

    def chosen(self) -> tuple[Array, Array]:
        """Maps (m, H, W, f) and images (m, H, W, d) of the rows that are meant."""
        if np.array_equal(self.rows, np.arange(len(self.images))):
            return self.maps, self.images
        rows = asarray_like(self.rows, self.images)
        return self.maps[rows], self.images[rows]

    def parts(self, step: int) -> Iterator[LayerInput]:
        """All of it, so many rows at a time."""
        for start in range(0, len(self), step):
            yield self.only(slice(start, start + step))

    def patches(self, size: int, low: Array, scale: Array, into: Array) -> None:
        """Write the size×size patch about every pixel of (input − low)·scale, 0 outside, to into
        (m, H, W, size²·c); low and scale (c,)."""
        low, scale = low.astype(into.dtype), scale.astype(into.dtype)
        kernel("lay_out_patches")(self.maps, self.images, self.rows, low, scale, size, into)

    def strips(self, shift: Array, reach: int, into: Array) -> None:
        """Write every pixel less shift (c,), with its neighbors up to `reach` to the left and
        right, 0 outside, to into (H, m, W, 2·reach + 1, c)."""
        kernel("lay_out_strips")(self.maps, self.images, self.rows, shift, reach, into)

    def sums(self) -> tuple[Array, Array, Array]:
        """The least and the largest value of each channel (c,), and the sum of all rows (H, W, c)
        in float64."""
        if on_gpu(self.images):
            return gpu_kernels().gather_sums(*self.chosen())
        kind, channels = self.images.dtype, self.shape[2]
        low, high = np.full(channels, np.inf, kind), np.full(channels, -np.inf, kind)
        sums = np.zeros(self.shape)
        kernel("gather_sums")(self.maps, self.images, self.rows, low, high, sums)
        return low.astype(np.float64), high.astype(np.float64), sums

    def windows(self, size: int, row: Array, y: Array, x: Array) -> Array:
        """The size×size patches (p, size²·c) whose first pixels are (y, x) (p,) of rows (p,)."""
        down, right = np.arange(size)[:, None], np.arange(size)
        where = (self.rows[row][:, None, None], y[:, None, None] + down, x[:, None, None] + right)
        location = tuple(asarray_like(part, self.images) for part in where)
        found = np.concatenate([self.maps[location], self.images[location]], axis=3)
        return found.reshape(len(row), size * size * self.shape[2])
