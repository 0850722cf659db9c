"""Tiled scatter matrix of the features, and its Cholesky factor, tile by tile.

Used if no worker can hold the scatter matrix of the features. Tile (i, j), j ≤ i, is
the part of the matrix for feature blocks i and j. No function here holds more than four tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.discriminant import FeatureMoments, Whitening
from rescnet_dist.kernels.solving import check_pivots, inverse_deviations, singular_error


def feature_blocks(features: int, tile: int) -> list[slice]:
    """Divide the features into blocks, the sides of the tiles.

    Parameters
    ----------
    features : int
        The number of features D.
    tile : int
        The largest number of features in a block.

    Returns
    -------
    list of slice
        The blocks.

    Examples
    --------
    >>> feature_blocks(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + tile, features)) for start in range(0, features, tile)]


@dataclass(slots=True)
class TileScatter:
    """One tile Σ(x−m)(y−m)ᵀ, (a, b), of the scatter matrix, accumulated chunk by chunk.

    Attributes
    ----------
    left_mean : ndarray of float64, shape (a,)
        The mean over all samples of the features of the tile's rows.
    right_mean : ndarray of float64, shape (b,)
        The mean over all samples of the features of the tile's columns.
    products : ndarray of float64, shape (a, b)
        The sum so far, with means rounded to single precision.
    count : int or float
        The number of samples so far, or the sum of their weights.
    """

    left_mean: Array
    right_mean: Array
    products: Array
    count: float = 0

    @classmethod
    def empty(cls, left_mean: Array, right_mean: Array) -> TileScatter:
        """Return the tile of no sample.

        Parameters
        ----------
        left_mean : ndarray of float64, shape (a,)
            The mean over all samples of the features of the tile's rows.
        right_mean : ndarray of float64, shape (b,)
            The mean over all samples of the features of the tile's columns.

        Returns
        -------
        TileScatter of shape (a, b)
            The tile, to which samples can be added.
        """
        return cls(left_mean, right_mean, np.zeros((len(left_mean), len(right_mean))))

    def add(self, left: Array, right: Array, weights: Array | None = None) -> None:
        """Add samples of both feature blocks.

        Parameters
        ----------
        left : ndarray of shape (n, a)
            The features of the tile's rows.
        right : ndarray of shape (n, b)
            The features of the tile's columns.
        weights : ndarray of shape (n,), optional
            As how many samples each counts; each counts once by default.
        """
        centered = [
            values - mean.astype(values.dtype)
            for values, mean in ((left, self.left_mean), (right, self.right_mean))
        ]
        if weights is not None:
            centered[0] *= weights[:, None].astype(left.dtype)
        self.products += centered[0].T @ centered[1]
        self.count += len(left) if weights is None else float(weights.sum())

    def value(self) -> Array:
        """Return the tile, corrected for the rounding of the means.

        Returns
        -------
        ndarray of float64, shape (a, b)
            The tile of the scatter matrix.
        """
        offsets = [
            mean - mean.astype(np.float32).astype(np.float64)
            for mean in (self.left_mean, self.right_mean)
        ]
        return self.products - self.count * np.outer(*offsets)


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Converts tiles of the scatter to tiles of the ridged covariance of standardized features.

    Attributes
    ----------
    scale : ndarray of shape (D,)
        1/deviation of the features, 0 for those without variance.
    shift : float
        The value added to the diagonal.
    ridge : float
        The ridge that `shift` is computed from, relative to the mean of the diagonal.
    count : int or float
        The number of samples, or the sum of their weights.
    """

    scale: Array
    shift: float
    ridge: float
    count: float

    @classmethod
    def of(cls, squares: Array, mean: Array, count: float, ridge: float) -> Standardizer:
        """Return the standardizer for a scatter matrix.

        Parameters
        ----------
        squares : ndarray of shape (D,)
            The diagonal of the scatter matrix.
        mean : ndarray of shape (D,)
            The mean of the features.
        count : int or float
            The number of samples, or the sum of their weights.
        ridge : float
            The ridge, relative to the mean of the covariance's diagonal.

        Returns
        -------
        Standardizer of D features
            The standardizer.
        """
        scale = inverse_deviations(squares / count, mean)
        diagonal = squares / count * scale**2
        return cls(scale, float(ridge * diagonal.mean()), ridge, count)

    def tile(self, scatter: Array, rows: slice, columns: slice) -> Array:
        """Return the covariance tile of two feature blocks.

        Parameters
        ----------
        scatter : ndarray of shape (a, b)
            Their tile of the scatter matrix.
        rows : slice
            The feature block of the tile's rows.
        columns : slice
            The feature block of the tile's columns.

        Returns
        -------
        ndarray of shape (a, b)
            The tile of the ridged covariance, in Fortran order.
        """
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
    previous: Iterator[tuple[Array, Array]],
    diagonal: Array | None,
    standardizer: Standardizer,
) -> Array:
    """Compute tile (i, j) of the Cholesky factor L of the covariance.

    Parameters
    ----------
    tile : ndarray of float64, shape (a, b)
        Tile (i, j) of the covariance, in Fortran order. Its memory is reused.
    previous : iterator of tuple of ndarray
        The tiles (i, k) and (j, k) of L for each k < j.
    diagonal : ndarray of shape (b, b) or None
        Tile (j, j) of L, or None if i = j.
    standardizer : Standardizer
        The one that made the tile.

    Returns
    -------
    ndarray of float64, shape (a, b)
        Tile (i, j) of L.

    Raises
    ------
    SingularError
        If a tile on the diagonal is not positive definite.
    """
    for left, right in previous:
        tile = scipy.linalg.blas.dgemm(
            -1.0, left, right, beta=1.0, c=tile, trans_b=1, overwrite_c=1
        )
    if diagonal is not None:
        return np.asarray(
            scipy.linalg.solve_triangular(diagonal, tile.T, lower=True, check_finite=False).T
        )
    features = len(standardizer.scale)
    try:
        factor = np.linalg.cholesky(tile)
    except np.linalg.LinAlgError:
        raise singular_error(features, standardizer.count, standardizer.ridge) from None
    rounding = float(np.finfo(np.float32).eps)
    check_pivots(np.diagonal(factor), rounding, features, standardizer.count, standardizer.ridge)
    return np.asarray(factor)


def tiled_whitening(
    moments: FeatureMoments,
    standardizer: Standardizer,
    blocks: list[slice],
    read: Callable[[int, int], Array],
) -> Whitening:
    """Return a whitening whose Cholesky factor L is read tile by tile.

    Parameters
    ----------
    moments : FeatureMoments of D features
        The moments, of which only the mean is used.
    standardizer : Standardizer
        The one that made the tiles.
    blocks : list of slice
        The feature blocks, as of `feature_blocks`.
    read : callable
        read(i, j) returns tile (i, j) of L.

    Returns
    -------
    Whitening
        Its `solve` reads every tile of L twice.
    """

    def solve(columns: Array) -> Array:
        """Return (LLᵀ)⁻¹ columns (D, K) by forward, then backward substitution."""
        x = np.array(columns, dtype=np.float64)
        for i, rows in enumerate(blocks):
            for j, others in enumerate(blocks[:i]):
                x[rows] -= read(i, j) @ x[others]
            x[rows] = scipy.linalg.solve_triangular(
                read(i, i), x[rows], lower=True, check_finite=False
            )
        for i, rows in reversed(list(enumerate(blocks))):
            x[rows] = scipy.linalg.solve_triangular(
                read(i, i), x[rows], lower=True, trans="T", check_finite=False
            )
            for j, others in enumerate(blocks[:i]):
                x[others] -= read(i, j).T @ x[rows]
        return x

    return Whitening(moments.mean, standardizer.scale, solve)
