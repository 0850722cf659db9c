"""Begin a run, or resume it if the store has it: check it, plan it, write its data, train.

`check_run` needs no cluster, so that errors are raised before one is started. `begin_or_resume`
does the rest, as the only writer of the run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from distributed import Client

from rescnet_dist.cluster import CheckedWorkers, keep_workers, translate_errors
from rescnet_dist.data import (
    BLOCK_IMAGES,
    ArrayReference,
    RowTable,
    TrainingSet,
    classes_to_json,
)
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import ClaimLostError, DataError, SingularError, SpecError, StoreError
from rescnet_dist.events.classes import Listener
from rescnet_dist.lifecycle.holdout import HoldOut, hold_out
from rescnet_dist.lifecycle.match import (
    RUN_NAMES,
    check_replaceable,
    describe_plan_difference,
    has_only_late_chunks,
    is_incomplete,
    match_run,
)
from rescnet_dist.lifecycle.resume import Changes, resume_run
from rescnet_dist.lifecycle.weighting import Weighting, write_weights
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.planning.disk import check_disk
from rescnet_dist.planning.estimates import Forecast, estimate
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.planning.speed import calibrate
from rescnet_dist.runs.state import RunState
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import (
    Claim,
    Location,
    RunStore,
    check_unclaimed,
    limit_retries,
    write_region,
)
from rescnet_dist.train.loop import train

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that can begin or, if the store has it, be resumed; only `check_run` makes one.

    Attributes
    ----------
    store : RunStore
        Where the run is or will be.
    spec : NetworkSpec
        The network.
    run_spec : RunSpec
        How to train.
    data : TrainingSet
        The images and labels.
    source : str or None
        A name for the data, stored with the run.
    temporary : bool
        Whether the store is temporary. It may have classes that cannot be read back from it.
    stored : dict or None
        The attributes of the run in the store, which is to be resumed; None to begin a run.
    replaces_incomplete : bool
        Whether the store has a run that died before its data were complete, to be replaced.
    overwrites : bool
        Whether the store has any run, to be replaced.
    """

    store: RunStore
    spec: NetworkSpec
    run_spec: RunSpec
    data: TrainingSet
    source: str | None = None
    temporary: bool = False
    stored: dict[str, Any] | None = None
    replaces_incomplete: bool = False
    overwrites: bool = False

    @property
    def plan_difference(self) -> str | None:
        """What differs between the plan of the stored run and the one asked for, if anything."""
        return describe_plan_difference(self.stored, self.run_spec) if self.stored else None


@limit_retries(0)
def check_run(
    url: str | os.PathLike[str],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    *,
    source: str | None = None,
    temporary: bool = False,
    or_resume: bool = False,
    overwrite: bool = False,
) -> CheckedRun:
    """Return the run to begin; raise an error for everything that can be checked before any work.

    That is a network that does not fit the images (SpecError), a validation split that they do not
    allow (DataError), and a store that is in use (StoreError). Chunks that late tasks of a removed
    run have written to the store are no obstacle; they are removed once the run begins. With
    `or_resume`, the store may have the same run, which is to be resumed, or one that died before
    its data were complete. With `overwrite`, it may have any run, which is removed once the new one
    begins.
    """
    if or_resume and overwrite:
        raise SpecError(
            "or_resume and overwrite (--or-resume, --overwrite) exclude each other: one keeps the "
            "run in the store, the other removes it. Give one of them."
        )
    store, stored, incomplete = RunStore(Location.of(url)), None, False
    run_spec = run_spec.replace(validation=data.held_out_fraction(run_spec.validation))
    exists = store.location.exists()
    if exists and not (or_resume or overwrite):
        incomplete = has_only_late_chunks(store.location, store.location.names())
    if or_resume and exists:
        if incomplete := is_incomplete(store.location):
            check_unclaimed(store.location)
        else:
            stored = match_run(store, spec, run_spec, data, source)
    _check_specs(spec, run_spec, data)
    overwrites = overwrite and check_replaceable(store, data)
    if not (stored or incomplete or overwrites):
        store.check_free()
    return CheckedRun(
        store, spec, run_spec, data, source, temporary, stored, incomplete, overwrites
    )


def _check_specs(spec: NetworkSpec, run_spec: RunSpec, data: TrainingSet) -> None:
    """Raise SpecError or DataError if the data cannot be trained on with these specs."""
    run_spec.check_effect()
    spec.check_images(*data.image_shape)
    data.augment.check_images(*data.image_shape)
    if spec.head.fits_samples and (data.weights or run_spec.class_weight == "balanced"):
        raise SpecError(
            f"The head {spec.head.name!r} has no weights of images. Use another head, such as "
            "leave-one-out, or leave the weights of images and classes out."
        )
    fraction, images, classes = run_spec.validation or 0.0, data.train_count, len(data.classes)
    held_out = int(images * fraction)
    if fraction > 0 and not 1 <= held_out <= images - classes:
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


