"""What is in a data set, and what should make one wary: duplicates, imbalance, constant images."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from typing import Any

import dask
import numpy as np
import xarray as xr
from dask.delayed import delayed

from rescnet_dist.data.dataset import open_dataset
from rescnet_dist.data.stored import find_stored
from rescnet_dist.errors import DataError
from rescnet_dist.store import Location

IMBALANCE = 10  # times as many images in the largest class as in the smallest
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A data set in numbers: images by split and class, shape (H, W, d), type, images per chunk,
    bytes stored and decoded; how many images its import has left out, name and reason of the first
    of them, and warnings in words."""

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
        """All of it as plain values."""
        return asdict(self)


def inspect_dataset(source: str | os.PathLike[str] | xr.Dataset) -> DatasetInfo:
    """Read all images of a data set once, in parallel, and tell what is in it."""
    dataset = open_dataset(source)
    if "labels" not in dataset:
        raise DataError("the data set has no labels variable: name it labels or label")
    images, labels = dataset["images"].chunk(), dataset["labels"].to_numpy()
    names = dataset.attrs.get("class_names") or sorted(np.unique(labels).tolist())
    codes = labels if "class_names" in dataset.attrs else np.searchsorted(names, labels)
    split_of = (
        dataset["split"].to_numpy() if "split" in dataset.coords else np.full(len(labels), "all")
    )
    splits = [name for name in ("train", "val", "test", "all") if (split_of == name).any()]
    counts = {
        split: np.bincount(codes[split_of == split], minlength=len(names)).tolist()
        for split in splits
    }
    hashes, constant = _looked_at(images.data)
    _, height, width, channels = images.shape
    where = None if isinstance(source, xr.Dataset) else os.fspath(source)
    stored = find_stored(where) if where else None
    return DatasetInfo(
        images=images.shape[0],
        image_shape=(height, width, channels),
        dtype=str(images.dtype),
        chunk_images=images.data.chunks[0][0],
        stored_bytes=_stored_bytes(where),
        decoded_bytes=images.nbytes,
        splits={split: int((split_of == split).sum()) for split in splits},
        classes={
            str(name): {split: counts[split][code] for split in splits}
            for code, name in enumerate(names)
        },
        skipped=stored.skipped if stored else 0,
        skipped_images=stored.skipped_images if stored else [],
        warnings=[
            *_duplicates(hashes, split_of, splits),
            *_imbalance(counts, names),
            *_constant(constant),
        ],
    )


def _stored_bytes(url: str | None) -> int | None:
    return Location.of(url).size() if url and ("/" in url or os.path.exists(url)) else None


def _looked_at(images: Any) -> tuple[Array, Array]:
    """A hash (N,) uint64 of each image and whether it is of one color only, (N,) bool."""
    blocks = images.rechunk({1: -1, 2: -1, 3: -1}).to_delayed().reshape(-1)
    found = dask.compute(*(delayed(_look)(block) for block in blocks))
    hashes, constant = zip(*found, strict=True)
    return np.concatenate(hashes), np.concatenate(constant)


def _look(images: Array) -> tuple[Array, Array]:
    flat = np.ascontiguousarray(images).reshape(len(images), -1)
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in flat)
    pixels = images.reshape(len(images), -1, images.shape[-1])
    constant = (pixels == pixels[:, :1]).all(axis=(1, 2))
    return np.frombuffer(digests, np.uint64), constant


def _duplicates(hashes: Array, split_of: Array, splits: list[str]) -> list[str]:
    found = []
    for split in splits:
        within = int((split_of == split).sum() - len(np.unique(hashes[split_of == split])))
        if within:
            found.append(f"{within:,} images of {split} are copies of others of {split}")
    for split in splits[1:]:
        shared = np.isin(hashes[split_of == split], hashes[split_of == splits[0]])
        if shared.any():
            number = int(np.flatnonzero(split_of == split)[np.flatnonzero(shared)[0]])
            found.append(
                f"{int(shared.sum()):,} images of {split} are also in {splits[0]} (the first is "
                f"image {number}): accuracy on them says nothing"
            )
    return found


def _imbalance(counts: dict[str, list[int]], names: Any) -> list[str]:
    found = []
    for split, per_class in counts.items():
        least, most = int(np.argmin(per_class)), int(np.argmax(per_class))
        if per_class[most] > IMBALANCE * per_class[least]:
            found.append(
                f"{split} has {per_class[most]:,} images of {names[most]!r} and "
                f"{per_class[least]:,} of {names[least]!r}: more than {IMBALANCE} times as many"
            )
    return found


def _constant(constant: Array) -> list[str]:
    if not constant.any():
        return []
    first = int(np.flatnonzero(constant)[0])
    return [f"{int(constant.sum()):,} images have one color only (the first is image {first})"]
