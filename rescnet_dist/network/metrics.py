"""How well a network classifies images: sums over chunks, and the metrics computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rescnet_dist.formatting import plain_text

CALIBRATION_BINS = 15
TOP_CLASSES = 5  # of the top-5 accuracy
SUM_ROWS = 2**16  # images whose sums are computed at a time
MAX_TABLE_CLASSES = 20  # of a table; the worst of more classes are listed
WORST_CLASSES = 10
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class MetricSums:
    """Sums over images from which all metrics follow. `merge` adds them.

    Attributes
    ----------
    confusion : ndarray of int, shape (C, C)
        Images by true class (rows) and predicted class (columns).
    top : int
        Images whose class is among the `TOP_CLASSES` most probable.
    loss : float
        Sum of −log of the probability of the true class.
    bins : ndarray of shape (3, 15)
        Images, sum of their largest probability, and correct images, in bins of equal width of the
        largest probability.
    """

    confusion: Array
    top: int
    loss: float
    bins: Array

    @classmethod
    def empty(cls, classes: int) -> MetricSums:
        """Return the sums of no image: the identity of `merge`."""
        return cls(np.zeros((classes, classes), np.int64), 0, 0.0, np.zeros((3, CALIBRATION_BINS)))

    @classmethod
    def of(cls, probabilities: Array, codes: Array) -> MetricSums:
        """Sum over images with probabilities (n, C) and class codes (n,)."""
        classes = probabilities.shape[1]
        predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
        own = np.take_along_axis(probabilities, codes[:, None], axis=1)
        better = (probabilities > own).sum(axis=1)
        number = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
        weights = (None, confidence, predicted == codes)
        bins = [np.bincount(number, weight, CALIBRATION_BINS) for weight in weights]
        confusion = np.bincount(codes * classes + predicted, minlength=classes**2)
        return cls(
            confusion.reshape(classes, classes),
            int((better < TOP_CLASSES).sum()),
            float(-np.log(own).sum()),
            np.stack(bins).astype(np.float64),
        )

    def merge(self, other: MetricSums) -> MetricSums:
        """Return the sums over both sets of images."""
        return MetricSums(
            self.confusion + other.confusion,
            self.top + other.top,
            self.loss + other.loss,
            self.bins + other.bins,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Metrics:
    """How well a network classifies images. Its repr is a table.

    Attributes
    ----------
    classes : ndarray of shape (C,)
        Labels of the classes.
    sums : MetricSums
        Sums over the images.
    """

    classes: Array
    sums: MetricSums

    @classmethod
    def of(cls, classes: Array, probabilities: Array, codes: Array) -> Metrics:
        """Compute the metrics of probabilities in memory.

        Parameters
        ----------
        classes : ndarray of shape (C,)
            Labels of the classes.
        probabilities : ndarray of shape (n, C)
            Probabilities of the images.
        codes : ndarray of int, shape (n,)
            Index of the class of each image.

        Returns
        -------
        Metrics
            The metrics of the n images.
        """
        parts = (
            MetricSums.of(probabilities[start : start + SUM_ROWS], codes[start : start + SUM_ROWS])
            for start in range(0, len(codes), SUM_ROWS)
        )
        return cls(classes, reduce(MetricSums.merge, parts, MetricSums.empty(len(classes))))

    @property
    def confusion(self) -> Array:
        """Number of images by true class (rows) and predicted class (columns), (C, C)."""
        return self.sums.confusion

    @property
    def support(self) -> Array:
        """Number of images of each class, (C,)."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Fraction of images that are classified correctly."""
        return float(self.confusion.trace() / self.images)

    @property
    def top5_accuracy(self) -> float | None:
        """Fraction of images whose class is among the five most probable; None if C ≤ 5."""
        return self.sums.top / self.images if len(self.classes) > TOP_CLASSES else None

    @property
    def log_loss(self) -> float:
        """Mean of −log of the probability of the true class."""
        return self.sums.loss / self.images

    @property
    def calibration_error(self) -> float:
        """Expected calibration error (ECE).

        Images are divided into 15 bins of equal width by their largest probability. The error is
        the distance between mean probability and accuracy of a bin, averaged over the images.
        """
        _, confidence, correct = self.sums.bins
        return float(np.abs(confidence - correct).sum() / self.images)

    @property
    def precision(self) -> Array:
        """Fraction of the images predicted as a class that are of it, (C,); 0 if there are none."""
        return _divide(self.confusion.diagonal(), self.confusion.sum(axis=0))

    @property
    def recall(self) -> Array:
        """Fraction of the images of a class that are predicted as it, (C,); 0 if there are none."""
        return _divide(self.confusion.diagonal(), self.support)

    @property
    def f1(self) -> Array:
        """Harmonic mean of precision and recall, (C,)."""
        return _divide(2 * self.precision * self.recall, self.precision + self.recall)

    @property
    def macro(self) -> dict[str, float]:
        """Means of precision, recall and F1 over the classes that have images."""
        present = self.support > 0
        names = ("precision", "recall", "f1")
        return {name: float(getattr(self, name)[present].mean()) for name in names}

    def calibration(self) -> list[dict[str, Any]]:
        """Return the bins of the calibration error.

        Returns
        -------
        list of dict
            The range `low` to `high` of the largest probability, the number of `images`, the `mean`
            of that probability, and the fraction of `right` predictions; the latter two are None
            without images.
        """
        edges = np.linspace(0, 1, CALIBRATION_BINS + 1).tolist()
        return [
            {
                "low": edges[number],
                "high": edges[number + 1],
                "images": int(images),
                "mean": confidence / images if images else None,
                "right": correct / images if images else None,
            }
            for number, (images, confidence, correct) in enumerate(self.sums.bins.T.tolist())
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all metrics as JSON-serializable values.

        Returns
        -------
        dict
            Metrics by name; `classes` has one entry per class, in the order of `confusion`.
        """
        columns = [self.precision, self.recall, self.f1, self.support]
        names = ("precision", "recall", "f1", "images")
        rows = zip(self.classes.tolist(), *(column.tolist() for column in columns), strict=True)
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "top5_accuracy": self.top5_accuracy,
            "log_loss": self.log_loss,
            "calibration_error": self.calibration_error,
            "macro": self.macro,
            "classes": [
                {"label": _to_json(label), **dict(zip(names, values, strict=True))}
                for label, *values in rows
            ],
            "confusion": self.confusion.tolist(),
            "calibration": self.calibration(),
        }

    def __repr__(self) -> str:
        top = self.top5_accuracy
        lines = [
            f"{self.images:,} images",
            f"accuracy           {100 * self.accuracy:.2f} %",
            *([] if top is None else [f"top-5 accuracy     {100 * top:.2f} %"]),
            f"log loss           {self.log_loss:.4f}",
            f"calibration error  {self.calibration_error:.4f}",
            "",
        ]
        return "\n".join(lines + self._table())

    def _table(self) -> list[str]:
        """Return the lines of the table of classes: all of them, or those with the smallest F1."""
        support = self.support
        shown = np.arange(len(support))
        if is_cut := len(support) > MAX_TABLE_CLASSES:
            present = np.flatnonzero(support)
            shown = present[np.argsort(self.f1[present], kind="stable")][:WORST_CLASSES]
        rows: list[tuple[Any, ...]] = [
            (plain_text(self.classes.tolist()[n]), self.precision[n], self.recall[n], self.f1[n])
            for n in shown.tolist()
        ]
        rows.append(("mean of classes", *self.macro.values()))
        counts = [*support[shown].tolist(), self.images]
        width = max(len("class"), *(len(row[0]) for row in rows))
        lines = [f"{'class':<{width}}  precision (%)  recall (%)  F1 (%)   images"]
        lines += [
            f"{name:<{width}}  {100 * precision:>13.2f}  {100 * recall:>10.2f}  {100 * f1:>6.2f}"
            f"  {count:>7,}"
            for (name, precision, recall, f1), count in zip(rows, counts, strict=True)
        ]
        if is_cut:
            lines.append(f"The {len(shown)} classes with the smallest F1 of {len(support):,}.")
        return lines


def _divide(numerator: Array, denominator: Array) -> Array:
    """Divide arrays; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)


def _to_json(label: Any) -> Any:
    """Return a label as a JSON value: itself, or as text if JSON has no such type."""
    is_plain = label is None or isinstance(label, bool | int | float | str)
    return label if is_plain else plain_text(label)