def begin_or_resume(
    checked: CheckedRun, client: Client, listeners: Sequence[Listener] = ()
) -> RunStore:
    """Train as `check_run` has found possible: in a new run store, or in that of the same run.

    A new run is removed if the data are unusable. A run that is resumed gets the options of the run
    spec that may be changed.
    """
    if checked.stored is not None:
        changes = Changes.to(checked.run_spec)
        return resume_run(checked.store, client, listeners, changes=changes)
    run = checked.store
    claim = Claim.take(run.location, new=not (checked.replaces_incomplete or checked.overwrites))
    with claim.hold(), translate_errors(client):
        replaced = _find_replaced(checked)
        try:
            workers, expected = plan_run(checked, client)
        except BaseException:
            if not checked.overwrites:  # else the run in the store is kept
                _remove(claim)
            raise
        claim.check()
        for name in replaced:
            (run.location / name).remove()
        try:
            state = prepare_run(checked, client, workers, expected, claim)
        except BaseException:
            _remove(claim)
            raise
        try:
            with keep_workers(client, expected.workers.count):
                train(claim, state, client, listeners, workers)
        except (DataError, SpecError, SingularError):
            if not run.commits():
                _remove(claim)
            raise
    return run


def _find_replaced(checked: CheckedRun) -> list[str]:
    """Return the names in the store of the run to be replaced, without its claims, in order.

    Raise StoreError if the store has anything else by now than what was found before the claim.
    Folders in which nothing is stored do not count: some object stores list them.
    """
    run = checked.store
    names = set(run.location.names()) - {"claims"}
    found = {name for name in names if (run.location / name).exists()}
    is_incomplete_run = checked.replaces_incomplete and is_incomplete(run.location)
    if found and not (is_incomplete_run or (checked.overwrites and found <= RUN_NAMES)):
        raise StoreError(f"Store {run.url} already holds another run. Choose another URL.")
    return sorted(found, key=lambda name: name == "zarr.json")  # last: it marks a run


REMOVE_ATTEMPTS = 10
REMOVE_WAIT_SECONDS = 0.2


def _remove(claim: Claim) -> None:
    """Remove a run, and what tasks in progress when it failed may still write to it.

    A run that another driver has taken over, as from one that was suspended, is kept, and so is one
    that another driver has begun here since.
    """
    try:
        claim.check()
    except ClaimLostError:
        return
    for attempt in range(REMOVE_ATTEMPTS):
        if attempt and claim.is_superseded():
            return
        try:
            claim.location.remove()
        except StoreError:  # as files change during the removal
            if attempt == REMOVE_ATTEMPTS - 1:
                raise
        time.sleep(REMOVE_WAIT_SECONDS)
        if not claim.location.exists():
            return


def plan_run(checked: CheckedRun, client: Client) -> tuple[CheckedWorkers, Forecast]:
    """Plan a claimed run on the client's cluster, before anything is written.

    Return the workers and the plan. Raise an error if the cluster or the store cannot hold the run.
    """
    run, run_spec, data = checked.store, checked.run_spec, checked.data
    _check_reachable(run, client)
    cluster = CheckedWorkers.from_client(client, get_backend(run_spec))
    problem, workers, speed = Problem.of(data, run_spec), cluster.workers, None
    expected = estimate(problem, checked.spec, run_spec, workers, None)
    if run_spec.calibrate and workers.gpu_memory is None:
        speed = calibrate(client, problem, checked.spec, workers, run.url)
        expected = estimate(problem, checked.spec, run_spec, workers, speed)
    freed = run.location.size() if checked.overwrites else 0
    check_disk(expected, run.location, copies_images=not _find_stored(data), freed=freed)
    return cluster, expected


def _find_stored(data: TrainingSet) -> ArrayReference | None:
    """Return the images at a Zarr URL that a run references; None if it has to copy them.

    A URL with credentials, which are never stored, is not referenced.
    """
    stored = data.stored
    return None if stored and Location(stored.url).has_secret else stored


