"""Leading eigenvectors of symmetric matrices, by a LAPACK routine that releases the GIL."""

from __future__ import annotations

import ctypes

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.blas import call_routine, load_routine


def leading_eigenvectors(matrix: Array, count: int, metric: Array | None = None) -> Array:
    """Return the eigenvectors (p, count) of the largest eigenvalues, in descending order.

    They solve matrix·v = λ·metric·v for symmetric matrices (p, p); the metric is I by default. Only
    without a metric do other threads run, such as the one that feeds a GPU. The bits are those of
    `scipy.linalg.eigh` in each case. Raises ValueError for a matrix that is not square, or another
    number of eigenvectors than 0 to p, and LinAlgError if LAPACK does not find them.
    """
    p, count = len(matrix), int(count)
    if matrix.shape != (p, p) or not 0 <= count <= p:
        raise ValueError(
            f"{count} eigenvectors of a matrix of shape {matrix.shape} were asked for. Pass a "
            "square matrix (p, p) and a number from 0 to p."
        )
    if not count:
        return np.zeros((p, 0))
    routine = load_routine("dsyevr", 21) if metric is None else None
    if routine is None or matrix.dtype != np.float64:
        vectors = scipy.linalg.eigh(matrix, metric, subset_by_index=[p - count, p - 1])[1]
        return np.asarray(vectors[:, ::-1])
    scratch = np.array(matrix, order="F")  # is overwritten
    values, vectors = np.empty(p), np.empty((p, count), order="F")
    support, found, failed = np.empty(2 * p, np.intc), ctypes.c_int(), ctypes.c_int()
    bounds = ctypes.c_double(), ctypes.c_double(1), p - count + 1, p, ctypes.c_double()
    outputs = found, values, vectors, p, support
    work, int_work = np.empty(1), np.empty(1, np.intc)
    for sizes in ((-1, -1), None):  # asks for the sizes of the work arrays first
        if sizes is None:
            sizes = int(work[0]), int(int_work[0])
            work, int_work = np.empty(sizes[0]), np.empty(sizes[1], np.intc)
        arguments = ("V", "I", "L", p, scratch, p, *bounds, *outputs)
        call_routine(routine, *arguments, work, sizes[0], int_work, sizes[1], failed)
        if failed.value:
            break
    if failed.value or found.value != count:
        cause = "" if np.isfinite(matrix).all() else " It has numbers that are infinite or NaN."
        raise np.linalg.LinAlgError(
            f"LAPACK found {found.value} of {count} eigenvectors of a matrix of {p} rows "
            f"(dsyevr: {failed.value}).{cause}"
        )
    return np.asarray(vectors[:, ::-1])
