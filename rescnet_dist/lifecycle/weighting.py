"""The weights of a run's images: those of samples and classes, relative to their mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rescnet_dist.store import RunStore, checksum, read_region, write_region
from rescnet_dist.train.chunks import Array

DRAWS_PER_WEIGHT = 2.0**30  # of an image of mean weight, if weights are not whole numbers
MAX_WHOLE_WEIGHT = 2.0**53  # sum of whole weights up to which they are exact


@dataclass(frozen=True, slots=True)
class Weighting:
    """How the weights of a run follow from those in its work area, which are of samples.

    They are multiplied by those of the classes: `class_weight`, one number per class, or, if
    `balanced`, what gives all `classes` the same total weight.
    """

    classes: int
    balanced: bool = False
    class_weight: tuple[float, ...] | None = None


def write_weights(run: RunStore, weighting: Weighting) -> tuple[float, list[int]]:
    """Write the weights of images relative to the mean of the training images; runs on a worker.

    Return how many times draws repeat an image of weight 1, and the checksums of the blocks. If all
    weights are whole numbers, draws repeat an image as many times as its weight says.
    """
    factors = np.ones(weighting.classes)
    if weighting.class_weight is not None:
        factors = np.array(weighting.class_weight)
    if weighting.balanced:
        totals = np.zeros(weighting.classes)
        for _, codes, train, weights in _read_blocks(run):
            totals += np.bincount(codes[train], weights[train], weighting.classes)
        factors *= totals.sum() / (weighting.classes * totals)
    count, total, is_whole = 0, 0.0, True
    for _, codes, train, weights in _read_blocks(run):
        trained = (weights * factors[codes])[train]
        count, total = count + len(trained), total + float(trained.sum())
        is_whole &= bool((trained == np.rint(trained)).all())
    mean, target, checksums = total / count, run.data_array("weights", write=True), []
    for start, codes, _, weights in _read_blocks(run):
        relative = weights * factors[codes] / mean
        write_region(target, start, relative)
        checksums.append(checksum(relative))
    return mean if is_whole and total <= MAX_WHOLE_WEIGHT else DRAWS_PER_WEIGHT, checksums


def _read_blocks(run: RunStore) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield first image, labels, training mask and given weights of each block of images."""
    arrays = [run.data_array("labels"), run.data_array("train"), run.work("weights")]
    images, block = arrays[0].shape[0], arrays[0].chunks[0]
    for start in range(0, images, block):
        stop = min(start + block, images)
        labels, train, weights = (read_region(array, start, stop) for array in arrays)
        yield start, labels, train, weights
