"""Probabilities from scores by a softmax, and its log loss at many temperatures in one sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.kernels.arrays import Array, get_array_module

# Scores are of the order of 1, and their differences may be as small as the learning rate.
INVERSE_TEMPERATURES = 2.0 ** (np.arange(-4, 29) / 2)
# Of 0 to 1, half an image gave the smallest log loss of new digits with 200 validation images and
# the head "regress"; other heads were not compared.
SMOOTHING_IMAGES = 0.5
MIN_PARTITION_RATIO = 1e-9  # of log Σ exp, which is interpolated on a log scale
MIN_PARTITION = 1e-200  # of log Σ exp at the highest temperature; that of diverging scores is 0
SEARCH_STEPS = 128  # between two of them, when the best one is searched
MIN_EXPONENT = -700.0  # of exp in float64, so that no probability is zero
MAX_BLOCK_ELEMENTS = 2**22  # of temperatures × images × classes that are held at a time


def softmax(scores: Array, temperature: float) -> Array:
    """Convert scores to probabilities.

    Parameters
    ----------
    scores : ndarray of shape (n, C)
        The scores.
    temperature : float
        The temperature T > 0.

    Returns
    -------
    ndarray of float64, shape (n, C)
        softmax(scores / T): positive rows that sum to 1 and keep the order of their scores.

    Examples
    --------
    >>> softmax(np.array([[0.0, 0.0, -2.0]]), 0.1).round(3)
    array([[0.5, 0.5, 0. ]])
    """
    scores = scores.astype(np.float64)
    exponent = (scores - scores.max(axis=1, keepdims=True)) / temperature
    weight = np.exp(np.maximum(exponent, MIN_EXPONENT))
    return weight / weight.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Log loss of softmax(β·scores) as a function of β, of images by role. `merge` adds.

    With m the largest score of an image, its loss is β(m − score of its class) + log Σ exp(β(score
    − m)), summed over the classes. Roles are training (0) and validation (1).

    Attributes
    ----------
    label_gap : ndarray of shape (2,)
        Sums of m minus the score of the image's class.
    mean_gap : ndarray of shape (2,)
        Sums of m minus the mean score.
    log_partition : ndarray of shape (2, G)
        Sums of log Σ exp(β(score − m)) at each β of `INVERSE_TEMPERATURES`.
    """

    label_gap: Array
    mean_gap: Array
    log_partition: Array

    @classmethod
    def empty(cls, xp: Any = np) -> LossCurve:
        """Return the curve of no image.

        Parameters
        ----------
        xp : module, default numpy
            The array module of the sums, numpy or cupy.

        Returns
        -------
        LossCurve
            The identity of `merge`.
        """
        return cls(xp.zeros(2), xp.zeros(2), xp.zeros((2, len(INVERSE_TEMPERATURES))))

    @classmethod
    def of(cls, scores: Array, labels: Array, roles: Array) -> LossCurve:
        """Sum the losses of images.

        Parameters
        ----------
        scores : ndarray of shape (n, C)
            The scores. The sums are not finite if these are not.
        labels : ndarray of int, shape (n,)
            The labels.
        roles : ndarray of shape (2, n)
            The weight of each image as a training image and as a validation image.

        Returns
        -------
        LossCurve
            The sums, in float64.
        """
        with np.errstate(all="ignore"):
            below = scores - scores.max(axis=1, keepdims=True)
            label_gap = -np.take_along_axis(below, labels[:, None], axis=1)[:, 0]
            log_partition = _log_partition(below)
            roles = roles.astype(np.float64)
            return cls(
                (roles * label_gap).sum(axis=1),
                (roles * -below.mean(axis=1, dtype=np.float64)).sum(axis=1),
                (roles[:, None] * log_partition).sum(axis=2),
            )

    def merge(self, other: LossCurve) -> LossCurve:
        """Return the curve of both sets of images.

        Parameters
        ----------
        other : LossCurve
            The curve of other images.

        Returns
        -------
        LossCurve
            The sums.
        """
        return LossCurve(
            self.label_gap + other.label_gap,
            self.mean_gap + other.mean_gap,
            self.log_partition + other.log_partition,
        )

    def minimum(self, role: int, images: float) -> tuple[float, float]:
        """Find the temperature with the smallest log loss.

        Labels are smoothed: all classes share w/(n + w) of the weight of each image, so that
        together these shares weigh as w = `SMOOTHING_IMAGES` images. Otherwise the temperature
        would be 0 if all images are classified correctly.

        Parameters
        ----------
        role : int
            0 for training images, 1 for validation images.
        images : float
            The number n of images of that role, above 0.

        Returns
        -------
        temperature : float
            1/β at the minimum. Between `INVERSE_TEMPERATURES`, the logarithm of log Σ exp is
            interpolated by a cubic spline in log β.
        log_loss : float
            The mean loss of the images there, without smoothing.
        """
        exponents = np.log2(INVERSE_TEMPERATURES)
        steps = 1 + (len(exponents) - 1) * SEARCH_STEPS
        search = np.linspace(exponents[0], exponents[-1], steps)
        partition = self.log_partition[role] / images
        floor = MIN_PARTITION_RATIO * max(partition[0], MIN_PARTITION)  # 0 if β is large
        partition = np.exp(interpolate(np.log(partition + floor), SEARCH_STEPS)) - floor
        inverse = 2.0**search
        label_gap, mean_gap = self.label_gap[role] / images, self.mean_gap[role] / images
        smoothing = SMOOTHING_IMAGES / (images + SMOOTHING_IMAGES)
        smoothed_gap = (1 - smoothing) * label_gap + smoothing * mean_gap
        best = int((inverse * smoothed_gap + partition).argmin())
        return float(1 / inverse[best]), float(inverse[best] * label_gap + partition[best])


