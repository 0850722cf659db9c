"""Begin a run: check the data against the spec, plan it, and write what the passes will read."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

from rescnet_dist.data import (
    as_images,
    as_labels,
    classes_array,
    classes_of,
    classes_to_json,
    encode,
)
from rescnet_dist.errors import DataError, RescnetError
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, write_region
from rescnet_dist.train.cluster import cluster_slots
from rescnet_dist.train.plan import Plan, make_plan

Array = np.ndarray[Any, np.dtype[Any]]


def start_run(
    url: str | os.PathLike[str],
    spec: NetworkSpec,
    run_spec: RunSpec,
    X: Any,
    y: Any,
    validation: tuple[Any, Any] | None,
    client: Client,
    *,
    source: str | None = None,
    temporary: bool = False,
) -> tuple[RunStore, Array]:
    """Make the run store for training on images X and labels y, validating on `validation`;
    returns it with the classes (C,).

    All that can be refused without reading lazy data is refused before anything is written; if
    writing fails, nothing is left behind. Images at a Zarr URL are referred to, others are copied.
    source is a name for the data, kept with the run. A temporary store may hold classes that could
    not be read back from it.
    """
    images = as_images(X)
    labels = as_labels(y, X, images.shape[0])
    spec.check_images(*images.shape[1:])
    classes = classes_of(labels)
    if len(classes) < 2:
        raise DataError(f"y has the one class {classes[0]!r} only: give images of at least 2")
    known = classes_array(classes)
    parts = [(images, encode(labels, known))]
    if validation is not None:
        run_spec = run_spec.replace(validation=0.0)
        held_out = as_images(validation[0], name="validation X")
        if held_out.shape[1:] != images.shape[1:]:
            raise DataError(
                f"validation images are {held_out.shape[1:]} and training images are "
                f"{images.shape[1:]} (height, width, channels): give images of one shape"
            )
        held_labels = as_labels(
            validation[1], validation[0], held_out.shape[0], name="validation y"
        )
        parts.append((held_out, encode(held_labels, known, name="validation y")))
    elif run_spec.validation > 0:
        check_split(images.shape[0], len(classes), run_spec.validation)
    count = sum(part.shape[0] for part, _ in parts)
    plan = make_plan(spec, run_spec, count, images.shape[1:], *cluster_slots(client))
    reference = images.reference if len(parts) == 1 else None
    attributes = {
        "network": spec.to_dict(),
        "run": run_spec.to_dict(),
        "plan": plan.to_dict(),
        "classes": classes_to_json(classes, lossy=temporary),
        "image_shape": list(images.shape[1:]),
        "source": source or (reference[0] if reference else None),
        "provenance": {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {
                name: version(name) for name in ("rescnet-dist", "numpy", "scipy", "dask", "zarr")
            },
        },
    }
    if reference:
        attributes["images"] = {"url": reference[0], "path": reference[1]}
    run = RunStore.create(url, attributes)
    try:
        dtype = stored_dtype([part.array.dtype for part, _ in parts])
        run.create_data(count, images.shape[1:], dtype, plan.chunk_images, images=not reference)
        if not reference:
            _write_rows(run, "images", [part.array.astype(dtype) for part, _ in parts], client)
        _write_rows(run, "labels", [codes for _, codes in parts], client)
        _write_train_mask(run, images.shape[0], plan)
    except BaseException:
        run.place.remove()
        raise
    return run, known


def check_split(images: int, classes: int, fraction: float) -> None:
    """Refuse a validation split that would leave one of the sides without images."""
    if int(images * fraction) < 1 or images - int(images * fraction) < classes:
        least = max(int(np.ceil(1 / fraction)), int(np.ceil(classes / (1 - fraction))))
        raise DataError(
            f"validation={fraction} cannot be held out of {images} images of {classes} classes: "
            f"give at least {least} images, another share, or a validation set"
        )


def stored_dtype(dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    """The dtype images are stored in: bool as uint8, double as single precision, others as is."""
    common = np.result_type(*dtypes)
    if common.kind == "b":
        return np.dtype("uint8")
    return np.dtype("float32") if common.kind == "f" and common.itemsize > 4 else common


def _write_rows(run: RunStore, name: str, parts: list[Array | da.Array], client: Client) -> None:
    """Write parts (n_i, …), NumPy or dask, one behind the other into an array of the run."""
    target = run.data_array(name, write=True)
    chunk = target.chunks[0]
    if any(isinstance(part, da.Array) for part in parts):
        whole = da.concatenate([da.asarray(part) for part in parts])
        whole = whole.rechunk((chunk, *target.shape[1:]))
        client.compute(da.store(whole, target, lock=False, compute=False)).result()
        return
    rows = _row_reader(parts)
    for start in range(0, target.shape[0], chunk):
        write_region(target, start, rows(start, min(start + chunk, target.shape[0])))


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
        write_region(target, start, np.arange(start, stop) < train_images)


def remove_if_unusable(run: RunStore, error: BaseException) -> None:
    """Remove a run whose data turned out unusable before its first step was committed."""
    if isinstance(error, RescnetError) and not run.commits():
        run.place.remove()
