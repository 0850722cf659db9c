"""Errors of running scores, and outputs of classifiers as probabilities."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module


def one_hot(labels: Array, classes: int) -> Array:
    """Encode labels as rows of zeros with a single one.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        The labels, from 0 to C − 1.
    classes : int
        The number of classes C.

    Returns
    -------
    ndarray of float32, shape (n, C)
        Y: 1 at the label, 0 elsewhere.
    """
    return (labels[:, None] == get_array_module(labels).arange(classes)).astype(np.float32)


def residual_labels(scores: Array, labels: Array, target: float) -> tuple[Array, Array]:
    """Find class and sign of the largest error of the scores, R = λY − Ŷ.

    Parameters
    ----------
    scores : ndarray of shape (n, C)
        The running scores Ŷ.
    labels : ndarray of int, shape (n,)
        The labels.
    target : float
        The score λ that the class of the label should reach.

    Returns
    -------
    classes : ndarray of int, shape (n,)
        T = argmax |R|, the first on ties.
    signs : ndarray of int, shape (n,)
        +1 where R at T is not negative, else −1.
    """
    residual = target * one_hot(labels, scores.shape[1]) - scores
    largest = np.abs(residual).argmax(axis=1)
    value = np.take_along_axis(residual, largest[:, None], axis=1)[:, 0]
    return largest, np.where(value >= 0, 1, -1)


def probabilities(
    scores: Array, present: Array, *, probability: str, sigma: float, beta: float
) -> Array:
    """Convert the scores of one-vs-rest classifiers to probabilities.

    Parameters
    ----------
    scores : ndarray of shape (n, C)
        The scores of the classifiers.
    present : ndarray of bool, shape (C,)
        The classes that have a classifier; the others get probability 0.
    probability : {"sigmoid", "softmax"}
        sigmoid(score/σ), or softmax(β·score) over the present classes.
    sigma, beta : float
        σ and β.

    Returns
    -------
    ndarray of shape (n, C)
        The probabilities.
    """
    if not present.any():
        return np.zeros_like(scores)
    present = asarray_like(present, scores)
    if probability == "sigmoid":
        half = scores / (2 * sigma)
        return np.where(present, 0.5 * (1 + np.tanh(half)), 0)  # does not overflow
    exponent = np.where(present, beta * scores, -np.inf)
    exponent = exponent - exponent.max(axis=1, keepdims=True)
    weight = np.exp(exponent)
    return weight / weight.sum(axis=1, keepdims=True)
