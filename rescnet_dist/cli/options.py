"""Command-line options of the specs, which several commands have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from rescnet_dist.cli.common import Choice, grouped_option
from rescnet_dist.cli.flag_table import TYPES, Flag
from rescnet_dist.formatting import option_name

STORE_OPTION = grouped_option(
    "Run", "--store", help="URL of the run store  [default: runs/DATA-DATE]"
)
TEST_OPTION = grouped_option(
    "Data", "--test", "test_data", help="data to report the test accuracy on"
)
PRESET_OPTION = grouped_option(
    "Network", "--preset", help="preset network to start from; see `rescnet presets`"
)
CONFIG_OPTION = grouped_option(
    *("Network", "--config"),
    help="TOML file with a [network] and a [run] table; flags override it",
)


class CommaSeparated(click.ParamType):
    """Values of one type separated by commas; of numbers, also none."""

    name = "list"

    def __init__(self, item_type: type) -> None:
        self.item_type = item_type

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Read "4,2,1" as (4, 2, 1), and "none" as ()."""
        if value == "none" and self.item_type is not str:
            return ()
        try:
            return tuple(self.item_type(part) for part in str(value).split(","))
        except ValueError:
            kind = {int: "whole numbers", float: "numbers"}[self.item_type]
            self.fail(f"{value!r} is not a list of {kind} such as 4 or 4,2,1.", param, ctx)


def spec_options(flags: Iterable[Flag]) -> Callable[[Any], Any]:
    """Return a decorator that adds the flags of a spec to a command. All are None by default."""

    def decorate(command: Any) -> Any:
        for flag in reversed([*flags]):
            name = option_name(flag.name)
            if flag.type == "bool":
                name = f"{name}/{option_name(f'no_{flag.name}')}"
            command = grouped_option(
                *(flag.group, name, flag.name),
                default=None,
                help=flag.help,
                **_value_arguments(flag),
            )(command)
            if flag.old_name:
                command = _renamed_option(option_name(flag.old_name), name)(command)
        return command

    return decorate


def _value_arguments(flag: Flag) -> dict[str, Any]:
    """Return the arguments of a click option for the values of a flag."""
    if flag.choices:
        return {"type": Choice(flag.choices)}
    if flag.is_list:
        return {"type": CommaSeparated(TYPES[flag.type]), "metavar": flag.name.upper()}
    return {"type": None if flag.type == "bool" else TYPES[flag.type]}


def _renamed_option(old: str, new: str) -> Callable[[Any], Any]:
    """Return a decorator for a hidden option that fails with the name of the one to use."""

    def fail(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{old} has been renamed. Use {new} {value}.", ctx)

    return click.option(old, hidden=True, expose_value=False, callback=fail)
