"""Import: any source to one Zarr store, in parallel, resumable, and whole or not there at all.

Chunks of rows are written as they are decoded; each finished task leaves a small record, by which
an import that was killed goes on. Readers see no data set before its group's metadata, which is one
object, written last.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
from distributed import Client, Future, as_completed

from rescnet_dist.cluster import current_client, translate_errors
from rescnet_dist.data.dataset import open_source
from rescnet_dist.data.sources import Reader, Source, Wanted, decode, first_image
from rescnet_dist.data.stored import FORMAT, UNFINISHED
from rescnet_dist.errors import DataError, StoreError, mask_secrets
from rescnet_dist.store import IMAGE_DIMS, Claim, Location, with_retries, write_region

FORMAT_VERSION = 1
CHUNK_BYTES = 2 * 2**20  # of images, before compression
TASK_CHUNKS = 4  # that one task writes at most
TASKS_AHEAD = 4  # for each thread of the cluster, that wait there
TASK_BYTES = 2**26  # of decoded images that a task holds, if that is more than one chunk
LABEL_CHUNK = 65_536
SKIPPED = "import-skipped.json"
MOST_NAMED = 1000  # of images that were left out, in the attributes
SHOWN = 20  # of images that cannot be used, in an error
FILES = {"splits", "labels", "classes", "files"}  # of a record, what the files of a source make
NAMES = {
    "source": "its source",
    "shape": "the shape of its images",
    "dtype": "the type of its images",
    "chunk": "chunk_images",
}

OnError = Literal["error", "skip"]
Progress = Callable[[int, int], object]  # images done, of how many
Array = np.ndarray[Any, np.dtype[Any]]
Skipped = dict[int, tuple[str, str]]  # name and reason, by the number of the image in its source


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has written: images by split, classes, shape (H, W, d) and type, (name,
    reason) of what was left out, and paths of files among the images that are of no kind that is
    read."""

    url: str
    splits: dict[str, int]
    classes: tuple[Any, ...]
    image_shape: tuple[int, int, int]
    dtype: str
    skipped: tuple[tuple[str, str], ...] = ()
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of an import knows."""

    dest: Location
    wanted: Wanted
    shape: tuple[int, int, int]
    dtype: str
    chunk: int

    @property
    def task(self) -> int:
        """Rows that a task writes."""
        size = self.chunk * math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return self.chunk * max(1, min(TASK_CHUNKS, TASK_BYTES // size))


@dataclass(frozen=True, slots=True)
class Piece:
    """Images of one split that a task reads, from the one of this number in the source on, and
    which of them it writes, (n,) bool."""

    number: int
    read: Reader
    kept: Array


def import_dataset(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    client: Client | None = None,
    *,
    resize: tuple[int, int] | None = None,
    channels: str | None = None,
    on_error: OnError = "error",
    chunk_images: int | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Write the images of a source, as `open_dataset` takes one, to a new Zarr store at `dest`.

    Images that cannot be decoded, are of another shape than the first, or have values that are not
    finite, are an error that names them, or are left out. The same source gives the same bits,
    however it was interrupted. client: of the Dask cluster that does it; the current one by
    default, or else an embedded one.
    """
    location, wanted = Location.of(dest), Wanted(resize, channels)  # type: ignore[arg-type]
    found = open_source(os.fspath(source))
    if not found.labels:
        raise DataError(
            f"{found.url} has no labels: put its images into folders named after their classes"
        )
    shape, dtype = first_image(found, wanted)
    per_chunk = CHUNK_BYTES // max(1, int(np.prod(shape)) * dtype.itemsize)
    job = Job(
        location, wanted, shape, dtype.str, chunk_images or max(1, min(per_chunk, found.count))
    )
    report = progress or (lambda done, total: None)
    _check_free(job)
    with (
        nullcontext(client) if client else current_client(processes=True) as client,
        translate_errors(client, "run the same import again"),
        Claim.take(location).kept(),  # of two imports to one place, the second is refused
    ):
        _begin(job, found)
        skipped = _left_out(job, on_error)
        while not _is_whole(job) and (bad := _write_images(job, found, client, skipped, report)):
            if on_error == "error":
                raise DataError(_refusal(bad, found, location))
            _drop(job, skipped, bad)
        imported = _finish(job, found, os.fspath(source), skipped)
    with_retries((location / "claims").remove, f"tidying {location}")
    return imported


