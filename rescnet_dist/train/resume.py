"""The same command again: begin a run, or go on with the one that is there if it is the same."""

from __future__ import annotations

from typing import Any

from rescnet_dist.data import TrainingSet, classes_to_json
from rescnet_dist.errors import StoreError, mask_secrets
from rescnet_dist.planning.plan import PLAN_FIELDS
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec, Spec
from rescnet_dist.store import (
    RUN_FORMAT,
    Location,
    RunStore,
    check_unclaimed,
    translate_attribute_errors,
)
from rescnet_dist.train.prepare import CHANGEABLE

STARTED = {"claims", "data", "work", "zarr.json"}  # all that a run has before its data are complete


def find_matching_run(
    url: str, spec: NetworkSpec, run_spec: RunSpec, data: TrainingSet, source: str
) -> dict[str, Any] | None:
    """The attributes of the run at a URL if it is the one with these specs and data; None where
    there is none yet, or one that died before its data were complete, so that it is to begin.
    Anything else that is there is refused, and so is a run that another driver writes to. A run
    keeps the plan that it began with, so that other wishes for that make it no other run, and
    neither does what may change as it goes on (`Changes`)."""
    location = Location.of(url)
    if not location.exists():
        location.check_bucket()
        return None
    if is_incomplete(location):
        check_unclaimed(location)
        return None
    attributes = RunStore.open(url).attributes()
    differences = _differences(url, attributes, spec, run_spec, data, source)
    if differences:
        raise StoreError(
            f"store {location.url} holds another run, with {'; '.join(differences)}: give the "
            "settings that it began with, or another store (`rescnet resume` grows it on, with "
            "--max-layers)"
        )
    return attributes


def is_incomplete(location: Location) -> bool:
    """Whether there is nothing but what a driver writes before the data of a run are complete."""
    names = set(location.names())
    if not names <= STARTED or "claims" not in names:
        return False
    if "zarr.json" not in names:
        return True
    attributes = location.attributes()
    return attributes.get("format", RUN_FORMAT) == RUN_FORMAT and not attributes.get(
        "data_complete"
    )


def other_plan(attributes: dict[str, Any], run_spec: RunSpec) -> str | None:
    """What of the plan of a run is not as it is asked for now, in words."""
    kept, asked = attributes.get("plan", {}), run_spec.to_dict()
    if all(kept.get(name) == asked[name] for name in PLAN_FIELDS if name in asked):
        return None
    plan = ", ".join(f"{name}={kept.get(name)}" for name in PLAN_FIELDS)
    return f"the run goes on with the plan that it began with: {plan}"


def _differences(
    url: str,
    attributes: dict[str, Any],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    source: str,
) -> list[str]:
    """What a run was begun with that is not as it is asked for now, in words."""
    if data.has_validation:
        run_spec = run_spec.replace(validation=0.0)  # as `prepare_run` does
    asked: dict[str, Any] = {
        **spec.to_dict(),
        **run_spec.to_dict(),
        **data.augment.to_dict(),
        "data": mask_secrets(source),
        "images of": list(data.image_shape),
        "classes": classes_to_json(data.classes),
    }
    kinds: dict[str, type[Spec]] = {"network": NetworkSpec, "run": RunSpec, "augment": AugmentSpec}
    with translate_attribute_errors(
        Location.of(url)
    ):  # what an older release did not store has defaults
        stored = [kind.from_stored(attributes[name]).to_dict() for name, kind in kinds.items()]
    there: dict[str, Any] = {
        **{name: value for fields in stored for name, value in fields.items()},
        "data": attributes.get("source"),
        "images of": attributes.get("image_shape"),
        "classes": attributes.get("classes"),
    }
    free = {*PLAN_FIELDS, *CHANGEABLE}
    names = [name for name in {**there, **asked} if name not in free]
    different = [name for name in names if there.get(name) != asked.get(name)]
    return [
        "other classes"
        if name == "classes"
        else f"{name} {there.get(name)!r} where {asked.get(name)!r} is asked for"
        for name in different
    ]
