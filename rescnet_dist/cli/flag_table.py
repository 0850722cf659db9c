"""The flags of specs: from the declared options, or from a table of them.

Importing the specs, their components and NumPy takes longer than `--help` may take. The table
`flags.json` has the same flags; a test compares them. After a change of options, write it with

    python -m rescnet_dist.cli.flag_table
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from rescnet_dist.options import Option
    from rescnet_dist.spec import Spec

TABLE_PATH = Path(__file__).with_name("flags.json")
SPEC_TABLES = ("network", "run", "augment")  # of TOML, one for each spec
TYPES = {"bool": bool, "int": int, "float": float, "str": str}

# Entry points by which other packages add components, whose options have flags too
COMPONENT_GROUPS = tuple(
    f"rescnet_dist.{kind}" for kind in ("filters", "features", "heads", "views")
)


class Flag(NamedTuple):
    """A flag of the command line, for an option of a spec."""

    name: str  # of the option
    group: str  # the heading that it is listed under
    help: str
    type: str  # one of TYPES; of a list, that of its items
    is_list: bool = False
    choices: tuple[str, ...] = ()
    old_name: str | None = None

    @classmethod
    def of(cls, option: Option, title: str) -> Flag:
        """Return the flag of an option of a spec with this title."""
        kind = option.item_type or option.value_type
        name = getattr(kind, "__name__", "str")
        return cls(
            option.name,
            option.group or title,
            option.help,
            type=name if name in TYPES else "str",
            is_list=option.item_type is not None,
            choices=option.choices,
            old_name=option.old_name,
        )


def declared_flags(spec: type[Spec]) -> list[Flag]:
    """Return the flags of all options of a spec, except of those that have options themselves."""
    options = spec.settable_options().values()
    return [Flag.of(option, spec.title) for option in options if not option.is_nested]


def read_flags(table: str) -> list[Flag]:
    """Return the flags of the spec whose table in TOML is `table`, such as "network".

    They are those of `flags.json`, unless an installed package adds components.
    """
    if table == "network" and has_other_components():
        from rescnet_dist.spec import NetworkSpec  # slow to import

        return declared_flags(NetworkSpec)
    return [
        Flag(**flag | {"choices": tuple(flag.get("choices", ()))}) for flag in _read_table()[table]
    ]


@cache
def has_other_components() -> bool:
    """Return whether an installed package has entry points for components."""
    found = entry_points()  # of Python 3.11 and 3.12, different types, both with `select`
    return any(found.select(group=group) for group in COMPONENT_GROUPS)


@cache
def _read_table() -> dict[str, list[dict[str, Any]]]:
    return cast(dict[str, list[dict[str, Any]]], json.loads(TABLE_PATH.read_text("utf-8")))


def make_table() -> str:
    """Return the text of the table: the flags of all specs, a line each, without defaults."""
    from inspect import signature

    from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

    specs = (NetworkSpec, RunSpec, AugmentSpec)
    defaults = {name: found.default for name, found in signature(Flag).parameters.items()}
    tables = []
    for spec in specs:
        lines = []
        for flag in declared_flags(spec):
            pairs = [(name, getattr(flag, name)) for name in defaults]
            values = {name: value for name, value in pairs if value != defaults[name]}
            lines.append("    " + json.dumps(values, ensure_ascii=False))
        tables.append(f'  "{spec.table}": [\n' + ",\n".join(lines) + "\n  ]")
    return "{\n" + ",\n".join(tables) + "\n}\n"


if __name__ == "__main__":
    TABLE_PATH.write_text(make_table(), encoding="utf-8")