# beginning and going on -------------------------------------------------------------------------


def _is_whole(job: Job) -> bool:
    """Whether all that is left to do is to tidy up, as after a kill at the very end."""
    return "zarr.json" in with_retries(job.dest.names, f"reading {job.dest}")


def _check_free(job: Job) -> None:
    """Refuse a place that holds something else than an import that was begun."""
    names = set(with_retries(job.dest.names, f"reading {job.dest}"))
    if names and UNFINISHED not in names and names != {"claims"}:
        raise StoreError(f"{job.dest.url} already holds {_held(job.dest)}")


def _held(location: Location) -> str:
    """What a place holds, and what can be done with that."""
    try:
        attributes = with_retries(location.attributes, f"reading {location}")
    except StoreError:
        attributes = {}
    if attributes.get("format") != FORMAT:
        return "something: choose another URL"
    images = sum(stop - start for start, stop in attributes["splits"].values())
    return (
        f"a finished import of {attributes['source']} with {images:,} images: use it, or choose "
        "another URL"
    )


def _begin(job: Job, source: Source) -> None:
    """Note what is imported, or find that the same was begun; something else is refused."""
    record = _fingerprint(job, source)
    begun = with_retries((job.dest / UNFINISHED).read_json, f"reading {job.dest}")
    if begun is None:
        with_retries(lambda: (job.dest / UNFINISHED).write_json(record), str(job.dest))
    elif begun != record:
        raise StoreError(
            f"{job.dest.url} has an import that was not finished, and {_changes(begun, record)}: "
            "finish it as it was begun, remove it, or choose another URL"
        )


def _changes(begun: Any, now: dict[str, Any]) -> str:
    """In what an import differs from one that was begun, but for what follows from the rest."""
    if not isinstance(begun, dict) or begun.keys() != now.keys():
        return "it was begun by another version"
    changed = [name for name in now if begun[name] != now[name]]
    causes = [name for name in changed if name in ("source", "resize", "channels")]
    if "source" not in causes and not FILES.isdisjoint(changed):
        causes.insert(0, "files")
    return ", and ".join(
        "its files have changed"
        if name == "files"
        else f"{NAMES.get(name, name)} was {_shown(begun[name])} and is {_shown(now[name])} now"
        for name in causes or changed
    )


def _shown(value: Any) -> str:
    """A value of a record, sizes as 32×32.

    >>> _shown([28, 32]), _shown("gray"), _shown(None)
    ('28×32', 'gray', 'none')
    """
    if isinstance(value, list):
        return "×".join(map(str, value))
    return "none" if value is None else str(value)


def _fingerprint(job: Job, source: Source) -> dict[str, Any]:
    """What must be the same for an import to go on."""
    labels = hashlib.sha256()
    for split in source.splits:
        labels.update(np.ascontiguousarray(source.labels[split]).tobytes())
    names = hashlib.sha256(json.dumps([str(name) for name in source.classes]).encode())
    told = {name: value for name, value in vars(source).items() if name != "passed_over"}
    files = hashlib.sha256(repr(sorted(told.items())).encode())  # names, sizes, versions
    return {
        "format": FORMAT,
        "source": mask_secrets(source.url),
        "splits": dict(source.splits),
        "labels": labels.hexdigest(),
        "classes": names.hexdigest(),
        "files": files.hexdigest(),
        "resize": list(job.wanted.resize) if job.wanted.resize else None,
        "channels": job.wanted.channels,
        "shape": list(job.shape),
        "dtype": job.dtype,
        "chunk": job.chunk,
    }


