"""The runs in a folder or a bucket, and how far each has got."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rescnet_dist.errors import RescnetError, StoreClosedError, StoreError, StoreUnreachableError
from rescnet_dist.formatting import url_name
from rescnet_dist.store import (
    RUN_FORMAT,
    Location,
    RunStore,
    translate_attribute_errors,
    with_retries,
)
from rescnet_dist.train.decide import Accuracy, History, chosen_depth, contradiction
from rescnet_dist.train.describe import is_claimed

DEEPEST = 3  # parts of a run's name below the URL: it may be in a folder in a folder
AT_ONCE = 8  # places that are read at the same time, as stores far away take theirs
OF_ZARR = {"zarr.json", ".zgroup", ".zarray"}


@dataclass(slots=True)
class ListedRun:
    """A run in a list; see `find_runs`."""

    name: str
    url: str
    state: str = "unreadable"
    problem: str | None = None
    layers: int | None = None
    max_layers: int | None = None
    depth: int | None = None
    train: float | None = None
    validation: float | None = None
    updated: float | None = None
    bytes: int | None = None


def find_runs(url: str | os.PathLike[str] = "runs") -> list[dict[str, Any]]:
    """The runs at or under a folder or bucket, up to three levels deep, by name.

    Each as plain values: name below the URL; url; state ("running", "done", "unfinished",
    "damaged", or "unreadable" for what this release, or this user, cannot read) and problem; layers
    grown, and max_layers; depth, the best so far where none is chosen yet; the accuracies train and
    validation at that depth; updated, in seconds since 1970, when it was last committed to, else
    when it was made; bytes. None stands for what is not known. What is not a run is passed over.
    """
    return look_for_runs(url)[0]


def look_for_runs(url: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], int]:
    """What `find_runs` gives, and how many other things, files and stores, were passed over."""
    top = Location.of(url)
    if with_retries(top.listing, f"reading {top}", timeout=10) is None:
        what = "is a file" if top.exists() else "does not exist"
        raise StoreError(
            f"there is no folder or bucket at {top}: it {what}; check the URL, or make a run there "
            "with `rescnet train`"
        )
    runs: list[ListedRun] = []
    others, level = 0, [top]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for depth in range(DEEPEST + 1):
            seen = list(pool.map(lambda location: _look_at(location, top), level))
            runs += [run for run, _, _ in seen if run]
            others += sum(passed for _, _, passed in seen)
            level = [location for _, folders, _ in seen for location in folders]
            if depth == DEEPEST:
                others += len(level)
    return [asdict(run) for run in sorted(runs, key=lambda run: run.name)], others


def _look_at(location: Location, top: Location) -> tuple[ListedRun | None, list[Location], int]:
    """What is at a place: a run; or the folders to look into, and a number of other things."""
    listed = ListedRun(location.url[len(top.url) :].strip("/") or url_name(str(top)), str(location))
    try:
        names = with_retries(location.listing, f"reading {location}") or {}
        if _is_run(location, names):
            _describe(listed, location)
            return listed, [], 0
    except StoreUnreachableError:
        raise
    except RescnetError as error:  # such as for lack of rights to one folder of many
        listed.problem = str(error)
        return listed, [], 0
    if OF_ZARR & names.keys():
        return None, [], 1
    visible = [name for name in names if not name.startswith(".")]
    folders = [location / name for name in visible if names[name]]
    return None, folders, len(visible) - len(folders)


def _is_run(location: Location, names: dict[str, bool]) -> bool:
    """Whether there is a run, sound or not, at a place that holds these names."""
    if names.get("commits"):  # a folder that nothing else has
        return True
    claimed = bool(names.get("claims"))  # some S3 servers list those of a finished import, too
    if "zarr.json" not in names:
        return claimed
    try:
        record = with_retries((location / "zarr.json").read_json, f"reading {location}")
    except StoreUnreachableError:
        raise
    except StoreError:  # damaged, and nothing says that it was a run
        return claimed
    attributes = record.get("attributes") if isinstance(record, dict) else None
    if not isinstance(attributes, dict) or not attributes:
        return claimed
    return attributes.get("format") == RUN_FORMAT


def _describe(listed: ListedRun, location: Location) -> None:
    """Fill in what a run's store says; what is wrong with it is noted, not raised."""
    run = RunStore(location)
    try:
        listed.state = "running" if (claimed := is_claimed(run)) else "unfinished"
        if claimed and not (location / "zarr.json").exists():
            listed.layers = 0  # its driver has just begun
            return
        listed.bytes = _size(location)
        _read_attributes(listed, run, claimed)
        _read_progress(listed, run, claimed)
    except StoreUnreachableError:
        raise
    except (_OfAnotherVersion, StoreClosedError) as error:
        listed.state, listed.problem = "unreadable", str(error)
    except RescnetError as error:
        listed.state, listed.problem = "damaged", str(error)


class _OfAnotherVersion(StoreError):
    """A run of another version of the format."""


def _read_attributes(listed: ListedRun, run: RunStore, claimed: bool) -> None:
    """Read what was to be done, and when it was begun."""
    run.location.attributes()  # refuses what is damaged
    try:
        attributes = run.attributes()
    except StoreError as error:
        raise _OfAnotherVersion(str(error)) from None
    with translate_attribute_errors(run.location):
        listed.max_layers = int(attributes["network"]["max_layers"])
        created = attributes.get("provenance", {}).get("created")
        listed.updated = datetime.fromisoformat(created).timestamp() if created else None
    if not (claimed or attributes.get("data_complete")):
        raise StoreError("its data were never completely written: remove it, and train again")


def _read_progress(listed: ListedRun, run: RunStore, claimed: bool) -> None:
    """Read the records of commits and the result; of a run that is done only the last ones, as
    there may be hundreds."""
    result = run.result()
    done = bool(result and result["reason"]) and not claimed
    if done and result:
        last, known = run.last_commit(), tuple(Accuracy(**a) for a in result["accuracies"])
        listed.layers, depth = last["step"] if last else 0, result["depth"]
        if wrong := contradiction(listed.layers, result):
            raise StoreError(wrong)
    else:
        commits = run.commits()
        history = History.of(commits, result)
        last, known = commits[-1] if commits else None, history.accuracies
        listed.layers, depth = history.layers, chosen_depth(known)
    if last and last.get("finished"):
        listed.updated = float(last["finished"])
    chosen = next((accuracy for accuracy in known if accuracy.layer == depth), None)
    if chosen:
        listed.depth, listed.train, listed.validation = depth, chosen.train, chosen.validation
    listed.state = "running" if claimed else "done" if done else "unfinished"


def _size(location: Location) -> int | None:
    """Bytes of a run; None if files come and go all the time."""
    for _ in range(3):
        with suppress(OSError):
            return location.size()
    return None
