"""Square roots of the correlation matrices of blocks on the CPU, pooled over a spatial pyramid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescnet_dist.kernels.arrays import Array, signed_root
from rescnet_dist.kernels.cpu.variance import MIN_VARIANCE_FRACTION
from rescnet_dist.kernels.first_order import COMBINE


def pool_roots(
    maps: Array,
    block: int,
    stride: int,
    shape: tuple[int, int],
    cells: Sequence[Sequence[int]],
    steps: int,
    ridge: float,
    power: bool,
    pools: tuple[str, ...],
) -> Array:
    """Return the pooled roots (n, cells, pools, pairs) of maps (n, H, W, f)."""
    n, filters = len(maps), maps.shape[3]
    row, column = np.triu_indices(filters)
    roots = newton_roots(_correlate_blocks(maps, block, stride, shape), steps, ridge)
    entries = roots.reshape(*roots.shape[:2], filters**2)[..., row * filters + column]
    del roots
    if power:
        entries = signed_root(entries)
    features = np.empty((n, len(cells), len(pools), len(row)), np.float32)
    for cell, members in enumerate(cells):
        for index, pool in enumerate(pools):
            pooled = features[:, cell, index]
            pooled[...] = entries[:, members[0]]
            for member in members[1:]:
                COMBINE[pool](pooled, entries[:, member], out=pooled)
            if pool == "mean":
                pooled /= len(members)
    return features


def newton_roots(matrices: Array, steps: int, ridge: float) -> Array:
    """Compute square roots of matrices by the iteration of Newton and Schulz.

    Parameters
    ----------
    matrices : ndarray of shape (…, f, f)
        Positive semidefinite matrices. They are overwritten.
    steps : int
        Number of steps, at least 1.
    ridge : float
        What is added to their diagonal.

    Returns
    -------
    ndarray of shape (…, f, f)
        The approximate roots, in the dtype of the matrices.
    """
    filters, dtype = matrices.shape[-1], matrices.dtype
    flat = matrices.reshape(*matrices.shape[:-2], filters**2)
    flat[..., :: filters + 1] += dtype.type(ridge)
    trace = flat[..., :: filters + 1].sum(axis=-1)[..., None, None]
    root = matrices
    root /= trace
    inverse = factor = _newton_factor(root.copy())
    root = root @ factor
    for step in range(1, steps):
        factor = _newton_factor(inverse @ root)
        root = root @ factor
        if step < steps - 1:
            inverse = factor @ inverse
    root *= np.sqrt(trace)
    return root


def _newton_factor(product: Array) -> Array:
    """Return 1.5·I − 0.5·product of products (…, f, f), which are overwritten."""
    filters, dtype = product.shape[-1], product.dtype
    product *= dtype.type(-0.5)
    flat = product.reshape(*product.shape[:-2], filters**2)
    flat[..., :: filters + 1] += dtype.type(1.5)
    return product


def _correlate_blocks(maps: Array, block: int, stride: int, shape: tuple[int, int]) -> Array:
    """Return the correlation matrices (n, R·Q, f, f) of ReLU(maps) in R×Q blocks."""
    n, (rows, columns), filters = len(maps), shape, maps.shape[3]
    maps = np.ascontiguousarray(maps, np.float32)
    image, line, pixel, channel = maps.strides
    windows = np.lib.stride_tricks.as_strided(
        maps,
        (n, rows, columns, block, block, filters),
        (image, stride * line, stride * pixel, line, pixel, channel),
    )
    values = np.maximum(windows, np.float32(0)).reshape(n, rows * columns, block**2, filters)
    mean = values.mean(axis=2, keepdims=True)
    values -= mean
    variance = (values * values).mean(axis=2, keepdims=True)
    varies = variance > np.float32(MIN_VARIANCE_FRACTION) * (variance + mean * mean)
    deviation = np.sqrt(np.where(varies, variance, np.float32(1)))
    values *= np.where(varies, np.float32(1 / block) / deviation, np.float32(0))
    return values.swapaxes(2, 3) @ values
