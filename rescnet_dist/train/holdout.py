"""Hold images out for validation, and index the rows: those images, and the others with copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from rescnet_dist.data import RowTable, choose_held_out_groups, select_validation
from rescnet_dist.errors import DataError
from rescnet_dist.store import Checksums, RunStore, read_region, with_retries
from rescnet_dist.train.chunks import Array, write

MOST_COUNTS = 10_000_000  # groups × classes that a worker keeps count of


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Which images are not trained on: those behind the first `train_count`, and a share of these,
    drawn by the seed, in whole groups if the run has any."""

    train_count: int
    validation: float
    seed: int
    classes: int
    by_group: bool = False


def hold_out(run: RunStore, how: HoldOut, copies: int) -> tuple[RowTable, Array]:
    """Write which images are trained on; returns the table of all rows and how many images of each
    class (C,) are trained on. Runs on a worker, on one block of labels after the other."""
    target, seen = run.data_array("train", write=True), np.zeros(how.classes, np.int64)
    groups = _held_out_groups(run, how) if how.by_group else None
    trained, lengths, checksums = np.zeros_like(seen), [], Checksums()
    for start, codes in _blocks(run, "data/labels"):
        train = np.arange(start, start + len(codes)) < how.train_count
        if groups is not None:
            of_block = _read(run, "work/groups", start, start + len(codes))
            train &= ~np.isin(of_block, groups)
        elif how.validation > 0:
            train &= ~select_validation(codes, seen, how.validation, how.seed)
        write(target, start, train, run)
        seen += np.bincount(codes, minlength=how.classes)
        trained += np.bincount(codes[train], minlength=how.classes)
        lengths.append(len(codes) + copies * int(train.sum()))
        checksums = checksums.plus({"data/labels": codes, "data/train": train})
    starts = tuple(accumulate(lengths, initial=0))
    images, block = target.shape[0], target.chunks[0]
    return RowTable(images, copies, block, starts, checksums.chunks), trained


def _held_out_groups(run: RunStore, how: HoldOut) -> Array:
    """The groups (g,) that are held out, from how many images of each class they have."""
    counts: dict[int, Array] = {}
    for start, codes in _blocks(run, "data/labels"):
        groups, location = np.unique(
            _read(run, "work/groups", start, start + len(codes)), return_inverse=True
        )
        if (len(counts) + len(groups)) * how.classes > MOST_COUNTS:
            raise DataError(
                f"more than {MOST_COUNTS // how.classes:,} groups of {how.classes} classes cannot "
                "be split at a time: give larger groups, or a validation set"
            )
        found = np.bincount(location * how.classes + codes, minlength=len(groups) * how.classes)
        for group, of_class in zip(groups.tolist(), found.reshape(-1, how.classes), strict=True):
            counts[group] = counts.get(group, 0) + of_class
    if len(counts) == 1:
        raise DataError(
            f"validation={how.validation} by group: all {how.train_count:,} images are of one "
            "group, which is not split; give groups that differ, none, or a validation set"
        )
    return np.array(sorted(choose_held_out_groups(counts, how.validation, how.seed)), np.int64)


def _blocks(run: RunStore, path: str) -> Iterator[tuple[int, Array]]:
    """First image and values of each chunk of an array of the run."""
    array = run.location.open_array(path)
    for start in range(0, array.shape[0], array.chunks[0]):
        yield start, _read(run, path, start, min(start + array.chunks[0], array.shape[0]))


def _read(run: RunStore, path: str, start: int, stop: int) -> Array:
    return with_retries(
        lambda: read_region(run.location.open_array(path), start, stop), f"reading {path} of {run}"
    )
