"""Prepare a run: check the data against the spec, plan it, and write what the passes read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
import zarr
from distributed import Client

from rescnet_dist.cluster.connect import check_versions
from rescnet_dist.cluster.workers import Workers
from rescnet_dist.data import BLOCK_IMAGES, RowTable, TrainingSet, classes_to_json
from rescnet_dist.errors import (
    CorruptDataError,
    DataError,
    SpecError,
    StoreError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.lifecycle.holdout import HoldOut, hold_out
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.planning.choose import make_plan
from rescnet_dist.planning.forecast import estimate
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.planning.tier import Tier, check_tier, choose_tier
from rescnet_dist.runs.state import RunState
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import (
    FORMAT_VERSION,
    Location,
    RunStore,
    check_unclaimed,
    layer_path,
    translate_attribute_errors,
    with_retries,
)
from rescnet_dist.train.chunks import write_rows

Array = np.ndarray[Any, np.dtype[Any]]


def check_run(
    url: str | os.PathLike[str],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    *,
    free: bool = True,
) -> None:
    """Raise an error for everything that can be checked before any work.

    That is a network that does not fit the images (SpecError), a validation split that they do not
    allow (DataError), and, if the store must be free, one that is in use (StoreError).
    """
    run_spec.check_effect()
    spec.check_images(*data.image_shape)
    data.augment.check_images(*data.image_shape)
    fraction, images, classes = run_spec.validation, data.train_count, len(data.classes)
    held_out = int(images * fraction)
    if fraction > 0 and not data.has_validation and not 1 <= held_out <= images - classes:
        minimum = max(math.ceil(1 / fraction), math.ceil(classes / (1 - fraction)))
        raise DataError(
            f"validation={fraction} cannot be held out of {images} images of {classes} classes. "
            f"Give at least {minimum} images, another fraction, or a validation set."
        )
    if spec.patience is not None and not (fraction > 0 or data.has_validation):
        raise SpecError(
            f"patience={spec.patience} counts layers without a better validation accuracy, but "
            "there are no validation images. Give a validation fraction or set, or omit patience."
        )
    if free:
        RunStore(Location.of(url)).check_free()


def prepare_run(
    run: RunStore,
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    client: Client,
    *,
    source: str | None = None,
    temporary: bool = False,
) -> None:
    """Plan a run on the client's cluster and write what its passes read.

    Images at a Zarr URL are referenced, unless the URL carries credentials, which are never stored;
    others are copied.
    """
    _check_reachable(run, client)
    check_versions(client)
    if data.has_validation:
        run_spec = run_spec.replace(validation=0.0)
    workers = Workers.from_client(client, get_backend(run_spec))
    make_plan(Problem.of(data, run_spec), spec, run_spec, workers)  # raises if nothing fits
    stored = data.stored
    if stored and Location(stored.url).has_secret:
        stored = None
    run.initialize(
        {
            "network": spec.to_dict(),
            "run": run_spec.to_dict(),
            "augment": data.augment.to_dict(),
            "classes": classes_to_json(data.classes, lossy=temporary),
            "image_shape": list(data.image_shape),
            "source": mask_secrets(source or (data.stored.url if data.stored else "")) or None,
            "provenance": _get_provenance(),
        }
        | ({"images": asdict(stored)} if stored else {})
    )
    rows = _index_rows(run, run_spec, data, client)
    problem = replace(Problem.of(data, run_spec), images=rows.rows)
    expected = estimate(problem, spec, run_spec, workers, None)
    plan = expected.plan
    run.update_attributes(rows=rows.to_dict(), plan=plan.to_dict(), expected=expected.to_dict())
    if not stored:
        chunk = math.ceil(plan.chunk_images / (1 + data.augment.copies))
        run.create_images((data.count, *data.image_shape), data.dtype, chunk)
        _write_parts(
            run.data_array("images", write=True), [part.array for part in data.images], run, client
        )
    run.update_attributes(data_complete=True)


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


@dataclass(frozen=True, slots=True)
class Changes:
    """Options of a run that may be changed when it is resumed; None leaves an option unchanged.

    They are the maximal number of layers, where maps are kept, how often maps in memory are stored,
    and which maps stay in the store.
    """

    max_layers: int | None = None
    maps: str | None = None
    checkpoint_every: int | None = None
    keep_maps: str | None = None

    @classmethod
    def to(cls, run_spec: RunSpec) -> Changes:
        """Return the changes to the options of another run spec."""
        return cls(**{name: getattr(run_spec, name) for name in CHANGEABLE})


NO_CHANGES = Changes()
# fields of RunSpec that do not affect what is learned
CHANGEABLE = ("maps", "checkpoint_every", "keep_maps")


def check_resume(
    run: RunStore, changes: Changes = NO_CHANGES, *, take_over: bool = False
) -> tuple[NetworkSpec, RunSpec]:
    """Return the specs of a run with the changes applied.

    Raise StoreError if another driver writes to the run (unless `take_over`), or if the run cannot
    be resumed, and SpecError if a change is not possible.
    """
    if not take_over:
        check_unclaimed(run.location)
    return _apply_changes(run, changes)


def _apply_changes(run: RunStore, changes: Changes) -> tuple[NetworkSpec, RunSpec]:
    """Return the specs of a run that can be resumed, with the changes applied."""
    attributes, max_layers = run.attributes(), changes.max_layers
    if not attributes.get("data_complete"):
        raise StoreError(
            f"The data of the run at {run} were never completely written. Remove it and train "
            "again."
        )
    with translate_attribute_errors(run.location):
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes["run"])
    layers = len(run.commits()) - 1
    check_layers(run, layers)
    run.result()  # raises if it is damaged
    if max_layers is not None and max_layers < layers:
        raise SpecError(
            f"max_layers={max_layers} is less than the {pluralize(layers, 'layer')} of the run at "
            f"{run}. Give at least {layers}."
        )
    if max_layers is not None:
        spec = spec.replace(max_layers=max_layers)
    RunState.of(run)  # raises if the attributes are damaged
    if changes.keep_maps == "all" != run_spec.keep_maps and layers > 0:
        raise SpecError(
            f'keep_maps="all" is not possible: the maps of earlier layers of the run at {run} were '
            'removed. Use "last" or "none", or train again.'
        )
    changed = {name: getattr(changes, name) for name in CHANGEABLE}
    return spec, run_spec.replace(**{k: v for k, v in changed.items() if v is not None})


def check_layers(run: RunStore, layers: int) -> None:
    """Raise CorruptDataError if a layer is missing: the network could not be used.

    It is called before anything is added to the run.
    """
    names = (run.location / "layers").list_entries() or {}
    for layer in range(1, layers + 1):
        if layer_path(layer).split("/")[1] not in names:
            raise CorruptDataError(
                f"{layer_path(layer)} is missing at {run}. Put it back from a copy, or train again."
            )


def prepare_resume(run: RunStore, client: Client, changes: Changes = NO_CHANGES) -> None:
    """Prepare a run to be resumed, with changes.

    A run of an older release gets the format version of this one, as the older release may not know
    what will be written to it. Raise an error for a change to maps="memory" if they do not fit.
    """
    spec, run_spec = _apply_changes(run, changes)
    if changes.maps == "memory" and (state := RunState.of(run)).run_spec.maps != "memory":
        problem = state.problem(run.images()[0].dtype.itemsize)
        workers = Workers.from_client(client, state.backend)

        def choose(candidates: Workers) -> Tier:
            return choose_tier(problem, spec, run_spec, state.plan, candidates)

        check_tier(choose(workers), run_spec, workers, lambda others: choose(others).in_memory)
    new = {"network": spec.to_dict(), "run": run_spec.to_dict(), "format_version": FORMAT_VERSION}
    stored = run.attributes()
    if any(stored[name] != value for name, value in new.items()):
        run.update_attributes(**new)
