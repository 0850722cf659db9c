"""Features of all images, for heads that compare images with each other.

The moments of features have a size that does not depend on the number of images. These have not:
they hold every image, and a matrix of all pairs of training images is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module, on_gpu
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.discriminant import FeatureMoments
from rescnet_dist.kernels.solving import inverse_deviations, overflow_error

PRODUCT_FEATURES = 4096  # columns of the features whose products are summed at a time
KERNEL_PANEL_COLUMNS = 1024  # columns of the matrix of pairs that are computed at a time
SUM_BITS = 53  # of a number in float64
SMALLEST_BOUND = 1e-30  # of sums; smaller ones are rounded to 0
KERNEL_PANEL_BYTES = 64 * 2**20  # of the kernel of images and others, rows at a time


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Features and targets of consecutive images.

    Attributes
    ----------
    first : int
        The row of the first image in the run.
    features : ndarray of shape (n, D)
        The features, in single or half precision.
    targets : ndarray of float32, shape (n, K)
        The targets.
    train : ndarray of bool, shape (n,)
        Which images are training images, a NumPy array.
    """

    first: int
    features: Array
    targets: Array
    train: Array

    @property
    def train_count(self) -> int:
        """The number of training images."""
        return int(np.count_nonzero(self.train))


@dataclass(frozen=True, slots=True)
class FeatureSamples:
    """Features and targets of images, and the moments of those of training images.

    `merge` is associative and `empty` is its identity.

    Attributes
    ----------
    moments : FeatureMoments of D features
        The moments of the training images, without a scatter and without targets.
    dtype : str
        The dtype in which features are kept, "float32" or "float16".
    blocks : tuple of SampleBlock
        The images, validation images included.
    """

    moments: FeatureMoments
    dtype: str
    blocks: tuple[SampleBlock, ...] = field(default=())

    @classmethod
    def empty(cls, features: int, dtype: str, xp: object = np) -> FeatureSamples:
        """Return the samples of no image.

        Parameters
        ----------
        features : int
            The number D of features.
        dtype : {"float32", "float16"}
            The dtype in which features are kept.
        xp : module, default numpy
            The array module, numpy or cupy.

        Returns
        -------
        FeatureSamples of D features
            The identity of `merge`.
        """
        return cls(FeatureMoments.empty(features, 0, scatter=False, squares=True, xp=xp), dtype)

    @property
    def count(self) -> float:
        """The number of training images."""
        return self.moments.count

    def fold(self, first: int, features: Array, targets: Array, train: Array) -> FeatureSamples:
        """Return these samples with a chunk of images.

        Parameters
        ----------
        first : int
            The row of the first image in the run.
        features : ndarray of shape (n, D)
            The features of the images.
        targets : ndarray of shape (n, K)
            Their targets.
        train : ndarray of bool, shape (n,)
            Which of them are training images, a NumPy array.

        Returns
        -------
        FeatureSamples of D features
            The samples including the images.
        """
        kept = features.astype(self.dtype)  # a copy, as the caller reuses its memory
        block = SampleBlock(first, kept, targets, train)
        trained = select_rows(kept, train).astype(np.float32, copy=False)
        moments = self.moments.fold(trained, targets[: len(trained), :0])
        return FeatureSamples(moments, self.dtype, (*self.blocks, block))

    def merge(self, other: FeatureSamples) -> FeatureSamples:
        """Return the samples of both sets of images.

        Parameters
        ----------
        other : FeatureSamples of D features
            The samples of other images.

        Returns
        -------
        FeatureSamples of D features
            Those of all.
        """
        blocks = tuple(sorted((*self.blocks, *other.blocks), key=lambda block: block.first))
        return FeatureSamples(self.moments.merge(other.moments), self.dtype, blocks)

    def scaling(self) -> FeatureScaling:
        """Return the standardization of the features by the moments of the training images.

        Returns
        -------
        FeatureScaling of D features
            The standardization.

        Raises
        ------
        DataError
            If features were too large for their dtype.
        """
        moments = self.moments
        assert moments.squares is not None
        if not bool(np.isfinite(moments.squares).all()):
            raise overflow_error(np.dtype(self.dtype), "store_dtype")
        scale = inverse_deviations(moments.squares / moments.count, moments.mean)
        return FeatureScaling(moments.mean.astype(np.float32), scale.astype(np.float32))


