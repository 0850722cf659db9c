"""The filters of a layer: PCA filters from patch moments, stacked-LDA filters from draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.kernels.cpu.eigen import leading_eigenvectors
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.patches import PatchMoments

# Fraction of the mean square, below which the patches of a draw count as equal
MIN_DRAW_VARIANCE_FRACTION = 1e-14
DRAW_BATCH_BYTES = 4 * 2**20  # size of the patches of draws, in float64, held at a time


def pca_filters(moments: PatchMoments, size: int, count: int) -> Array:
    """Return the leading eigenvectors of the patch covariance as filters.

    Parameters
    ----------
    moments : PatchMoments of k²c elements
        The moments of the patches.
    size : int
        The side k of the patches, in pixels.
    count : int
        The number of filters.

    Returns
    -------
    ndarray of shape (k, k, c, count)
        The filters, of unit norm. The entry of each that is largest in absolute value is positive.

    Raises
    ------
    SingularError
        If the covariance is not finite.
    """
    check_patch_scatter(moments.scatter)
    return orient_filters(leading_eigenvectors(moments.scatter, count), size)


def check_patch_scatter(scatter: Array) -> None:
    """Raise SingularError if the scatter (p, p) of patches is not finite."""
    if not np.isfinite(scatter).all():
        raise SingularError(
            "The covariance of the patches that filters are learned from is not finite. Maps have "
            'become too large for single precision; use minmax="channel", or images of a smaller '
            "range."
        )


def orient_filters(vectors: Array, size: int) -> Array:
    """Return vectors (k²c, count) as filters (k, k, c, count), k = size, with fixed signs.

    The entry of each that is largest in absolute value is positive.
    """
    directions, count = vectors.shape
    peaks = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.where(vectors[peaks, np.arange(count)] < 0, -1.0, 1.0)
    return vectors.reshape(size, size, directions // size**2, count)


@dataclass(frozen=True, slots=True)
class Draws:
    """The patches that each of t stacked-LDA draws takes, m = positives + negatives per draw.

    Draw i separates class classes[i] from the rest. Its first `positives` patches are from images
    of that class, the others from images of other classes.

    Attributes
    ----------
    positives : int
        The number of patches of the draw's class.
    classes : ndarray of int, shape (t,)
        The class of each draw.
    rank : ndarray of int, shape (t, m)
        The image of each patch, as its rank among the training images of that kind in the order of
        their index, so that a draw does not depend on chunks. Images may be repeated.
    row : ndarray of int, shape (t, m)
        The row of the first pixel of each patch.
    column : ndarray of int, shape (t, m)
        The column of the first pixel of each patch.
    """

    positives: int
    classes: Array
    rank: Array
    row: Array
    column: Array

    @property
    def slots(self) -> int:
        """The number of patches of all draws."""
        return self.rank.size


def stacked_lda_draws(
    rngs: Sequence[np.random.Generator],
    class_counts: Sequence[int],
    *,
    positives: int,
    negatives: int,
    rows: int,
    columns: int,
) -> Draws:
    """Draw classes, and patches to separate each from the rest, with replacement.

    Parameters
    ----------
    rngs : sequence of t numpy.random.Generator
        The generator of each draw.
    class_counts : sequence of C int
        The number of training images of each class, repetitions included.
    positives, negatives : int
        The number of patches of the drawn class, and of the rest.
    rows, columns : int
        The number of positions of a patch along each axis.

    Returns
    -------
    Draws
        The draws.
    """
    m, total = positives + negatives, sum(class_counts)
    classes = np.zeros(len(rngs), np.int64)
    rank, row, column = (np.zeros((len(rngs), m), np.int64) for _ in range(3))
    for t, rng in enumerate(rngs):
        c = int(rng.integers(len(class_counts)))
        classes[t] = c
        rank[t, :positives] = rng.integers(class_counts[c], size=positives)
        rank[t, positives:] = rng.integers(total - class_counts[c], size=negatives)
        row[t] = rng.integers(rows, size=m)
        column[t] = rng.integers(columns, size=m)
    return Draws(positives, classes, rank, row, column)


@dataclass(frozen=True, slots=True)
class PatchSample:
    """Patches of p elements that fill m slots of the draws, sorted by slot.

    `merge` of samples with different slots is associative and commutative; `empty` is its
    identity.

    Attributes
    ----------
    slots : ndarray of int, shape (m,)
        The slots, counted through all patches of all draws.
    patches : ndarray of float32, shape (m, p)
        The patches.
    """

    slots: Array
    patches: Array

    @classmethod
    def empty(cls, directions: int) -> PatchSample:
        """Return a sample without patches.

        Parameters
        ----------
        directions : int
            The number p of elements of a patch.

        Returns
        -------
        PatchSample of p elements
            The identity of `merge`.
        """
        return cls(np.zeros(0, np.int64), np.zeros((0, directions), np.float32))

    def merge(self, other: PatchSample) -> PatchSample:
        """Return both samples together.

        Parameters
        ----------
        other : PatchSample of p elements
            A sample with other slots.

        Returns
        -------
        PatchSample of p elements
            The patches of both, sorted by slot.
        """
        if not (len(self.slots) and len(other.slots)):
            return self if len(self.slots) else other
        slots = np.concatenate([self.slots, other.slots])
        order = np.argsort(slots, kind="stable")
        joined = np.concatenate([self.patches, other.patches])
        patches = joined[asarray_like(order, joined)]
        return PatchSample(slots[order], patches)

    def select(self, directions: Array) -> PatchSample:
        """Return some elements of the patches.

        Parameters
        ----------
        directions : ndarray of int, shape (p',)
            The indices of the elements.

        Returns
        -------
        PatchSample of p' elements
            The same patches, with these elements only.
        """
        return PatchSample(self.slots, self.patches[:, asarray_like(directions, self.patches)])

    def take(self, rows: Array) -> PatchSample:
        """Return some of the patches.

        Parameters
        ----------
        rows : ndarray of int, shape (m',)
            The indices of the patches, ascending.

        Returns
        -------
        PatchSample of p elements
            These patches and their slots.
        """
        return PatchSample(self.slots[rows], self.patches[asarray_like(rows, self.patches)])

    def rescale(self, low: Array, scale: Array) -> PatchSample:
        """Return the patches of (image − low)·scale.

        Parameters
        ----------
        low : ndarray of shape (c,)
            The offset of each channel.
        scale : ndarray of shape (c,)
            The scale of each channel.

        Returns
        -------
        PatchSample of p elements
            The patches after rescaling.
        """
        repeats = self.patches.shape[1] // len(low)
        patches = self.patches - np.tile(low, repeats).astype(np.float32)
        patches *= np.tile(scale, repeats).astype(np.float32)
        return PatchSample(self.slots, patches)

    def transform(self, matrix: Array, offset: Array) -> PatchSample:
        """Return A(x − offset) of the patches x.

        Parameters
        ----------
        matrix : ndarray of shape (p, p)
            A.
        offset : ndarray of shape (p,)
            The offset.

        Returns
        -------
        PatchSample of p elements
            The patches after the transform.
        """
        patches = (self.patches - offset) @ matrix.T
        return PatchSample(self.slots, patches.astype(np.float32))


def sample_patches(
    inputs: LayerInput,
    labels: Array,
    train: Array,
    class_offsets: Array,
    draws: Draws,
    size: int,
    repeats: Array | None = None,
) -> PatchSample:
    """Extract the patches that draws take from a chunk of n images.

    Parameters
    ----------
    inputs : LayerInput of n images
        The input of the layer.
    labels : ndarray of int, shape (n,)
        The labels of the images.
    train : ndarray of bool, shape (n,)
        Which of them are training images.
    class_offsets : ndarray of int, shape (C,)
        The number of training images of each class in all chunks before this one, repetitions
        included.
    draws : Draws
        The draws of the layer.
    size : int
        The side k of the patches, in pixels.
    repeats : ndarray of int, shape (n,), optional
        How many times each image is repeated, for draws that prefer some images; once by default.

    Returns
    -------
    PatchSample of k²c elements
        The patches whose images are in this chunk.
    """
    directions = size * size * inputs.shape[2]
    if not draws.slots:
        return PatchSample.empty(directions)
    slots, sources = [], []
    slot_numbers = np.arange(draws.slots).reshape(draws.rank.shape)
    is_positive = np.arange(draws.rank.shape[1]) < draws.positives
    for c in np.unique(draws.classes):
        same, of_class = labels == c, draws.classes == c
        for members, first_rank, columns in (
            (np.flatnonzero(train & same), class_offsets[c], is_positive),
            (
                np.flatnonzero(train & ~same),
                class_offsets.sum() - class_offsets[c],
                ~is_positive,
            ),
        ):
            ends = np.cumsum(np.ones_like(members) if repeats is None else repeats[members])
            local = draws.rank - first_rank
            inside = (local >= 0) & (local < (ends[-1] if len(ends) else 0))
            in_chunk = inside & of_class[:, None] & columns
            slots.append(slot_numbers[in_chunk])
            sources.append(members[np.searchsorted(ends, local[in_chunk], side="right")])
    slot, source = np.concatenate(slots), np.concatenate(sources)
    order = np.argsort(slot)
    slot, source = slot[order], source[order]
    patches = inputs.extract_patches(size, source, draws.row.flat[slot], draws.column.flat[slot])
    return PatchSample(slot, patches.astype(np.float32, copy=False))


def stacked_lda_filters(
    patches: Array, positives: int, size: int, count: int, *, ridge: float, tolerance: float
) -> tuple[Array, Array]:
    """Fit stacked-LDA filters, one two-class LDA per draw, and select the best.

    Each draw separates its first `positives` patches from the others, with covariance
    Σ + ridge·mean(diag Σ)·I; weights and bias are scaled to unit norm. The first `count` draws with
    a training error of at most `tolerance` are selected; if there are fewer, those with the
    smallest errors follow.

    Parameters
    ----------
    patches : ndarray of shape (t, m, k²c)
        The patches of t draws.
    positives : int
        The number of patches of the draw's class, which come first.
    size : int
        The side k of the patches, in pixels.
    count : int
        The number of filters.
    ridge : float
        The ridge, relative to the mean of the covariance's diagonal.
    tolerance : float
        The training error, a fraction, up to which a draw is accepted.

    Returns
    -------
    filters : ndarray of shape (k, k, c, count)
        The filters.
    bias : ndarray of shape (count,)
        Their biases.
    """
    draws, m, directions = patches.shape
    weights, bias, error = np.empty((draws, directions)), np.empty(draws), np.empty(draws)
    step = max(1, DRAW_BATCH_BYTES // (8 * m * directions))
    for start in range(0, draws, step):
        batch = slice(start, start + step)
        weights[batch], bias[batch], error[batch] = _two_class_lda(
            patches[batch].astype(np.float64), positives, ridge
        )
    norm = np.linalg.norm(weights, axis=1)
    norm[norm == 0] = 1
    # stable: accepted draws in their order first, then the others by error
    order = np.argsort(np.where(error <= tolerance, -1.0, error), kind="stable")[:count]
    weights, bias = weights[order] / norm[order, None], bias[order] / norm[order]
    return weights.T.reshape(size, size, -1, count), bias


def _two_class_lda(x: Array, positives: int, ridge: float) -> tuple[Array, Array, Array]:
    """Return weights (t, p), bias (t,) and training error (t,) of the draws x (t, m, p)."""
    _, m, directions = x.shape
    first, rest = x[:, :positives], x[:, positives:]
    mean_first, mean_rest = first.mean(axis=1), rest.mean(axis=1)
    centered = np.concatenate(
        [first - mean_first[:, None], rest - mean_rest[:, None]], axis=1
    )  # within-class covariance Σ = XᵀX/m; its m×m dual form is solved, as usually m < k²c
    trace = np.einsum("tmp,tmp->t", centered, centered) / m
    live = trace > MIN_DRAW_VARIANCE_FRACTION * np.einsum("tmp,tmp->t", x, x) / m
    rho = np.where(live, ridge * trace / directions, 1.0)
    delta = mean_first - mean_rest
    dual = centered @ centered.transpose(0, 2, 1) + (m * rho)[:, None, None] * np.eye(m)
    image = np.einsum("tmp,tp->tm", centered, delta)
    coefficients = np.linalg.solve(dual, image[:, :, None])[:, :, 0]
    weights = (delta - np.einsum("tmp,tm->tp", centered, coefficients)) / rho[:, None]
    weights[~live] = 0
    middle = (mean_first + mean_rest) / 2
    bias = np.log(positives / (m - positives)) - np.einsum("tp,tp->t", middle, weights)
    bias[~live] = 0
    predicted = np.einsum("tmp,tp->tm", x, weights) + bias[:, None] > 0
    error = (predicted != (np.arange(m) < positives)).mean(axis=1)
    error[~live] = 1
    return weights, bias, error
