"""Small images as filter learners see them, in chunks, and their patches in plain NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rescnet_dist.kernels import LayerInput
from rescnet_dist.model import FilterGroup, FilterLearner, Observation

IMAGES, CLASSES, SIZE = 24, 3, 3
HEIGHT, WIDTH = 9, 8
LABELS = np.arange(IMAGES) % CLASSES
LABELS[:4] = 0  # classes of different sizes
TRAIN = np.arange(IMAGES) % 5 != 0


def make_group(
    learner: FilterLearner, count: int, channels: Sequence[int] = (0, 1), input_channels: int = 2
) -> FilterGroup:
    """Return a group of 3×3 filters of a learner."""
    return FilterGroup(
        layer=1,
        filters=range(count),
        channels=tuple(channels),
        input_channels=input_channels,
        size=SIZE,
        image_size=(HEIGHT, WIDTH),
        streams=range(learner.streams(count)),
        classes=CLASSES,
    )


def make_images(channels: int = 2, seed: int = 0) -> np.ndarray:
    """Return smooth images (24, 9, 8, channels) with another pattern for each class."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(IMAGES, HEIGHT, WIDTH, channels)).cumsum(axis=1).cumsum(axis=2)
    patterns = 3 * rng.normal(size=(CLASSES, HEIGHT, WIDTH, channels))
    return (noise + patterns[LABELS]).astype(np.float32)


def observe(
    learner: FilterLearner,
    group: FilterGroup,
    images: np.ndarray,
    cuts: Sequence[int] = (),
    weights: np.ndarray | None = None,
    **options: np.ndarray,
) -> Any:
    """Return the merged statistics of images that are divided into chunks.

    Options are further arguments of `Observation`, with one row per image.
    """
    total, counts = learner.empty(group), np.bincount(LABELS[TRAIN], minlength=CLASSES)
    for start, stop in itertools.pairwise(sorted({0, IMAGES, *cuts})):
        rows = slice(start, stop)
        before = np.bincount(LABELS[:start][TRAIN[:start]], minlength=CLASSES)
        inputs = LayerInput.of(images[rows], None, None if weights is None else weights[rows])
        own = {name: value[rows] for name, value in options.items()}
        chunk = Observation(inputs, LABELS[rows], TRAIN[rows], before, counts, **own)
        total = total.merge(learner.observe(chunk, group))
    return total


def list_patches(images: np.ndarray, channels: Sequence[int]) -> np.ndarray:
    """Return the patches (n, places, 9c) of each training image, in float64."""
    return np.array(
        [
            [
                image[row : row + SIZE, column : column + SIZE, list(channels)].ravel()
                for row in range(HEIGHT - SIZE + 1)
                for column in range(WIDTH - SIZE + 1)
            ]
            for image in images[TRAIN].astype(np.float64)
        ]
    )


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (p, count) whose entries of largest absolute value are positive."""
    return np.stack([v * np.sign(v[np.abs(v).argmax()]) for v in vectors.T], axis=1)
