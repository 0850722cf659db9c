"""The training set: training images and codes, followed by validation images, if given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.data.classes import classes_array
from rescnet_dist.data.dataset import SplitData, as_dataset, get_split, select_split
from rescnet_dist.data.images import ArrayReference, Images, looks_channels_first
from rescnet_dist.data.kinds import is_url_or_dataset, is_xarray_array, is_xarray_dataset
from rescnet_dist.data.labels import as_labels, encode, encode_groups, find_classes
from rescnet_dist.data.photos import ImageInput
from rescnet_dist.data.sources import DecodeOptions
from rescnet_dist.data.weights import (
    Weights,
    as_class_weights,
    as_sample_weights,
    digest_weights,
)
from rescnet_dist.errors import DataError, mask_secrets
from rescnet_dist.spec import DEFAULT_VALIDATION, AugmentSpec
from rescnet_dist.store import IMAGE_DIMS

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Images and codes of the training part and, if given, of the validation part.

    `classes` (C,) are the original labels that the codes index. `augment` describes the copies of
    training images. `groups` (N,) are integers: images of a group are held out together or not at
    all. `options` are those that the images were decoded with, as far as they are known. `weights`
    are those of the training part and of the classes.
    """

    images: tuple[Images, ...]
    codes: tuple[Array | da.Array, ...]
    classes: Array
    augment: AugmentSpec
    groups: Array | da.Array | None = None
    options: DecodeOptions = field(default_factory=DecodeOptions)
    weights: Weights = field(default_factory=Weights)

    @property
    def count(self) -> int:
        """The number of images of all parts."""
        return sum(part.shape[0] for part in self.images)

    @property
    def train_count(self) -> int:
        """The number of images of the training part, before any are held out."""
        return self.images[0].shape[0]

    @property
    def has_validation(self) -> bool:
        """Whether a validation set was given."""
        return len(self.images) > 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape (H, W, d) of an image."""
        return self.images[0].shape[1:]

    @property
    def image_input(self) -> ImageInput:
        """How the images were made."""
        return ImageInput(str(self.dtype), self.options.resize, self.options.channels)

    @property
    def size(self) -> tuple[tuple[int, int, int], int, int]:
        """The shape (H, W, d) and number of training images, and the number of classes."""
        return self.image_shape, self.train_count, len(self.classes)

    @property
    def stored(self) -> ArrayReference | None:
        """A reference to all images, if all parts are contiguous in one array; else None."""
        first, row = self.images[0].stored, 0
        for part in self.images:
            if first is None or part.stored != replace(first, start=first.start + row):
                return None
            row += part.shape[0]
        return first

    def source_name(self, name: str | None) -> str | None:
        """Return the name that is stored with a run: `name`, else the URL of the images, if any.

        It has no secrets.
        """
        return mask_secrets(name or (self.stored.url if self.stored else "")) or None

    def held_out_fraction(self, validation: float | None) -> float:
        """Return the fraction of the images to hold out: none if a validation set was given.

        None is the default, which needs enough images that at least one is held out.
        """
        if self.has_validation:
            return 0.0
        if validation is not None:
            return validation
        enough = self.train_count * DEFAULT_VALIDATION >= len(self.classes)
        return DEFAULT_VALIDATION if enough else 0.0

    def rows(self, validation: float | None) -> int:
        """Return about how many rows there are if a fraction of the images is held out."""
        held_out = int(self.train_count * self.held_out_fraction(validation))
        return self.count + self.augment.copies * (self.train_count - held_out)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype to store images in: uint8 for bool, float32 for float64, others unchanged."""
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
    sample_weight: Any = None,
    class_weight: Any = None,
) -> TrainingSet:
    """Return the training set of images X and labels y, and of a validation pair (X, y).

    Raise DataError if they do not fit. Of lazy arrays only the distinct labels are computed. If
    `own_validation`, the split val of the dataset X, if it has one, is the validation part.
    `groups` (N,) are labels of any hashable type, by default those of the dataset; images of the
    same group are never on both sides of a split. `sample_weight` (N,) are numbers, by default
    those of the dataset; images of weight 0 are left out. `class_weight` is a dict of numbers by
    label.
    """
    X = as_dataset(X)
    part = select_split(X, y, "train")
    if groups is not None:
        part = replace(part, groups=as_labels(groups, part.images.shape[0], name="groups"))
    part, weights = _weigh(part, sample_weight)
    images, labels = part.images, part.labels
    _check_channels_last(X, images)
    classes = find_classes(labels)
    if len(classes) < 2:
        only = classes_array(classes).tolist()[0]
        raise DataError(f"y has the one class {only!r} only. Give images of at least 2 classes.")
    class_array = classes_array(classes)
    codes = encode(labels, class_array)
    if class_weight is not None:
        weights = replace(weights, classes=as_class_weights(class_weight, class_array.tolist()))
    augment = augment or AugmentSpec()
    if validation is None and own_validation and is_url_or_dataset(X) and get_split(X, "val"):
        validation = X, None
    if validation is None:
        groups = part.groups
        group_codes = None if groups is None else encode_groups(groups, images.shape[0])
        return TrainingSet(
            (images,), (codes,), class_array, augment, group_codes, part.options, weights
        )
    if groups is not None:
        raise DataError(
            "groups and a validation set were both given. Groups are for images to be held out; "
            "leave out one of them."
        )
    held_out = select_split(*validation, "val", name="validation X")
    _check_shape(held_out.images, images, "validation")
    held_out_codes = encode(held_out.labels, class_array, name="validation y")
    return TrainingSet(
        (images, held_out.images),
        (codes, held_out_codes),
        class_array,
        augment,
        options=part.options,
        weights=weights,
    )


def _weigh(part: SplitData, sample_weight: Any) -> tuple[SplitData, Weights]:
    """Return the weights of a split and, of the split, what has a weight greater than 0."""
    given = part.sample_weight if sample_weight is None else sample_weight
    if given is None:
        return part, Weights()
    values = as_sample_weights(given, part.images.shape[0])
    digest = digest_weights(values)
    if not values.all():
        kept = np.flatnonzero(values)
        values = values[kept]
        part = replace(
            part,
            images=Images(part.images.array[kept]),  # stored images are copied: they have gaps now
            labels=None if part.labels is None else part.labels[kept],
            groups=None if part.groups is None else part.groups[kept],
        )
    return part, Weights(values, digest=digest)


def check_test_set(X: Any, training: TrainingSet) -> None:
    """Raise DataError if a test set has no labels, or images of another shape."""
    _check_shape(select_split(X, None, "test", name="test X").images, training.images[0], "test")


def _check_channels_last(X: Any, images: Images) -> None:
    """Raise DataError if images look channels-first, unless their dimensions have names."""
    is_labeled = is_xarray_array(X) or is_xarray_dataset(X)
    has_names = is_labeled and set(X.dims) <= set(IMAGE_DIMS)
    if not has_names and looks_channels_first(images.shape):
        raise DataError(
            f"X has shape {images.shape}. It looks channels-first (image, channel, y, x), and must "
            "be (image, y, x, channel). Pass X.transpose(0, 2, 3, 1)."
        )


def _check_shape(images: Images, training: Images, purpose: str) -> None:
    """Raise DataError if images have a different shape from the training images."""
    if images.shape[1:] != training.shape[1:]:
        raise DataError(
            f"{purpose.capitalize()} images are {images.shape[1:]} and training images are "
            f"{training.shape[1:]} (height, width, channels). Give images of one shape."
        )
