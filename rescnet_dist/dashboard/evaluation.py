"""How a network does on images with known labels: confusion, worst errors and calibration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.data import Images, encode, select_split
from rescnet_dist.errors import DataError, mask_secrets
from rescnet_dist.kernels import project_to_simplex
from rescnet_dist.network import Network
from rescnet_dist.store import RunStore, read_region, with_retries

MOST_IMAGES = 2000  # that a network is judged on by default
MOST_BYTES = 256 * 2**20  # of images that are held for it
MOST_CHUNKS = 64  # of stored images that are read for it
MASK_ROWS = 2**20  # of a run's mask of training images that are read at a time
MATRIX_CLASSES = 30  # above, a confusion matrix cannot be read, and the worst pairs are shown
BINS = 10  # of predicted probabilities
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """Images (n, H, W, d) to judge a network on, their codes (n,) and their numbers (n,) in what
    they are from, which `which` says in words; `total` is how many there were to take them from."""

    images: Array
    codes: Array
    numbers: Array
    which: str
    total: int


def sample_of_run(run: RunStore, limit: int = MOST_IMAGES) -> Sample:
    """Images that a run held out, or where it held none out, images that it was trained on: at
    most `limit`, taken evenly."""
    mask = run.data_array("train")
    which, rows = "held-out images", rows_where(mask, False)
    if not len(rows):
        which, rows = "training images", rows_where(mask, True)
    total = len(rows)
    array, first = run.images()
    rows = _few(rows, (rows + first) // array.chunks[0], limit, array)
    images = _read(array, rows + first)
    labels = run.data_array("labels")
    codes = with_retries(lambda: np.asarray(labels.oindex[rows]), f"labels of {run}")
    return Sample(images, codes, rows, which, total)


def sample_of_data(X: Any, y: Any, network: Network, limit: int | None = None) -> Sample:
    """Images X and labels y, or a data set's, of which the test split is used; all of them, or at
    most `limit`, taken evenly."""
    part = select_split(X, y, "test")
    network.check_images(part.images)
    count = part.images.shape[0]
    rows = np.arange(count) if limit is None else _evenly(np.arange(count), limit)
    images: Any = part.images.array
    labels: Any = part.labels
    if len(rows) < count:
        images, labels = images[rows], labels[rows]
    codes = encode(np.asarray(labels), network.classes)
    which = f"images of {mask_secrets(X)}" if isinstance(X, str) else "images given"
    return Sample(np.asarray(images), codes, rows, which, count)


def rows_where(mask: Any, value: bool) -> Array:
    """The rows of a stored mask (N,) with a value."""
    found = []
    for start in range(0, mask.shape[0], MASK_ROWS):
        part = read_region(mask, start, min(start + MASK_ROWS, mask.shape[0]))
        found.append(start + np.flatnonzero(part == value))
    return np.concatenate(found)


def _evenly(rows: Array, limit: int) -> Array:
    """At most `limit` of rows, evenly.

    >>> _evenly(np.arange(7), 3)
    array([0, 2, 4])
    """
    count = min(limit, len(rows))
    return rows[np.arange(count) * len(rows) // max(count, 1)]


def _few(rows: Array, chunks: Array, limit: int, array: Any) -> Array:
    """Rows that lie in chunks (n,), reduced to those that can be read in little time and space."""
    chosen = _evenly(np.unique(chunks), MOST_CHUNKS)
    rows = rows[np.isin(chunks, chosen)]
    room = MOST_BYTES // max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    return _evenly(rows, max(1, min(limit, room)))


def _read(array: Any, rows: Array) -> Array:
    """Rows (n,), ascending, of a stored array; each chunk is read once."""
    step, found = array.chunks[0], []
    for chunk in np.unique(rows // step).tolist():
        of_chunk = rows[rows // step == chunk]
        first, last = int(of_chunk[0]), int(of_chunk[-1])
        read = partial(read_region, array, first, last + 1)
        part = with_retries(read, f"reading {array.path}")
        found.append(part[of_chunk - first])
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores (n, C) of a sample, and what follows from them."""

    sample: Sample
    scores: Array

    @classmethod
    def of(cls, network: Network, sample: Sample) -> Evaluation:
        """Run a sample forward."""
        if not len(sample.codes):
            raise DataError(f"there are no {sample.which} to judge the network on: give some")
        return cls(sample, np.asarray(network.scores(Images(sample.images))))

    @property
    def predicted(self) -> Array:
        """Codes (n,) of the largest scores."""
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def accuracy(self) -> float:
        """Share that is classified rightly."""
        return float((self.predicted == self.sample.codes).mean())

    def confusion(self) -> Array:
        """How many images of each class (rows) are taken for each class (columns), (C, C)."""
        classes = self.scores.shape[1]
        found = np.zeros((classes, classes), np.int64)
        np.add.at(found, (self.sample.codes, self.predicted), 1)
        return found

    def worst(self, count: int) -> list[tuple[int, float]]:
        """Places in the sample of the images that are most wrong, and by how much the score of
        the predicted class is above that of the true one."""
        rows = np.arange(len(self.scores))
        margins = self.scores[rows, self.predicted] - self.scores[rows, self.sample.codes]
        wrong = np.flatnonzero(self.predicted != self.sample.codes)
        order = wrong[np.argsort(-margins[wrong], kind="stable")][:count]
        return [(int(location), float(margins[location])) for location in order]

    def calibration(self) -> tuple[list[dict[str, Any]], float]:
        """Images by their largest probability, in bins: how many, its mean and the share that is
        right; and the expected calibration error, the mean distance of these two."""
        confidence = project_to_simplex(self.scores).max(axis=1)
        right = self.predicted == self.sample.codes
        location = np.minimum((confidence * BINS).astype(int), BINS - 1)
        bins, error = [], 0.0
        for number in range(BINS):
            inside = location == number
            count = int(inside.sum())
            mean = float(confidence[inside].mean()) if count else None
            share = float(right[inside].mean()) if count else None
            if mean is not None and share is not None:
                error += count / len(right) * abs(mean - share)
            low, high = number / BINS, (number + 1) / BINS
            bins.append({"low": low, "high": high, "images": count, "mean": mean, "right": share})
        return bins, error


def confused_class_pairs(confusion: Array, count: int) -> list[tuple[int, int, int]]:
    """True and predicted class and number of images of the most frequent errors in a confusion
    matrix (C, C), the most frequent first.

    >>> confused_class_pairs(np.array([[5, 1], [3, 9]]), 2)
    [(1, 0, 3), (0, 1, 1)]
    """
    errors = confusion * (1 - np.eye(len(confusion), dtype=confusion.dtype))
    order = np.argsort(-errors, axis=None, kind="stable")[:count]
    places = [divmod(int(location), len(confusion)) for location in order]
    return [(i, j, int(errors[i, j])) for i, j in places if errors[i, j]]
