"""Weights of images and classes: as how many images each training image counts."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights that a user gave: samples (N,), one per training image, and classes (C,).

    Either may be None, for weights of 1. All are greater than 0: images of weight 0 are left out of
    the training set. `digest` identifies the samples as they were given.
    """

    samples: Array | None = None
    classes: Array | None = None
    digest: str | None = None

    def __bool__(self) -> bool:
        return self.samples is not None or self.classes is not None

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies the weights, JSON-serializable; nothing without weights."""
        values = {
            "sample_weight": self.digest,
            "class_weight": None if self.classes is None else self.classes.tolist(),
        }
        return {name: value for name, value in values.items() if value is not None}


def as_sample_weights(source: Any, count: int) -> Array:
    """Return weights (N,) in float64, computed if they are lazy; DataError if they are unusable."""
    name = "sample_weight"
    try:
        weights = np.asarray(source, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} is not a vector of numbers: {error}. Give one number per image."
        ) from None
    if weights.shape != (count,):
        raise DataError(
            f"{name} has shape {weights.shape} for {count} images. Give one weight per image, in a "
            f"vector of shape ({count},)."
        )
    if not (usable := np.isfinite(weights) & (weights >= 0)).all():
        first = int(np.flatnonzero(~usable)[0])
        raise DataError(
            f"{name} of image {first} is {weights[first]}. Weights must be finite and at least 0; "
            "a weight of 0 leaves an image out."
        )
    if not weights.any():
        raise DataError(
            f"All {count} values of {name} are zero, which leaves no image to train on. Give some "
            "images a weight greater than 0."
        )
    return weights


def digest_weights(weights: Array) -> str:
    """Return a short text that differs between weights (N,) that differ."""
    return hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=8).hexdigest()


def as_class_weights(source: Any, classes: Sequence[Hashable]) -> Array:
    """Return the weight (C,) of each class, 1 for those that a mapping of labels does not name.

    As in scikit-learn, a mapping may name further classes if it names all of these.
    """
    if not isinstance(source, Mapping):
        raise DataError(
            f'class_weight={source!r} is not "balanced", None or a dict of weights by label.'
        )
    unknown = [label for label in source if label not in classes]
    missing = [label for label in classes if label not in source]
    if unknown and missing:
        raise DataError(
            f"class_weight names the class {unknown[0]!r}, which no training image has. "
            "Name classes of the training images."
        )
    weights = np.ones(len(classes))
    for index, label in enumerate(classes):
        value = source.get(label, 1.0)
        if not (isinstance(value, int | float | np.number) and 0 < value < np.inf):
            raise DataError(
                f"class_weight of class {label!r} is {value!r}. Give a finite number greater than "
                "0, or leave the images of the class out."
            )
        weights[index] = value
    return weights