def _left_out(job: Job, on_error: OnError) -> Skipped:
    """The images that an import that is gone on with has left out so far; where none may be, it is
    begun anew."""
    listed = with_retries((job.dest / SKIPPED).read_json, f"reading {job.dest}") or []
    if listed and on_error == "error":
        for name in ("zarr.json", "import", SKIPPED):  # it may have been whole but for the tidying
            with_retries((job.dest / name).remove, f"tidying {job.dest}")
        return {}
    return {number: (name, reason) for number, name, reason in listed}


def _records(job: Job) -> dict[int, list[int]]:
    """What finished tasks have left, by their first row."""
    names = with_retries((job.dest / "import").names, f"reading {job.dest}")
    found = {}
    for name in names:
        if name.endswith(".json"):  # and not half of one, of a task that was killed
            record = with_retries((job.dest / "import" / name).read_json, f"reading {job.dest}")
            found[int(name.removesuffix(".json"))] = record
    return found


def _extent(numbers: Array) -> list[int]:
    """What tells which images a task has written: as more are left out, this changes with them."""
    return [int(numbers[0]), int(numbers[-1]), len(numbers)]


# the images -------------------------------------------------------------------------------------


def _write_images(
    job: Job, source: Source, client: Client, skipped: Skipped, report: Progress
) -> list[tuple[int, str, str]]:
    """Write all images but those skipped, by number; returns (number, name, reason) of those that
    cannot be decoded, whose tasks have written nothing."""
    numbers = np.setdiff1d(np.arange(source.count), np.fromiter(skipped, np.int64, len(skipped)))
    if not len(numbers):
        raise DataError(f"{source.url} has no image that can be used")
    _make_room(job, len(numbers))
    records, bad = _records(job), list[tuple[int, str, str]]()
    tasks = {start: numbers[start : start + job.task] for start in range(0, len(numbers), job.task)}
    left = {start: rows for start, rows in tasks.items() if records.get(start) != _extent(rows)}
    finished = len(numbers) - sum(map(len, left.values()))
    report(finished, len(numbers))
    completed, running, waiting = as_completed(loop=client.loop), dict[Future, int](), iter(left)

    def submit(count: int) -> None:
        for start in islice(waiting, count):
            pieces = _pieces(source, left[start])
            future = client.submit(_write_rows, job, pieces, start, pure=False)
            running[future] = start
            completed.add(future)

    try:
        submit(_tasks_at_a_time(client))
        for future in completed:
            bad += future.result()
            finished += len(left[running.pop(future)])
            report(finished, len(numbers))
            submit(max(0, _tasks_at_a_time(client) - len(running)))
    finally:
        client.cancel(list(running))  # those that wait, where one has failed
    return sorted(bad)


def _tasks_at_a_time(client: Client) -> int:
    """As many as keep the workers busy that there are now, and let an adaptive cluster grow."""
    return TASKS_AHEAD * (1 + sum(client.nthreads().values()))


def _pieces(source: Source, numbers: Array) -> list[Piece]:
    """What reads the images of these numbers."""
    pieces, first = [], 0
    for split, count in source.splits.items():
        wanted = numbers[(numbers >= first) & (numbers < first + count)] - first
        if len(wanted):
            low, high = int(wanted[0]), int(wanted[-1]) + 1
            kept = np.isin(np.arange(low, high), wanted)
            pieces.append(Piece(first + low, source.reader(split, low, high), kept))
        first += count
    return pieces


def _make_room(job: Job, rows: int) -> None:
    """Make the array of the images, or change its length if it is there."""
    shape, what = (rows, *job.shape), f"images of {job.dest}"
    if "images" not in with_retries(job.dest.names, f"reading {job.dest}"):
        with_retries((job.dest / "import").remove, f"tidying {job.dest}")  # records of nothing
        create = (job.dest / "images").create_array  # by itself: the group comes last
        with_retries(
            lambda: create("", shape, job.dtype, job.chunk, IMAGE_DIMS, compress=True), what
        )
        return
    array = with_retries(lambda: job.dest.open_array("images", write=True), what)
    if array.shape[0] != rows:
        with_retries(lambda: array.resize(shape), what)


