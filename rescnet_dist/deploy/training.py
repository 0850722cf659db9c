"""The training command of a deployment: specs and a plan as the options of `rescnet train`."""

from __future__ import annotations

from rescnet_dist.flags import flag, flags, nearest_preset
from rescnet_dist.planning.plan import PLAN_FIELDS, Plan
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

TRAIN_DEFAULTS = RunSpec(validation=0.1)  # of `rescnet train` without options


def training_flags(
    spec: NetworkSpec,
    run_spec: RunSpec,
    augment: AugmentSpec,
    plan: Plan,
    *,
    held_out: bool = False,
) -> list[str]:
    """Return options that give the same specs and plan, for any number of workers at the start.

    They are the nearest preset, and what differs from it and from the defaults. held_out says that
    the validation fraction was given, so that it takes precedence over a dataset's own validation
    images.
    """
    preset, base = nearest_preset(spec)
    planned = run_spec.replace(**{name: getattr(plan, name) for name in PLAN_FIELDS})
    words = ["--preset", preset, *flags(spec, base), *flags(planned, TRAIN_DEFAULTS)]
    words += flags(augment, AugmentSpec())
    if held_out and run_spec.validation == TRAIN_DEFAULTS.validation:  # else it is among them
        words += flag("validation", run_spec.validation)
    return words
