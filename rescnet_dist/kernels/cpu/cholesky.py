"""Cholesky factorization in blocks, and solving with the factor, by BLAS routines without the GIL.

OpenBLAS has slow kernels for triangular solves on many processors, in which LAPACK's own routines
spend much of their time. Here small blocks are inverted, and nearly all else are matrix products.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.blas import C_TYPES, call_routine, check_array, load_routine

UPDATE_COLUMNS = 512  # whose products are subtracted from all columns after them at once
# Of blocks on the diagonal. OpenBLAS factorizes and inverts them on one thread; for larger ones
# threads wait for each other, which takes long on cores that others use, too.
BLOCK_COLUMNS = 128
SOLVE_COLUMNS = 256  # of the factor, that are processed at a time
ARGUMENT_COUNTS = {"gemm": 13, "potrf": 5, "syrk": 10, "trmm": 11, "trsm": 11, "trtri": 6}


def cholesky(matrix: Array) -> None:
    """Replace a symmetric matrix (D, D) in Fortran order by its lower Cholesky factor.

    The strict upper triangle is neither read nor written. Raises LinAlgError if the matrix is not
    positive definite.
    """
    check_array(matrix, order="F")
    if _has_routines(matrix):
        for start in range(0, len(matrix), UPDATE_COLUMNS):
            _factor_columns(matrix, start, min(start + UPDATE_COLUMNS, len(matrix)))
    elif matrix.size:
        potrf = getattr(scipy.linalg.lapack, f"{_prefix(matrix)}potrf")
        _check_minor(potrf(matrix, lower=1, clean=0, overwrite_a=1)[1])


def _factor_columns(matrix: Array, start: int, stop: int) -> None:
    """Compute columns start to stop of the factor, and subtract their products from those after.

    Products of all columns before `start` have been subtracted.
    """
    side = len(matrix)
    for i in range(start, stop, BLOCK_COLUMNS):
        j, known = min(i + BLOCK_COLUMNS, stop), i - start
        own, own_factor = matrix[i:j, i:j], matrix[i:j, start:i]
        below, below_factor = matrix[j:, i:j], matrix[j:, start:i]
        if known:
            _call("syrk", "L", "N", j - i, known, -1.0, own_factor, 1.0, own)
        if known and j < side:
            shape = side - j, j - i, known
            _call("gemm", "N", "T", *shape, -1.0, below_factor, own_factor, 1.0, below)
        _factor_block(own, below, i)
    if stop < side:
        factor, rest = matrix[stop:, start:stop], matrix[stop:, stop:]
        _call("syrk", "L", "N", side - stop, stop - start, -1.0, factor, 1.0, rest)


def _factor_block(own: Array, below: Array, start: int) -> None:
    """Replace own (b, b) by its factor L, the rows below it (m, b) by below · L⁻ᵀ.

    `start` is the number of the first column.
    """
    width, info = len(own), ctypes.c_int(0)
    _call("potrf", "L", width, own, info)
    _check_minor(start + info.value if info.value else 0)
    if len(below):
        inverse = own.copy(order="F")
        _call("trtri", "L", "N", width, inverse, info)
        _call("trmm", "R", "L", "T", "N", len(below), width, 1.0, inverse, below)


def solve_factored(factor: Array, columns: Array) -> Array:
    """Solve for columns (D, K) in the precision of the factor (D, D), single or double."""
    check_array(factor, order="F")
    x = np.array(columns, factor.dtype, order="F")
    if not x.size:
        return x
    if not _has_routines(factor):
        potrs = getattr(scipy.linalg.lapack, f"{_prefix(factor)}potrs")
        return np.asarray(potrs(factor, x, lower=1)[0])
    side, targets = x.shape
    blocks = [(i, min(i + SOLVE_COLUMNS, side)) for i in range(0, side, SOLVE_COLUMNS)]
    for i, j in blocks:
        own, below = factor[i:j, i:j], factor[j:, i:j]
        _call("trsm", "L", "L", "N", "N", j - i, targets, 1.0, own, x[i:j])
        if j < side:
            _call("gemm", "N", "N", side - j, targets, j - i, -1.0, below, x[i:j], 1.0, x[j:])
    for i, j in reversed(blocks):
        own, below = factor[i:j, i:j], factor[j:, i:j]
        if j < side:
            _call("gemm", "T", "N", j - i, targets, side - j, -1.0, below, x[j:], 1.0, x[i:j])
        _call("trsm", "L", "L", "T", "N", j - i, targets, 1.0, own, x[i:j])
    return x


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