def _write_rows(job: Job, pieces: list[Piece], start: int) -> list[tuple[int, str, str]]:
    """Decode images and write them as the rows from `start`; runs on a worker. Returns those that
    cannot be decoded; if there are any, nothing is written, and no record."""
    images, bad = [], list[tuple[int, str, str]]()
    for piece in pieces:
        block, kept = decode(piece.read(), job.wanted, job.shape, np.dtype(job.dtype)), piece.kept
        images.append(block.images if kept.all() else block.images[kept[block.good]])
        bad += [
            (piece.number + n, mask_secrets(name), why) for n, name, why in block.bad if kept[n]
        ]
    if bad:
        return bad
    rows = images[0] if len(images) == 1 else np.concatenate(images)
    array = job.dest.open_array("images", write=True)
    with_retries(lambda: write_region(array, start, rows), f"images of {job.dest}")
    record = job.dest / "import" / f"{start:012d}.json"
    numbers = np.concatenate([piece.number + np.flatnonzero(piece.kept) for piece in pieces])
    with_retries(lambda: record.write_json(_extent(numbers)), str(record))
    return []


def _drop(job: Job, skipped: Skipped, bad: list[tuple[int, str, str]]) -> None:
    """Leave images out from now on."""
    skipped.update({number: (name, reason) for number, name, reason in bad})
    listed = [[number, *why] for number, why in sorted(skipped.items())]
    with_retries(lambda: (job.dest / SKIPPED).write_json(listed), f"writing {job.dest}")


def _refusal(bad: list[tuple[int, str, str]], source: Source, location: Location) -> str:
    listed = "\n".join(f"  {name}: {reason}" for _, name, reason in bad[:SHOWN])
    more = f"\n  and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
    return (
        f"{len(bad):,} of {source.count:,} images cannot be used:\n{listed}{more}\n"
        f"Mend them and run this again; or leave them out by --on-error skip, or make sizes equal "
        f"by --resize. What is imported already is kept at {location.url}"
    )


# the end ----------------------------------------------------------------------------------------


def _finish(job: Job, source: Source, url: str, skipped: Skipped) -> Imported:
    """Write labels and splits, then what makes all of it a data set, and tidy up."""
    left_out, first = np.fromiter(skipped, np.int64, len(skipped)), 0
    labels, ranges, row = [], {}, 0
    for split, count in source.splits.items():
        kept = np.setdiff1d(np.arange(first, first + count), left_out) - first
        labels.append(source.labels[split][kept])
        ranges[split] = (row, row + len(kept))
        first, row = first + count, row + len(kept)
    codes = np.concatenate(labels).astype(np.int32)
    location, chunk = job.dest / "labels", min(LABEL_CHUNK, row)

    def write_labels() -> None:
        location.create_array("", (row,), "int32", chunk, ("image",), compress=True)
        write_region(location.open_array(write=True), 0, codes)

    with_retries(write_labels, f"labels of {job.dest}")
    attributes = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "source": mask_secrets(url),
        "class_names": list(source.classes),
        "splits": {split: list(rows) for split, rows in ranges.items()},
        "skipped": len(skipped),
        "skipped_images": [skipped[number] for number in sorted(skipped)[:MOST_NAMED]],
    }
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    with_retries(lambda: (job.dest / "zarr.json").write_json(group), f"attributes of {job.dest}")
    for name in ("import", UNFINISHED, SKIPPED):  # what was left out is needed until it is done
        with_retries((job.dest / name).remove, f"tidying {job.dest}")
    return Imported(
        str(job.dest), {split: stop - start for split, (start, stop) in ranges.items()},
        source.classes, job.shape, job.dtype,
        tuple(skipped[number] for number in sorted(skipped)), source.passed_over,
    )  # fmt: skip
