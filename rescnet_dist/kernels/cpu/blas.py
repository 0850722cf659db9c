"""In-place BLAS and LAPACK routines that release the GIL.

SciPy's own wrappers hold the GIL, so that the threads of a worker would take turns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from rescnet_dist.kernels.arrays import Array

C_TYPES = {"f": ctypes.c_float, "d": ctypes.c_double}


@cache
def _load_routine(name: str, n_arguments: int) -> Callable[..., None]:
    """Return a routine of SciPy's BLAS or LAPACK, all of whose arguments are pointers."""
    module = cython_blas if name in cython_blas.__pyx_capi__ else cython_lapack
    capsule = module.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)  # releases the GIL
    return prototype(get_pointer(capsule, get_name(capsule)))


def _call(name: str, *arguments: Any) -> None:
    """Call a routine with arrays, integers, letters and ctypes scalars."""
    pointers: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            pointers.append(ctypes.c_void_p(argument.ctypes.data))
            continue
        if isinstance(argument, int):
            argument = ctypes.c_int(argument)
        elif isinstance(argument, str):
            argument = ctypes.c_char(argument.encode())
        pointers.append(ctypes.byref(argument))
    _load_routine(name, len(pointers))(*pointers)


def _check_array(array: Array, *, order: str) -> Array:
    """Raise ValueError if an array has the wrong memory order or dtype for a routine."""
    is_contiguous = array.flags.f_contiguous if order == "F" else array.flags.c_contiguous
    if not is_contiguous or array.dtype.char not in C_TYPES:
        raise ValueError(
            f"The array is of {array.dtype} with strides {array.strides}. Pass a contiguous array "
            f"of float32 or float64 in {order} order."
        )
    return array


def add_scatter(total: Array, rows: Array) -> None:
    """Add rowsᵀ rows of rows (n, D) to total (D, D) in Fortran order; lower triangle only."""
    _check_array(total, order="F"), _check_array(rows, order="C")
    n, width = rows.shape
    one = C_TYPES[rows.dtype.char](1)
    if total.dtype != rows.dtype or total.shape != (width, width):
        raise ValueError(
            f"total has shape {total.shape} and dtype {total.dtype}, but rows have shape "
            f"{rows.shape} and dtype {rows.dtype}. Pass total of shape ({width}, {width}) and "
            "the dtype of rows."
        )
    name = {"f": "ssyrk", "d": "dsyrk"}[rows.dtype.char]
    _call(name, "L", "N", width, n, one, rows, max(width, 1), one, total, max(width, 1))


def cholesky(matrix: Array) -> None:
    """Replace a symmetric matrix (D, D) in Fortran order by its lower Cholesky factor.

    The strict upper triangle is neither read nor written. Raises LinAlgError if the matrix is not
    positive definite.
    """
    _check_array(matrix, order="F")
    name, info = {"f": "spotrf", "d": "dpotrf"}[matrix.dtype.char], ctypes.c_int(0)
    _call(name, "L", len(matrix), matrix, max(len(matrix), 1), info)
    if info.value:
        raise np.linalg.LinAlgError(f"The leading minor of order {info.value} is not positive.")
