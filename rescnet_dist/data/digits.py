"""The embedded dataset: 6,000 training and 1,000 test images of handwritten digits, 28×28."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def load_digits(split: str = "train") -> tuple[Array, Array]:
    """Load the embedded handwritten digits, a sample of MNIST that is stratified by class.

    The license is in digits-LICENSE.txt next to this module.

    Parameters
    ----------
    split : {"train", "test"}, default="train"
        The split to load: 6,000 training or 1,000 test images.

    Returns
    -------
    images : ndarray of shape (n, 28, 28, 1)
        Pixels, as uint8.
    labels : ndarray of shape (n,)
        The digits 0 to 9, as int64.

    Raises
    ------
    ValueError
        If there is no such split.

    Examples
    --------
    >>> images, labels = load_digits("test")
    >>> images.shape, images.dtype, labels.shape
    ((1000, 28, 28, 1), dtype('uint8'), (1000,))
    """
    if split not in ("train", "test"):
        raise ValueError(
            f"split={split!r} is unknown. The digits have the splits 'train' and 'test'."
        )
    with files("rescnet_dist.data").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    return images[..., np.newaxis], labels.astype(np.int64)
