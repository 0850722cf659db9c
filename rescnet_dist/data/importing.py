"""Import of any source to one Zarr store: parallel, resumable and atomic.

Chunks of rows are written as they are decoded. Each finished task writes a small record, by which
an interrupted import is resumed. Readers see no dataset before the metadata of its group, which is
a single object and is written last.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from distributed import Client, Future, as_completed

from rescnet_dist.cluster import current_client, translate_errors
from rescnet_dist.data.dataset import open_source
from rescnet_dist.data.import_record import (
    SKIPPED_FILE,
    BadImage,
    Job,
    OnError,
    Skipped,
    check_free,
    is_complete,
    read_skipped,
    read_task_records,
    skip_images,
    start_or_resume,
    summarize_task,
)
from rescnet_dist.data.sources import DecodeOptions, Reader, Source, decode, infer_image_format
from rescnet_dist.data.stored import UNFINISHED_FILE
from rescnet_dist.errors import DataError, mask_secrets
from rescnet_dist.store import (
    DATASET_FORMAT,
    DATASET_FORMAT_VERSION,
    IMAGE_DIMS,
    Claim,
    Location,
    write_region,
)

IMPORT_CHUNK_BYTES = 2 * 2**20  # of images, before compression
TASKS_PER_THREAD = 4  # of the cluster, submitted at a time
LABEL_CHUNK_IMAGES = 65_536
MAX_RECORDED_IMAGES = 1000  # of those left out, in the attributes
MAX_LISTED_IMAGES = 20  # that cannot be used, in an error message

Progress = Callable[[int, int], object]  # called with the number of images done and of all images
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import.

    Attributes
    ----------
    url : str
        The URL of the dataset.
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
    resize: tuple[int, int] | int | None = None,
    channels: str | None = None,
    on_error: OnError = "error",
    chunk_images: int | None = None,
    progress: Progress | None = None,
) -> ImportResult:
    """Import the images of a source to a new Zarr store.

    Images are bad if they cannot be decoded, have a different shape from the first one, or have
    values that are not finite. An interrupted import is resumed by the same call, and the same
    source gives the same bits, whether it was interrupted or not.

    Parameters
    ----------
    source : str or path
        A dataset, as for `open_dataset`.
    dest : str or path
        The URL of the new store, at any location that fsspec supports.
    client : distributed.Client, optional
        A client of the Dask cluster that runs the import. By default the current one, or else a
        local cluster.
    resize : int or tuple of int, optional
        Side of a square, or height and width, to which images are resized.
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
        The splits and classes of the dataset, and the images that were left out.

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
    options = options.for_source(opened)
    if not opened.labels:
        raise DataError(
            f"{opened.url} has no labels. Put its images into folders named after their classes."
        )
    shape, dtype = infer_image_format(opened, options)
    per_chunk = IMPORT_CHUNK_BYTES // max(1, int(np.prod(shape)) * dtype.itemsize)
    chunk = chunk_images or max(1, min(per_chunk, opened.count))
    job = Job(location, options, shape, dtype.str, chunk)
    report = progress or (lambda done, total: None)
    check_free(job)
    with (
        nullcontext(client) if client else current_client(processes=True) as client,
        translate_errors(client, "run the same import again"),
        Claim.take(location).hold(),  # Of two imports to one location, the second fails.
    ):
        start_or_resume(job, opened)
        skipped = read_skipped(job, on_error)
        while not is_complete(job) and (bad := _write_images(job, opened, client, skipped, report)):
            if on_error == "error":
                raise DataError(_describe_bad_images(bad, opened, location))
            skip_images(job, skipped, bad)
        result = _finish(job, opened, os.fspath(source), skipped)
    (location / "claims").remove()
    return result


# writing images ---------------------------------------------------------------------------------


def _write_images(
    job: Job, source: Source, client: Client, skipped: Skipped, report: Progress
) -> list[BadImage]:
    """Write all images except the skipped ones; return bad images, whose tasks wrote nothing."""
    numbers = np.setdiff1d(np.arange(source.count), np.fromiter(skipped, np.int64, len(skipped)))
    if not len(numbers):
        raise DataError(f"{source.url} has no image that can be used.")
    _create_or_resize_array(job, len(numbers))
    records, bad = read_task_records(job), list[BadImage]()
    tasks = {start: numbers[start : start + job.task] for start in range(0, len(numbers), job.task)}
    remaining = {
        start: task for start, task in tasks.items() if records.get(start) != summarize_task(task)
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
    shape = (rows, *job.shape)
    if "images" not in job.dest.names():
        (job.dest / "import").remove()  # Records without an array are of no use.
        create = (job.dest / "images").create_array  # without the group, which is written last
        create("", shape, job.dtype, job.chunk, IMAGE_DIMS, compress=True)
        return
    array = job.dest.open_array("images", write=True)
    if array.shape[0] != rows:
        array.resize(shape)


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
    write_region(array, start, rows)
    record = job.dest / "import" / f"{start:012d}.json"
    numbers = np.concatenate([piece.number + np.flatnonzero(piece.selected) for piece in pieces])
    record.write_json(summarize_task(numbers))
    return []


def _describe_bad_images(bad: list[BadImage], source: Source, location: Location) -> str:
    """Return the message for images that cannot be used."""
    listed = "\n".join(f"  {name}: {reason}" for _, name, reason in bad[:MAX_LISTED_IMAGES])
    hidden = len(bad) - MAX_LISTED_IMAGES
    more = f"\n  and {hidden:,} more" if hidden > 0 else ""
    return (
        f"{len(bad):,} of {source.count:,} images cannot be used:\n{listed}{more}\n"
        "Fix them and run this import again; or leave them out by --on-error skip "
        '(on_error="skip"), or make sizes equal by --resize (resize=). The images imported so far '
        f"are kept at {location.url}."
    )


# finishing --------------------------------------------------------------------------------------


def _finish(job: Job, source: Source, url: str, skipped: Skipped) -> ImportResult:
    """Write labels, then the group's metadata, which completes the dataset, and clean up."""
    skipped_numbers, first = np.fromiter(skipped, np.int64, len(skipped)), 0
    labels, ranges, row = [], {}, 0
    for split, count in source.splits.items():
        index = np.setdiff1d(np.arange(first, first + count), skipped_numbers) - first
        labels.append(source.labels[split][index])
        ranges[split] = (row, row + len(index))
        first, row = first + count, row + len(index)
    codes = np.concatenate(labels).astype(np.int32)
    location, chunk = job.dest / "labels", min(LABEL_CHUNK_IMAGES, row)
    location.create_array("", (row,), "int32", chunk, ("image",), compress=True)
    write_region(location.open_array(write=True), 0, codes)
    skipped_images = [skipped[number] for number in sorted(skipped)]
    attributes = {
        "format": DATASET_FORMAT,
        "format_version": DATASET_FORMAT_VERSION,
        "source": mask_secrets(url),
        "class_names": list(source.classes),
        "splits": {split: list(rows) for split, rows in ranges.items()},
        "skipped": len(skipped),
        "skipped_images": skipped_images[:MAX_RECORDED_IMAGES],
        **job.options.to_attributes(),
    }
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    (job.dest / "zarr.json").write_json(group)
    for name in ("import", UNFINISHED_FILE, SKIPPED_FILE):  # The last is needed until the end.
        (job.dest / name).remove()
    return ImportResult(
        str(job.dest),
        {split: stop - start for split, (start, stop) in ranges.items()},
        source.classes,
        job.shape,
        job.dtype,
        tuple(skipped_images),
        source.passed_over,
    )
