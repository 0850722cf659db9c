"""Cholesky factors on a GPU, in single precision in the memory of the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from rescnet_dist._compat import load_cuda_library
from rescnet_dist.kernels.gpu.device import (
    PRODUCT_PARTS,
    Array,
    load_module,
    transpose,
    using_matmul_precision,
)
from rescnet_dist.kernels.gpu.scatter import add_panels, as_square, get_pitch, new_square
from rescnet_dist.kernels.solving import GPU_PANEL_COLUMNS, SOLVED_ROWS

cublas, get_cublas_handle = load_cuda_library("cublas")
cusolver, get_cusolver_handle = load_cuda_library("cusolver")

LOWER = cublas.CUBLAS_FILL_MODE_LOWER
TRIANGLE_TILE, TRIANGLE_LINES = 32, 8  # rows and columns of a tile of triangles.cu; rows at a time
FACTORS = {value: np.array(value, np.float32) for value in (1, -1, 0)}  # of products


@dataclass(frozen=True, slots=True)
class InPlaceFactor:
    """A symmetric matrix, and its Cholesky factor in the lower triangle of the same memory.

    Attributes
    ----------
    square : ndarray of float32, shape (D, D)
        The matrix in its strict upper triangle, outside the blocks on the diagonal. It has the
        memory layout of `new_square`.
    blocks : ndarray of float32, shape (ceil(D / b), b, b)
        The blocks of the matrix on the diagonal, b = `GPU_PANEL_COLUMNS`, as a factorization
        overwrites both of their triangles. The last one may be filled in part.
    """

    square: Array
    blocks: Array

    @classmethod
    def of(cls, scatter: Array, *, overwrite: bool = False) -> InPlaceFactor:
        """Return the matrix with the lower triangle of scatter (D, D).

        It is in the memory of the scatter with `overwrite`. There is no factor yet.
        """
        square = as_square(scatter)
        if square is scatter and not overwrite:
            square = new_square(len(scatter), scatter.dtype)
            mirror_lower(scatter, square)
        else:
            mirror_lower(square)
        side = GPU_PANEL_COLUMNS
        blocks = cupy.empty((-(-len(square) // side), side, side), square.dtype)
        matrix = cls(square, blocks)
        for rows, block in matrix._each_block():
            block[...] = square[rows, rows]
        return matrix

    def factorize(self, root: Array, diagonal: Array, updates: str) -> Array:
        """Return the lower Cholesky factor (D, D) of matrix·root·rootᵀ with this diagonal (D,).

        It replaces the factor before. Updates have this precision of matrix products. Raises
        LinAlgError if there is no factor.
        """
        self.restore_upper()
        _scale(self.square, root, diagonal, self.square)
        _factorize_panels(self.square, updates)
        return self.square

    def restore_upper(self) -> None:
        """Restore all of the upper triangle. The factor before is not valid any more."""
        for rows, block in self._each_block():
            self.square[rows, rows] = block

    def multiply(self, x: Array) -> Array:
        """Return matrix · x (D, K) in double precision, in a fixed order of all sums."""
        x = cupy.ascontiguousarray(x)
        result = cupy.empty_like(x)
        for rows, block in self._each_block():
            result[rows] = block.astype(np.float64) @ x[rows]
        for rows, _ in self._each_block():
            self._add_products(rows, x, result)
        return result

    def _add_products(self, rows: slice, x: Array, result: Array) -> None:
        """Add the products with the matrix to the right of a block, and below it, to the result."""
        after = slice(rows.stop, None)
        part = self.square.T[after, rows].astype(np.float64)  # whose rows are contiguous
        if len(part):
            result[rows] += part.T @ x[after]
            result[after] += part @ x[rows]

    def _each_block(self) -> Iterator[tuple[slice, Array]]:
        """Yield the rows of each block on the diagonal, and the block (b', b')."""
        for start, block in zip(
            range(0, len(self.square), GPU_PANEL_COLUMNS), self.blocks, strict=True
        ):
            stop = min(start + GPU_PANEL_COLUMNS, len(self.square))
            yield slice(start, stop), block[: stop - start, : stop - start]


def factorize_double(square: Array, root: Array, diagonal: Array) -> Array:
    """Return the lower Cholesky factor (D, D) of square·root·rootᵀ with this diagonal (D,).

    The upper triangle of the square (D, D), of `new_square`, is read. The factor is in double
    precision and in Fortran order. Raises LinAlgError if there is none.
    """
    factor, failed = new_square(len(square), np.dtype(np.float64)), cupy.zeros(1, np.int32)
    _scale(square, root, diagonal, factor)
    _factor_block(factor, failed)
    _check_minors(failed)
    return factor


def mirror_lower(source: Array, target: Array | None = None) -> None:
    """Copy the lower triangle of a matrix (D, D) of `new_square` to the upper one.

    Of another target (D, D), of `new_square` too, blocks of `GPU_PANEL_COLUMNS` columns on the
    diagonal are set as a whole.
    """
    panel = 0 if target is None else GPU_PANEL_COLUMNS
    target = source if target is None else target
    pitches = get_pitch(source), get_pitch(target)
    _run_on_tiles("mirror", source, target, (len(source), *pitches, panel))


def solve_double(factor: Array, columns: Array) -> Array:
    """Solve for columns (D, K) with a lower factor (D, D) in double precision."""
    x, failed = cupy.array(columns, np.float64, order="F"), cupy.zeros(1, np.int32)
    cusolver.dpotrs(
        get_cusolver_handle(),
        LOWER,
        len(factor),
        x.shape[1],
        factor.data.ptr,
        get_pitch(factor),
        x.data.ptr,
        len(x),
        failed.data.ptr,
    )
    return x


@dataclass(frozen=True, slots=True)
class BlockSolver:
    """Solves with a lower Cholesky factor in single precision, a block of rows after the other.

    A triangular solve has one dependent step per row, which leaves a GPU idle. The blocks on the
    diagonal are therefore inverted, all at once, and the rest are products.

    Attributes
    ----------
    factor : ndarray of float32, shape (D, D)
        The factor, in Fortran order.
    inverses : ndarray of float32, shape (ceil(D / b), b, b)
        The inverses of its blocks on the diagonal, b = `SOLVED_ROWS`, each in Fortran order, that
        is, transposed.
    """

    factor: Array
    inverses: Array

    @classmethod
    def of(cls, factor: Array) -> BlockSolver:
        """Invert the blocks on the diagonal of a factor (D, D)."""
        side, size = len(factor), SOLVED_ROWS
        inverses = cupy.empty((-(-side // size), size, size), np.float32)
        inverses[...] = cupy.eye(size, dtype=np.float32)
        step = factor.itemsize * size * (1 + get_pitch(factor))
        into = factor.itemsize * size**2
        whole, rest = divmod(side, size)
        for first, count, rows in ((0, whole, size), (whole, 1, rest)):
            if not count or not rows:
                continue
            blocks = first + np.arange(count, dtype=np.int64)
            sources = cupy.asarray(factor.data.ptr + step * blocks)
            targets = cupy.asarray(inverses.data.ptr + into * blocks)
            cublas.strsmBatched(
                get_cublas_handle(),
                cublas.CUBLAS_SIDE_LEFT,
                LOWER,
                cublas.CUBLAS_OP_N,
                cublas.CUBLAS_DIAG_NON_UNIT,
                rows,
                rows,
                FACTORS[1].ctypes.data,
                sources.data.ptr,
                get_pitch(factor),
                targets.data.ptr,
                size,
                count,
            )
        return cls(factor, inverses)

    def __call__(self, columns: Array) -> Array:
        """Solve for columns (D, K); the solution is in single precision."""
        factor, inverses = self.factor, self.inverses.transpose(0, 2, 1)
        x = cupy.array(columns, np.float32, order="F")
        y, side = cupy.empty(x.shape, np.float32, order="F"), len(x)
        blocks = [
            (slice(start, min(start + SOLVED_ROWS, side)), inverse)
            for start, inverse in zip(range(0, side, SOLVED_ROWS), inverses, strict=True)
        ]
        for rows, inverse in blocks:  # factor · y = columns
            _multiply(inverse, x[rows], y[rows], side)
            if rows.stop < side:
                _multiply(factor[rows.stop :, rows], y[rows], x[rows.stop :], side, subtract=True)
        for rows, inverse in reversed(blocks):  # factorᵀ · x = y
            _multiply(inverse, y[rows], x[rows], side, transposed=True)
            if rows.start:
                before = slice(rows.start)
                left = factor[rows, before]
                _multiply(left, x[rows], y[before], side, transposed=True, subtract=True)
        return x


def _multiply(
    left: Array,
    right: Array,
    into: Array,
    pitch: int,
    *,
    transposed: bool = False,
    subtract: bool = False,
) -> None:
    """Write left·right (m, K), or leftᵀ·right, to `into`, or subtract it from that.

    All are in Fortran order and in single precision; left may have more rows and columns. Columns
    of right and `into` are `pitch` numbers apart; strides do not tell that of a single column.
    """
    cublas.sgemm(
        get_cublas_handle(),
        cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N,
        cublas.CUBLAS_OP_N,
        *into.shape,
        len(right),
        FACTORS[-1 if subtract else 1].ctypes.data,
        left.data.ptr,
        get_pitch(left),
        right.data.ptr,
        pitch,
        FACTORS[int(subtract)].ctypes.data,
        into.data.ptr,
        pitch,
    )


def _factorize_panels(square: Array, updates: str) -> None:
    """Replace the lower triangle of a matrix (D, D) of `new_square` by its Cholesky factor.

    It is in single precision. Products with this precision update the columns to the right of each
    panel, which is nearly all of the work: on matrix units, unless it is "float32". Split numbers
    keep nearly all digits; half precision suffices for a preconditioner if the ridge is not tiny.
    Of the upper triangle only blocks on the diagonal change, as all panels of factors and of
    products have the same sides.
    """
    side, panel = len(square), GPU_PANEL_COLUMNS
    failed = cupy.zeros(-(-side // panel), np.int32)
    for number, start in enumerate(range(0, side, panel)):
        stop = min(start + panel, side)
        _factor_block(square[start:stop, start:stop], failed[number:])
        if stop < side:
            below = square[stop:, start:stop]
            _solve_block(square[start:stop, start:stop], below)
            _subtract_products(square[stop:, stop:], below, updates)
    _check_minors(failed)


def _subtract_products(total: Array, below: Array, updates: str) -> None:
    """Subtract below·belowᵀ, of below (m, b), from the lower triangle of total (m, m)."""
    with using_matmul_precision(updates):
        parts = transpose(below.T)
    left, right = parts[0], parts[0]
    if len(parts) > 1:  # one product, which sums those of the parts
        left, right = (
            cupy.concatenate([parts[pair[place]] for pair in PRODUCT_PARTS[2]], axis=1)
            for place in (0, 1)
        )
    add_panels(total, left, right, -1.0)


def _check_minors(failed: Array) -> None:
    """Raise LinAlgError if a panel has no factor; failed (m,) are the orders of its minors."""
    if minors := failed[failed != 0].tolist():
        raise np.linalg.LinAlgError(
            f"The leading minor of order {minors[0]} of a panel is not positive."
        )


def _factor_block(block: Array, failed: Array) -> None:
    """Replace a block on the diagonal by its lower factor; sets failed[0] if it has none."""
    handle, dtype, pitch = get_cusolver_handle(), block.dtype, get_pitch(block)
    buffer_size, routine = {
        "f": (cusolver.spotrf_bufferSize, cusolver.spotrf),
        "d": (cusolver.dpotrf_bufferSize, cusolver.dpotrf),
    }[dtype.char]
    size = buffer_size(handle, LOWER, len(block), block.data.ptr, pitch)
    work = cupy.empty(size, dtype)
    routine(handle, LOWER, len(block), block.data.ptr, pitch, work.data.ptr, size, failed.data.ptr)


def _solve_block(factor: Array, below: Array) -> None:
    """Replace below (m, b) by below · factor⁻ᵀ, of a lower factor (b, b), in single precision."""
    cublas.strsm(
        get_cublas_handle(),
        cublas.CUBLAS_SIDE_RIGHT,
        LOWER,
        cublas.CUBLAS_OP_T,
        cublas.CUBLAS_DIAG_NON_UNIT,
        *below.shape,
        FACTORS[1].ctypes.data,
        factor.data.ptr,
        get_pitch(factor),
        below.data.ptr,
        get_pitch(below),
    )


def _scale(square: Array, root: Array, diagonal: Array, lower: Array) -> None:
    """Write the upper triangle of square·root·rootᵀ, with this diagonal (D,), to the lower one.

    The square and `lower` are matrices (D, D) of `new_square`, which may be the same.
    """
    vectors = (vector.astype(lower.dtype) for vector in (root, diagonal))
    sizes = len(square), get_pitch(square), get_pitch(lower)
    _run_on_tiles("scale", square, lower, (*vectors, *sizes))


def _run_on_tiles(name: str, source: Array, target: Array, rest: tuple[Any, ...]) -> None:
    """Run a kernel of triangles.cu for all tiles of two square matrices."""
    types = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
    definitions = (
        ("SOURCE", types[source.dtype]),
        ("TARGET", types[target.dtype]),
        ("TILE", TRIANGLE_TILE),
        ("LINES", TRIANGLE_LINES),
    )
    tiles = -(-len(source) // TRIANGLE_TILE)
    kernel = load_module("triangles", definitions).get_function(name)
    kernel((tiles, tiles), (TRIANGLE_TILE, TRIANGLE_LINES), (source, target, *rest))