def interpolate(values: Array, steps: int) -> Array:
    """Interpolate equidistant values by a cubic spline.

    It is that of `scipy.interpolate.CubicSpline`, whose import takes 0.6 s: its third derivative is
    continuous at the second value and at the last but one.

    Parameters
    ----------
    values : ndarray of shape (G,)
        At least 4 finite values.
    steps : int
        Number of steps between two values.

    Returns
    -------
    ndarray of shape (1 + (G - 1) * steps,)
        The spline at each step; at every `steps`-th, the values themselves.

    Raises
    ------
    ValueError
        If a value is not finite.

    Examples
    --------
    >>> interpolate(np.array([0.0, 1.0, 8.0, 27.0]), 2)
    array([ 0.   ,  0.125,  1.   ,  3.375,  8.   , 15.625, 27.   ])
    """
    if not np.isfinite(values).all():
        raise ValueError(f"The values {values} are not finite. Pass finite values.")
    rises = np.diff(values)
    matrix = (
        np.diag(np.full(len(values), 4.0)) + np.eye(len(values), k=1) + np.eye(len(values), k=-1)
    )
    matrix[0, :2] = matrix[-1, :-3:-1] = 1, 2
    right = np.empty(len(values))
    right[1:-1] = 3 * (rises[:-1] + rises[1:])
    right[0], right[-1] = (5 * rises[[0, -1]] + rises[[1, -2]]) / 2
    slopes = np.linalg.solve(matrix, right)
    square = 3 * rises - 2 * slopes[:-1] - slopes[1:]
    cube = slopes[:-1] + slopes[1:] - 2 * rises
    at = np.arange(steps)[:, None] / steps
    inner = values[:-1] + at * (slopes[:-1] + at * (square + at * cube))
    return np.append(inner.T.ravel(), values[-1])


def _log_partition(below: Array) -> Array:
    """Return log Σ exp(β·below) over the classes: (n, C) to (G, n) in float64."""
    xp = get_array_module(below)
    grid = xp.asarray(INVERSE_TEMPERATURES.astype(np.float32))[:, None, None]
    step = max(1, MAX_BLOCK_ELEMENTS // max(1, below.size))
    blocks = [
        np.exp(grid[start : start + step] * below).sum(axis=2, dtype=np.float64)
        for start in range(0, len(grid), step)
    ]
    return np.log(xp.concatenate(blocks))
