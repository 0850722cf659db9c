"""Split of the images into training and validation, and the index of rows with copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from rescnet_dist.data import RowTable, choose_held_out_groups, select_validation
from rescnet_dist.errors import DataError
from rescnet_dist.store import Checksums, RunStore, read_region, write_region
from rescnet_dist.train.chunks import Array


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Which images are held out: those after the first `train_count`, and a fraction of these.

    The fraction (`validation`) is drawn by the seed, in whole groups with `by_group`.
    """

    train_count: int
    validation: float
    seed: int
    classes: int
    by_group: bool = False


def hold_out(run: RunStore, split: HoldOut, copies: int) -> tuple[RowTable, Array]:
    """Write the mask of training images; runs on a worker, one block of labels at a time.

    Return the table of all rows and the number of training images of each class (C,).
    """
    target, seen = run.data_array("train", write=True), np.zeros(split.classes, np.int64)
    groups = _choose_groups(run, split) if split.by_group else None
    trained, lengths, checksums = np.zeros_like(seen), [], Checksums()
    for start, codes in _read_blocks(run, "data/labels"):
        train = np.arange(start, start + len(codes)) < split.train_count
        if groups is not None:
            block_groups = _read_rows(run, "work/groups", start, start + len(codes))
            train &= ~np.isin(block_groups, groups)
        elif split.validation > 0:
            train &= ~select_validation(codes, seen, split.validation, split.seed)
        write_region(target, start, train)
        seen += np.bincount(codes, minlength=split.classes)
        trained += np.bincount(codes[train], minlength=split.classes)
        lengths.append(len(codes) + copies * int(train.sum()))
        checksums = checksums.plus({"data/labels": codes, "data/train": train})
    starts = tuple(accumulate(lengths, initial=0))
    images, block = target.shape[0], target.chunks[0]
    return RowTable(images, copies, block, starts, checksums.chunks), trained


MAX_GROUP_COUNTS = 10_000_000  # groups × classes that a worker counts


def _choose_groups(run: RunStore, split: HoldOut) -> Array:
    """Choose the groups (g,) to hold out, by the number of images of each class in them."""
    counts: dict[int, Array] = {}
    for start, codes in _read_blocks(run, "data/labels"):
        groups, positions = np.unique(
            _read_rows(run, "work/groups", start, start + len(codes)), return_inverse=True
        )
        if (len(counts) + len(groups)) * split.classes > MAX_GROUP_COUNTS:
            raise DataError(
                f"There are more than {MAX_GROUP_COUNTS // split.classes:,} groups of "
                f"{split.classes} classes, which cannot be split at once. Use larger groups, or "
                "give a validation set."
            )
        block_counts = np.bincount(
            positions * split.classes + codes, minlength=len(groups) * split.classes
        ).reshape(-1, split.classes)
        for group, class_counts in zip(groups.tolist(), block_counts, strict=True):
            counts[group] = counts.get(group, 0) + class_counts
    if len(counts) == 1:
        raise DataError(
            f"validation={split.validation} by group: all {split.train_count:,} images are in one "
            "group, and groups are not split. Give several groups, no groups, or a validation set."
        )
    return np.array(sorted(choose_held_out_groups(counts, split.validation, split.seed)), np.int64)


def _read_blocks(run: RunStore, path: str) -> Iterator[tuple[int, Array]]:
    """Yield the first image and the values of each chunk of an array of the run."""
    array = run.location.open_array(path)
    for start in range(0, array.shape[0], array.chunks[0]):
        yield start, _read_rows(run, path, start, min(start + array.chunks[0], array.shape[0]))


def _read_rows(run: RunStore, path: str, start: int, stop: int) -> Array:
    """Read rows start to stop of an array of the run."""
    return read_region(run.location.open_array(path), start, stop)
