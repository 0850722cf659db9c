"""The command that trains: a spec and its plan as the options of `rescnet train`."""

from __future__ import annotations

from rescnet_dist.flags import flag, flags, nearest_preset
from rescnet_dist.planning.plan import PLAN_FIELDS, Plan
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

USUAL = RunSpec(validation=0.1)  # what the command line takes where it is told nothing


def training_flags(
    spec: NetworkSpec,
    run_spec: RunSpec,
    augment: AugmentSpec,
    plan: Plan,
    *,
    held_out: bool = False,
) -> list[str]:
    """Options that give the same specs and the same plan, however many workers there are when the
    run begins: the nearest preset, and what differs from it and from the defaults. held_out: the
    share of images to hold out was given, and counts before a data set's own validation images."""
    preset, base = nearest_preset(spec)
    planned = run_spec.replace(**{name: getattr(plan, name) for name in PLAN_FIELDS})
    words = ["--preset", preset, *flags(spec, base), *flags(planned, USUAL)]
    words += flags(augment, AugmentSpec())
    if held_out and run_spec.validation == USUAL.validation:  # else it is among them
        words += flag("validation", run_spec.validation)
    return words
