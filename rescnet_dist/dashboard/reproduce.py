"""The command that trains a run again, to the same bits."""

from __future__ import annotations

import shlex

from rescnet_dist.flags import flag, flags, nearest_preset
from rescnet_dist.planning.plan import PLAN_FIELDS, Plan
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec


def reproduce(
    source: str | None,
    network: NetworkSpec,
    run: RunSpec,
    augment: AugmentSpec,
    plan: Plan,
    *,
    held_out: bool,
) -> tuple[str | None, list[str]]:
    """The command line that trains the same network on a source, and what to mind about it.

    The plan is among its flags, as it fixes the order of every sum. held_out: whether the run held
    images out. Without a source, arrays, there is no command.
    """
    if source is None:
        return None, [
            "It was trained on arrays in memory, which the run does not name: give the same arrays "
            "and specs to ResCNetClassifier."
        ]
    preset, base = nearest_preset(network, source if source == "digits" else None)
    words = ["rescnet", "train", source]
    if source != "digits" or preset != "digits":
        words += ["--preset", preset]
    words += flags(network, base)
    planned = run.replace(**{name: getattr(plan, name) for name in PLAN_FIELDS})
    own_split = held_out and run.validation == 0  # of the data, which the command takes itself
    if not own_split:
        words += flag("validation", planned.validation)
    # told even where they are the defaults: another machine or release may plan otherwise
    words += flag("seed", planned.seed)
    for name in PLAN_FIELDS:
        if getattr(planned, name) is not None:
            words += flag(name, getattr(planned, name))
    told = RunSpec(
        **{name: getattr(planned, name) for name in (*PLAN_FIELDS, "seed", "validation")}
    )
    words += flags(planned, told) + flags(augment, AugmentSpec())
    return shlex.join(words), _notes(source, plan)


def _notes(source: str, plan: Plan) -> list[str]:
    notes = []
    if "***" in source:
        notes.append("The source carried credentials, which are not stored: put them where *** is.")
    if "://" not in source and source not in ("digits",) and not source.startswith("/"):
        notes.append("A source that is a relative path is relative to where the run was started.")
    if plan.tile_features is None:
        notes.append(
            "Workers need at least as much memory as they had, or the scatter matrix is cut into "
            "tiles, which changes the last bits."
        )
    return notes
