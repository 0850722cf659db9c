"""Weights of several networks' scores, fitted by the log loss of their weighted mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.calibration import SMOOTHING_IMAGES

MIXTURE_BLOCK_ROWS = 2**14  # images whose losses are computed at a time
MAX_MIXTURE_STEPS = 1000
MIXTURE_TOLERANCE = 1e-10  # of the gradient, in units of scores of deviation 1


def mixture_weights(scores: Sequence[Array], labels: Array) -> Array:
    """Fit the weights of a mean of scores.

    The coefficients v ≥ 0 of the networks minimize the mean log loss of softmax(Σ v_m · scores_m),
    a convex function. The weights are v / Σ v; 1 / Σ v is a temperature. Labels are smoothed as
    for the temperature, so that coefficients stay finite where all images are correct.

    Parameters
    ----------
    scores : sequence of ndarray of shape (n, C)
        The scores of n images by each of M networks.
    labels : ndarray of int, shape (n,)
        The labels.

    Returns
    -------
    ndarray of float64, shape (M,)
        Weights ≥ 0 that sum to 1; all equal if no network is better than chance.

    Examples
    --------
    >>> good, poor = np.eye(3), np.eye(3)[[1, 2, 0]]
    >>> mixture_weights([good, poor], np.array([0, 1, 2])).tolist()
    [1.0, 0.0]
    """
    from scipy.optimize import minimize  # slow to import, and rarely needed

    count = len(scores)
    if count == 1:
        return np.ones(1)
    scale = np.array([_deviation(part) for part in scores])
    found = minimize(
        _loss_and_gradient,
        np.full(count, 1 / count),
        args=(scores, scale, labels),
        method="L-BFGS-B",
        jac=True,
        bounds=[(0, None)] * count,
        options={"maxiter": MAX_MIXTURE_STEPS, "ftol": 0, "gtol": MIXTURE_TOLERANCE},
    )
    coefficients = found.x / scale
    total = coefficients.sum()
    return coefficients / total if total > 0 else np.full(count, 1 / count)


def _deviation(scores: Array) -> float:
    """Return the deviation of scores (n, C) from the mean of their image; 1 for constant scores."""
    centered = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
    return float(np.sqrt((centered**2).mean())) or 1.0


def _loss_and_gradient(
    coefficients: Array, scores: Sequence[Array], scale: Array, labels: Array
) -> tuple[float, Array]:
    """Return the smoothed mean log loss, and its derivatives (M,) by the coefficients."""
    images, classes = scores[0].shape
    smoothing = SMOOTHING_IMAGES / (images + SMOOTHING_IMAGES)
    loss, gradient = 0.0, np.zeros(len(scores))
    for start in range(0, images, MIXTURE_BLOCK_ROWS):
        rows = slice(start, start + MIXTURE_BLOCK_ROWS)
        parts = np.stack([part[rows] / s for part, s in zip(scores, scale, strict=True)])
        parts -= parts.mean(axis=2, keepdims=True)
        mean = np.tensordot(coefficients, parts, axes=1)
        mean -= mean.max(axis=1, keepdims=True)
        weight = np.exp(mean)
        total = weight.sum(axis=1, keepdims=True)
        target = np.full(mean.shape, smoothing / classes)
        target[np.arange(len(target)), labels[rows]] += 1 - smoothing
        loss += float((np.log(total[:, 0]) - (target * mean).sum(axis=1)).sum())
        gradient += np.tensordot(parts, weight / total - target, axes=2)
    return loss / images, gradient / images
