"""What every source of images tells: its splits, classes and labels, and images by number."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

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
    """Images (n, H, W, d), or the bytes of n image files, which are read as they are asked for,
    and a name for each."""

    images: Array | Iterable[Encoded]
    names: Sequence[str]


Reader = Callable[[], Samples]


@dataclass(frozen=True, slots=True)
class NumberedReader(Sequence[str]):
    """Names of the images start to stop of something, each made when it is asked for.

    >>> list(Numbered("a.npz, train", 3, 5))
    ['a.npz, train image 3', 'a.npz, train image 4']
    """

    of: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        found = range(self.start, self.stop)[index]
        named = [f"{self.of} image {n}" for n in ([found] if isinstance(found, int) else found)]
        return named[0] if isinstance(found, int) else named


class Source(ABC):
    """Images that lie somewhere in some form, of which any part can be read, by any worker.

    splits: the number of images of each split, by name, in the order train, val, test. classes:
    the class names. labels: of each split the codes (n,) of its images, their places in `classes`;
    empty where images have none.
    passed_over: paths of files among the images that are of no kind that is read.
    """

    url: str
    splits: dict[str, int]
    classes: tuple[Any, ...]
    labels: dict[str, Array]
    passed_over: tuple[str, ...] = ()

    @abstractmethod
    def reader(self, split: str, start: int, stop: int) -> Reader:
        """What reads images start to stop of a split, in an order that never changes. It is sent to
        workers, and has no more in it than these images need."""

    def files(self, split: str) -> Sequence[str] | None:
        """The name of the file that each image of a split is, where each is one."""
        return None

    def read(self, split: str, start: int, stop: int) -> Samples:
        """Images start to stop of a split."""
        return self.reader(split, start, stop)()

    @property
    def count(self) -> int:
        """Images of all splits."""
        return sum(self.splits.values())


@lru_cache(maxsize=10_000)  # of 60,000 files, all lie in a few folders
def split_named(name: str) -> str | None:
    """The split that a name, as of a folder, stands for.

    >>> split_named("Validation"), split_named("t10k"), split_named("cats")
    ('val', 'test', None)
    """
    return next((split for split, names in SPLITS.items() if name.lower() in names), None)


def split_of_file(path: str) -> str:
    """The split that a word of the name of a file, or of a folder above it, stands for; train where
    none does.

    >>> split_of_file("emnist-test-images-idx3-ubyte"), split_of_file("val/0001.tar")
    ('test', 'val')
    """
    for part in reversed(path.split("/")):
        for word in re.split("[-_.]", part):
            if found := split_named(word):
                return found
    return "train"


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
