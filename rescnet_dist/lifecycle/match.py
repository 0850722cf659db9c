"""Decide whether the run at a URL is the one asked for, so that it can be resumed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from rescnet_dist.data import TrainingSet, classes_to_json
from rescnet_dist.errors import StoreError
from rescnet_dist.planning.plan import PLAN_FIELDS
from rescnet_dist.spec import CHANGEABLE, AugmentSpec, NetworkSpec, RunSpec, Spec
from rescnet_dist.store import (
    RUN_FORMAT,
    Location,
    RunStore,
    check_unclaimed,
    read_format_name,
    translate_attribute_errors,
)

WEIGHT_ATTRIBUTES = ("sample_weight", "class_weight")  # of `Weights.to_dict`
# how differences are described whose values say nothing to a user
OTHER = {"classes": "other classes", "sample_weight": "other sample weights"}
# everything that a run may have before its data are complete, and in all
INCOMPLETE_RUN_NAMES = {"claims", "data", "work", "zarr.json"}
RUN_NAMES = {
    *INCOMPLETE_RUN_NAMES,
    "checksums",
    "commits",
    "image_scale",
    "layers",
    "maps",
    "result.json",
    "scores",
    "views",
}
# Of chunks of a run's arrays. The suffix is that of Zarr for files that are being written.
CHUNK_FOLDERS = {"data", "work", "maps", "scores"}
CHUNK_PATH = re.compile(
    r"(data/(images|labels|train|weights)"
    r"|work/(basis|directions|factor|features|groups|scatter|solution|weights)"
    r"|(maps|scores)/\d{4})"
    r"/c(/(0|[1-9]\d*))+(\.[0-9a-f]{32}\.partial)?"
)
MAX_LISTED_NAMES = 3


def match_run(
    run: RunStore, spec: NetworkSpec, run_spec: RunSpec, data: TrainingSet, source: str | None
) -> dict[str, Any]:
    """Return the attributes of a run if it has these specs and data; else raise StoreError.

    A run keeps its plan, so differences in the plan are ignored, as are differences in what may be
    changed on resuming (`Changes`).
    """
    attributes = run.attributes()
    differences = _describe_differences(run, attributes, spec, run_spec, data, source)
    if differences:
        raise StoreError(
            f"Store {run.url} holds another run, with {'; '.join(differences)}. Use the "
            "settings that it was started with, or another store. To add layers, use "
            "`ResCNetClassifier.resume` with max_layers, or `rescnet resume` with --max-layers."
        )
    return attributes


def is_incomplete(location: Location) -> bool:
    """Return whether a location holds only what is written before a run's data are complete.

    What late tasks of a removed run have written counts, too; see `has_only_late_chunks`.
    """
    names = set(location.names())
    if has_only_late_chunks(location, names - {"claims"}):
        return True
    if not names <= INCOMPLETE_RUN_NAMES or "claims" not in names:
        return False
    if "zarr.json" not in names:
        return True
    attributes = location.attributes()
    return attributes.get("format", RUN_FORMAT) == RUN_FORMAT and not attributes.get(
        "data_complete"
    )


def has_only_late_chunks(location: Location, names: Collection[str]) -> bool:
    """Return whether a location has nothing but chunks of arrays of a run under these names.

    Tasks on workers that were suspended write them after their run was removed. Nothing can read
    them without the metadata of their arrays.
    """
    if not names or not CHUNK_FOLDERS.issuperset(names):
        return False
    return all(_has_only_chunks(location / name, name) for name in names)


def _has_only_chunks(folder: Location, path: str) -> bool:
    """Return whether there is nothing but chunks in a folder; stop at the first other file."""
    entries = folder.list_entries()
    if entries is None:  # a file, or an empty folder that an object store lists
        return not folder.exists()
    paths = {f"{path}/{name}": is_folder for name, is_folder in entries.items()}
    return all(
        is_folder or CHUNK_PATH.fullmatch(path) for path, is_folder in paths.items()
    ) and all(
        _has_only_chunks(folder / name, f"{path}/{name}")
        for name, is_folder in entries.items()
        if is_folder
    )


def check_replaceable(run: RunStore, data: TrainingSet) -> bool:
    """Return whether there is a run to be replaced; raise StoreError if more would be lost.

    That is anything but a run, files among those of the run, a run that another driver writes to,
    and one that has the training images.
    """
    location = run.location
    if not location.exists():
        return False
    check_unclaimed(location)
    names = set(location.names())
    is_run = is_incomplete(location) or read_format_name(location) == RUN_FORMAT
    if not is_run or names - RUN_NAMES:
        others = ", ".join(sorted(names - RUN_NAMES)[:MAX_LISTED_NAMES])
        content = f"more than a run ({others})" if is_run else "something that is not a run"
        raise StoreError(
            f"Store {location} holds {content}, which is not overwritten. Choose another URL, or "
            "remove what is there."
        )
    if any(part.stored and f"{part.stored.url}/".startswith(f"{run.url}/") for part in data.images):
        raise StoreError(
            f"Store {location} holds the images to train on, which overwriting would remove. "
            "Choose another URL."
        )
    return True


def describe_plan_difference(attributes: dict[str, Any], run_spec: RunSpec) -> str | None:
    """Describe the plan of a run if it differs from the one asked for; otherwise return None."""
    stored, requested = attributes.get("plan", {}), run_spec.to_dict()
    if all(stored.get(name) == requested[name] for name in PLAN_FIELDS if name in requested):
        return None
    plan = ", ".join(f"{name}={stored.get(name)}" for name in PLAN_FIELDS)
    return f"The run continues with the plan that it was started with: {plan}."


def _describe_differences(
    run: RunStore,
    attributes: dict[str, Any],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    source: str | None,
) -> list[str]:
    """Describe the settings of a run that differ from those asked for."""
    requested: dict[str, Any] = {
        **spec.to_dict(),
        **run_spec.to_dict(),
        **data.augment.to_dict(),
        "data": data.source_name(source),
        "images of": list(data.image_shape),
        "classes": classes_to_json(data.classes),
        **data.weights.to_dict(),
    }
    kinds: dict[str, type[Spec]] = {"network": NetworkSpec, "run": RunSpec, "augment": AugmentSpec}
    with translate_attribute_errors(run.location):
        # from_stored fills in defaults for what an older release did not store
        specs = [kind.from_stored(attributes[name]).to_dict() for name, kind in kinds.items()]
    stored: dict[str, Any] = {
        **{name: value for fields in specs for name, value in fields.items()},
        "data": attributes.get("source"),
        "images of": attributes.get("image_shape"),
        "classes": attributes.get("classes"),
        **{name: attributes[name] for name in WEIGHT_ATTRIBUTES if name in attributes},
    }
    ignored = {*PLAN_FIELDS, *CHANGEABLE}
    names = [name for name in {**stored, **requested} if name not in ignored]
    different = [name for name in names if stored.get(name) != requested.get(name)]
    return [
        OTHER[name]
        if name in OTHER
        else f"{name} {stored.get(name)!r} instead of {requested.get(name)!r}"
        for name in different
    ]