@dataclass(frozen=True, slots=True)
class FeatureScaling:
    """Standardization of features: (x − mean)·scale.

    Attributes
    ----------
    mean : ndarray of float32, shape (D,)
        The mean of the training images.
    scale : ndarray of float32, shape (D,)
        1/deviation of the training images, 0 for features without variance.
    """

    mean: Array
    scale: Array

    @property
    def mean_square(self) -> float:
        """The mean of |x|² over the training images: the number of features with variance."""
        return float((self.scale > 0).sum()) or 1.0

    def __call__(self, features: Array, columns: slice = slice(None)) -> Array:
        """Return features (n, D) standardized, in float32.

        Parameters
        ----------
        features : ndarray of shape (n, d)
            The features in these columns.
        columns : slice, default all
            The columns.

        Returns
        -------
        ndarray of float32, shape (n, d)
            The standardized features.
        """
        mean, scale = (asarray_like(a[columns], features) for a in (self.mean, self.scale))
        return (features.astype(np.float32) - mean) * scale


@dataclass(frozen=True, slots=True)
class GaussianKernel:
    """The Gaussian kernel exp(−|x − y|²/(2·w·s)) of standardized features.

    Attributes
    ----------
    scaling : FeatureScaling of D features
        The standardization.
    width : float
        The width w, relative to the mean s of |x|² over the training images.
    """

    scaling: FeatureScaling
    width: float

    def pairs(self, blocks: Sequence[SampleBlock]) -> Array:
        """Compute the kernel of all pairs of training images.

        Parameters
        ----------
        blocks : sequence of SampleBlock of D features
            The images, of which N are training images.

        Returns
        -------
        ndarray of float32, shape (N, N)
            The lower triangle of the kernel; the upper one is not valid. In Fortran order.
        """
        some = blocks[0].features
        operations, xp, features = get_operations(some), get_array_module(some), some.shape[1]
        count = sum(block.train_count for block in blocks)
        square = operations.new_square(count, np.dtype(np.float32))
        for start in range(0, features, PRODUCT_FEATURES):
            columns = slice(start, min(start + PRODUCT_FEATURES, features))
            rows = operations.new_rows(columns.stop - start, square)
            for place, block in train_places(blocks):
                own = select_rows(block.features[:, columns], block.train)
                rows[:, place] = self.scaling(own, columns).T
            operations.add_scatter(square, rows)
        squares = xp.diagonal(square).copy()
        for start in range(0, count, KERNEL_PANEL_COLUMNS):
            columns = slice(start, min(start + KERNEL_PANEL_COLUMNS, count))
            panel = square[start:, columns]
            panel[...] = self._apply(panel, squares[start:, None], squares[columns])
        return square

    def products(self, features: Array, others: Array, weights: Array) -> Array:
        """Compute the kernel of images and others, times weights of the latter.

        Parameters
        ----------
        features : ndarray of shape (n, D)
            The features of the images.
        others : ndarray of shape (m, D)
            The features of the others.
        weights : ndarray of float32, shape (m, C)
            The weights.

        Returns
        -------
        ndarray of float32, shape (n, C)
            The products.
        """
        xp, step = get_array_module(features), self._panel_rows(len(others))
        totals = xp.empty((len(features), weights.shape[1]), np.float32)
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            totals[rows] = next(self.each_products(features[rows], [(others, weights)]))
        return totals

    def each_products(
        self, features: Array, others: Iterable[tuple[Array, Array]]
    ) -> Iterator[Array]:
        """Compute the same as `products` for several others, one after the other.

        Parameters
        ----------
        features : ndarray of shape (n, D)
            The features of the images; in the memory of the host, they are standardized once.
        others : iterable of (ndarray of shape (m, D), ndarray of float32, shape (m, C))
            The features and weights of others.

        Yields
        ------
        ndarray of float32, shape (n, C)
            The products.
        """
        xp, operations = get_array_module(features), get_operations(features)
        # A GPU has no memory for a second copy, and standardizes panels faster than it multiplies.
        whole = None if on_gpu(features) else self._standardize(features)
        for other, weights in others:
            weights, (right, right_squares) = (
                asarray_like(weights, features),
                self._standardize(other),
            )
            totals = xp.empty((len(features), weights.shape[1]), np.float32)
            step = self._panel_rows(len(right))
            for start in range(0, len(features), step):
                rows = slice(start, start + step)
                if whole is None:
                    left, squares = self._standardize(features[rows])
                else:
                    left, squares = (part[rows] for part in whole)
                products = operations.multiply_rows(left, right)
                kernel = self._apply(products, squares[:, None], right_squares)
                totals[rows] = kernel @ weights
            yield totals

    def _standardize(self, features: Array) -> tuple[Array, Array]:
        """Return the standardized features (n, D), and their squared norms (n,)."""
        rows = self.scaling(features)
        return rows, (rows * rows).sum(axis=1)

    def _panel_rows(self, columns: int) -> int:
        """Return the number of rows of a kernel with these columns that are computed at a time."""
        return max(1, KERNEL_PANEL_BYTES // (4 * max(1, columns)))

    def _apply(self, products: Array, left_squares: Array, right_squares: Array) -> Array:
        """Return the kernel of images with these inner products and squared norms."""
        distances = np.maximum(left_squares + right_squares - 2 * products, np.float32(0))
        return np.exp(distances * np.float32(-0.5 / (self.width * self.scaling.mean_square)))


def kernel_ridge(square: Array, targets: Array, ridge: float) -> tuple[Array, Array]:
    """Fit a kernel ridge regression.

    Parameters
    ----------
    square : ndarray of float32, shape (N, N)
        The kernel of all pairs of training images, as of `GaussianKernel.pairs`. It is overwritten.
    targets : ndarray of shape (N, K)
        The targets.
    ridge : float
        The value added to the diagonal, which is 1.

    Returns
    -------
    weights : ndarray of float64, shape (N, K)
        The weights A = (kernel + ridge·1)⁻¹ T of the training images.
    fitted : ndarray of float64, shape (N, K)
        The fitted targets, T − ridge·A.

    Raises
    ------
    SingularError
        If the matrix cannot be factorized.
    """
    xp, operations = get_array_module(square), get_operations(square)
    columns = asarray_like(targets, square).astype(np.float64)
    try:
        _, solve = operations.whiten(square, xp.zeros(len(square)), 1.0, ridge, overwrite=True)
        weights = solve(columns)
    except SingularError:
        raise SingularError(
            f"The kernel of {len(square)} training images cannot be factorized with "
            f"ridge={ridge}. Use a larger ridge, or a smaller width."
        ) from None
    return weights, columns - ridge * weights


def sum_unit(bound: float) -> float:
    """Return a unit whose multiples up to a bound have exact sums in float64.

    Sums of numbers that are rounded to it do not depend on their order.

    Parameters
    ----------
    bound : float
        The largest absolute value of a sum.

    Returns
    -------
    float
        The unit, a power of 2: about 2⁻⁵¹ of the bound.

    Examples
    --------
    >>> unit = sum_unit(3.0)
    >>> a, b, c = (round_to_unit(np.float32(x), unit) for x in (0.1, 0.7, -0.3))
    >>> float((a + b) + c - (a + (b + c)))
    0.0
    """
    _, exponent = math.frexp(max(bound, SMALLEST_BOUND))
    return math.ldexp(1.0, exponent + 1 - SUM_BITS)  # twice the bound, as products are rounded


def round_to_unit(values: Array, unit: float) -> Array:
    """Round values of any shape to multiples of a unit, a power of 2.

    Parameters
    ----------
    values : ndarray
        The values.
    unit : float
        The unit, as of `sum_unit`.

    Returns
    -------
    ndarray of float64
        The rounded values. Those that are not finite stay so.
    """
    return np.rint(values.astype(np.float64) / unit) * unit


def train_places(blocks: Sequence[SampleBlock]) -> Iterator[tuple[slice, SampleBlock]]:
    """Yield each block with the slice of its training images in those of all blocks."""
    start = 0
    for block in blocks:
        yield slice(start, start + block.train_count), block
        start += block.train_count


def select_rows(values: Array, mask: Array) -> Array:
    """Return the rows of values (n, …) where a mask (n,), a NumPy array, is true."""
    return values if mask.all() else values[asarray_like(np.flatnonzero(mask), values)]
