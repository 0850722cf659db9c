"""Begin a run: check the data against the spec, plan it, and write what the passes will read."""

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
from rescnet_dist.kernels import Backend
from rescnet_dist.planning.choose import make_plan
from rescnet_dist.planning.forecast import estimate
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.planning.tier import Tier, check_tier, choose_tier
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
from rescnet_dist.train.chunks import write
from rescnet_dist.train.holdout import HoldOut, hold_out
from rescnet_dist.train.state import RunState

Array = np.ndarray[Any, np.dtype[Any]]


def check_run(
    url: str | os.PathLike[str],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    *,
    free: bool = True,
) -> None:
    """Refuse what can be refused before any work: a network that does not fit the images, a split
    that they do not allow, and, if the store must be free, one that is taken."""
    run_spec.check_effect()
    spec.check_images(*data.image_shape)
    data.augment.check_images(*data.image_shape)
    fraction, images, classes = run_spec.validation, data.train_count, len(data.classes)
    held_out = int(images * fraction)
    if fraction > 0 and not data.has_validation and not 1 <= held_out <= images - classes:
        least = max(math.ceil(1 / fraction), math.ceil(classes / (1 - fraction)))
        raise DataError(
            f"validation={fraction} cannot be held out of {images} images of {classes} classes: "
            f"give at least {least} images, another share, or a validation set"
        )
    if spec.patience is not None and not (fraction > 0 or data.has_validation):
        raise SpecError(
            f"patience={spec.patience} counts layers without a better validation accuracy, and "
            "nothing is held out: give a validation share or set, or leave patience out"
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
    """Plan a run on the client's cluster and write what its passes will read.

    Images at a Zarr URL are referred to, unless that carries credentials, which are never stored;
    others are copied.
    """
    _check_reachable(run, client)
    check_versions(client)
    if data.has_validation:
        run_spec = run_spec.replace(validation=0.0)
    workers = Workers.of(client, Backend.of(run_spec))
    make_plan(Problem.of(data, run_spec), spec, run_spec, workers)  # refuses what cannot fit
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
            "provenance": _provenance(),
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
        _write_rows(
            run.data_array("images", write=True), [part.array for part in data.images], run, client
        )
    run.update_attributes(data_complete=True)


def _provenance() -> dict[str, Any]:
    names = ("rescnet-dist", "numpy", "scipy", "dask", "zarr")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in names},
    }


def _index_rows(run: RunStore, run_spec: RunSpec, data: TrainingSet, client: Client) -> RowTable:
    """Write the labels, and which images are held out; returns the table of rows."""
    run.create_labels(data.count, min(BLOCK_IMAGES, data.count), groups=data.groups is not None)
    _write_rows(run.data_array("labels", write=True), list(data.codes), run, client)
    if data.groups is not None:
        _write_rows(run.work("groups", write=True), [data.groups], run, client)
    how = HoldOut(
        data.train_count, run_spec.validation, run_spec.seed, len(data.classes),
        by_group=data.groups is not None and run_spec.validation > 0,
    )  # fmt: skip
    rows, trained = client.submit(hold_out, run, how, data.augment.copies, pure=False).result()
    run.remove_work()
    _check_split(run_spec, data, trained)
    return rows


def _check_split(run_spec: RunSpec, data: TrainingSet, trained: Array) -> None:
    """Refuse a split that came out empty, or that leaves a class without images."""
    share, left = run_spec.validation, int(trained.sum())
    if share > 0 and left == data.train_count:
        raise DataError(
            f"validation={share} of {left} images holds none out: give a larger share, more "
            f"images{'' if data.groups is None else ' or groups'}, or a validation set"
        )
    if not trained.all():
        lost = data.classes[np.flatnonzero(trained == 0)[0]]
        raise DataError(
            f"validation={share} by group leaves no image of class {lost!r} to train on: give a "
            "smaller share, smaller groups, or a validation set"
        )


def _check_reachable(run: RunStore, client: Client) -> None:
    """Refuse a store in this process's memory for a cluster of other processes."""
    if not run.url.startswith("memory:"):
        return
    if set(client.run(os.getpid).values()) != {os.getpid()}:
        raise StoreError(
            f"store {run} is in this process's memory, which other worker processes cannot reach: "
            "use a folder or a bucket that all workers see"
        )


