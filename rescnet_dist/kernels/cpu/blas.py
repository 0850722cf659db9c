"""BLAS and LAPACK routines that release the GIL, and the sum of scatter matrices in place.

SciPy's own wrappers hold the GIL, so that the threads of a worker would take turns. They are used
only if SciPy does not give access to its routines. Scatter matrices then have the same bits.
Cholesky factors of more than 128 features, and solutions, are computed in other blocks and differ
in the last digits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy

from rescnet_dist._compat import load_blas_routine
from rescnet_dist.kernels.arrays import Array

C_TYPES = {"f": ctypes.c_float, "d": ctypes.c_double}


load_routine = cache(load_blas_routine)


def call_routine(routine: Callable[..., None], *arguments: Any) -> None:
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
    routine(*pointers)


def check_array(array: Array, *, order: str) -> Array:
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
    check_array(total, order="F"), check_array(rows, order="C")
    n, width = rows.shape
    one = C_TYPES[rows.dtype.char](1)
    if total.dtype != rows.dtype or total.shape != (width, width):
        raise ValueError(
            f"total has shape {total.shape} and dtype {total.dtype}, but rows have shape "
            f"{rows.shape} and dtype {rows.dtype}. Pass total of shape ({width}, {width}) and "
            "the dtype of rows."
        )
    name = {"f": "ssyrk", "d": "dsyrk"}[rows.dtype.char]
    side = max(width, 1)
    if routine := load_routine(name, 10):
        call_routine(routine, "L", "N", width, n, one, rows, side, one, total, side)
    elif rows.size:
        getattr(scipy.linalg.blas, name)(1, rows.T, 1, total, lower=1, overwrite_c=1)
