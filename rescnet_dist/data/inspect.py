"""Summaries of datasets, with warnings: duplicates, class imbalance, constant images."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.delayed import delayed

from rescnet_dist.data.dataset import open_dataset
from rescnet_dist.data.kinds import is_xarray_dataset
from rescnet_dist.data.stored import find_stored
from rescnet_dist.errors import DataError
from rescnet_dist.store import Location

if TYPE_CHECKING:
    import xarray as xr

IMBALANCE_RATIO = 10  # of the largest class to the smallest, above which there is a warning
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A summary of a dataset.

    Attributes
    ----------
    images : int
        The number of images.
    image_shape : tuple of int
        The shape (H, W, d) of an image.
    dtype : str
        The dtype of the pixels.
    chunk_images : int
        The number of images per chunk.
    stored_bytes, decoded_bytes : int
        The size of the dataset as it is stored, None if unknown, and decoded.
    splits : dict of str to int
        The number of images of each split.
    classes : dict of str to dict
        The number of images of each class, by split.
    skipped : int
        The number of images that the import has left out.
    skipped_images : list of (str, str)
        Name and reason of the first of these.
    warnings : list of str
        Problems found in the images and labels.
    """

    images: int
    image_shape: tuple[int, int, int]
    dtype: str
    chunk_images: int
    stored_bytes: int | None
    decoded_bytes: int
    splits: dict[str, int]
    classes: dict[str, dict[str, int]]
    skipped: int
    skipped_images: list[tuple[str, str]]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-serializable values."""
        return asdict(self)


def inspect_dataset(source: str | os.PathLike[str] | xr.Dataset) -> DatasetInfo:
    """Read all images of a dataset once, in parallel, and return a summary."""
    dataset = open_dataset(source)
    if "labels" not in dataset:
        raise DataError("The dataset has no variable with labels. Name it labels or label.")
    images, labels = dataset["images"].chunk(), dataset["labels"].to_numpy()
    names = dataset.attrs.get("class_names") or sorted(np.unique(labels).tolist())
    codes = labels if "class_names" in dataset.attrs else np.searchsorted(names, labels)
    split_names = (
        dataset["split"].to_numpy() if "split" in dataset.coords else np.full(len(labels), "all")
    )
    splits = [name for name in ("train", "val", "test", "all") if (split_names == name).any()]
    counts = {
        split: np.bincount(codes[split_names == split], minlength=len(names)).tolist()
        for split in splits
    }
    hashes, is_constant = _scan_images(images.data)
    _, height, width, channels = images.shape
    url = None if is_xarray_dataset(source) else os.fspath(source)
    stored = find_stored(url) if url else None
    return DatasetInfo(
        images=images.shape[0],
        image_shape=(height, width, channels),
        dtype=str(images.dtype),
        chunk_images=images.data.chunks[0][0],
        stored_bytes=_get_stored_bytes(url),
        decoded_bytes=images.nbytes,
        splits={split: int((split_names == split).sum()) for split in splits},
        classes={
            str(name): {split: counts[split][code] for split in splits}
            for code, name in enumerate(names)
        },
        skipped=stored.skipped if stored else 0,
        skipped_images=stored.skipped_images if stored else [],
        warnings=[
            *_warn_duplicates(hashes, split_names, splits),
            *_warn_imbalance(counts, names),
            *_warn_constant(is_constant),
        ],
    )


def _get_stored_bytes(url: str | None) -> int | None:
    """Return the number of bytes stored at a URL; None if it is a name."""
    return Location.of(url).size() if url and ("/" in url or os.path.exists(url)) else None


def _scan_images(images: Any) -> tuple[Array, Array]:
    """Return a hash (N,) uint64 of each image, and whether it has a single color, (N,) bool."""
    blocks = images.rechunk({1: -1, 2: -1, 3: -1}).to_delayed().reshape(-1)
    results = dask.compute(*(delayed(_scan_block)(block) for block in blocks))
    hashes, is_constant = zip(*results, strict=True)
    return np.concatenate(hashes), np.concatenate(is_constant)


def _scan_block(images: Array) -> tuple[Array, Array]:
    """Return the hashes and flags of `_scan_images` for a block of images (n, H, W, d)."""
    flat = np.ascontiguousarray(images).reshape(len(images), -1)
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in flat)
    pixels = images.reshape(len(images), -1, images.shape[-1])
    is_constant = (pixels == pixels[:, :1]).all(axis=(1, 2))
    return np.frombuffer(digests, np.uint64), is_constant


def _warn_duplicates(hashes: Array, split_names: Array, splits: list[str]) -> list[str]:
    """Return warnings about equal images within a split, and in a split and the first one."""
    warnings = []
    for split in splits:
        of_split = hashes[split_names == split]
        duplicates = len(of_split) - len(np.unique(of_split))
        if duplicates:
            warnings.append(f"{duplicates:,} images of {split} are copies of others of {split}.")
    for split in splits[1:]:
        is_shared = np.isin(hashes[split_names == split], hashes[split_names == splits[0]])
        if is_shared.any():
            first = int(np.flatnonzero(split_names == split)[np.flatnonzero(is_shared)[0]])
            warnings.append(
                f"{int(is_shared.sum()):,} images of {split} are also in {splits[0]} (the first is "
                f"image {first}). The accuracy on them is meaningless."
            )
    return warnings


def _warn_imbalance(counts: dict[str, list[int]], names: Any) -> list[str]:
    """Return warnings about splits whose classes differ much in size."""
    warnings = []
    for split, per_class in counts.items():
        smallest, largest = int(np.argmin(per_class)), int(np.argmax(per_class))
        if per_class[largest] > IMBALANCE_RATIO * per_class[smallest]:
            warnings.append(
                f"{split} has {per_class[largest]:,} images of {names[largest]!r} and "
                f"{per_class[smallest]:,} of {names[smallest]!r}, more than {IMBALANCE_RATIO} "
                "times as many."
            )
    return warnings


def _warn_constant(is_constant: Array) -> list[str]:
    """Return a warning about images with a single color, if there are any."""
    if not is_constant.any():
        return []
    first = int(np.flatnonzero(is_constant)[0])
    count = int(is_constant.sum())
    return [f"{count:,} images have a single color (the first is image {first})."]
