"""Subsets of the training images, which do not depend on chunks."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array

# 2**64 divided by the golden ratio: multiples of it, modulo 2**64, are spread evenly, and so are
# those of any arithmetic sequence of ranks, such as the copies of images
GOLDEN_STEP = np.uint64(11400714819323198485)


def rank_in_class(
    labels: Array, train: Array, class_offsets: Array, repeats: Array | None = None
) -> Array:
    """Number the training images of each class, over all chunks.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        The labels of a chunk of images.
    train : ndarray of bool, shape (n,)
        Which of them are training images.
    class_offsets : ndarray of int, shape (C,)
        The number of training images of each class in all chunks before, repetitions included.
    repeats : ndarray of int, shape (n,), optional
        How many times each image is repeated; once by default.

    Returns
    -------
    ndarray of int64, shape (n,)
        The number of training images of the same class before each image, repetitions included.
    """
    counted = train if repeats is None else train * repeats
    ranks = np.zeros(len(labels), np.int64)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        counts = counted[members].astype(np.int64)
        ranks[members] = class_offsets[c] + np.cumsum(counts) - counts
    return ranks


def spread_evenly(ranks: Array, fraction: float) -> Array:
    """Select a fraction of all numbers, spread evenly.

    Parameters
    ----------
    ranks : ndarray of int, shape (n,)
        Numbers from 0.
    fraction : float
        The fraction of all numbers to select, in (0, 1].

    Returns
    -------
    ndarray of bool, shape (n,)
        Which of them are selected. 0 always is.
    """
    if fraction >= 1:
        return np.ones(len(ranks), bool)
    return ranks.astype(np.uint64) * GOLDEN_STEP <= np.uint64(fraction * 2.0**64)