def prepare_run(
    checked: CheckedRun,
    client: Client,
    cluster: CheckedWorkers,
    expected: Forecast,
    claim: Claim,
) -> RunState:
    """Write what the passes of a planned run read; return the state of the run.

    Raise ClaimLostError if another driver takes it over meanwhile.
    """
    run, spec, run_spec, data = checked.store, checked.spec, checked.run_spec, checked.data
    problem, stored = Problem.of(data, run_spec), _find_stored(data)
    attributes = {
        "network": spec.to_dict(),
        "run": run_spec.to_dict(),
        "augment": data.augment.to_dict(),
        "classes": classes_to_json(data.classes, lossy=checked.temporary),
        "image_shape": list(data.image_shape),
        "input": data.image_input.to_dict(),
        "source": data.source_name(checked.source),
        "provenance": _get_provenance(),
    } | ({"images": asdict(stored)} if stored else {})
    attributes |= data.weights.to_dict()
    run.initialize(attributes)
    rows = _index_rows(run, run_spec, data, client)
    if rows.rows != problem.images:  # the number of copies was not known before the split
        problem = replace(problem, images=rows.rows)
        if run_spec.calibrate:  # what was chosen by measured rates stays
            run_spec = run_spec.replace(tile_features=expected.plan.tile_features)
        expected = estimate(problem, spec, run_spec, cluster.workers, None)
    plan = expected.plan
    planned = {"rows": rows.to_dict(), "plan": plan.to_dict()}
    claim.check()
    run.update_attributes(**planned, expected=expected.to_dict())
    if not stored:
        chunk = math.ceil(plan.chunk_images / (1 + data.augment.copies))
        run.create_images((data.count, *data.image_shape), data.dtype, chunk)
        _write_parts(
            run.data_array("images", write=True), [part.array for part in data.images], client
        )
    claim.check()
    run.update_attributes(data_complete=True)
    return RunState.from_attributes(run, attributes | planned)


def _get_provenance() -> dict[str, Any]:
    """Return the time of creation and the versions of the main packages."""
    names = ("rescnet-dist", "numpy", "scipy", "dask", "zarr")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in names},
    }


def _index_rows(run: RunStore, run_spec: RunSpec, data: TrainingSet, client: Client) -> RowTable:
    """Write the labels, the mask of training images, and weights; return the table of rows."""
    balanced, weights = run_spec.class_weight == "balanced", data.weights
    has_weights, has_groups = balanced or bool(weights), data.groups is not None
    block = min(BLOCK_IMAGES, data.count)
    run.create_labels(data.count, block, groups=has_groups, weights=has_weights)
    _write_parts(run.data_array("labels", write=True), list(data.codes), client)
    if data.groups is not None:
        _write_parts(run.work("groups", write=True), [data.groups], client)
    if has_weights:
        given = np.ones(data.count)
        if weights.samples is not None:
            given[: data.train_count] = weights.samples
        _write_parts(run.work("weights", write=True), [given], client)
    fraction = run_spec.validation or 0.0
    split = HoldOut(
        data.train_count,
        fraction,
        run_spec.seed,
        len(data.classes),
        by_group=has_groups and fraction > 0,
    )
    rows, counts = client.submit(hold_out, run, split, data.augment.copies, pure=False).result()
    _check_split(run_spec, data, counts)
    if has_weights:
        by_class = None if weights.classes is None else tuple(weights.classes.tolist())
        weighting = Weighting(len(data.classes), balanced, by_class)
        draws, checksums = client.submit(write_weights, run, weighting, pure=False).result()
        paths = {**rows.checksums, "data/weights": tuple(checksums)}
        rows = replace(rows, checksums=paths, draws_per_weight=draws)
    run.remove_work()
    return rows


def _check_split(run_spec: RunSpec, data: TrainingSet, counts: Array) -> None:
    """Raise DataError if no image is held out, or if a class has no training images.

    counts (C,) are the training images of each class.
    """
    fraction, remaining = run_spec.validation or 0.0, int(counts.sum())
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


def _write_parts(target: zarr.Array[Any], parts: list[Array | da.Array], client: Client) -> None:
    """Write the concatenation of parts (n_i, …), NumPy or dask, into an array of the run."""
    chunk = target.chunks[0]
    if any(is_dask_array(part) for part in parts):
        import dask.array as da  # slow to import

        array = da.concatenate([da.asarray(part).astype(target.dtype) for part in parts])
        array = array.rechunk((chunk, *target.shape[1:]))
        stored = da.store(array, target, lock=False, compute=False)
        try:
            client.compute(stored).result()
            return
        except OSError as error:  # of the given arrays; the store translates its own
            problem = f"{target.path} cannot be computed from the given arrays: {error}"
        raise DataError(f"{problem}. Check that all workers can read what they are made of.")
    read_rows = _make_row_reader(parts)
    for start in range(0, target.shape[0], chunk):
        values = read_rows(start, min(start + chunk, target.shape[0]))
        write_region(target, start, values.astype(target.dtype))


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
