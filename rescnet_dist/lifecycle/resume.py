"""Resume a run: what may be changed, checks, and the whole resumed run as its only writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Client

from rescnet_dist.cluster import CheckedWorkers, Workers, keep_workers, translate_errors
from rescnet_dist.errors import CorruptDataError, SpecError, StoreError, pluralize
from rescnet_dist.events.classes import Listener
from rescnet_dist.planning.tier import Tier, check_tier, choose_tier
from rescnet_dist.runs.state import RunState
from rescnet_dist.spec import CHANGEABLE, NetworkSpec, RunSpec
from rescnet_dist.store import (
    Claim,
    RunStore,
    check_unclaimed,
    layer_path,
    translate_attribute_errors,
)
from rescnet_dist.train.loop import train


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


def check_resume(
    run: RunStore, changes: Changes = NO_CHANGES, *, take_over: bool = False
) -> tuple[NetworkSpec, RunSpec]:
    """Return the specs of a run with the changes applied.

    Raise StoreError if another driver writes to the run (unless `take_over`), or if the run cannot
    be resumed, and SpecError if a change is not possible.
    """
    if not take_over:
        check_unclaimed(run.location)
    return _apply_changes(run, run.attributes(), changes)


def _apply_changes(
    run: RunStore, attributes: dict[str, Any], changes: Changes
) -> tuple[NetworkSpec, RunSpec]:
    """Return the specs of a run that can be resumed, with the changes applied."""
    max_layers = changes.max_layers
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
    if max_layers is not None and max_layers != spec.max_layers:
        if spec.heads == "last":
            raise SpecError(
                f"max_layers={max_layers} is not possible: only the last of the {spec.max_layers} "
                f"layers of the run at {run} has a head. Train again with other max_layers."
            )
        spec = spec.replace(max_layers=max_layers)
    RunState.from_attributes(run, attributes)  # raises if they are damaged
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


def resume_run(
    run: RunStore,
    client: Client,
    listeners: Sequence[Listener] = (),
    *,
    changes: Changes = NO_CHANGES,
    take_over: bool = False,
) -> RunStore:
    """Resume a run after its last committed layer, with changes.

    Raise StoreError if another driver writes to the run, unless take_over says that it is dead.
    """
    with Claim.take(run.location, take_over=take_over).hold() as claim, translate_errors(client):
        state, workers, planned = prepare_resume(run, client, changes)
        with keep_workers(client, planned):
            train(claim, state, client, listeners, workers)
    return run


def prepare_resume(
    run: RunStore, client: Client, changes: Changes = NO_CHANGES
) -> tuple[RunState, CheckedWorkers | None, int]:
    """Prepare a claimed run to be resumed, with changes.

    Return its new state, the workers if they had to be checked, and the number of workers that the
    run was planned for. The attributes are read again, as another driver may have changed them
    before the run was claimed. Raise an error for a change to maps="memory" if they do not fit.
    """
    attributes, checked = run.attributes(), None
    spec, run_spec = _apply_changes(run, attributes, changes)
    state = RunState.from_attributes(run, attributes)
    if changes.maps == "memory" != state.run_spec.maps:
        problem = state.problem(run.images()[0].dtype.itemsize)
        checked = CheckedWorkers.from_client(client, state.backend)

        def choose(candidates: Workers) -> Tier:
            return choose_tier(problem, spec, run_spec, state.plan, candidates)

        check_tier(
            choose(checked.workers), run_spec, checked.workers, lambda w: choose(w).in_memory
        )
    new = {"network": spec.to_dict(), "run": run_spec.to_dict()}
    if any(attributes[name] != value for name, value in new.items()):
        run.update_attributes(**new)
    return replace(state, spec=spec, run_spec=run_spec), checked, _planned_workers(attributes)


def _planned_workers(attributes: dict[str, Any]) -> int:
    """Return the number of workers that a run was planned for; 1 if it is unknown."""
    expected = attributes.get("expected") or {}
    count = (expected.get("workers") or {}).get("count")
    return count if isinstance(count, int) and count > 0 else 1
