"""Evaluation of a network on a sample of labeled images: metrics and worst errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from rescnet_dist.data import Images, encode, select_split
from rescnet_dist.errors import DataError, mask_secrets
from rescnet_dist.network import BaseNetwork, Metrics, Network
from rescnet_dist.runs import RunData
from rescnet_dist.store import RunStore, read_region

MAX_EVALUATION_IMAGES = 2000  # by default
MAX_SAMPLE_BYTES = 256 * 2**20  # of images held in memory for an evaluation
MAX_SAMPLE_CHUNKS = 64  # of stored images read for an evaluation
MAX_MATRIX_CLASSES = 30  # a larger confusion matrix is unreadable; show the worst pairs instead
Array = np.ndarray[Any, np.dtype[Any]]


class SampleKind(StrEnum):
    """Where the images of a sample come from."""

    HELD_OUT = "held_out"  # by the run
    TRAINING = "training"  # as the run held out none
    GIVEN = "given"  # by the user


@dataclass(frozen=True, slots=True)
class Sample:
    """Labeled images on which a network is evaluated.

    Attributes
    ----------
    images : ndarray of shape (n, H, W, d)
    codes : ndarray of shape (n,)
        Class codes of the images.
    rows : ndarray of shape (n,)
        Row of each image in the data that the sample comes from.
    kind : SampleKind
        Where the images come from.
    description : str
        What the images are, such as "held-out images", for users.
    total : int
        Number of images that the sample was drawn from.
    """

    images: Array
    codes: Array
    rows: Array
    kind: SampleKind
    description: str
    total: int


def sample_from_run(run: RunStore, limit: int = MAX_EVALUATION_IMAGES) -> Sample:
    """Return at most `limit` held-out images of a run, evenly spaced.

    The sample has training images if the run held out no images.
    """
    data = RunData.of(run)
    kind, description, rows = SampleKind.HELD_OUT, "held-out images", data.find_rows(False)
    if not len(rows):
        kind, description, rows = SampleKind.TRAINING, "training images", data.find_rows(True)
    total, (array, first) = len(rows), data.open_images()
    rows = _limit_rows(rows, (rows + first) // array.chunks[0], limit, array)
    images = _read_rows(array, rows + first)
    return Sample(images, data.read_codes(rows), rows, kind, description, total)


def sample_from_data(X: Any, y: Any, network: BaseNetwork, limit: int | None = None) -> Sample:
    """Return images X with labels y, or the test split of a dataset X, as a sample.

    The sample has all images, or at most `limit` of them, evenly spaced.
    """
    split = select_split(X, y, "test", decoder=network.photo_decoder())
    network.check_images(split.images)
    count = split.images.shape[0]
    rows = np.arange(count) if limit is None else _pick_evenly(np.arange(count), limit)
    images: Any = split.images.array
    labels: Any = split.labels
    if len(rows) < count:
        images, labels = images[rows], labels[rows]
    codes = encode(np.asarray(labels), network.classes)
    description = f"images of {mask_secrets(X)}" if isinstance(X, str) else "images given"
    return Sample(np.asarray(images), codes, rows, SampleKind.GIVEN, description, count)


def _pick_evenly(rows: Array, limit: int) -> Array:
    """Return at most `limit` evenly spaced elements of rows (n,).

    >>> _pick_evenly(np.arange(7), 3)
    array([0, 2, 4])
    """
    count = min(limit, len(rows))
    return rows[np.arange(count) * len(rows) // max(count, 1)]


def _limit_rows(rows: Array, chunks: Array, limit: int, array: Any) -> Array:
    """Return at most `limit` of rows (n,) that can be read in little time and memory.

    chunks (n,) is the chunk of the stored array that each row is in.
    """
    chosen = _pick_evenly(np.unique(chunks), MAX_SAMPLE_CHUNKS)
    rows = rows[np.isin(chunks, chosen)]
    fitting = MAX_SAMPLE_BYTES // max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    return _pick_evenly(rows, max(1, min(limit, fitting)))


def _read_rows(array: Any, rows: Array) -> Array:
    """Read ascending rows (n,) of a stored array; each chunk is read once."""
    step, parts = array.chunks[0], []
    for chunk in np.unique(rows // step).tolist():
        chunk_rows = rows[rows // step == chunk]
        first, last = int(chunk_rows[0]), int(chunk_rows[-1])
        part = read_region(array, first, last + 1)
        parts.append(part[chunk_rows - first])
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a network on a sample, and the metrics computed from them.

    Attributes
    ----------
    sample : Sample
    scores : ndarray of shape (n, C)
    probabilities : ndarray of shape (n, C)
    classes : ndarray of shape (C,)
    """

    sample: Sample
    scores: Array
    probabilities: Array
    classes: Array

    @classmethod
    def of(cls, network: Network, sample: Sample) -> Evaluation:
        """Compute the scores of a network on a sample."""
        if not len(sample.codes):
            raise DataError(
                f"There are no {sample.description} to evaluate the network on. "
                "Pass at least one image."
            )
        scores = np.asarray(network.scores(Images(sample.images)))
        return cls(sample, scores, network.probabilities(scores), network.classes)

    @property
    def predicted(self) -> Array:
        """Predicted class codes (n,): those with the largest scores."""
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def metrics(self) -> Metrics:
        """Metrics of the sample, as of `ResCNetClassifier.evaluate`."""
        return Metrics.of(self.classes, self.probabilities, self.sample.codes)

    def worst_errors(self, count: int) -> list[tuple[int, float]]:
        """Return the sample indices and margins of the `count` worst errors, worst first.

        The margin is the score of the predicted class minus that of the true class.
        """
        rows = np.arange(len(self.scores))
        margins = self.scores[rows, self.predicted] - self.scores[rows, self.sample.codes]
        wrong = np.flatnonzero(self.predicted != self.sample.codes)
        order = wrong[np.argsort(-margins[wrong], kind="stable")][:count]
        return [(int(index), float(margins[index])) for index in order]


def most_confused_pairs(confusion: Array, count: int) -> list[tuple[int, int, int]]:
    """Return (true class, predicted class, images) of the most frequent errors, most first.

    confusion is a confusion matrix of shape (C, C).

    >>> most_confused_pairs(np.array([[5, 1], [3, 9]]), 2)
    [(1, 0, 3), (0, 1, 1)]
    """
    errors = confusion * (1 - np.eye(len(confusion), dtype=confusion.dtype))
    order = np.argsort(-errors, axis=None, kind="stable")[:count]
    cells = [divmod(int(index), len(confusion)) for index in order]
    return [(i, j, int(errors[i, j])) for i, j in cells if errors[i, j]]
