"""Fields as options of `rescnet`, and specs as those that give them again."""

from __future__ import annotations

from typing import Any

from rescnet_dist.spec import PRESETS, NetworkSpec, Spec


def nearest_preset(network: NetworkSpec, preferred: str | None = None) -> tuple[str, NetworkSpec]:
    """The preset from which the fewest options lead to a network; the preferred one on ties."""
    order = sorted(PRESETS, key=lambda name: name != preferred)
    name = min(order, key=lambda name: len(flags(network, PRESETS[name])))
    return name, PRESETS[name]


def flags(spec: Spec, base: Spec) -> list[str]:
    """Options for all fields that differ from those of another spec."""
    before = {name: value for name, value, _ in base.rows()}
    return [
        word
        for name, value, _ in spec.rows()
        if value is not None and value != before[name]
        for word in flag(name, value)
    ]


def option_name(field: str) -> str:
    """The option of a field.

    >>> option_name("max_layers")
    '--max-layers'
    """
    return f"--{field.replace('_', '-')}"


def flag(name: str, value: Any) -> list[str]:
    """The words of one option.

    >>> flag("levels", (2, 1)), flag("stop_at_zero_error", False)
    (['--levels', '2,1'], ['--no-stop-at-zero-error'])
    """
    if isinstance(value, bool):
        return [option_name(name if value else f"no_{name}")]
    if isinstance(value, list | tuple):
        return [option_name(name), ",".join(map(str, value))]
    return [option_name(name), repr(value) if isinstance(value, float) else str(value)]
