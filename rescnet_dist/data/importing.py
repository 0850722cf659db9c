"""Import of any source to one Zarr store: parallel, resumable and atomic.

Chunks of rows are written as they are decoded. Each finished task writes a small record, by which
an interrupted import is resumed. Readers see no data set before the metadata of its group, which is
a single object and is written last.
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
from rescnet_dist.data.sources import DecodeOptions, Reader, Source, decode, infer_image_format
from rescnet_dist.data.stored import DATASET_FORMAT, UNFINISHED_FILE
from rescnet_dist.errors import DataError, StoreError, mask_secrets
from rescnet_dist.store import IMAGE_DIMS, Claim, Location, with_retries, write_region

DATASET_FORMAT_VERSION = 1
IMPORT_CHUNK_BYTES = 2 * 2**20  # of images, before compression
MAX_TASK_CHUNKS = 4  # that one task writes
MAX_TASK_BYTES = 2**26  # of decoded images in a task of more than one chunk
TASKS_PER_THREAD = 4  # of the cluster, submitted at a time
LABEL_CHUNK_IMAGES = 65_536
SKIPPED_FILE = "import-skipped.json"
MAX_RECORDED_IMAGES = 1000  # of those left out, in the attributes
MAX_LISTED_IMAGES = 20  # that cannot be used, in an error message
FILE_FIELDS = {"splits", "labels", "classes", "files"}  # of a record, set by the source's files
FIELD_DESCRIPTIONS = {
    "source": "its source",
    "shape": "the shape of its images",
    "dtype": "the type of its images",
    "chunk": "chunk_images",
}

OnError = Literal["error", "skip"]
Progress = Callable[[int, int], object]  # called with the number of images done and of all images
Array = np.ndarray[Any, np.dtype[Any]]
BadImage = tuple[int, str, str]  # the number of an image in its source, its name, and a reason
Skipped = dict[int, tuple[str, str]]  # name and reason, by the number of the image in its source


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import.

    Attributes
    ----------
    url : str
        The URL of the data set.
    splits : dict of str to int
        The number of images of each split.
    classes : tuple
        The class names.
    image_shape : tuple of int
        The shape (H, W, d) of an image.
    dtype : str
        The dtype of the pixels.
    skipped : tuple of (str, str)
        Name and reason of each image that was left out.
    passed_over : tuple of str
        The paths of files among the images whose type is not supported.
    """

    url: str
    splits: dict[str, int]
    classes: tuple[Any, ...]
    image_shape: tuple[int, int, int]
    dtype: str
    skipped: tuple[tuple[str, str], ...] = ()
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """The options that all tasks of an import share."""

    dest: Location
    options: DecodeOptions
    shape: tuple[int, int, int]
    dtype: str
    chunk: int

    @property
    def task(self) -> int:
        """The number of rows that a task writes."""
        chunk_bytes = self.chunk * math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return self.chunk * max(1, min(MAX_TASK_CHUNKS, MAX_TASK_BYTES // chunk_bytes))


@dataclass(frozen=True, slots=True)
class Piece:
    """Images of one split that a task reads, and which of them it writes, (n,) bool.

    `number` is that of the first image in the source.
    """

    number: int
    read: Reader
    selected: Array


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
) -> ImportResult:
    """Import the images of a source to a new Zarr store.

    Images are bad if they cannot be decoded, are of another shape than the first one, or have
    values that are not finite. An interrupted import is resumed by the same call, and the same
    source gives the same bits, whether it was interrupted or not.

    Parameters
    ----------
    source : str or path
        A data set, as for `open_dataset`.
    dest : str or path
        The URL of the new store, at any location that fsspec supports.
    client : distributed.Client, optional
        A client of the Dask cluster that runs the import. By default the current one, or else a
        local cluster.
    resize : tuple of int, optional
        Height and width to which images are resized.
    channels : {"gray", "color"}, optional
        Whether images are converted to gray or to color.
    on_error : {"error", "skip"}, default="error"
        Whether bad images raise an error that lists them, or are left out.
    chunk_images : int, optional
        The number of images per chunk. By default chunks have about 2 MiB.
    progress : callable, optional
        Called with the number of images done and of all images.

    Returns
    -------
    ImportResult
        The splits and classes of the data set, and the images that were left out.

    Raises
    ------
    DataError
        If the source cannot be read, has no labels or, with ``on_error="error"``, bad images.
    SpecError
        If `resize` or `channels` is invalid.
    StoreError
        If `dest` holds something else than the same import, unfinished.

    Examples
    --------
    >>> import_dataset("photos", "photos.zarr", resize=(32, 32))  # doctest: +SKIP
    """
    location, options = Location.of(dest), DecodeOptions(resize, channels)  # type: ignore[arg-type]
    opened = open_source(os.fspath(source))
    if not opened.labels:
        raise DataError(
            f"{opened.url} has no labels. Put its images into folders named after their classes."
        )
    shape, dtype = infer_image_format(opened, options)
    per_chunk = IMPORT_CHUNK_BYTES // max(1, int(np.prod(shape)) * dtype.itemsize)
    chunk = chunk_images or max(1, min(per_chunk, opened.count))
    job = Job(location, options, shape, dtype.str, chunk)
    report = progress or (lambda done, total: None)
    _check_free(job)
    with (
        nullcontext(client) if client else current_client(processes=True) as client,
        translate_errors(client, "run the same import again"),
        Claim.take(location).hold(),  # Of two imports to one location, the second fails.
    ):
        _start_or_resume(job, opened)
        skipped = _read_skipped(job, on_error)
        while not _is_complete(job) and (
            bad := _write_images(job, opened, client, skipped, report)
        ):
            if on_error == "error":
                raise DataError(_describe_bad_images(bad, opened, location))
            _skip_images(job, skipped, bad)
        result = _finish(job, opened, os.fspath(source), skipped)
    with_retries((location / "claims").remove, f"cleaning up {location}")
    return result


# starting and resuming --------------------------------------------------------------------------


def _is_complete(job: Job) -> bool:
    """Return whether only the cleanup is left to do, as after a kill at the very end."""
    return "zarr.json" in with_retries(job.dest.names, f"reading {job.dest}")


def _check_free(job: Job) -> None:
    """Raise StoreError if the location holds something else than an unfinished import."""
    names = set(with_retries(job.dest.names, f"reading {job.dest}"))
    if names and UNFINISHED_FILE not in names and names != {"claims"}:
        raise StoreError(f"{job.dest.url} already holds {_describe_contents(job.dest)}")


def _describe_contents(location: Location) -> str:
    """Return what a location holds, and a remedy."""
    try:
        attributes = with_retries(location.attributes, f"reading {location}")
    except StoreError:
        attributes = {}
    if attributes.get("format") != DATASET_FORMAT:
        return "something else. Choose another URL."
    images = sum(stop - start for start, stop in attributes["splits"].values())
    return (
        f"a finished import of {attributes['source']} with {images:,} images. Use it, or choose "
        "another URL."
    )


def _start_or_resume(job: Job, source: Source) -> None:
    """Write the record of an import; raise StoreError if there is one of another import."""
    record = _make_record(job, source)
    existing = with_retries((job.dest / UNFINISHED_FILE).read_json, f"reading {job.dest}")
    if existing is None:
        with_retries(lambda: (job.dest / UNFINISHED_FILE).write_json(record), str(job.dest))
    elif existing != record:
        raise StoreError(
            f"{job.dest.url} has an unfinished import, and {_describe_changes(existing, record)}. "
            "Finish it with its original options, remove it, or choose another URL."
        )


def _describe_changes(existing: Any, record: dict[str, Any]) -> str:
    """Return how an import differs from the unfinished one, without consequences of changes."""
    if not isinstance(existing, dict) or existing.keys() != record.keys():
        return "it was started by another version"
    changed = [name for name in record if existing[name] != record[name]]
    causes = [name for name in changed if name in ("source", "resize", "channels")]
    if "source" not in causes and not FILE_FIELDS.isdisjoint(changed):
        causes.insert(0, "files")
    return ", and ".join(
        "its files have changed"
        if name == "files"
        else f"{FIELD_DESCRIPTIONS.get(name, name)} was {_format_value(existing[name])} and is "
        f"{_format_value(record[name])} now"
        for name in causes or changed
    )


def _format_value(value: Any) -> str:
    """Return a value of a record as text, with sizes as 32×32.

    >>> _format_value([28, 32]), _format_value("gray"), _format_value(None)
    ('28×32', 'gray', 'none')
    """
    if isinstance(value, list):
        return "×".join(map(str, value))
    return "none" if value is None else str(value)


def _make_record(job: Job, source: Source) -> dict[str, Any]:
    """Return the record that must be the same for an import to be resumed."""
    labels = hashlib.sha256()
    for split in source.splits:
        labels.update(np.ascontiguousarray(source.labels[split]).tobytes())
    names = hashlib.sha256(json.dumps([str(name) for name in source.classes]).encode())
    # The attributes of a source have the names, sizes and versions of its files.
    attributes = {name: value for name, value in vars(source).items() if name != "passed_over"}
    files = hashlib.sha256(repr(sorted(attributes.items())).encode())
    return {
        "format": DATASET_FORMAT,
        "source": mask_secrets(source.url),
        "splits": dict(source.splits),
        "labels": labels.hexdigest(),
        "classes": names.hexdigest(),
        "files": files.hexdigest(),
        "resize": list(job.options.resize) if job.options.resize else None,
        "channels": job.options.channels,
        "shape": list(job.shape),
        "dtype": job.dtype,
        "chunk": job.chunk,
    }


def _read_skipped(job: Job, on_error: OnError) -> Skipped:
    """Return the images that an unfinished import has left out so far.

    If no image may be left out, what has been written is removed, and none are.
    """
    listed = with_retries((job.dest / SKIPPED_FILE).read_json, f"reading {job.dest}") or []
    if listed and on_error == "error":
        for name in ("zarr.json", "import", SKIPPED_FILE):  # zarr.json: only the cleanup was left
            with_retries((job.dest / name).remove, f"cleaning up {job.dest}")
        return {}
    return {number: (name, reason) for number, name, reason in listed}


def _read_task_records(job: Job) -> dict[int, list[int]]:
    """Return the records of finished tasks, by their first row."""
    names = with_retries((job.dest / "import").names, f"reading {job.dest}")
    records = {}
    for name in names:
        if name.endswith(".json"):  # Not the partial file of a task that was killed.
            record = with_retries((job.dest / "import" / name).read_json, f"reading {job.dest}")
            records[int(name.removesuffix(".json"))] = record
    return records


def _summarize_task(numbers: Array) -> list[int]:
    """Return the record of a task that wrote images (n,); it changes if more are left out."""
    return [int(numbers[0]), int(numbers[-1]), len(numbers)]


# writing images ---------------------------------------------------------------------------------


def _write_images(
    job: Job, source: Source, client: Client, skipped: Skipped, report: Progress
) -> list[BadImage]:
    """Write all images except the skipped ones; return bad images, whose tasks wrote nothing."""
    numbers = np.setdiff1d(np.arange(source.count), np.fromiter(skipped, np.int64, len(skipped)))
    if not len(numbers):
        raise DataError(f"{source.url} has no image that can be used.")
    _create_or_resize_array(job, len(numbers))
    records, bad = _read_task_records(job), list[BadImage]()
    tasks = {start: numbers[start : start + job.task] for start in range(0, len(numbers), job.task)}
    remaining = {
        start: task for start, task in tasks.items() if records.get(start) != _summarize_task(task)
    }
    finished = len(numbers) - sum(map(len, remaining.values()))
    report(finished, len(numbers))
    completed, running = as_completed(loop=client.loop), dict[Future, int]()
    waiting = iter(remaining)

    def submit(count: int) -> None:
        for start in islice(waiting, count):
            pieces = _make_pieces(source, remaining[start])
            future = client.submit(_write_rows, job, pieces, start, pure=False)
            running[future] = start
            completed.add(future)

    try:
        submit(_count_submitted_tasks(client))
        for future in completed:
            bad += future.result()
            finished += len(remaining[running.pop(future)])
            report(finished, len(numbers))
            submit(max(0, _count_submitted_tasks(client) - len(running)))
    finally:
        client.cancel(list(running))  # those that wait, if one has failed
    return sorted(bad)


def _count_submitted_tasks(client: Client) -> int:
    """Return how many tasks keep all workers busy, and let an adaptive cluster grow."""
    return TASKS_PER_THREAD * (1 + sum(client.nthreads().values()))


def _make_pieces(source: Source, numbers: Array) -> list[Piece]:
    """Return the pieces that read the images of these numbers (n,)."""
    pieces, first = [], 0
    for split, count in source.splits.items():
        in_split = numbers[(numbers >= first) & (numbers < first + count)] - first
        if len(in_split):
            start, stop = int(in_split[0]), int(in_split[-1]) + 1
            selected = np.isin(np.arange(start, stop), in_split)
            pieces.append(Piece(first + start, source.reader(split, start, stop), selected))
        first += count
    return pieces


def _create_or_resize_array(job: Job, rows: int) -> None:
    """Create the array of images, or change its length if it exists."""
    shape, description = (rows, *job.shape), f"images of {job.dest}"
    if "images" not in with_retries(job.dest.names, f"reading {job.dest}"):
        # Records without an array are of no use.
        with_retries((job.dest / "import").remove, f"cleaning up {job.dest}")
        create = (job.dest / "images").create_array  # without the group, which is written last
        with_retries(
            lambda: create("", shape, job.dtype, job.chunk, IMAGE_DIMS, compress=True), description
        )
        return
    array = with_retries(lambda: job.dest.open_array("images", write=True), description)
    if array.shape[0] != rows:
        with_retries(lambda: array.resize(shape), description)


def _write_rows(job: Job, pieces: list[Piece], start: int) -> list[BadImage]:
    """Decode images on a worker and write them as the rows from `start`; return bad images.

    If there are any bad images, neither rows nor a record are written.
    """
    images, bad = [], list[BadImage]()
    for piece in pieces:
        block = decode(piece.read(), job.options, job.shape, np.dtype(job.dtype))
        selected = piece.selected
        images.append(block.images if selected.all() else block.images[selected[block.good]])
        bad += [
            (piece.number + number, mask_secrets(name), reason)
            for number, name, reason in block.bad
            if selected[number]
        ]
    if bad:
        return bad
    rows = images[0] if len(images) == 1 else np.concatenate(images)
    array = job.dest.open_array("images", write=True)
    with_retries(lambda: write_region(array, start, rows), f"images of {job.dest}")
    record = job.dest / "import" / f"{start:012d}.json"
    numbers = np.concatenate([piece.number + np.flatnonzero(piece.selected) for piece in pieces])
    with_retries(lambda: record.write_json(_summarize_task(numbers)), str(record))
    return []


def _skip_images(job: Job, skipped: Skipped, bad: list[BadImage]) -> None:
    """Add bad images to those that are left out."""
    skipped.update({number: (name, reason) for number, name, reason in bad})
    listed = [[number, name, reason] for number, (name, reason) in sorted(skipped.items())]
    with_retries(lambda: (job.dest / SKIPPED_FILE).write_json(listed), f"writing {job.dest}")


def _describe_bad_images(bad: list[BadImage], source: Source, location: Location) -> str:
    """Return the message for images that cannot be used."""
    listed = "\n".join(f"  {name}: {reason}" for _, name, reason in bad[:MAX_LISTED_IMAGES])
    hidden = len(bad) - MAX_LISTED_IMAGES
    more = f"\n  and {hidden:,} more" if hidden > 0 else ""
    return (
        f"{len(bad):,} of {source.count:,} images cannot be used:\n{listed}{more}\n"
        "Fix them and run this import again; or leave them out by --on-error skip, or make sizes "
        f"equal by --resize. The images imported so far are kept at {location.url}."
    )


# finishing --------------------------------------------------------------------------------------


def _finish(job: Job, source: Source, url: str, skipped: Skipped) -> ImportResult:
    """Write labels, then the group's metadata, which completes the data set, and clean up."""
    skipped_numbers, first = np.fromiter(skipped, np.int64, len(skipped)), 0
    labels, ranges, row = [], {}, 0
    for split, count in source.splits.items():
        index = np.setdiff1d(np.arange(first, first + count), skipped_numbers) - first
        labels.append(source.labels[split][index])
        ranges[split] = (row, row + len(index))
        first, row = first + count, row + len(index)
    codes = np.concatenate(labels).astype(np.int32)
    location, chunk = job.dest / "labels", min(LABEL_CHUNK_IMAGES, row)

    def write_labels() -> None:
        location.create_array("", (row,), "int32", chunk, ("image",), compress=True)
        write_region(location.open_array(write=True), 0, codes)

    with_retries(write_labels, f"labels of {job.dest}")
    skipped_images = [skipped[number] for number in sorted(skipped)]
    attributes = {
        "format": DATASET_FORMAT,
        "format_version": DATASET_FORMAT_VERSION,
        "source": mask_secrets(url),
        "class_names": list(source.classes),
        "splits": {split: list(rows) for split, rows in ranges.items()},
        "skipped": len(skipped),
        "skipped_images": skipped_images[:MAX_RECORDED_IMAGES],
    }
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    with_retries(lambda: (job.dest / "zarr.json").write_json(group), f"attributes of {job.dest}")
    for name in ("import", UNFINISHED_FILE, SKIPPED_FILE):  # The last is needed until the end.
        with_retries((job.dest / name).remove, f"cleaning up {job.dest}")
    return ImportResult(
        str(job.dest),
        {split: stop - start for split, (start, stop) in ranges.items()},
        source.classes,
        job.shape,
        job.dtype,
        tuple(skipped_images),
        source.passed_over,
    )
