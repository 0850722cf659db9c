"""Square roots of the correlation matrices of blocks, pooled over a spatial pyramid.

The square root of a covariance matrix is the better feature of a Gaussian: it shrinks the large
eigenvalues, which a block has in common with most others, relative to the small ones. It is
approximated by the coupled iteration of Newton and Schulz (Li et al., "Towards Faster Training of
Global Covariance Pooling Networks by Iterative Matrix Square Root Normalization", 2018), which
takes matrix products alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, get_array_module
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.first_order import COMBINE
from rescnet_dist.kernels.pooling import block_starts, nest_levels, pyramid

ROOT_POOLS = {"both": ("max", "mean"), "max": ("max",), "mean": ("mean",)}
# Fraction of the mean square, below which a channel counts as constant in its block, as in
# second-order features
MIN_VARIANCE_FRACTION = 1e-8
ROOT_SLAB_BYTES = 256 * 2**20  # size of the pixels or matrices of blocks processed at a time
ROOT_COPIES = 6  # of these bytes at most: of pixels two, of matrices five, of entries two


def covariance_root_features(
    maps: Array,
    block: int,
    stride: int,
    levels: tuple[int, ...],
    *,
    cells: str = "center",
    pools: str = "both",
    steps: int = 5,
    ridge: float = 0.01,
    power: bool = True,
) -> Array:
    """Compute features by pooling the square roots of the correlation matrices of blocks.

    With the correlation matrix C (f, f) of ReLU(maps) in a block, they are the upper triangle of
    the square root of C + ridge·I, pooled over the blocks of each pyramid cell. `steps` steps of
    Newton and Schulz start from the matrix divided by its trace. With few steps, small eigenvalues
    have not converged and are shrunk.

    Parameters
    ----------
    maps : ndarray of float32, shape (n, H, W, f)
        The maps of a layer, in NumPy or CuPy.
    block, stride : int
        Side of the blocks, and their distance, in pixels.
    levels : tuple of int
        Cells along a side of each level of the spatial pyramid.
    cells : {"center", "even"}
        How blocks are assigned to cells.
    pools : {"both", "max", "mean"}
        How the blocks of a cell are pooled.
    steps : int
        Number of steps, at least 1.
    ridge : float
        What is added to the diagonal. A channel without variance in a block has no other entry.
    power : bool
        Whether to take sign(v)·|v|^½ of the entries before pooling.

    Returns
    -------
    ndarray of float32, shape (n, D)
        The features by cell, maximum and mean, and pair of maps: D as of
        `feature_count` with zscore="block", once for each pool.

    Raises
    ------
    ValueError
        If a block is larger than the maps.
    """
    n, height, width, filters = maps.shape
    grid = height, width, block, stride, tuple(levels), cells
    (live, targets), (direct, parents) = pyramid(*grid), nest_levels(*grid)
    names, xp = ROOT_POOLS[pools], get_array_module(maps)
    row, column = np.triu_indices(filters)
    upper, counts = xp.asarray(row * filters + column), np.bincount(targets.reshape(-1))
    features = xp.empty((n, live, len(names), len(row)), np.float32)
    step = max(1, ROOT_SLAB_BYTES // _block_bytes(height, width, filters, block, stride))
    for start in range(0, n, step):
        images = slice(start, min(start + step, n))
        roots = newton_roots(_correlate_blocks(maps[images], block, stride), steps, ridge)
        entries = roots.reshape(*roots.shape[:2], filters**2)[..., upper].astype(np.float32)
        del roots
        if power:
            entries = np.copysign(np.sqrt(np.abs(entries)), entries)
        for index, name in enumerate(names):
            pooled = _pool(entries, direct.reshape(-1, direct.shape[2]), parents, COMBINE[name])
            for cell, value in pooled.items():
                features[images, cell, index] = value / counts[cell] if name == "mean" else value
    return features.reshape(n, math.prod(features.shape[1:]))


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
    trace = flat[..., :: filters + 1].sum(axis=-1, dtype=np.float32)[..., None, None]
    root = matrices
    root /= trace.astype(dtype)
    inverse = factor = _newton_factor(root.copy())
    root = root @ factor
    for step in range(1, steps):
        factor = _newton_factor(inverse @ root)
        root = root @ factor
        if step < steps - 1:
            inverse = factor @ inverse
    root *= np.sqrt(trace).astype(dtype)
    return root


def covariance_root_bytes(
    images: int, height: int, width: int, filters: int, block: int, stride: int
) -> int:
    """Return the memory of `covariance_root_features` in addition to maps and features."""
    per_image = _block_bytes(height, width, filters, block, stride)
    return ROOT_COPIES * min(images * per_image, max(per_image, ROOT_SLAB_BYTES))


def _newton_factor(product: Array) -> Array:
    """Return 1.5·I − 0.5·product of products (…, f, f), which are overwritten."""
    filters, dtype = product.shape[-1], product.dtype
    product *= dtype.type(-0.5)
    flat = product.reshape(*product.shape[:-2], filters**2)
    flat[..., :: filters + 1] += dtype.type(1.5)
    return product


def _correlate_blocks(maps: Array, block: int, stride: int) -> Array:
    """Return the correlation matrices (n, R·Q, f, f) of ReLU(maps), in the dtype of products."""
    n, height, width, filters = maps.shape
    rows, columns = (len(block_starts(side, block, stride)) for side in (height, width))
    xp, dtype = get_array_module(maps), get_operations(maps).small_product_dtype()
    maps = xp.ascontiguousarray(maps, np.float32)
    image, line, pixel, channel = maps.strides
    windows = xp.lib.stride_tricks.as_strided(
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
    values = values.astype(dtype, copy=False)
    return values.swapaxes(2, 3) @ values


def _pool(
    entries: Array, direct: Array, parents: Array, combine: Callable[..., Any]
) -> dict[int, Array]:
    """Return sums or maxima (n, p) by cell, of entries (n, blocks, p), from first to last block.

    direct (blocks, m) and parents are those of `nest_levels`.
    """
    pooled: dict[int, Array] = {}

    def add(cell: int, value: Array) -> None:
        if cell in pooled:
            combine(pooled[cell], value, out=pooled[cell])
        else:
            pooled[cell] = value.copy()

    for number, targets in enumerate(direct.tolist()):
        for cell in targets:
            add(cell, entries[:, number])
    for child, parent in parents.tolist():
        add(parent, pooled[child])
    return pooled


def _block_bytes(height: int, width: int, filters: int, block: int, stride: int) -> int:
    """Return the bytes of the pixels or of the matrices of an image's blocks, if these are more."""
    blocks = math.prod(len(block_starts(side, block, stride)) for side in (height, width))
    return 4 * blocks * filters * max(block**2, filters)
