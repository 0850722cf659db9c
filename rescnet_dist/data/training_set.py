"""What a network is trained on: images with their codes, validation images behind them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from rescnet_dist.data.dataset import get_split, select_split
from rescnet_dist.data.images import Images, Stored
from rescnet_dist.data.labels import classes_array, classes_of, encode, group_codes
from rescnet_dist.errors import DataError
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Images and codes, part by part: those to train on and, if given, those to validate on.

    classes (C,) are the labels that the codes stand for, as they were given. augment: the copies
    made of those to train on. groups (N,) of whole numbers: images to be held out together or not.
    """

    images: tuple[Images, ...]
    codes: tuple[Array | da.Array, ...]
    classes: Array
    augment: AugmentSpec
    groups: Array | da.Array | None = None

    @property
    def count(self) -> int:
        """Images of all parts."""
        return sum(part.shape[0] for part in self.images)

    @property
    def train_count(self) -> int:
        """Images of the first part, before any split."""
        return self.images[0].shape[0]

    @property
    def has_validation(self) -> bool:
        """Whether a validation set was given."""
        return len(self.images) > 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, d)."""
        return self.images[0].shape[1:]

    @property
    def stored(self) -> Stored | None:
        """Where all images lie, if that is in one place, one part behind the other; else None."""
        first, row = self.images[0].stored, 0
        for part in self.images:
            if first is None or part.stored != replace(first, start=first.start + row):
                return None
            row += part.shape[0]
        return first

    def rows(self, validation: float) -> int:
        """Images with the copies of those to train on, about, where a share of them is held out."""
        held_out = 0 if self.has_validation else int(self.train_count * validation)
        return self.count + self.augment.copies * (self.train_count - held_out)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What to store images in: bool as uint8, double as single precision, others as is."""
        common = np.result_type(*(part.array.dtype for part in self.images))
        if common.kind == "b":
            return np.dtype("uint8")
        return np.dtype("float32") if common.kind == "f" and common.itemsize > 4 else common


def training_set(
    X: Any,
    y: Any,
    validation: tuple[Any, Any] | None = None,
    *,
    own_validation: bool = False,
    augment: AugmentSpec | None = None,
    groups: Any = None,
) -> TrainingSet:
    """Check images X and labels y, and a validation pair like them, and put them together.

    Of lazy arrays only the distinct labels are computed. own_validation: validate on the split of
    that name, where X is a data set that has one. groups (N,): labels of any kind, else those of
    the data set; images of the same group are never on both sides of a split.
    """
    part = select_split(X, y, "train")
    images, labels = part.images, part.labels
    classes = classes_of(labels)
    if len(classes) < 2:
        only = classes_array(classes).tolist()[0]
        raise DataError(f"y has the one class {only!r} only: give images of at least 2 classes")
    known, codes = classes_array(classes), encode(labels, classes_array(classes))
    augment = augment or AugmentSpec()
    is_dataset = isinstance(X, str | os.PathLike | xr.Dataset)
    if validation is None and own_validation and is_dataset and get_split(X, "val"):
        validation = X, None
    if validation is None:
        groups = part.groups if groups is None else groups
        together = None if groups is None else group_codes(groups, images.shape[0])
        return TrainingSet((images,), (codes,), known, augment, together)
    if groups is not None:
        raise DataError(
            "groups are for images to be held out, and a validation set is given: leave one out"
        )
    held_out = select_split(*validation, "val", name="validation X")
    _check_shape(held_out.images, images, "validation")
    held_codes = encode(held_out.labels, known, name="validation y")
    return TrainingSet((images, held_out.images), (codes, held_codes), known, augment)


def check_test_set(X: Any, training: TrainingSet) -> None:
    """Refuse a data set to test with whose images are of another shape, or that has no labels."""
    _check_shape(select_split(X, None, "test", name="test X").images, training.images[0], "test")


def _check_shape(images: Images, training: Images, what: str) -> None:
    if images.shape[1:] != training.shape[1:]:
        raise DataError(
            f"{what} images are {images.shape[1:]} and training images are {training.shape[1:]} "
            "(height, width, channels): give images of one shape"
        )
