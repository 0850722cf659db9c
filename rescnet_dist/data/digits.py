"""The embedded data set: 6,000 training and 1,000 test images of handwritten digits, 28×28."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def load_digits(split: str = "train") -> tuple[Array, Array]:
    """Images (n, 28, 28, 1) uint8 and labels (n,) of the "train" or the "test" split.

    A sample of MNIST, stratified by class; see digits-LICENSE.txt beside this file.

    >>> images, labels = load_digits("test")
    >>> images.shape, images.dtype, labels.shape
    ((1000, 28, 28, 1), dtype('uint8'), (1000,))
    """
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r}: digits has the splits 'train' and 'test'")
    with files("rescnet_dist.data").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    return images[..., np.newaxis], labels.astype(np.int64)
