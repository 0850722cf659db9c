"""Scores of chunks of images in memory, which are run forward in batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError
from rescnet_dist.kernels import Augmentation, Backend, augment_images
from rescnet_dist.model import Architecture, ImageScale, Layer, forward, initial_state
from rescnet_dist.reduce import blas_threads
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]

PREDICT_SEED = 0  # of the augmented copies that predictions are averaged over
# Maps and images in float32 that are run forward at a time. Layers are read once per batch.
PREDICT_BATCH_BYTES = 128 * 2**20
GPU_PREDICT_BATCH_BYTES = 4096 * 2**20
# A batch uses at most this fraction of a GPU's memory: a few times its size is allocated, and other
# processes need memory too.
GPU_PREDICT_BATCH_FRACTION = 1 / 16
GPU_LOCK = threading.Lock()  # one thread at a time: a GPU has no memory for the batches of all


@dataclass(frozen=True, slots=True)
class Predictor:
    """What a task needs of a network to run images forward.

    Attributes
    ----------
    architecture : Architecture
        What the layers compute.
    image_scale : ImageScale
        Min-max normalization of the images.
    layers : sequence of Layer
        The fitted layers.
    backend : Backend
        Array backend that runs images forward.
    token : str
        Identity of the network for Dask.
    """

    architecture: Architecture
    image_scale: ImageScale
    layers: Sequence[Layer]
    backend: Backend
    token: str

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def batch_images(self) -> int:
        """Number of images that are run forward at a time."""
        height, width, _ = self.architecture.image_shape
        size = PREDICT_BATCH_BYTES
        if self.backend.on_gpu:
            size = GPU_PREDICT_BATCH_BYTES
            if self.backend.available() and (memory := self.backend.memory()):
                size = min(size, int(memory[2] * GPU_PREDICT_BATCH_FRACTION))
        return max(1, size // (4 * height * width * self.architecture.input_channels(2)))

    def forward_batches(
        self, images: Array, first: int, augment: AugmentSpec
    ) -> Iterator[tuple[slice, int, Array]]:
        """Run images (n, H, W, d) forward in batches, averaged over augmented copies if any.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            Images in memory.
        first : int
            Index of the first image in the whole array, which copies depend on.
        augment : AugmentSpec
            Copies to average over.

        Yields
        ------
        rows : slice
            Images of the batch.
        stage : int
            Index of the layer, from 0.
        scores : ndarray of shape (m, C)
            Running scores of the batch after that layer.
        """
        copies, count, architecture = augment.copies, len(images), self.architecture
        changes = Augmentation(**augment.copy_options)
        batch_images = max(1, self.batch_images // (1 + copies))
        copy = np.arange(1 + copies)[:, None]
        for start in range(0, count, batch_images):
            rows = slice(start, min(start + batch_images, count))
            n, batch = rows.stop - start, images[rows]
            if copies:
                index, number = np.broadcast_arrays(first + np.arange(start, rows.stop), copy)
                batch = np.concatenate([batch] * (1 + copies))
                batch = augment_images(
                    batch, index.reshape(-1), number.reshape(-1), changes, PREDICT_SEED
                )
            backend = self.backend
            lock = GPU_LOCK if backend.on_gpu else nullcontext()
            with lock, backend.working(), np.errstate(all="ignore"):
                before = initial_state(backend.put(batch), self.image_scale, architecture)
                for stage, state in enumerate(forward(architecture, before, self.layers)):
                    mean = backend.get(state.scores.reshape(1 + copies, n, -1).mean(axis=0))
                    _check_scores(mean, images[rows], first + start, self.image_scale)
                    yield rows, stage, mean


def _check_scores(scores: Array, images: Array, first: int, scale: ImageScale) -> None:
    """Raise DataError if scores (n, C) of images (n, H, W, d) are not finite.

    `first` is the index of the first image, for the message.
    """
    invalid = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(invalid):
        low, high = float(images[invalid[0]].min()), float(images[invalid[0]].max())
        trained_low, trained_high = scale.value_range
        raise DataError(
            f"image {first + invalid[0]} of X has values from {low:g} to {high:g}, but the network "
            f"was trained on values from {trained_low:g} to {trained_high:g}. Its scores overflow "
            "in single precision. Pass images on the same scale."
        )


def _get_first_index(block_info: Any) -> int:
    """Return the index of the first image of a block, from the `block_info` of `map_blocks`."""
    return int(block_info[0]["array-location"][0][0]) if block_info else 0


def compute_final_scores(
    images: Array, predictor: Predictor, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """Return the scores (n, C) of images (n, H, W, d) after the last layer."""
    out = np.zeros((len(images), predictor.architecture.classes), np.float32)
    first = _get_first_index(block_info)
    with blas_threads(1):
        for rows, _, scores in predictor.forward_batches(images, first, augment):
            out[rows] = scores
    return out


def compute_staged_scores(
    images: Array, predictor: Predictor, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """Return the scores (n, L, C) of images (n, H, W, d) after each layer."""
    out = np.zeros((len(images), len(predictor.layers), predictor.architecture.classes), np.float32)
    first = _get_first_index(block_info)
    with blas_threads(1):
        for rows, stage, scores in predictor.forward_batches(images, first, augment):
            out[rows, stage] = scores
    return out


def count_staged_correct(
    images: Array, codes: Array, predictor: Predictor, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """Count the correct images (n, H, W, d) with codes (n, 1, 1, 1) after each layer: (1, L)."""
    correct = np.zeros((1, len(predictor.layers)), np.int64)
    first = _get_first_index(block_info)
    with blas_threads(1):
        for rows, stage, scores in predictor.forward_batches(images, first, augment):
            correct[0, stage] += (scores.argmax(axis=1) == codes[rows, 0, 0, 0]).sum()
    return correct
