"""What a layer is fitted to, and how its output moves the running scores."""

from __future__ import annotations

import numpy as np

from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module


def one_hot(labels: Array, classes: int) -> Array:
    """Y (n, C) of labels (n,), float32."""
    return (labels[:, None] == get_array_module(labels).arange(classes)).astype(np.float32)


def residual_labels(scores: Array, labels: Array, target: float) -> tuple[Array, Array]:
    """Class T (n,) and sign s (n,) of the largest error of R = λY − Ŷ, Ŷ = scores (n, C).

    T = argmax |R|, the first on ties; s = +1 where R at T is not negative, else −1.
    """
    residual = target * one_hot(labels, scores.shape[1]) - scores
    largest = np.abs(residual).argmax(axis=1)
    value = np.take_along_axis(residual, largest[:, None], axis=1)[:, 0]
    return largest, np.where(value >= 0, 1, -1)


def layer_targets(
    scores: Array, labels: Array, *, first: bool, residual: str, target: float
) -> Array:
    """The targets (n, K) that a layer is fitted to, given the scores Ŷ (n, C) so far.

    "classify": membership of the 2C residual classes, K = 2C: (s=+1, T=0), …, (s=−1, T=C−1).
    "regress": the residual Y − Ŷ itself, K = C.
    """
    classes = scores.shape[1]
    if residual == "regress":
        return one_hot(labels, classes) - scores
    if first:
        largest, sign = labels, np.ones_like(labels, dtype=np.int64)
    else:
        largest, sign = residual_labels(scores, labels, target)
    return one_hot(largest + classes * (sign < 0), 2 * classes)


def probabilities(
    scores: Array, present: Array, *, probability: str, sigma: float, beta: float
) -> Array:
    """Sigmoid(score/σ), or softmax(β·score) over the present classes; absent ones get 0.

    scores (n, C), present (C,) bool.
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


def project_to_simplex(scores: Array) -> Array:
    """The nearest row of probabilities, in the Euclidean sense, to each row of scores (n, C).

    Rows sum to 1, none is negative, and the order within a row is kept.

    >>> project_to_simplex(np.array([[0.5, 0.25, -2.0]]))
    array([[0.625, 0.375, 0.   ]])
    """
    scores = scores - scores.max(axis=1, keepdims=True).astype(np.float64)
    ordered = -np.sort(-scores, axis=1)
    excess = np.cumsum(ordered, axis=1) - 1
    count = np.arange(1, scores.shape[1] + 1)
    last = (ordered - excess / count > 0).sum(axis=1)
    shift = np.take_along_axis(excess, last[:, None] - 1, axis=1) / last[:, None]
    return np.maximum(scores - shift, 0)
