"""The prediction of one photo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class ImagePrediction:
    """The predicted label of one image, and the probability of each class.

    Attributes
    ----------
    classes : ndarray of shape (C,)
        Labels of the classes.
    probabilities : ndarray of shape (C,)
        Probability of each class, in the order of `classes`.

    Examples
    --------
    >>> found = ImagePrediction(np.array(["cat", "dog", "owl"]), np.array([0.2, 0.7, 0.1]))
    >>> found.label, found.probability
    ('dog', 0.7)
    >>> found.top(2)
    [('dog', 0.7), ('cat', 0.2)]
    """

    classes: Array
    probabilities: Array

    @property
    def label(self) -> Any:
        """The label with the largest probability, as it was given to `fit`."""
        return self.top(1)[0][0]

    @property
    def probability(self) -> float:
        """The probability of the label."""
        return self.top(1)[0][1]

    def top(self, count: int = 5) -> list[tuple[Any, float]]:
        """Return the most probable labels.

        Parameters
        ----------
        count : int, default 5
            Number of labels; all classes if there are fewer.

        Returns
        -------
        list of (label, float)
            Labels with their probabilities, the most probable first.
        """
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.classes[i : i + 1].tolist()[0], float(self.probabilities[i])) for i in order]

    def __str__(self) -> str:
        return f"{self.label} ({100 * self.probability:.1f} %)"
