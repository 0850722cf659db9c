"""Begin a run: check the data against the spec, plan it, and write what the passes will read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

from rescnet_dist.cluster.connect import check_versions
from rescnet_dist.cluster.workers import Workers
from rescnet_dist.data import TrainingSet, classes_to_json
from rescnet_dist.errors import DataError, SpecError, StoreError, masked
from rescnet_dist.planning.choose import make_plan
from rescnet_dist.planning.needs import Problem
from rescnet_dist.planning.plan import Plan
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import (
    Location,
    RunStore,
    check_unclaimed,
    patiently,
    reading_attributes,
)
from rescnet_dist.train.chunks import write
from rescnet_dist.train.state import RunState

Array = np.ndarray[Any, np.dtype[Any]]


def check_run(
    url: str | os.PathLike[str], spec: NetworkSpec, run_spec: RunSpec, data: TrainingSet
) -> None:
    """Refuse what can be refused before any work: a network that does not fit the images, a split
    that they do not allow, a store that is taken."""
    spec.check_images(*data.image_shape)
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
    plan = make_plan(Problem.of(data), spec, run_spec, Workers.of(client))
    reference = data.reference
    if reference and Location(reference[0]).has_secret:
        reference = None
    attributes = {
        "network": spec.to_dict(),
        "run": run_spec.to_dict(),
        "plan": plan.to_dict(),
        "classes": classes_to_json(data.classes, lossy=temporary),
        "image_shape": list(data.image_shape),
        "source": masked(source or (data.reference[0] if data.reference else "")) or None,
        "provenance": {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {
                name: version(name) for name in ("rescnet-dist", "numpy", "scipy", "dask", "zarr")
            },
        },
    }
    if reference:
        attributes["images"] = dict(zip(("url", "path"), reference, strict=True))
    run.initialise(attributes)
    run.create_data(
        data.count, data.image_shape, data.dtype, plan.chunk_images, images=not reference
    )
    if not reference:
        _write_rows(run, "images", [part.array for part in data.images], client)
    _write_rows(run, "labels", list(data.codes), client)
    _write_train_mask(run, data.train_count, plan)
    run.update_attributes(data_complete=True)


def _check_reachable(run: RunStore, client: Client) -> None:
    """Refuse a store in this process's memory for a cluster of other processes."""
    if not run.url.startswith("memory:"):
        return
    if set(client.run(os.getpid).values()) != {os.getpid()}:
        raise StoreError(
            f"store {run} is in this process's memory, which other worker processes cannot reach: "
            "use a folder or a bucket that all workers see"
        )


def _write_rows(run: RunStore, name: str, parts: list[Array | da.Array], client: Client) -> None:
    """Write parts (n_i, …), NumPy or dask, one behind the other into an array of the run."""
    target = run.data_array(name, write=True)
    chunk = target.chunks[0]
    if any(isinstance(part, da.Array) for part in parts):
        whole = da.concatenate([da.asarray(part).astype(target.dtype) for part in parts])
        whole = whole.rechunk((chunk, *target.shape[1:]))
        stored = da.store(whole, target, lock=False, compute=False)
        patiently(lambda: client.compute(stored).result(), f"{target.path} of {run}")
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


def _write_train_mask(run: RunStore, train_images: int, plan: Plan) -> None:
    """Mark the first `train_images` images as those to train on."""
    target = run.data_array("train", write=True)
    for start in range(0, plan.images, plan.chunk_images):
        stop = min(start + plan.chunk_images, plan.images)
        write(target, start, np.arange(start, stop) < train_images, run)


def check_resume(run: RunStore, max_layers: int | None = None, *, take_over: bool = False) -> None:
    """Refuse a run that another driver writes to, or that cannot be gone on with."""
    if not take_over:
        check_unclaimed(run.place)
    _resumed_network(run, max_layers)


def _resumed_network(run: RunStore, max_layers: int | None) -> NetworkSpec:
    """The network of a run that can be gone on with, with `max_layers` if given."""
    attributes = run.attributes()
    if not attributes.get("data_complete"):
        raise StoreError(
            f"the data of the run at {run} were never completely written: remove it and train again"
        )
    with reading_attributes(run.place):
        spec = NetworkSpec.from_dict(attributes["network"])
    layers = len(run.commits()) - 1
    run.result()  # refuses one that is damaged
    if max_layers is not None and max_layers < layers:
        raise SpecError(
            f"max_layers={max_layers}, but the run at {run} has {layers} layers: give at least "
            f"{layers}"
        )
    if max_layers is not None:
        spec = spec.replace(max_layers=max_layers)
    RunState.of(run)  # refuses attributes that are damaged
    return spec


def prepare_resume(run: RunStore, max_layers: int | None = None) -> None:
    """Make a run ready to be gone on with, up to `max_layers` if given."""
    spec = _resumed_network(run, max_layers)
    if max_layers is not None:
        run.update_attributes(network=spec.to_dict())
