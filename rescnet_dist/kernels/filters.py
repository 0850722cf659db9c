"""The filter bank of a layer: PCA filters from patch moments, stacked-LDA filters from draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from rescnet_dist.errors import SingularError
from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.kernels.inputs import LayerInput
from rescnet_dist.kernels.patches import PatchMoments

NO_VARIANCE = 1e-14  # of the mean square: below it the patches of a draw are all equal
BATCH_BYTES = 4 * 2**20  # of patches of draws in double precision that are held at a time


def pca_filters(moments: PatchMoments, size: int, count: int) -> Array:
    """The leading `count` eigenvectors of the patch covariance as filters (k, k, c, count).

    Each has a fixed sign: its largest absolute entry is positive.
    """
    directions = len(moments.mean)
    channels, leading = directions // size**2, [directions - count, directions - 1]
    vectors = np.zeros((directions, 0))
    if not np.isfinite(moments.scatter).all():
        raise SingularError(
            "the covariance of the patches that filters are learned from is not finite: maps have "
            'grown too large for single precision; use minmax="channel", or images of a smaller '
            "range"
        )
    if count:
        vectors = eigh(moments.scatter, subset_by_index=leading)[1][:, ::-1]
    peaks = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.where(vectors[peaks, np.arange(count)] < 0, -1.0, 1.0)
    return vectors.reshape(size, size, channels, count)


@dataclass(frozen=True, slots=True)
class Draws:
    """Which patches each stacked-LDA draw takes: places (t, m), of m = positives + negatives.

    A draw t separates class classes[t] from the rest. Its first `positives` patches are of
    images of that class and its others of other images; rank[t, j] counts the training images
    of that kind in the order of their index, so a draw knows nothing of chunks.
    """

    positives: int
    classes: Array
    rank: Array
    row: Array
    column: Array

    @property
    def slots(self) -> int:
        """Number of patches over all draws."""
        return self.rank.size


def stacked_lda_draws(
    seed: int,
    layer: int,
    count: int,
    class_counts: Array,
    *,
    positives: int,
    negatives: int,
    rows: int,
    columns: int,
) -> Draws:
    """Draw `count` classes and the patches to tell each from the rest by, with replacement.

    class_counts (C,) are the training images per class; rows×columns the places of a patch. Draw t
    depends on (seed, layer, t) alone.
    """
    m = positives + negatives
    classes = np.zeros(count, np.int64)
    rank, row, column = (np.zeros((count, m), np.int64) for _ in range(3))
    total = int(class_counts.sum())
    for t in range(count):
        rng = np.random.default_rng([seed, layer, t])
        c = classes[t] = rng.integers(len(class_counts))
        rank[t, :positives] = rng.integers(class_counts[c], size=positives)
        rank[t, positives:] = rng.integers(total - class_counts[c], size=negatives)
        row[t] = rng.integers(rows, size=m)
        column[t] = rng.integers(columns, size=m)
    return Draws(positives, classes, rank, row, column)


@dataclass(frozen=True, slots=True)
class PatchSample:
    """Patches (m, p) that fill the slots (m,) of draws; sorted by slot.

    `merge` of samples with different slots is associative and commutative; `empty` is its
    identity.
    """

    slots: Array
    patches: Array

    @classmethod
    def empty(cls, directions: int) -> PatchSample:
        """No patch."""
        return cls(np.zeros(0, np.int64), np.zeros((0, directions), np.float32))

    def merge(self, other: PatchSample) -> PatchSample:
        """Both samples together."""
        if not (len(self.slots) and len(other.slots)):
            return self if len(self.slots) else other
        slots = np.concatenate([self.slots, other.slots])
        order = np.argsort(slots, kind="stable")
        joined = np.concatenate([self.patches, other.patches])
        patches = joined[asarray_like(order, joined)]
        return PatchSample(slots[order], patches)

    def rescale(self, low: Array, scale: Array) -> PatchSample:
        """The patches of (image − low)·scale, both (c,)."""
        repeats = self.patches.shape[1] // len(low)
        patches = self.patches - np.tile(low, repeats).astype(np.float32)
        patches *= np.tile(scale, repeats).astype(np.float32)
        return PatchSample(self.slots, patches)


def sample_patches(
    inputs: LayerInput, labels: Array, train: Array, before: Array, draws: Draws, size: int
) -> PatchSample:
    """The patches that `draws` take from the inputs of a chunk of n images.

    labels (n,); train (n,) bool marks training images; before (C,) counts the training images of
    each class in the chunks ahead of this one.
    """
    directions = size * size * inputs.shape[2]
    if not draws.slots:
        return PatchSample.empty(directions)
    slots, sources = [], []
    slot_of = np.arange(draws.slots).reshape(draws.rank.shape)
    is_positive = np.arange(draws.rank.shape[1]) < draws.positives
    for c in np.unique(draws.classes):
        same, of_class = labels == c, draws.classes == c
        for members, ahead, columns in (
            (np.flatnonzero(train & same), before[c], is_positive),
            (np.flatnonzero(train & ~same), before.sum() - before[c], ~is_positive),
        ):
            local = draws.rank - ahead
            here = (local >= 0) & (local < len(members)) & of_class[:, None] & columns
            slots.append(slot_of[here])
            sources.append(members[local[here]])
    slot, source = np.concatenate(slots), np.concatenate(sources)
    order = np.argsort(slot)
    slot, source = slot[order], source[order]
    patches = inputs.windows(size, source, draws.row.flat[slot], draws.column.flat[slot])
    return PatchSample(slot, patches.astype(np.float32, copy=False))


def stacked_lda_filters(
    patches: Array, positives: int, size: int, count: int, *, ridge: float, tolerance: float
) -> tuple[Array, Array]:
    """Filters (k, k, c, count) and bias (count,) from the patches (t, m, k²c) of t draws.

    Each draw is a two-class LDA of its first `positives` patches against the others, with
    covariance Σ + ridge·mean(diag Σ)·I; weights and bias are scaled to unit norm. Kept are the
    first `count` draws with a training error of at most `tolerance`; where there are fewer, those
    of the least error fill up.
    """
    draws, m, directions = patches.shape
    weights, bias, error = np.empty((draws, directions)), np.empty(draws), np.empty(draws)
    step = max(1, BATCH_BYTES // (8 * m * directions))
    for start in range(0, draws, step):
        batch = slice(start, start + step)
        weights[batch], bias[batch], error[batch] = _two_class_lda(
            patches[batch].astype(np.float64), positives, ridge
        )
    norm = np.linalg.norm(weights, axis=1)
    norm[norm == 0] = 1
    # stable: the kept draws in their order first, then the others by error
    order = np.argsort(np.where(error <= tolerance, -1.0, error), kind="stable")[:count]
    weights, bias = weights[order] / norm[order, None], bias[order] / norm[order]
    return weights.T.reshape(size, size, -1, count), bias


def _two_class_lda(x: Array, positives: int, ridge: float) -> tuple[Array, Array, Array]:
    """Weights (t, p), bias (t,) and training error (t,) of the draws x (t, m, p)."""
    _, m, directions = x.shape
    first, rest = x[:, :positives], x[:, positives:]
    mean_first, mean_rest = first.mean(axis=1), rest.mean(axis=1)
    centered = np.concatenate(
        [first - mean_first[:, None], rest - mean_rest[:, None]], axis=1
    )  # within-class covariance Σ = XᵀX/m; its m×m dual form is solved, as m < k²c mostly
    trace = np.einsum("tmp,tmp->t", centered, centered) / m
    live = trace > NO_VARIANCE * np.einsum("tmp,tmp->t", x, x) / m
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
