"""Command-line flags of the options of a spec, and the flags that reproduce a given spec."""

from __future__ import annotations

from typing import Any

from rescnet_dist.errors import SpecError
from rescnet_dist.formatting import option_name
from rescnet_dist.spec import PRESETS, NetworkSpec, Spec


def nearest_preset(network: NetworkSpec, preferred: str | None = None) -> tuple[str, NetworkSpec]:
    """Return the preset that needs the fewest flags to give a network; ties go to `preferred`."""
    order = sorted(PRESETS, key=lambda name: name != preferred)
    name = min(order, key=lambda name: len(_list_changes(network, PRESETS[name])))
    return name, PRESETS[name]


def flags(spec: Spec, base: Spec) -> list[str]:
    """Return the flags for all options that differ from those of `base`.

    Raise SpecError if no flags give the spec, as for two extractors of one kind.
    """
    changes = _list_changes(spec, base)
    if isinstance(spec, NetworkSpec) and base.replace(**changes) != spec:
        raise SpecError(
            "The network has components with options of their own, which flags cannot set. Write "
            "it to a file with NetworkSpec.to_toml, and use --config."
        )
    return [word for name, value in changes.items() for word in flag(name, value)]


def _list_changes(spec: Spec, base: Spec) -> dict[str, Any]:
    """Return the options, flat ones included, that differ from those of `base`."""
    base_values = {name: value for name, value, _ in base.rows()}
    return {
        name: value
        for name, value, _ in spec.rows()
        if value is not None and (name not in base_values or value != base_values[name])
    }


def flag(name: str, value: Any) -> list[str]:
    """Return the command-line words that set one option.

    >>> flag("levels", (2, 1)), flag("stop_at_zero_error", False)
    (['--levels', '2,1'], ['--no-stop-at-zero-error'])
    """
    if isinstance(value, bool):
        return [option_name(name if value else f"no_{name}")]
    if isinstance(value, list | tuple):
        return [option_name(name), ",".join(map(str, value))]
    return [option_name(name), repr(value) if isinstance(value, float) else str(value)]
