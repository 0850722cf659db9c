"""Moments of image patches: count, mean and scatter of every valid k×k×c patch of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray[Any, np.dtype[Any]]

BATCH_BYTES = 64 * 2**20  # of unfolded patches held at a time


@dataclass(frozen=True, slots=True)
class PatchMoments:
    """Count, mean (p,) and centred scatter (p, p) of a set of patches, p = k²c, in float64.

    `merge` is associative and `empty` is its identity.
    """

    count: int
    mean: Array
    scatter: Array

    @classmethod
    def empty(cls, directions: int) -> PatchMoments:
        """The moments of no patch."""
        return cls(0, np.zeros(directions), np.zeros((directions, directions)))

    def merge(self, other: PatchMoments) -> PatchMoments:
        """Moments of both sets together: S = S₁ + S₂ + n₁n₂/(n₁+n₂) δδᵀ, δ = m₂ − m₁."""
        count = self.count + other.count
        if not (self.count and other.count):
            return self if self.count else other
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        between = np.outer(delta, delta) * (self.count * other.count / count)
        return PatchMoments(count, mean, self.scatter + other.scatter + between)

    def rescale(self, low: Array, scale: Array) -> PatchMoments:
        """Moments of the patches of (image − low)·scale, both (c,): min-max after the fact."""
        repeats = len(self.mean) // len(low)
        low, scale = np.tile(low, repeats), np.tile(scale, repeats)
        return PatchMoments(
            self.count, (self.mean - low) * scale, self.scatter * np.outer(scale, scale)
        )


def unfold(images: Array, size: int) -> Array:
    """All valid size×size patches of images (n, H, W, c), as a view (n, H', W', size, size, c)."""
    windows = sliding_window_view(images, (size, size), axis=(1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3)


def patch_scatter(images: Array, size: int) -> PatchMoments:
    """Moments of all valid size×size patches of images (n, H, W, c), at stride 1.

    A patch is flattened in the order row, column, channel. The sums over offsets a, b of a patch,
    S[a, b] = Σ I[q]·I[q + b − a]ᵀ, depend on the displacement b − a alone but for pixels near the
    border; where that is cheaper they are gathered once per displacement and the borders taken
    off exactly, else the patches are unfolded.
    """
    n, height, width, channels = images.shape
    directions = size * size * channels
    rows, columns = height - size + 1, width - size + 1
    if n == 0 or rows < 1 or columns < 1:
        return PatchMoments.empty(directions)
    shift = images.mean(axis=(0, 1, 2), dtype=np.float64)
    centred = np.asarray(images - shift.astype(np.float32), dtype=np.float32)
    shift = shift.astype(np.float32).astype(np.float64)
    count = n * rows * columns
    sums = _offset_sums(centred, size)
    if _displacements_are_cheaper(centred.shape, size):
        products = _products_by_displacement(centred, size)
    else:
        products = _products_by_unfolding(centred, size)
    mean = sums / count
    return PatchMoments(
        count, mean + np.tile(shift, size * size), products - np.outer(mean, mean) * count
    )


def _displacements_are_cheaper(shape: tuple[int, ...], size: int) -> bool:
    """Compare costs in multiplications of an unfolded product.

    Measured on one core: products of tall, narrow matrices run at about a quarter of that rate,
    and each product of border strips costs as much as half a million multiplications.
    """
    n, height, width, channels = shape
    if size == 1 or min(height, width) < 2 * size - 1:
        return False
    displacements = ((2 * size - 1) ** 2 + 1) // 2
    whole = 4 * n * (height + size) * (width + 2 * size) * channels**2
    strips = (1 + 2 * (size - 1)) ** 2 * 500_000
    by_unfolding = n * (height - size + 1) * (width - size + 1) * (size * size * channels) ** 2
    return displacements * (whole + strips) < by_unfolding


def _offset_sums(images: Array, size: int) -> Array:
    """Σ over all patches, (k²c,): the sum of the image over the rectangle each offset sweeps."""
    height, width, channels = images.shape[1:]
    table = np.zeros((height + 1, width + 1, channels))
    table[1:, 1:] = images.sum(axis=0, dtype=np.float64).cumsum(axis=0).cumsum(axis=1)
    rows, columns = height - size + 1, width - size + 1
    first = table[:size, :size]
    return (
        table[rows : rows + size, columns : columns + size]
        - table[rows : rows + size, :size]
        - table[:size, columns : columns + size]
        + first
    ).reshape(-1)


def _products_by_unfolding(images: Array, size: int) -> Array:
    """Σ p pᵀ over all patches p, (k²c, k²c): unfolded a few images at a time."""
    n, height, width, channels = images.shape
    directions = size * size * channels
    positions = (height - size + 1) * (width - size + 1)
    total = np.zeros((directions, directions))
    step = max(1, BATCH_BYTES // (positions * directions * 4))
    for start in range(0, n, step):
        patches = unfold(images[start : start + step], size).reshape(-1, directions)
        total += patches.T @ patches
    return total


def _products_by_displacement(images: Array, size: int) -> Array:
    """Σ p pᵀ over all patches p, (k²c, k²c): one product per displacement, borders taken off.

    With zeros behind each row and image, a displacement is an offset of the flattened pixels, so
    that the sum over the whole image is one product of two views.
    """
    n, height, width, channels = images.shape
    margin = size - 1
    padded = np.zeros((n, height + margin, width + 2 * margin, channels), images.dtype)
    padded[:, :height, margin : margin + width] = images
    flat = padded.reshape(-1, channels)
    edge_rows = [*range(margin), *range(height - margin, height)]
    edge_columns = [*range(margin), *range(width - margin, width)]
    total = np.zeros((size, size, channels, size, size, channels))
    for dy, dx in product(range(size), range(-margin, size)):
        if dy == 0 and dx < 0:
            continue  # the transpose of the displacement (0, −dx)
        offset = dy * padded.shape[2] + dx
        whole = np.asarray(flat[: len(flat) - offset].T @ flat[offset:], dtype=np.float64)
        strip = partial(_strip_product, padded, margin, dy, dx)
        by_row = {y: strip([y], range(width)) for y in edge_rows}
        by_column = {x: strip(range(height), [x]) for x in edge_columns}
        by_corner = {(y, x): strip([y], [x]) for y in edge_rows for x in edge_columns}
        for ay, ax in product(range(size - dy), range(max(0, -dx), size - max(0, dx))):
            out_rows = [y for y in edge_rows if not ay <= y <= ay + height - size]
            out_columns = [x for x in edge_columns if not ax <= x <= ax + width - size]
            value = (
                whole - sum(by_row[y] for y in out_rows) - sum(by_column[x] for x in out_columns)
            )
            value = value + sum(by_corner[y, x] for y in out_rows for x in out_columns)
            total[ay, ax, :, ay + dy, ax + dx, :] = value
            total[ay + dy, ax + dx, :, ay, ax, :] = value.T
    directions = size * size * channels
    return total.reshape(directions, directions)


def _strip_product(padded: Array, margin: int, dy: int, dx: int, rows: Any, columns: Any) -> Array:
    """Σ I[q]·I[q + (dy, dx)]ᵀ over the pixels q of some rows and columns, (c, c)."""
    y, x = slice(rows[0], rows[-1] + 1), slice(columns[0] + margin, columns[-1] + margin + 1)
    near = padded[:, y, x].reshape(-1, padded.shape[3])
    far = padded[:, y.start + dy : y.stop + dy, x.start + dx : x.stop + dx]
    return np.asarray(near.T @ far.reshape(-1, padded.shape[3]), dtype=np.float64)
