"""What every source of images tells: its splits, classes and labels, and images by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
Encoded = bytes | DataError  # of an image file, or why it cannot be read

SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "t10k", "eval"),
}


@dataclass(frozen=True, slots=True)
class Samples:
    """Images (n, H, W, d), or the bytes of n image files, and a name for each."""

    images: Array | list[Encoded]
    names: Sequence[str]


class Source(ABC):
    """Images that lie somewhere in some form. Cheap to send to workers, and to read a part of.

    splits: the number of images of each split, by name, in the order train, val, test. classes:
    the class names. labels: of each split the codes (n,) of its images, their places in `classes`.
    """

    url: str
    splits: dict[str, int]
    classes: tuple[Any, ...]
    labels: dict[str, Array]

    @abstractmethod
    def read(self, split: str, start: int, stop: int) -> Samples:
        """Images start to stop of a split, in an order that never changes."""

    @property
    def count(self) -> int:
        """Images of all splits."""
        return sum(self.splits.values())


def split_named(name: str) -> str | None:
    """The split that the name of a folder or the beginning of that of a file stands for.

    >>> split_named("validation"), split_named("t10k-images-idx3-ubyte"), split_named("cats")
    ('val', 'test', None)
    """
    first = name.lower()
    for separator in "-_.":
        first = first.split(separator)[0]
    for split, names in SPLITS.items():
        if first in names:
            return split
    return None


def in_order(splits: Iterable[str]) -> list[str]:
    """Splits in the order train, val, test."""
    return [split for split in SPLITS if split in set(splits)]


def coded(
    values: dict[str, Array], names: Sequence[str] | None = None
) -> tuple[tuple[Any, ...], dict[str, Array]]:
    """Class names and codes (n,) of each split from whole-number labels (n,), whose names are given
    or are the numbers themselves."""
    distinct = np.unique(np.concatenate(list(values.values())))
    if names is None:
        classes = tuple(distinct.tolist())
        return classes, {
            s: np.searchsorted(distinct, v).astype(np.int32) for s, v in values.items()
        }
    if distinct[0] < 0 or distinct[-1] >= len(names):
        raise DataError(
            f"there are labels from {distinct[0]} to {distinct[-1]}, and {len(names)} class names: "
            "labels must be 0 to the number of names less 1"
        )
    return tuple(names), {s: v.astype(np.int32) for s, v in values.items()}


def check_counts(url: str, split: str, images: int, labels: int) -> None:
    """Refuse a split with more or fewer labels than images, or with none."""
    if images != labels:
        raise DataError(
            f"{url} has {images:,} images and {labels:,} labels to {split}: there must be as many"
        )
    if not images:
        raise DataError(f"{url} has no images to {split}: give at least one")
