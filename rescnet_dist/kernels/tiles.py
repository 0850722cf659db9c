"""The scatter matrix of the features in square tiles, and its Cholesky factor tile by tile.

For as many features that one worker cannot hold their scatter matrix: a tile (i, j), j ≤ i, is the
part of it where block i of the features meets block j, and no function here holds more than four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, solve_triangular

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.discriminant import (
    FeatureMoments,
    Whitening,
    check_pivots,
    inverse_deviations,
    singular,
)


def feature_blocks(features: int, tile: int) -> list[slice]:
    """The blocks of at most `tile` features that the tiles are made of.

    >>> feature_blocks(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + tile, features)) for start in range(0, features, tile)]


@dataclass(slots=True)
class TileScatter:
    """One tile Σ(x−m)(y−m)ᵀ of the scatter matrix, (a, b) in float64, fed chunk by chunk; the means
    m (a,) and (b,) are those over all samples."""

    left_mean: Array
    right_mean: Array
    products: Array
    count: int = 0

    @classmethod
    def empty(cls, left_mean: Array, right_mean: Array) -> TileScatter:
        """The tile of no sample."""
        return cls(left_mean, right_mean, np.zeros((len(left_mean), len(right_mean))))

    def add(self, left: Array, right: Array) -> None:
        """Add samples of both blocks of features, (n, a) and (n, b)."""
        centered = [
            values - mean.astype(values.dtype)
            for values, mean in ((left, self.left_mean), (right, self.right_mean))
        ]
        self.products += centered[0].T @ centered[1]
        self.count += len(left)

    def value(self) -> Array:
        """The tile; corrects what rounding the means left behind."""
        offsets = [
            mean - mean.astype(np.float32).astype(np.float64)
            for mean in (self.left_mean, self.right_mean)
        ]
        return self.products - self.count * np.outer(*offsets)


@dataclass(frozen=True, slots=True)
class Standardizer:
    """How tiles become those of the ridged covariance of standardized features: scale (D,), the
    ridge added to the diagonal, and the number of samples."""

    scale: Array
    shift: float
    ridge: float
    count: int

    @classmethod
    def of(cls, squares: Array, count: int, ridge: float) -> Standardizer:
        """From the scatter's diagonal (D,)."""
        scale = inverse_deviations(squares / count)
        diagonal = squares / count * scale**2
        return cls(scale, float(ridge * diagonal.mean()), ridge, count)

    def tile(self, scatter: Array, rows: slice, columns: slice) -> Array:
        """The covariance where two blocks of features meet, (a, b), from that of the scatter."""
        tile = scatter / self.count
        tile *= self.scale[rows, None]
        tile *= self.scale[columns]
        if rows == columns:
            diagonal = np.einsum("ii->i", tile)
            diagonal += self.shift
            diagonal[self.scale[rows] == 0] = 1
        return np.asfortranarray(tile)


def factor_tile(
    tile: Array,
    before: Iterator[tuple[Array, Array]],
    diagonal: Array | None,
    standardized: Standardizer,
) -> Array:
    """Tile (i, j) of the Cholesky factor L, from that of the covariance; takes over its memory.

    before gives the tiles (i, k) and (j, k) of L for each k < j; diagonal is tile (j, j) of L, or
    None where i = j.
    """
    for left, right in before:
        tile = blas.dgemm(-1.0, left, right, beta=1.0, c=tile, trans_b=1, overwrite_c=1)
    if diagonal is not None:
        return np.asarray(solve_triangular(diagonal, tile.T, lower=True, check_finite=False).T)
    features = len(standardized.scale)
    try:
        factor = np.linalg.cholesky(tile)
    except np.linalg.LinAlgError:
        raise singular(features, standardized.count, standardized.ridge) from None
    rounding = float(np.finfo(np.float32).eps)
    check_pivots(np.diagonal(factor), rounding, features, standardized.count, standardized.ridge)
    return np.asarray(factor)


def tiled_whitening(
    moments: FeatureMoments,
    standardized: Standardizer,
    blocks: list[slice],
    read: Callable[[int, int], Array],
) -> Whitening:
    """The whitening whose factor L is read tile by tile: read(i, j) gives its tile (i, j)."""

    def solve(columns: Array) -> Array:
        """(LLᵀ)⁻¹ columns, (D, K): forward, then backward substitution."""
        x = np.array(columns, dtype=np.float64)
        for i, rows in enumerate(blocks):
            for j, others in enumerate(blocks[:i]):
                x[rows] -= read(i, j) @ x[others]
            x[rows] = solve_triangular(read(i, i), x[rows], lower=True, check_finite=False)
        for i, rows in reversed(list(enumerate(blocks))):
            x[rows] = solve_triangular(
                read(i, i), x[rows], lower=True, trans="T", check_finite=False
            )
            for j, others in enumerate(blocks[:i]):
                x[others] -= read(i, j).T @ x[rows]
        return x

    return Whitening(moments.mean, standardized.scale, solve)
