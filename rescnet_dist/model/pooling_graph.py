"""Pooling of blocks as ONNX operators: the counterpart of `kernels.second_order_features`.

The covariance of a block is the sum of two terms, neither of which loses digits to cancellation:
the products within tiles of pixels, each centered on the mean of its tile, and the products of the
means of tiles, centered on the mean of the block. Tiles are shared by overlapping blocks. Both are
batched matrix products; runtimes are slow at cumulative sums and at pooling that many channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.variance import MIN_VARIANCE_FRACTION
from rescnet_dist.kernels.pooling import assign_cells, block_starts
from rescnet_dist.model.graph import OnnxGraph, ints

MIN_TILE_SIDE = 4  # pixels, from which square tiles are faster than tiles of the block's height


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """The covariances of blocks of maps.

    Attributes
    ----------
    graph : OnnxGraph
        Graph to add to.
    height, width, filters : int
        Size of the maps in pixels, and their number f.
    block, stride : int
        Side of the blocks, and their distance, in pixels.
    """

    graph: OnnxGraph
    height: int
    width: int
    filters: int
    block: int
    stride: int

    @property
    def rows(self) -> int:
        """Number R of rows of blocks."""
        return len(block_starts(self.height, self.block, self.stride))

    @property
    def columns(self) -> int:
        """Number Q of columns of blocks."""
        return len(block_starts(self.width, self.block, self.stride))

    def pixels_of_blocks(self, length: int) -> Array:
        """Return a matrix (blocks, length), 1 where a pixel of an axis is in a block, else 0."""
        blocks = len(block_starts(length, self.block, self.stride))
        return _membership(_window_tiles(blocks, self.stride, self.block), length)

    def covariances(self, maps: str) -> tuple[str, str]:
        """Add the covariances (n, R, Q, f, f) of ReLU(maps), maps (n, f, H, W), and their means.

        The means are of shape (n, R, Q, f).
        """
        add, f, area = self.graph.add, self.filters, self.block**2
        pixels, row_tiles, column_tiles = self._tiles()
        tile_rows, tile_columns, tile_area = pixels.shape
        values = add("Transpose", add("Relu", maps), perm=[0, 2, 3, 1])
        values = add("Reshape", values, ints(0, self.height * self.width, f))
        values = add("Gather", values, pixels, axis=1)
        covariances, means = self._scatter(values)
        if row_tiles.shape[1] > 1:
            flat = add("Reshape", covariances, ints(0, tile_rows, tile_columns * f * f))
            covariances = add("MatMul", _membership(row_tiles, tile_rows), flat)
        flat = add("Reshape", covariances, ints(0, self.rows, tile_columns, f * f))
        membership = _membership(column_tiles, tile_columns) / np.float32(area)
        covariances = add("MatMul", membership, flat)
        covariances = add("Reshape", covariances, ints(0, self.rows, self.columns, f, f))
        tiles = row_tiles[:, None, :, None] * tile_columns + column_tiles[None, :, None, :]
        tiles = tiles.reshape(self.rows, self.columns, -1)
        means = add("Reshape", means, ints(0, tile_rows * tile_columns, f))
        between, means = self._scatter(add("Gather", means, tiles, axis=1))
        between = add("Mul", between, np.float32(tile_area / area))
        means = add("Reshape", means, ints(0, self.rows, self.columns, f))
        return add("Add", covariances, between), means

    def _tiles(self) -> tuple[Array, Array, Array]:
        """Return the pixels of tiles (y, x, area), and the tiles of block rows and columns.

        Pixels are indices into H·W. The tiles of block rows (R, i) and columns (Q, j) are indices
        along each axis. Tiles are g pixels wide, g = gcd(block, stride), and as high, or as high as
        blocks if g is small.
        """
        side = math.gcd(self.block, self.stride)
        height = side if side >= MIN_TILE_SIDE else self.block
        row_step = side if height < self.block else self.stride
        row_tiles = _window_tiles(self.rows, self.stride // row_step, self.block // height)
        column_tiles = _window_tiles(self.columns, self.stride // side, self.block // side)
        y = np.arange(row_tiles.max() + 1)[:, None] * row_step + np.arange(height)
        x = np.arange(column_tiles.max() + 1)[:, None] * side + np.arange(side)
        pixels = y[:, None, :, None] * self.width + x[None, :, None, :]
        return pixels.reshape(len(y), len(x), -1), row_tiles, column_tiles

    def _scatter(self, values: str) -> tuple[str, str]:
        """Add the scatter (…, f, f) of values (n, y, x, m, f) about their means (…, 1, f)."""
        add = self.graph.add
        means = add("ReduceMean", values, ints(3), keepdims=1)
        values = add("Sub", values, means)
        return add("MatMul", add("Transpose", values, perm=[0, 1, 2, 4, 3]), values), means

    def normalize(self, covariances: str, means: str, *, channelwise: bool) -> str:
        """Add the covariances (n, R, Q, f, f) divided by deviations; those without variance are 0.

        The deviation is that of each channel, or that of all pixels and channels of the block.
        """
        add, f = self.graph.add, self.filters
        flat = add("Reshape", covariances, ints(0, self.rows, self.columns, f * f))
        variance = add("Gather", flat, np.arange(f) * (f + 1), axis=3)
        square = add("Add", variance, add("Mul", means, means))
        if not channelwise:
            centered = add("Sub", means, add("ReduceMean", means, ints(3), keepdims=1))
            variance = add("Add", variance, add("Mul", centered, centered))
            variance = add("ReduceMean", variance, ints(3), keepdims=1)
            square = add("ReduceMean", square, ints(3), keepdims=1)
        smallest = add("Mul", square, np.float32(MIN_VARIANCE_FRACTION))
        varies = add("Greater", variance, smallest)
        positive = add("Where", varies, variance, np.float32(1))
        inverse = add("Reciprocal", add("Sqrt", positive))
        inverse = add("Where", varies, inverse, np.float32(0))
        scaled = add("Mul", covariances, add("Unsqueeze", inverse, ints(4)))
        return add("Mul", scaled, add("Unsqueeze", inverse, ints(3)))

    def pool(self, entries: str, size: int, levels: tuple[int, ...], cells: str, pool: str) -> str:
        """Add the entries (n, R, Q, …), `size` of each block, pooled over cells: (n, cells, size).

        They are pooled by their maximum, mean or sum.
        """
        add = self.graph.add
        entries = add("Reshape", entries, ints(0, self.rows, self.columns, size))
        parts = []
        for level in levels:
            part = entries
            for axis, length in enumerate((self.height, self.width), start=1):
                members = assign_cells(length, self.block, self.stride, level, cells)
                part = self._pool_axis(part, axis, members, pool)
            parts.append(add("Reshape", part, ints(0, -1, size)))
        return add("Concat", *parts, axis=1)

    def _pool_axis(self, entries: str, axis: int, members: list[int], pool: str) -> str:
        """Add the entries (n, R, Q, size) pooled along an axis, given the cell of each block."""
        add = self.graph.add
        operator = {"max": "ReduceMax", "mean": "ReduceMean", "sum": "ReduceSum"}[pool]
        pooled = []
        for cell in sorted(set(members)):  # the blocks of a cell are neighbors
            start = members.index(cell)
            stop = start + members.count(cell)
            part = add("Slice", entries, ints(start), ints(stop), ints(axis))
            if stop - start > 1:
                part = add(operator, part, ints(axis), keepdims=1)
            pooled.append(part)
        return add("Concat", *pooled, axis=axis)


def signed_root(graph: OnnxGraph, entries: str) -> str:
    """Add sign(v)·|v|^½ of entries of any shape."""
    root = graph.add("Sqrt", graph.add("Abs", entries))
    return graph.add("Mul", graph.add("Sign", entries), root)


def _window_tiles(count: int, step: int, length: int) -> Array:
    """Return the tiles (count, length) of windows that are `step` tiles apart."""
    return np.arange(count)[:, None] * step + np.arange(length)


def _membership(tiles: Array, count: int) -> Array:
    """Return a matrix (windows, count) of float32, 1 where a tile is in a window, else 0."""
    membership = np.zeros((len(tiles), count), np.float32)
    membership[np.arange(len(tiles))[:, None], tiles] = 1
    return membership
