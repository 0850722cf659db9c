"""Cholesky factorization in blocks, and solving with the factor, by BLAS routines without the GIL.

OpenBLAS has slow kernels for triangular solves on many processors, in which LAPACK's own routines
spend much of their time. Here small blocks are inverted, and nearly all else are matrix products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.blas import C_TYPES, call_routine, check_array, load_routine
from rescnet_dist.kernels.cpu.threads import parts_in_threads

# Columns whose products are subtracted from all columns after them at once: a part of all columns
MIN_PANEL_COLUMNS, MAX_PANEL_COLUMNS, MATRIX_PANELS = 256, 1024, 16
# Of blocks on the diagonal. OpenBLAS factorizes and inverts them on one thread; for larger ones
# threads wait for each other, which takes long on cores that others use, too.
BLOCK_COLUMNS = 128
SOLVE_ROWS, SOLVE_COLUMNS = 512, 128  # of parts of the factor, for the cache
SOLVE_PANEL = 1024  # columns whose products threads subtract, so many rows each
ARGUMENT_COUNTS = {"gemm": 13, "potrf": 5, "syrk": 10, "trmm": 11, "trsm": 11, "trtri": 6}


def cholesky(matrix: Array) -> None:
    """Replace a symmetric matrix (D, D) in Fortran order by its lower Cholesky factor.

    The strict upper triangle is neither read nor written. Raises LinAlgError if the matrix is not
    positive definite.
    """
    check_array(matrix, order="F")
    side = len(matrix)
    if not _has_routines(matrix):
        if side:
            potrf = getattr(scipy.linalg.lapack, f"{_prefix(matrix)}potrf")
            _check_minor(potrf(matrix, lower=1, clean=0, overwrite_a=1)[1])
        return
    width = _choose_panel(side)
    for start in range(0, side, width):
        stop = min(start + width, side)
        own, below = matrix[start:stop, start:stop], matrix[stop:, start:stop]
        _factor_square(own, start)
        if len(below):
            _multiply_by_inverse(own, below)
            _call("syrk", "L", "N", *below.shape, -1.0, below, 1.0, matrix[stop:, stop:])


def _choose_panel(side: int) -> int:
    """Return the columns of a panel of a matrix (D, D): whole blocks, but for the limits."""
    width = side // MATRIX_PANELS // BLOCK_COLUMNS * BLOCK_COLUMNS
    return max(MIN_PANEL_COLUMNS, min(width, MAX_PANEL_COLUMNS))


def _factor_square(own: Array, start: int) -> None:
    """Replace a block (b, b) on the diagonal by its factor, from whose column on `start` counts."""
    side, info = len(own), ctypes.c_int(0)
    for i in range(0, side, BLOCK_COLUMNS):
        j = min(i + BLOCK_COLUMNS, side)
        block, below, known = own[i:j, i:j], own[j:, i:j], own[i:j, :i]
        if i:
            _call("syrk", "L", "N", j - i, i, -1.0, known, 1.0, block)
        if i and j < side:
            _call("gemm", "N", "T", side - j, j - i, i, -1.0, own[j:, :i], known, 1.0, below)
        _call("potrf", "L", j - i, block, info)
        _check_minor(start + i + info.value if info.value else 0)
        if j < side:
            _multiply_by_inverse(block, below)


def _invert_factor(factor: Array) -> None:
    """Replace a lower triangular factor (b, b) by its inverse."""
    side = len(factor)
    if side <= BLOCK_COLUMNS:
        _call("trtri", "L", "N", side, factor, ctypes.c_int(0))
        return
    half = side // 2
    top, below, rest = factor[:half, :half], factor[half:, :half], factor[half:, half:]
    _invert_factor(top)
    _invert_factor(rest)
    _call("trmm", "R", "L", "N", "N", side - half, half, 1.0, top, below)
    _call("trmm", "L", "L", "N", "N", side - half, half, -1.0, rest, below)


def _multiply_by_inverse(factor: Array, rows: Array) -> None:
    """Replace rows (m, b) by rows · L⁻ᵀ, of a factor L (b, b), which is kept."""
    inverse = factor.copy(order="F")
    _invert_factor(inverse)
    _call("trmm", "R", "L", "T", "N", *rows.shape, 1.0, inverse, rows)


def solve_factored(factor: Array, columns: Array, threads: int = 1) -> Array:
    """Solve for columns (D, K) in the precision of the factor (D, D), single or double.

    So many threads multiply parts of the factor, to the same bits for any number. Products are
    small: BLAS should have one thread.
    """
    check_array(factor, order="F")
    if len(columns) != len(factor):
        raise ValueError(
            f"columns have {len(columns)} rows. Pass as many as factor has, {len(factor)}."
        )
    x = np.array(columns, factor.dtype, order="C")
    if not x.size:
        return x
    if not _has_routines(factor):
        potrs = getattr(scipy.linalg.lapack, f"{_prefix(factor)}potrs")
        return np.asarray(potrs(factor, x, lower=1)[0])
    side, targets = x.shape

    def solve_block(own: slice, transposed: str) -> None:
        # x and its rows in Fortran order are their transposes
        square, rows = factor[own, own], x[own]
        _call("trsm", "R", "L", transposed, "N", targets, len(rows), 1.0, square, rows.T)

    def subtract_from(known: slice, part: slice) -> None:
        """Subtract the products of the columns `known` with x from a part of its rows."""
        for rows in _iter_parts(part.start, part.stop, SOLVE_ROWS):
            for own in _iter_parts(known.start, known.stop, SOLVE_COLUMNS):
                x[rows] -= factor[rows, own] @ x[own]

    def subtract_transposed(known: slice, part: slice) -> None:
        """The same with the transposed rows `known`."""
        for rows in _iter_parts(known.start, known.stop, SOLVE_ROWS):
            x[part] -= factor[rows, part].T @ x[rows]

    panels = [*_iter_parts(0, side, SOLVE_PANEL)]
    with parts_in_threads(threads) as map_parts:
        for panel in panels:
            for own in _iter_parts(panel.start, panel.stop, SOLVE_COLUMNS):
                solve_block(own, "T")
                subtract_from(own, slice(own.stop, panel.stop))
            rest = _iter_parts(panel.stop, side, SOLVE_PANEL)
            list(map_parts(partial(subtract_from, panel), rest))
        for panel in reversed(panels):
            parts, after = [*_iter_parts(panel.start, panel.stop, SOLVE_COLUMNS)], panel.stop
            list(map_parts(partial(subtract_transposed, slice(after, side)), parts))
            for own in reversed(parts):
                subtract_transposed(slice(own.stop, after), own)
                solve_block(own, "N")
    return x


def _iter_parts(start: int, stop: int, size: int) -> Iterator[slice]:
    """Yield the parts of a range, of at most so many items."""
    for i in range(start, stop, size):
        yield slice(i, min(i + size, stop))


def _check_minor(order: int) -> None:
    """Raise LinAlgError if `order`, of the leading minor that is not positive, is not 0."""
    if order:
        raise np.linalg.LinAlgError(f"The leading minor of order {order} is not positive.")


def _prefix(array: Array) -> str:
    """Return the letter that the names of routines for the dtype of an array begin with."""
    return {"f": "s", "d": "d"}[array.dtype.char]


def _has_routines(array: Array) -> bool:
    """Return whether SciPy gives access to its routines for the dtype of an array."""
    prefix = _prefix(array)
    return all(load_routine(prefix + name, count) for name, count in ARGUMENT_COUNTS.items())


def _call(name: str, *arguments: Any) -> None:
    """Call a routine with arrays in Fortran order, or parts of them, numbers and letters.

    Arrays are followed by their leading dimension, and floats are of their dtype.
    """
    array = next(argument for argument in arguments if isinstance(argument, np.ndarray))
    expanded: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            expanded += [argument, max(1, argument.strides[1] // argument.itemsize)]
        elif isinstance(argument, float):
            expanded.append(C_TYPES[array.dtype.char](argument))
        else:
            expanded.append(argument)
    routine = load_routine(_prefix(array) + name, ARGUMENT_COUNTS[name])
    assert routine
    call_routine(routine, *expanded)
