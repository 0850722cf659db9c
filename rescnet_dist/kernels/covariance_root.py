"""Square roots of the correlation matrices of blocks, pooled over a spatial pyramid.

The square root of a covariance matrix is the better feature of a Gaussian: it shrinks the large
eigenvalues, which a block has in common with most others, relative to the small ones. It is
approximated by the coupled iteration of Newton and Schulz (Li et al., "Towards Faster Training of
Global Covariance Pooling Networks by Iterative Matrix Square Root Normalization", 2018), which
takes matrix products alone.
"""

from __future__ import annotations

import math

import numpy as np

from rescnet_dist.kernels.arrays import Array, get_array_module
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.pooling import block_starts, pyramid

ROOT_POOLS = {"both": ("max", "mean"), "max": ("max",), "mean": ("mean",)}
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
    live, targets = pyramid(height, width, block, stride, tuple(levels), cells)
    shape, targets = targets.shape[:2], targets.reshape(-1, len(levels))
    members = [np.flatnonzero((targets == cell).any(axis=1)).tolist() for cell in range(live)]
    names, pool_roots = ROOT_POOLS[pools], get_operations(maps).pool_roots
    shape_of_features = (n, live, len(names), filters * (filters + 1) // 2)
    features = get_array_module(maps).empty(shape_of_features, np.float32)
    step = max(1, ROOT_SLAB_BYTES // _block_bytes(height, width, filters, block, stride))
    for start in range(0, n, step):
        images = slice(start, min(start + step, n))
        features[images] = pool_roots(
            maps[images], block, stride, shape, members, steps, ridge, power, names
        )
    return features.reshape(n, math.prod(features.shape[1:]))


def covariance_root_bytes(
    images: int, height: int, width: int, filters: int, block: int, stride: int
) -> int:
    """Return the memory of `covariance_root_features` in addition to maps and features."""
    per_image = _block_bytes(height, width, filters, block, stride)
    return ROOT_COPIES * min(images * per_image, max(per_image, ROOT_SLAB_BYTES))


def _block_bytes(height: int, width: int, filters: int, block: int, stride: int) -> int:
    """Return the bytes of the pixels or of the matrices of an image's blocks, if these are more."""
    blocks = math.prod(len(block_starts(side, block, stride)) for side in (height, width))
    return 4 * blocks * filters * max(block**2, filters)
