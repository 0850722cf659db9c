"""Prepare a run: plan it on the cluster, and write what the passes read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
import zarr
from distributed import Client

from rescnet_dist.cluster.workers import CheckedWorkers
from rescnet_dist.data import BLOCK_IMAGES, RowTable, TrainingSet, classes_to_json
from rescnet_dist.errors import (
    DataError,
    StoreError,
)
from rescnet_dist.lifecycle.check import CheckedRun
from rescnet_dist.lifecycle.holdout import HoldOut, hold_out
from rescnet_dist.lifecycle.match import source_name
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.planning.forecast import estimate
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.runs.state import RunState
from rescnet_dist.spec import RunSpec
from rescnet_dist.store import (
    Location,
    RunStore,
    with_retries,
)
from rescnet_dist.train.chunks import write_rows

Array = np.ndarray[Any, np.dtype[Any]]


def prepare_run(checked: CheckedRun, client: Client) -> tuple[RunState, CheckedWorkers]:
    """Plan a claimed run on the client's cluster and write what its passes read.

    Images at a Zarr URL are referenced, unless the URL carries credentials, which are never stored;
    others are copied. Return the state of the run and the workers that it was planned for.
    """
    run, spec, run_spec, data = checked.store, checked.spec, checked.run_spec, checked.data
    _check_reachable(run, client)
    if data.has_validation:
        run_spec = run_spec.replace(validation=0.0)
    cluster = CheckedWorkers.from_client(client, get_backend(run_spec))
    problem = Problem.of(data, run_spec)
    # Before anything is written: it raises if nothing fits.
    expected = estimate(problem, spec, run_spec, cluster.workers, None)
    stored = data.stored
    if stored and Location(stored.url).has_secret:
        stored = None
    attributes = {
        "network": spec.to_dict(),
        "run": run_spec.to_dict(),
        "augment": data.augment.to_dict(),
        "classes": classes_to_json(data.classes, lossy=checked.temporary),
        "image_shape": list(data.image_shape),
        "source": source_name(data, checked.source),
        "provenance": _get_provenance(),
    } | ({"images": asdict(stored)} if stored else {})
    run.initialize(attributes)
    rows = _index_rows(run, run_spec, data, client)
    if rows.rows != problem.images:  # the number of copies was not known before the split
        problem = replace(problem, images=rows.rows)
        expected = estimate(problem, spec, run_spec, cluster.workers, None)
    plan = expected.plan
    planned = {"rows": rows.to_dict(), "plan": plan.to_dict()}
    run.update_attributes(**planned, expected=expected.to_dict())
    if not stored:
        chunk = math.ceil(plan.chunk_images / (1 + data.augment.copies))
        run.create_images((data.count, *data.image_shape), data.dtype, chunk)
        _write_parts(
            run.data_array("images", write=True), [part.array for part in data.images], run, client
        )
    run.update_attributes(data_complete=True)
    return RunState.from_attributes(run, attributes | planned), cluster


def _get_provenance() -> dict[str, Any]:
    """Return the time of creation and the versions of the main packages."""
    names = ("rescnet-dist", "numpy", "scipy", "dask", "zarr")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in names},
    }


def _index_rows(run: RunStore, run_spec: RunSpec, data: TrainingSet, client: Client) -> RowTable:
    """Write the labels and the mask of training images; return the table of rows."""
    run.create_labels(data.count, min(BLOCK_IMAGES, data.count), groups=data.groups is not None)
    _write_parts(run.data_array("labels", write=True), list(data.codes), run, client)
    if data.groups is not None:
        _write_parts(run.work("groups", write=True), [data.groups], run, client)
    split = HoldOut(
        data.train_count,
        run_spec.validation,
        run_spec.seed,
        len(data.classes),
        by_group=data.groups is not None and run_spec.validation > 0,
    )
    rows, counts = client.submit(hold_out, run, split, data.augment.copies, pure=False).result()
    run.remove_work()
    _check_split(run_spec, data, counts)
    return rows


def _check_split(run_spec: RunSpec, data: TrainingSet, counts: Array) -> None:
    """Raise DataError if no image is held out, or if a class has no training images.

    counts (C,) are the training images of each class.
    """
    fraction, remaining = run_spec.validation, int(counts.sum())
    if fraction > 0 and remaining == data.train_count:
        raise DataError(
            f"validation={fraction} of {remaining} images holds none out. Give a larger fraction, "
            f"more images{'' if data.groups is None else ' or groups'}, or a validation set."
        )
    if not counts.all():
        lost = data.classes[np.flatnonzero(counts == 0)[0]]
        raise DataError(
            f"validation={fraction} by group leaves no image of class {lost!r} to train on. Give a "
            "smaller fraction, smaller groups, or a validation set."
        )


def _check_reachable(run: RunStore, client: Client) -> None:
    """Raise StoreError if the store is in this process's memory and the workers are elsewhere."""
    if not run.url.startswith("memory:"):
        return
    if set(client.run(os.getpid).values()) != {os.getpid()}:
        raise StoreError(
            f"Store {run} is in this process's memory, which other worker processes cannot reach. "
            "Use a folder or a bucket that all workers see."
        )


def _write_parts(
    target: zarr.Array[Any], parts: list[Array | da.Array], run: RunStore, client: Client
) -> None:
    """Write the concatenation of parts (n_i, …), NumPy or dask, into an array of the run."""
    chunk = target.chunks[0]
    if any(isinstance(part, da.Array) for part in parts):
        array = da.concatenate([da.asarray(part).astype(target.dtype) for part in parts])
        array = array.rechunk((chunk, *target.shape[1:]))
        stored = da.store(array, target, lock=False, compute=False)
        with_retries(lambda: client.compute(stored).result(), f"{target.path} of {run}")
        return
    read_rows = _make_row_reader(parts)
    for start in range(0, target.shape[0], chunk):
        values = read_rows(start, min(start + chunk, target.shape[0]))
        write_rows(target, start, values.astype(target.dtype), run)


def _make_row_reader(parts: list[Any]) -> Callable[[int, int], Array]:
    """Return a function that reads rows start to stop of the concatenation of arrays."""
    edges = np.cumsum([0, *(len(part) for part in parts)])

    def read_rows(start: int, stop: int) -> Array:
        pieces = [
            part[max(start - first, 0) : max(stop - first, 0)]
            for part, first in zip(parts, edges, strict=False)
        ]
        return np.concatenate(pieces)

    return read_rows