def _write_rows(
    target: zarr.Array[Any], parts: list[Array | da.Array], run: RunStore, client: Client
) -> None:
    """Write parts (n_i, …), NumPy or dask, one behind the other into an array of the run."""
    chunk = target.chunks[0]
    if any(isinstance(part, da.Array) for part in parts):
        whole = da.concatenate([da.asarray(part).astype(target.dtype) for part in parts])
        whole = whole.rechunk((chunk, *target.shape[1:]))
        stored = da.store(whole, target, lock=False, compute=False)
        with_retries(lambda: client.compute(stored).result(), f"{target.path} of {run}")
        return
    rows = _row_reader(parts)
    for start in range(0, target.shape[0], chunk):
        values = rows(start, min(start + chunk, target.shape[0]))
        write(target, start, values.astype(target.dtype), run)


def _row_reader(parts: list[Any]) -> Callable[[int, int], Array]:
    """A function that gives rows start to stop of arrays that lie one behind the other."""
    edges = np.cumsum([0, *(len(part) for part in parts)])

    def rows(start: int, stop: int) -> Array:
        pieces = [
            part[max(start - first, 0) : max(stop - first, 0)]
            for part, first in zip(parts, edges, strict=False)
        ]
        return np.concatenate(pieces)

    return rows


@dataclass(frozen=True, slots=True)
class Changes:
    """What of a run may be changed as it goes on: the number of layers it is to have at most, where
    maps wait, how often they are stored then, and which of them stay; None leaves it as it is."""

    max_layers: int | None = None
    maps: str | None = None
    checkpoint_every: int | None = None
    keep_maps: str | None = None

    @classmethod
    def to(cls, run_spec: RunSpec) -> Changes:
        """Those to what another run asks for."""
        return cls(**{name: getattr(run_spec, name) for name in CHANGEABLE})


NO_CHANGES = Changes()
# of how it is run; what is learned is the same
CHANGEABLE = ("maps", "checkpoint_every", "keep_maps")


def check_resume(
    run: RunStore, changes: Changes = NO_CHANGES, *, take_over: bool = False
) -> tuple[NetworkSpec, RunSpec]:
    """Refuse a run that another driver writes to, or that cannot be gone on with; returns its specs
    with the changes."""
    if not take_over:
        check_unclaimed(run.location)
    return _changed(run, changes)


def _changed(run: RunStore, changes: Changes) -> tuple[NetworkSpec, RunSpec]:
    """The specs of a run that can be gone on with, with changes."""
    attributes, max_layers = run.attributes(), changes.max_layers
    if not attributes.get("data_complete"):
        raise StoreError(
            f"the data of the run at {run} were never completely written: remove it and train again"
        )
    with translate_attribute_errors(run.location):
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes["run"])
    layers = len(run.commits()) - 1
    check_layers(run, layers)
    run.result()  # refuses one that is damaged
    if max_layers is not None and max_layers < layers:
        raise SpecError(
            f"max_layers={max_layers}, but the run at {run} has {pluralize(layers, 'layer')}: "
            f"give at least {layers}"
        )
    if max_layers is not None:
        spec = spec.replace(max_layers=max_layers)
    RunState.of(run)  # refuses attributes that are damaged
    if changes.keep_maps == "all" != run_spec.keep_maps and layers > 0:
        raise SpecError(
            f'keep_maps="all", but the maps of earlier layers of the run at {run} are gone: give '
            '"last" or "none", or train anew'
        )
    asked = {name: getattr(changes, name) for name in CHANGEABLE}
    return spec, run_spec.replace(**{k: v for k, v in asked.items() if v is not None})


def check_layers(run: RunStore, layers: int) -> None:
    """Refuse a run of which a layer is gone before anything is added to it: the network could not
    be used."""
    there = (run.location / "layers").listing() or {}
    for layer in range(1, layers + 1):
        if layer_path(layer).split("/")[1] not in there:
            raise CorruptDataError(
                f"{layer_path(layer)} is missing at {run}: put it back from a copy, or train again"
            )


def prepare_resume(run: RunStore, client: Client, changes: Changes = NO_CHANGES) -> None:
    """Make a run ready to be gone on with, with changes. One of an older release counts as one of
    this release from then on: that one may not know what will be in it. A change to maps="memory"
    is refused where they do not fit."""
    spec, run_spec = _changed(run, changes)
    if changes.maps == "memory" and (state := RunState.of(run)).run_spec.maps != "memory":
        problem = state.problem(run.images()[0].dtype.itemsize)
        workers = Workers.of(client, state.backend)

        def tier(there: Workers) -> Tier:
            return choose_tier(problem, spec, run_spec, state.plan, there)

        check_tier(tier(workers), run_spec, workers, lambda others: tier(others).in_memory)
    now = {"network": spec.to_dict(), "run": run_spec.to_dict(), "format_version": FORMAT_VERSION}
    there = run.attributes()
    if any(there[name] != value for name, value in now.items()):
        run.update_attributes(**now)
