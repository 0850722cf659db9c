"""Datasets of PyTorch and other objects with numbered (image, label) items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.data.classes import classes_array
from rescnet_dist.data.labels import as_labels, encode, find_classes
from rescnet_dist.data.sources.source import Array, NumberedNames, Reader, Samples, Source
from rescnet_dist.errors import DataError


def is_item_dataset(value: Any) -> bool:
    """Return whether a value has numbered items, as a Dataset of PyTorch, and is no array.

    Lists and tuples are arrays.
    """
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    is_array = hasattr(value, "__array__") or isinstance(value, str | bytes | Sequence | Mapping)
    return has_items and not is_array and not hasattr(value, "columns")


class ItemSource(Source):
    """Items (image, label) of a dataset, read by their numbers.

    Images are Pillow images, tensors of PyTorch (channels, H, W) or (H, W), or arrays (H, W, d) or
    (H, W). Labels are the attribute `targets`, if it agrees with the first item; else all items are
    read once for their labels. Items must be the same each time they are read.
    """

    holds_data = True

    def __init__(self, dataset: Any) -> None:
        self.url, self.dataset = f"The {type(dataset).__name__}", dataset
        count = len(dataset)
        if not count:
            raise DataError(f"{self.url} has no items. Give at least one image.")
        self.splits = {"train": count}
        labels = as_labels(_read_labels(self.url, dataset), count)
        classes = classes_array(find_classes(labels))
        self.classes = tuple(classes.tolist())
        self.labels = {"train": np.asarray(encode(labels, classes))}

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the images."""
        return partial(_read, self.url, self.dataset, start, stop)


def _read(url: str, dataset: Any, start: int, stop: int) -> Samples:
    """Return items start to stop, each read when it is needed."""
    names = NumberedNames(f"{url},", start, stop)
    images = (_get_pixels(_get_item(url, dataset, number)[0]) for number in range(start, stop))
    return Samples(images, names)  # type: ignore[arg-type]


def _get_item(url: str, dataset: Any, number: int) -> tuple[Any, Any]:
    """Return image and label of an item; raise DataError if it is no such pair."""
    item = dataset[number]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            f"{url} has items of type {type(item).__name__}. Items must be pairs (image, label)."
        )
    return item[0], item[1]


def _read_labels(url: str, dataset: Any) -> list[Any]:
    """Return the labels of all items, without reading these if the dataset lists them."""
    first = _get_plain(_get_item(url, dataset, 0)[1])
    targets = getattr(dataset, "targets", None)
    if targets is not None and len(targets) == len(dataset) and _get_plain(targets[0]) == first:
        return [_get_plain(target) for target in targets]
    return [_get_plain(label) for label in _iter_labels(url, dataset)]


def _iter_labels(url: str, dataset: Any) -> Iterator[Any]:
    """Yield the label of each item."""
    for number in range(len(dataset)):
        yield _get_item(url, dataset, number)[1]


def _get_plain(label: Any) -> Any:
    """Return a label as a Python object; tensors and NumPy scalars have one value."""
    return label.item() if hasattr(label, "item") else label


def _get_pixels(image: Any) -> Array | DataError:
    """Return the pixels (H, W, d) of an image of any library, or why there are none."""
    is_tensor = hasattr(image, "detach")
    pixels = np.asarray(image.detach().cpu() if is_tensor else image)
    if pixels.ndim == 2:
        return pixels[:, :, np.newaxis]
    if pixels.ndim != 3 or pixels.dtype.kind not in "buif":
        return DataError(
            f"The image has shape {pixels.shape} and dtype {pixels.dtype}. It must be an array of "
            "numbers (H, W, channels) or (H, W), or a tensor (channels, H, W)."
        )
    return np.ascontiguousarray(pixels.transpose(1, 2, 0)) if is_tensor else pixels
