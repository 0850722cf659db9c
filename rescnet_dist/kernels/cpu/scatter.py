"""The scatter matrix of features on the CPU; `add_scatter` is in `blas`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.blas import add_scatter

WEIGHTED_ROW_BYTES = 4 * 2**20  # size of the rows that are weighted at a time
MAX_SCATTER_ERROR_FRACTION = 1e-9  # of the scatter's diagonal; smaller errors are not corrected


def new_square(side: int, dtype: np.dtype[Any]) -> Array:
    """Return zeros (side, side) in Fortran order."""
    return np.zeros((side, side), dtype, order="F")


def new_rows(n: int, scatter: Array) -> Array:
    """Allocate rows (n, D) that will be added to scatter (D, D)."""
    return np.empty((n, len(scatter)), scatter.dtype)


def add_centered(
    total: Array,
    features: Array,
    mean: Array,
    weights: Array | None,
    between: Callable[[Array], Array] | None,
) -> Array:
    """Add the scatter of features (n, D) around their mean (D,) to the lower triangle of total.

    See `Operations.add_centered`. The features are rounded when the mean is subtracted; the mean of
    what this leaves is added to the mean that is returned.
    """
    n, rounded = len(features), mean.astype(total.dtype)
    rows = new_rows(n + (between is not None), total)
    np.subtract(features, rounded, out=rows[:n])
    offset = column_means(rows[:n], weights)
    if weights is not None:
        rows[:n] *= np.sqrt(weights).astype(total.dtype)[:, None]
    mean = rounded + offset
    if between is not None:
        rows[n] = between(mean)
    add_scatter(total, rows)
    count = n if weights is None else float(weights.sum())
    if (count * offset**2 > MAX_SCATTER_ERROR_FRACTION * np.diagonal(total)).any():
        add_outer(total, offset, -float(count))
    return mean


def multiply_rows(left: Array, right: Array) -> Array:
    """Return left·rightᵀ (n, m) of rows (n, D) and (m, D) in float32."""
    return np.asarray(left @ right.T)


def add_outer(total: Array, vector: Array, factor: float) -> None:
    """Add factor·v vᵀ, v = vector (D,), to the lower triangle of total (D, D)."""
    add = getattr(scipy.linalg.blas, f"{'s' if total.dtype == np.float32 else 'd'}syr")
    add(factor, vector.astype(total.dtype), a=total, overwrite_a=1, lower=1)


def column_means(rows: Array, weights: Array | None = None) -> Array:
    """Return the mean (m,) of each column of rows (n, m), weighted if weights (n,) are given."""
    if weights is None:
        return np.asarray(rows.mean(axis=0, dtype=np.float64))
    total = np.zeros(rows.shape[1])
    step = max(1, WEIGHTED_ROW_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), step):  # `@` converts the rows to float64
        total += weights[start : start + step] @ rows[start : start + step]
    return total / weights.sum()
