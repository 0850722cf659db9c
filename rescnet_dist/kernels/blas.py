"""The routines of BLAS and LAPACK that work in place, called without the GIL.

SciPy's own faces of them keep the GIL, so that the threads of a worker would take turns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from rescnet_dist.kernels.arrays import Array

SCALARS = {"f": ctypes.c_float, "d": ctypes.c_double}


@cache
def _routine(name: str, arguments: int) -> Callable[..., None]:
    """A routine of SciPy's BLAS or LAPACK, all of whose arguments are pointers."""
    module = cython_blas if name in cython_blas.__pyx_capi__ else cython_lapack
    capsule = module.__pyx_capi__[name]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)  # which releases the GIL
    return kind(pointer_of(capsule, name_of(capsule)))


def _call(name: str, *arguments: Any) -> None:
    """Call a routine with arrays, whole numbers, letters, and scalars of ctypes."""
    held: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            held.append(ctypes.c_void_p(argument.ctypes.data))
            continue
        if isinstance(argument, int):
            argument = ctypes.c_int(argument)
        elif isinstance(argument, str):
            argument = ctypes.c_char(argument.encode())
        held.append(ctypes.byref(argument))
    _routine(name, len(held))(*held)


def _checked(array: Array, *, order: str) -> Array:
    """Refuse an array that a routine would misread."""
    whole = array.flags.f_contiguous if order == "F" else array.flags.c_contiguous
    if not whole or array.dtype.char not in SCALARS:
        raise ValueError(f"an array of {array.dtype} in {order} order is needed")
    return array


def add_scatter(total: Array, rows: Array) -> None:
    """total (D, D), in Fortran's order, += rowsᵀ rows of rows (n, D); the lower triangle only."""
    _checked(total, order="F"), _checked(rows, order="C")
    n, width = rows.shape
    one = SCALARS[rows.dtype.char](1)
    if total.dtype != rows.dtype or total.shape != (width, width):
        raise ValueError(f"total is {total.shape} {total.dtype}, rows {rows.shape} {rows.dtype}")
    name = {"f": "ssyrk", "d": "dsyrk"}[rows.dtype.char]
    _call(name, "L", "N", width, n, one, rows, max(width, 1), one, total, max(width, 1))


def cholesky(matrix: Array) -> None:
    """The lower Cholesky factor of a symmetric matrix (D, D) in Fortran's order, in its place; the
    other half is left alone."""
    _checked(matrix, order="F")
    name, failed = {"f": "spotrf", "d": "dpotrf"}[matrix.dtype.char], ctypes.c_int(0)
    _call(name, "L", len(matrix), matrix, max(len(matrix), 1), failed)
    if failed.value:
        raise np.linalg.LinAlgError(f"leading minor {failed.value} is not positive")
