"""The records of an unfinished import, by which it is resumed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rescnet_dist.data.sources import DecodeOptions, Source
from rescnet_dist.data.stored import UNFINISHED_FILE
from rescnet_dist.errors import StoreError, StoreReadError, mask_secrets
from rescnet_dist.store import DATASET_FORMAT, Location, check_format, find_type_error

MAX_TASK_CHUNKS = 4  # that one task writes
MAX_TASK_BYTES = 2**26  # of decoded images in a task of more than one chunk
SKIPPED_FILE = "import-skipped.json"
FILE_FIELDS = {"splits", "labels", "classes", "files"}  # of a record, set by the source's files
HASHED_NAMES = {"location": "place"}
UNHASHED_NAMES = ("passed_over", "options")  # that follow from the others
FIELD_DESCRIPTIONS = {
    "source": "its source",
    "shape": "the shape of its images",
    "dtype": "the type of its images",
    "chunk": "chunk_images",
}

OnError = Literal["error", "skip"]
Array = np.ndarray[Any, np.dtype[Any]]
BadImage = tuple[int, str, str]  # the number of an image in its source, its name, and a reason
Skipped = dict[int, tuple[str, str]]  # name and reason, by the number of the image in its source


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


def is_complete(job: Job) -> bool:
    """Return whether only the cleanup is left to do, as after a kill at the very end."""
    return "zarr.json" in job.dest.names()


def check_free(job: Job) -> None:
    """Raise StoreError if the location holds something else than an unfinished import."""
    names = set(job.dest.names())
    if names and UNFINISHED_FILE not in names and names != {"claims"}:
        raise StoreError(f"{job.dest.url} already holds {_describe_contents(job.dest)}")


def _describe_contents(location: Location) -> str:
    """Return what a location holds, and a remedy."""
    try:
        attributes = check_format(location, DATASET_FORMAT)
    except StoreReadError:
        return "something else. Choose another URL."
    images = sum(stop - start for start, stop in attributes.get("splits", {}).values())
    return (
        f"a finished import of {attributes.get('source')} with {images:,} images. Use it, or "
        "choose another URL."
    )


def start_or_resume(job: Job, source: Source) -> None:
    """Write the record of an import; raise StoreError if there is one of another import."""
    record = _make_record(job, source)
    existing = (job.dest / UNFINISHED_FILE).read_json()
    if existing is None:
        (job.dest / UNFINISHED_FILE).write_json(record)
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
    # The attributes of a source have the names, sizes and versions of its files. The hash of their
    # names is stored: a renamed attribute keeps its first name here.
    attributes = {
        HASHED_NAMES.get(name, name): value
        for name, value in vars(source).items()
        if name not in UNHASHED_NAMES
    }
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


def read_skipped(job: Job, on_error: OnError) -> Skipped:
    """Return the images that an unfinished import has left out so far.

    If no image may be left out, what has been written is removed, and none are.
    """
    listed = (job.dest / SKIPPED_FILE).read_json() or []
    if error := find_type_error(listed, list[tuple[int, str, str]], "the list"):
        raise StoreReadError(
            f"{job.dest.url}/{SKIPPED_FILE} is damaged ({error}). Remove {job.dest.url}, then "
            "import the images again."
        )
    if listed and on_error == "error":
        for name in ("zarr.json", "import", SKIPPED_FILE):  # zarr.json: only the cleanup was left
            (job.dest / name).remove()
        return {}
    return {number: (name, reason) for number, name, reason in listed}


def read_task_records(job: Job) -> dict[int, list[int]]:
    """Return the records of finished tasks, by their first row."""
    records = {}
    for name in (job.dest / "import").names():
        number = name.removesuffix(".json")
        if number != name and number.isdecimal():  # Not the partial file of a task that was killed.
            record = (job.dest / "import" / name).read_json()
            records[int(number)] = record
    return records


def summarize_task(numbers: Array) -> list[int]:
    """Return the record of a task that wrote images (n,); it changes if more are left out."""
    return [int(numbers[0]), int(numbers[-1]), len(numbers)]


def skip_images(job: Job, skipped: Skipped, bad: list[BadImage]) -> None:
    """Add bad images to those that are left out."""
    skipped.update({number: (name, reason) for number, name, reason in bad})
    listed = [[number, name, reason] for number, (name, reason) in sorted(skipped.items())]
    (job.dest / SKIPPED_FILE).write_json(listed)
