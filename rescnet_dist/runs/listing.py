"""List of the runs in a folder or a bucket, with the progress of each."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from rescnet_dist.errors import (
    CorruptDataError,
    SpecError,
    StoreError,
    StorePermissionError,
    StoreReadError,
    is_path,
    url_word,
)
from rescnet_dist.events.metrics import Accuracy
from rescnet_dist.formatting import url_name
from rescnet_dist.runs.history import History, chosen_depth, find_contradiction
from rescnet_dist.spec import AugmentSpec, NetworkSpec
from rescnet_dist.store import (
    RUN_FORMAT,
    Location,
    RunStore,
    is_claimed,
    limit_retries,
    translate_attribute_errors,
)

MAX_FOLDER_DEPTH = 3  # of a run below the URL
MAX_CONCURRENT_READS = 8  # as remote stores have a high latency
ZARR_FILES = {"zarr.json", ".zgroup", ".zarray"}
SIZE_ATTEMPTS = 3
MAX_NAMED_OBJECTS = 3  # of those that are not runs
FIRST_RETRY_SECONDS = 10  # for the URL itself, which may be wrong


@dataclass(slots=True)
class ListedRun:
    """A run in a list; the fields are described in `find_runs`."""

    name: str
    url: str
    state: str = "unreadable"
    problem: str | None = None
    layers: int | None = None
    max_layers: int | None = None
    depth: int | None = None
    train: float | None = None
    validation: float | None = None
    leave_one_out: bool | None = None
    copies: int | None = None
    updated: float | None = None
    bytes: int | None = None


def find_runs(url: str | os.PathLike[str] = "runs") -> list[dict[str, Any]]:
    """List the runs at or under a folder or bucket, up to three levels deep, sorted by name.

    Anything that is not a run is skipped.

    Parameters
    ----------
    url : str or PathLike, default "runs"
        Folder or bucket.

    Returns
    -------
    list of dict
        One dict of JSON-serializable values per run, with None for unknown values:

        - "name": name below the URL, and "url".
        - "state": "running", "done", "unfinished", "damaged", or "unreadable" if this release or
          this user cannot read it; and "problem", the error message.
        - "layers": number of layers grown, and "max_layers".
        - "depth": chosen depth, or the best so far.
        - "train" and "validation": accuracies at that depth. "leave_one_out": whether that on the
          training images is a leave-one-out accuracy; "copies": of each of these images.
        - "updated": time of the last commit, otherwise of creation, in seconds since 1970.
        - "bytes": size of the store.

    Raises
    ------
    StoreError
        If there is no folder or bucket at the URL.

    Examples
    --------
    >>> import tempfile
    >>> find_runs(tempfile.mkdtemp())
    []
    """
    return scan_runs(url)[0]


def scan_runs(url: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], int, list[str]]:
    """Return the list of `find_runs`, and the number and first names of other files and stores."""
    top = Location.of(url)
    with limit_retries(FIRST_RETRY_SECONDS):
        entries = top.list_entries()
        if entries is None:
            top.check_bucket()
    if entries is None:
        problem = "is a file" if top.exists() else "does not exist"
        raise StoreError(
            f"{top} {problem}. A folder or bucket is needed. Check the {url_word(top.url)}, or "
            "start a run there with `rescnet train`.",
            missing_path=is_path(top.url),
        )
    runs: list[ListedRun] = []
    skipped, names, level = 0, list[str](), [top]
    with ThreadPoolExecutor(MAX_CONCURRENT_READS) as pool:
        for depth in range(MAX_FOLDER_DEPTH + 1):
            inspected = list(pool.map(lambda location: _inspect(location, top), level))
            runs += [found.run for found in inspected if found.run]
            level = [location for found in inspected for location in found.folders]
            skipped += sum(found.skipped for found in inspected)
            names += [name for found in inspected for name in found.names]
            if depth == MAX_FOLDER_DEPTH:
                skipped += len(level)
                names += [_name_below(top, location) for location in level]
            names = sorted(names)[:MAX_NAMED_OBJECTS]
    return [asdict(run) for run in sorted(runs, key=lambda run: run.name)], skipped, names


@limit_retries(0)
def check_no_folder_of_runs(url: str) -> None:
    """Raise StoreReadError if a URL is that of a folder or bucket with runs, not of a run."""
    location = Location.of(url)
    try:
        names = location.list_entries() or {}
        if _is_run(location, names):
            return
        folders = (location / name for name in sorted(names) if names[name])
        found = next((own for own in folders if _is_run(own, own.list_entries() or {})), None)
    except StoreReadError:
        return
    if found:
        raise StoreReadError(
            f"{location} is a folder of runs, not a run. Name one of them, such as {found}; "
            f"`rescnet runs {location}` lists them."
        )


def _name_below(top: Location, location: Location) -> str:
    """Return the name of a location below another, or the name of that one itself."""
    return location.url[len(top.url) :].strip("/") or url_name(str(top))


class _Found(NamedTuple):
    """What is at a location: a run, or folders, and the number and first names of what else."""

    run: ListedRun | None
    folders: list[Location]
    skipped: int = 0
    names: Sequence[str] = ()


def _inspect(location: Location, top: Location) -> _Found:
    """Return the run at a location; or the folders in it, and the other entries."""
    listed = ListedRun(_name_below(top, location), str(location))
    try:
        names = location.list_entries() or {}
        if _is_run(location, names):
            _fill_in(listed, location)
            return _Found(listed, [])
    except StoreReadError as error:  # such as missing rights to one folder of many
        listed.problem = str(error)
        return _Found(listed, [])
    if ZARR_FILES & names.keys():
        return _Found(None, [], 1, [_name_below(top, location)])
    visible = [name for name in names if not name.startswith(".")]
    folders = [location / name for name in visible if names[name]]
    others = heapq.nsmallest(MAX_NAMED_OBJECTS, (name for name in visible if not names[name]))
    some = [_name_below(top, location / name) for name in others]
    return _Found(None, folders, len(visible) - len(folders), some)


def _is_run(location: Location, names: dict[str, bool]) -> bool:
    """Return whether a location with these names holds a run, damaged or not."""
    if names.get("commits"):  # only runs have such a folder
        return True
    claimed = bool(names.get("claims"))  # some S3 servers list those of a finished import too
    if "zarr.json" not in names:
        return claimed
    try:
        record = (location / "zarr.json").read_json()
    except StoreReadError:  # damaged; nothing says that it was a run
        return claimed
    attributes = record.get("attributes") if isinstance(record, dict) else None
    if not isinstance(attributes, dict) or not attributes:
        return claimed
    return attributes.get("format") == RUN_FORMAT


def _fill_in(listed: ListedRun, location: Location) -> None:
    """Fill in the fields of a run from its store; problems are recorded, not raised."""
    run = RunStore(location)
    try:
        listed.state = "running" if (claimed := is_claimed(location)) else "unfinished"
        if claimed and not (location / "zarr.json").exists():
            listed.layers = 0  # its driver has just started
            return
        listed.bytes = _measure_size(location)
        _read_attributes(listed, run, claimed)
        _read_progress(listed, run, claimed)
    except (_FormatVersionError, StorePermissionError) as error:
        listed.state, listed.problem = "unreadable", str(error)
    except StoreReadError as error:
        listed.state, listed.problem = "damaged", str(error)


class _FormatVersionError(StoreReadError):
    """The run has another version of the format."""


def _read_attributes(listed: ListedRun, run: RunStore, claimed: bool) -> None:
    """Read the number of layers and the time of creation from the attributes."""
    run.location.attributes()  # raises if they are damaged
    try:
        attributes = run.attributes()
    except CorruptDataError:
        raise
    except StoreReadError as error:
        raise _FormatVersionError(str(error)) from None
    with translate_attribute_errors(run.location):
        listed.max_layers = int(attributes["network"]["max_layers"])
        # None if the settings are damaged, or of a head that is not installed here
        with suppress(SpecError, AttributeError, KeyError, TypeError, ValueError):
            spec = NetworkSpec.from_stored(attributes["network"])
            listed.leave_one_out = spec.head.leave_one_out_scores
            listed.copies = AugmentSpec.from_stored(attributes.get("augment", {})).copies
        created = attributes.get("provenance", {}).get("created")
        listed.updated = datetime.fromisoformat(created).timestamp() if created else None
    if not (claimed or attributes.get("data_complete")):
        raise StoreReadError("Its data were never completely written. Remove it and train again.")


def _read_progress(listed: ListedRun, run: RunStore, claimed: bool) -> None:
    """Read the commit records and the result.

    Of a finished run only the last record is read, as there may be hundreds.
    """
    result = run.result()
    done = bool(result and result.get("reason")) and not claimed
    if done and result:
        last, accuracies = run.last_commit(), tuple(Accuracy(**a) for a in result["accuracies"])
        listed.layers, depth = last["step"] if last else 0, result["depth"]
        if problem := find_contradiction(listed.layers, result):
            raise StoreReadError(problem)
    else:
        commits = run.commits()
        history = History.of(commits, result)
        last, accuracies = commits[-1] if commits else None, history.accuracies
        listed.layers, depth = history.layers, chosen_depth(accuracies)
    if last and last.get("finished") and math.isfinite(last["finished"]):
        listed.updated = float(last["finished"])
    chosen = next((accuracy for accuracy in accuracies if accuracy.layer == depth), None)
    if chosen:
        listed.depth, listed.train, listed.validation = depth, chosen.train, chosen.validation
    listed.state = "running" if claimed else "done" if done else "unfinished"


def _measure_size(location: Location) -> int | None:
    """Return the bytes of a run, or None if its files keep changing."""
    for _ in range(SIZE_ATTEMPTS):
        with suppress(FileNotFoundError, NotADirectoryError, StoreReadError):
            return location.size()
    return None
