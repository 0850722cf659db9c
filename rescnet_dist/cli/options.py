"""Command-line options made from the specs, and how files, presets and flags combine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rescnet_dist.cli.common import grouped_option
from rescnet_dist.composition import BANK_SHORTHANDS
from rescnet_dist.errors import SpecError
from rescnet_dist.formatting import option_name
from rescnet_dist.options import Option, declared_options
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec, Spec, read_toml

AnySpec = TypeVar("AnySpec", bound=Spec)

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


def resolve_averaging(flips: bool, copies: int | None) -> AugmentSpec | int | None:
    """Return the copies that predictions are averaged over, as `ResCNetClassifier` takes them."""
    if flips and copies:
        raise SpecError(f"--flips and --copies {copies} exclude each other. Give one of them.")
    return AugmentSpec(copies=1, flip=True) if flips else copies


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


def spec_options(spec: type[Spec], *, only: Sequence[str] | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds one flag per option of a spec, or only for those in `only`.

    All are None by default. Options that have options themselves have no flag.
    """

    def decorate(command: Any) -> Any:
        for option in reversed(declared_options(spec).values()):
            if option.is_nested or (only is not None and option.name not in only):
                continue
            flag = option_name(option.name)
            if option.value_type is bool:
                flag = f"{flag}/{option_name(f'no_{option.name}')}"
            command = grouped_option(
                option.group or spec.title,
                *(flag, option.name),
                default=None,
                help=option.help,
                **_value_arguments(option),
            )(command)
            if option.old_name:
                command = _renamed_option(option_name(option.old_name), flag)(command)
        return command

    return decorate


def _value_arguments(option: Option) -> dict[str, Any]:
    """Return the arguments of a click option for the values of an option of a spec."""
    if option.choices:
        return {"type": click.Choice(option.choices)}
    if option.item_type:
        item_type = option.item_type if option.item_type in (int, float) else str
        return {"type": CommaSeparated(item_type), "metavar": option.name.upper()}
    return {"type": None if option.value_type is bool else option.value_type}


def _renamed_option(old: str, new: str) -> Callable[[Any], Any]:
    """Return a decorator for a hidden option that fails with the name of the one to use."""

    def fail(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{old} has been renamed. Use {new} {value}.", ctx)

    return click.option(old, hidden=True, expose_value=False, callback=fail)


DataSize = tuple[tuple[int, int, int], int, int]  # shape (H, W, d), images and classes


def is_automatic(preset: str | None, config: str | None) -> bool:
    """Return whether neither a preset nor a file with a network is given."""
    tables = read_toml(Path(config)) if config else {}
    return not (preset or tables.get("preset") or NetworkSpec.table in tables)


def find_preset(preset: str | None, config: str | None) -> str | None:
    """Return the name of the preset that is given, or else of the one in the file, if any."""
    return preset or (read_toml(Path(config)).get("preset") if config else None)


def resolve_specs(
    preset: str | None,
    config: str | None,
    data: str,
    flags: dict[str, Any],
    size: DataSize | None = None,
) -> tuple[NetworkSpec, RunSpec, AugmentSpec]:
    """Return the specs of a command: the preset, updated by the file, then by the flags.

    Without a preset or a network in the file, settings are chosen for the size of the data.
    """
    tables = read_toml(Path(config)) if config else {}
    name = find_preset(preset, config)
    automatic = is_automatic(preset, config)
    if automatic and size is None:
        raise SpecError(
            f"No network is given for {data}, and the size of its images is not known. Add "
            "--preset (`rescnet presets` lists them), or --config with a [network] table."
        )
    if name is None and data == "digits":
        name = "digits"
    base = NetworkSpec.preset(name) if name else NetworkSpec()
    given = {key: value for key, value in flags.items() if value is not None}

    def update(spec: AnySpec) -> AnySpec:
        by_flags = {key: given[key] for key in declared_options(type(spec)) if key in given}
        table = tables.get(spec.table, {})
        if "bank" in by_flags:  # it replaces the bank that the shorthands in the file stand for
            table = {key: value for key, value in table.items() if key not in BANK_SHORTHANDS}
        # A component that is given by a flag takes over the options of the one in the file.
        if {"bank", "features", "head"} & table.keys() & by_flags.keys():
            return spec.replace(**table).replace(**by_flags)
        return spec.replace(**table | by_flags)

    if automatic and size is not None:
        names = declared_options(NetworkSpec).keys() & given.keys()
        network = NetworkSpec.auto(*size, **{key: given[key] for key in names})
    else:
        network = update(base)
    return network, update(RunSpec()), update(AugmentSpec())
