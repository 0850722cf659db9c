"""The command line that trains a run again, with bit-identical results."""

from __future__ import annotations

import shlex

from rescnet_dist.errors import SpecError
from rescnet_dist.flags import flag, flags, nearest_preset
from rescnet_dist.planning.plan import PLAN_FIELDS, Plan
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec


def reproduce_command(
    source: str | None,
    network: NetworkSpec,
    run: RunSpec,
    augment: AugmentSpec,
    plan: Plan,
    *,
    held_out: bool,
    has_weights: bool = False,
) -> tuple[str | None, list[str]]:
    """Return the command that trains the same network on a source, and notes on its use.

    The plan is among its flags, as it fixes the order of every sum. held_out says whether the run
    held out images, has_weights whether it was given weights of images or a dict of class weights.
    The command is None if the run was trained on arrays, without a source, or if
    flags cannot describe its network.
    """
    if source is None:
        return None, [
            "It was trained on arrays in memory, which the run does not name. Pass the same "
            "arrays and specs to ResCNetClassifier."
        ]
    preset, base = nearest_preset(network, source if source == "digits" else None)
    # the preset is always given: another release may choose other settings without it
    words = ["rescnet", "train", source, "--preset", preset]
    try:
        words += flags(network, base)
    except SpecError as error:
        return None, [str(error)]
    planned = run.replace(**{name: getattr(plan, name) for name in PLAN_FIELDS})
    # the command uses the dataset's own validation split by itself
    has_own_split = held_out and not run.validation
    if not has_own_split:
        words += flag("validation", planned.validation or 0.0)
    # given even if they are the defaults: another machine or release may plan differently
    words += flag("seed", planned.seed)
    for name in PLAN_FIELDS:
        if getattr(planned, name) is not None:
            words += flag(name, getattr(planned, name))
    given = RunSpec(
        **{name: getattr(planned, name) for name in (*PLAN_FIELDS, "seed", "validation")}
    )
    words += flags(planned, given) + flags(augment, AugmentSpec())
    return shlex.join(words), _make_notes(source, plan, has_weights)


def _make_notes(source: str, plan: Plan, has_weights: bool) -> list[str]:
    """Return what a user of the command has to know, one sentence or two each."""
    notes = []
    if "***" in source:
        notes.append("The source had credentials, which are not stored. Replace *** with them.")
    if "://" not in source and source not in ("digits",) and not source.startswith("/"):
        notes.append("The source is a relative path. Run the command where the run was started.")
    if has_weights:
        notes.append(
            "The run has weights of images or classes. The command uses the variable sample_weight "
            "of the source, if there is one; pass other weights in Python."
        )
    if plan.tile_features is None:
        notes.append(
            "Give workers at least as much memory as in the run. With less, the scatter matrix is "
            "cut into tiles, which changes the last bits."
        )
    return notes
