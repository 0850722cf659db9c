"""The command that trains a run again, to the same bits."""

from __future__ import annotations

import shlex
from typing import Any

from rescnet_dist.planning.plan import Plan
from rescnet_dist.spec import PRESETS, AugmentSpec, NetworkSpec, RunSpec, Spec

PLANNED = ("chunk_images", "accumulators", "split_every", "solve_threads", "tile_features")


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
    preset, base = _nearest_preset(source, network)
    words = ["rescnet", "train", source]
    if source != "digits" or preset != "digits":
        words += ["--preset", preset]
    words += _flags(network, base)
    planned = run.replace(**{name: getattr(plan, name) for name in PLANNED})
    own_split = held_out and run.validation == 0  # of the data, which the command takes itself
    if not own_split:
        words += _flag("validation", planned.validation)
    # told even where they are the defaults: another machine or release may plan otherwise
    words += _flag("seed", planned.seed)
    for name in PLANNED:
        if getattr(planned, name) is not None:
            words += _flag(name, getattr(planned, name))
    told = RunSpec(**{name: getattr(planned, name) for name in (*PLANNED, "seed", "validation")})
    words += _flags(planned, told) + _flags(augment, AugmentSpec())
    return shlex.join(words), _notes(source, plan)


def _nearest_preset(source: str, network: NetworkSpec) -> tuple[str, NetworkSpec]:
    """The preset that differs in the fewest fields; the one that is taken by itself on ties."""
    order = sorted(PRESETS, key=lambda name: (source, name) != ("digits", "digits"))
    name = min(order, key=lambda name: len(_flags(network, PRESETS[name])))
    return name, PRESETS[name]


def _flags(spec: Spec, base: Spec) -> list[str]:
    """Flags for all fields that differ from those of another spec."""
    before = {name: value for name, value, _ in base.rows()}
    return [
        word
        for name, value, _ in spec.rows()
        if value is not None and value != before[name]
        for word in _flag(name, value)
    ]


def _flag(name: str, value: Any) -> list[str]:
    """The words of a flag of `rescnet train`.

    >>> _flag("levels", (2, 1)), _flag("stop_at_zero_error", False)
    (['--levels', '2,1'], ['--no-stop-at-zero-error'])
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list | tuple):
        return [f"--{flag}", ",".join(map(str, value))]
    return [f"--{flag}", repr(value)] if isinstance(value, float) else [f"--{flag}", str(value)]


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
