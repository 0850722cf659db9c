"""The temperature that turns the scores of a network into probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from rescnet_dist.kernels import LossCurve
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.statistics import Tally

CURVE_ROWS = 2**16  # images whose losses are summed at a time
DEFAULT_TEMPERATURE = 0.1  # near the fitted ones of networks whose scores reach 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """How scores become probabilities: softmax(scores / temperature).

    Attributes
    ----------
    temperature : float
        Temperature above 0.
    fitted_on : {"validation", "training", "nothing"}
        Images that the temperature was fitted on. On training images it is too small, as the
        network knows them; "nothing" is the default temperature.
    images : int
        Number of these images.
    log_loss : float or None
        Mean log loss of these images; None if there are none.
    """

    temperature: float = DEFAULT_TEMPERATURE
    fitted_on: Literal["validation", "training", "nothing"] = "nothing"
    images: int = 0
    log_loss: float | None = None

    @classmethod
    def of(cls, tally: Tally) -> Self:
        """Fit the temperature on the validation images of a tally, or else on the training images.

        Parameters
        ----------
        tally : Tally
            Counts and losses of all images, in the memory of the host.

        Returns
        -------
        Calibration
            The temperature with the smallest log loss.
        """
        role = 1 if tally.seen[1] else 0
        images = int(tally.seen[role])
        if not images:
            return cls()
        temperature, log_loss = tally.loss.minimum(role, images)
        return cls(temperature, "validation" if role else "training", images, log_loss)

    @classmethod
    def fit(cls, scores: Array, labels: Array) -> Self:
        """Fit the temperature on the scores of held-out images.

        Parameters
        ----------
        scores : ndarray of shape (n, C)
            The scores.
        labels : ndarray of int, shape (n,)
            The labels.

        Returns
        -------
        Calibration
            The temperature with the smallest log loss.
        """
        images, curve = len(labels), LossCurve.empty()
        for start in range(0, images, CURVE_ROWS):
            rows = slice(start, start + CURVE_ROWS)
            roles = np.zeros((2, len(labels[rows])))
            roles[1] = 1
            curve = curve.merge(LossCurve.of(scores[rows], labels[rows], roles))
        temperature, log_loss = curve.minimum(1, images)
        return cls(temperature, "validation", images, log_loss)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any] | None) -> Self:
        """Return the calibration of a stored record; None is the default calibration.

        Parameters
        ----------
        record : mapping or None
            What `to_dict` has returned.

        Returns
        -------
        Calibration
            The same calibration.
        """
        return cls(**record) if record else cls()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values.

        Returns
        -------
        dict
            What `from_dict` takes.
        """
        return asdict(self)
