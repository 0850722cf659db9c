"""The interface of image sources: splits, classes, labels, and images by number."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, overload

import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
Channels = Literal["gray", "color"]
Encoded = bytes | DataError  # the content of an image file, or why it cannot be read

MAX_CLASS_NAMES = 2**16  # of labels that are strings
SPLIT_ALIASES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "t10k", "eval"),
}


@dataclass(frozen=True, slots=True)
class Samples:
    """Some images of a source, decoded or as the bytes of image files.

    Attributes
    ----------
    images : ndarray of shape (n, H, W, d) or iterable of (bytes or DataError)
        Pixels, or the contents of n image files, which should be read lazily. A DataError in place
        of the bytes says why a file cannot be read.
    names : sequence of str
        A name for each image, used in error messages.
    """

    images: Array | Iterable[Encoded]
    names: Sequence[str]


Reader = Callable[[], Samples]


@dataclass(frozen=True, slots=True)
class NumberedNames(Sequence[str]):
    """Names of images start to stop of a file or split, each built on access.

    >>> list(NumberedNames("a.npz, train", 3, 5))
    ['a.npz, train image 3', 'a.npz, train image 4']
    """

    prefix: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        numbers = range(self.start, self.stop)[index]
        if isinstance(numbers, int):
            return f"{self.prefix} image {numbers}"
        return [f"{self.prefix} image {number}" for number in numbers]


class Source(ABC):
    """A collection of labeled images, any part of which can be read by any worker.

    Subclasses set the attributes in their constructor, from names, headers and labels only, and
    implement `reader`. Instances and readers must be picklable.

    Attributes
    ----------
    url : str
        Where the images are, used in error messages.
    splits : dict of str to int
        The number of images of each split, in the order train, val, test.
    classes : tuple
        The class names.
    labels : dict of str to ndarray of shape (n,)
        For each split the integer codes of its images, which index `classes`. Empty if the images
        have no labels.
    passed_over : tuple of str
        The paths of files among the images whose type is not supported.
    holds_data : bool
        Whether readers hold the whole source. It is then sent to each worker once, not with each
        reader.
    channels : {"gray", "color"} or None
        What all images are converted to unless another choice is made; None leaves them as they
        are.

    Examples
    --------
    >>> import numpy as np
    >>> class Noise(Source):
    ...     def __init__(self):
    ...         self.url, self.splits, self.classes = "noise", {"train": 6}, ("even", "odd")
    ...         self.labels = {"train": np.arange(6, dtype=np.int32) % 2}
    ...     def reader(self, split, start, stop):
    ...         def read():
    ...             images = np.random.default_rng(0).random((6, 8, 8, 1))[start:stop]
    ...             return Samples(images, NumberedNames("noise", start, stop))
    ...         return read
    >>> Noise().read("train", 2, 5).images.shape
    (3, 8, 8, 1)
    """

    url: str
    splits: dict[str, int]
    classes: tuple[Any, ...]
    labels: dict[str, Array]
    passed_over: tuple[str, ...] = ()
    holds_data: bool = False
    channels: Channels | None = None

    @abstractmethod
    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a function that reads images start to stop of a split.

        The order of the images never changes. The function is sent to workers, so it should hold
        nothing but what these images need.

        Parameters
        ----------
        split : str
            A key of `splits`.
        start, stop : int
            The range of images, with ``0 <= start < stop <= splits[split]``.

        Returns
        -------
        callable
            A picklable function without arguments that returns `Samples` of ``stop - start``
            images.
        """

    def files(self, split: str) -> Sequence[str] | None:
        """Return the file name of each image of a split, if each image is a file.

        Parameters
        ----------
        split : str
            A key of `splits`.

        Returns
        -------
        sequence of str or None
            One name per image; None if images are not files of their own.
        """
        return None

    def read(self, split: str, start: int, stop: int) -> Samples:
        """Read images start to stop of a split.

        Parameters
        ----------
        split : str
            A key of `splits`.
        start, stop : int
            The range of images.

        Returns
        -------
        Samples
            The images and their names.
        """
        return self.reader(split, start, stop)()

    @property
    def count(self) -> int:
        """The number of images of all splits."""
        return sum(self.splits.values())


@lru_cache(maxsize=10_000)  # Datasets have many files in few folders.
def parse_split_name(name: str) -> str | None:
    """Return the split that a name, such as that of a folder, stands for; None if it is none.

    >>> parse_split_name("Validation"), parse_split_name("t10k"), parse_split_name("cats")
    ('val', 'test', None)
    """
    return next((split for split, names in SPLIT_ALIASES.items() if name.lower() in names), None)


def infer_split(path: str) -> str:
    """Return the split named by a word of a file's path; train if there is none.

    >>> infer_split("emnist-test-images-idx3-ubyte"), infer_split("val/0001.tar")
    ('test', 'val')
    """
    for part in reversed(path.split("/")):
        for word in re.split("[-_.]", part):
            if split := parse_split_name(word):
                return split
    return "train"


def sort_splits(splits: Iterable[str]) -> list[str]:
    """Return splits in the order train, val, test."""
    return [split for split in SPLIT_ALIASES if split in set(splits)]


def encode_labels(
    values: dict[str, Array], names: Sequence[str] | None = None
) -> tuple[tuple[Any, ...], dict[str, Array]]:
    """Return class names and codes (n,) of each split, from labels (n,) of one type.

    The labels index `names` or, if that is None, are the class names themselves.
    """
    distinct = np.unique(np.concatenate(list(values.values())))
    if names is None:
        classes = tuple(distinct.tolist())
        return classes, {
            s: np.searchsorted(distinct, v).astype(np.int32) for s, v in values.items()
        }
    if distinct[0] < 0 or distinct[-1] >= len(names):
        raise DataError(
            f"There are labels from {distinct[0]} to {distinct[-1]}, and {len(names)} class names. "
            "Labels must be from 0 to the number of names minus 1."
        )
    return tuple(names), {s: v.astype(np.int32) for s, v in values.items()}


def check_counts(url: str, split: str, images: int, labels: int) -> None:
    """Raise DataError if a split is empty, or if its images and labels differ in number."""
    if images != labels:
        raise DataError(
            f"{url} has {images:,} images and {labels:,} labels in {split}. Their numbers must be "
            "equal."
        )
    if not images:
        raise DataError(f"{url} has no images in {split}. Provide at least one.")
