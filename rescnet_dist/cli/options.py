"""Command-line options made from the specs, and how files, presets and flags combine."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rescnet_dist.composition import BANK_SHORTHANDS
from rescnet_dist.errors import ClusterError, SpecError
from rescnet_dist.flags import option_name
from rescnet_dist.formatting import format_bytes
from rescnet_dist.options import Option, declared_options
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec, Spec, read_toml

MIN_MEMORY_BYTES = 64 * 2**20  # smaller sizes are taken for a missing unit

AnySpec = TypeVar("AnySpec", bound=Spec)

# Arguments of every click command.
HELP_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}
}


class GroupedOption(click.Option):
    """An option that `GroupedCommand` lists under a heading."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command with many options: those of a group are listed together.

    Groups follow each other as their first options do.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group under its heading, the other options last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        options = (found for found in self.get_params(ctx) if isinstance(found, click.Option))
        for option in options:
            if record := option.get_help_record(ctx):
                group = getattr(option, "group", None)
                (groups.setdefault(group, []) if group else others).append(record)
        for title, records in (groups | {"Other": others}).items():
            with formatter.section(title):
                formatter.write_dl(records)


def grouped_option(group: str, *names: str, **settings: Any) -> Callable[[Any], Any]:
    """Return a decorator that adds an option of a group to a command, as `click.option` does."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


SCHEDULER_VARIABLE = "DASK_SCHEDULER_ADDRESS"  # Dask reads it too, and its operator sets it
CLUSTER_HELP = {
    "scheduler": f"address of a Dask scheduler  [default: {SCHEDULER_VARIABLE}, or this machine]",
    "scheduler_file": "file with the address of a Dask scheduler, written by the scheduler",
    "gateway": "address of a Dask gateway",
    "gateway_cluster": "name of the cluster at the gateway  [default: the only one]",
}


def cluster_options(command: Any) -> Any:
    """Add the options that name a cluster to a command; `pop_cluster_options` reads them."""
    for name in reversed(CLUSTER_HELP):
        flag = option_name(name)
        command = grouped_option("Cluster", flag, name, help=CLUSTER_HELP[name])(command)
    text = "workers that the named cluster's autoscaler is to start, and to keep until the end"
    workers = click.IntRange(1)
    command = grouped_option("Cluster", "--workers", type=workers, help=text)(command)
    text = "how long to wait for the named cluster and its first worker, such as 10m"
    return grouped_option("Cluster", "--wait", "wait", metavar="TIME", help=text)(command)


def pop_cluster_options(flags: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of a cluster from all flags and return those that are set.

    Without any, the environment may name a scheduler. Raise ClusterError for more than one.
    """
    wait, workers = flags.pop("wait"), flags.pop("workers")
    options = _check_cluster_options({name: flags.pop(name) for name in CLUSTER_HELP})
    address = os.environ.get(SCHEDULER_VARIABLE)
    if not options and address:
        options = {"scheduler": address}
    named = "Add --scheduler, --scheduler-file or --gateway."
    if wait is not None and not options:
        raise ClusterError(f"--wait {wait} is for a cluster to start, but none is named. {named}")
    if workers is not None and not options:
        raise ClusterError(
            f"--workers {workers} is for a cluster with an autoscaler, but none is named. {named}"
        )
    more = {"wait": None if wait is None else _parse_seconds(wait), "workers": workers}
    return options | {name: value for name, value in more.items() if value is not None}


def _parse_seconds(wait: str) -> float:
    """Return the seconds of a time such as 90, 90s or 10m."""
    from dask.utils import parse_timedelta  # takes longer to import than `rescnet --help` to run

    try:
        seconds = float(parse_timedelta(wait, default="seconds"))
    except (IndexError, KeyError, TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ClusterError(
            f"--wait {wait} is not a time. Give it in seconds, or with a unit as in 90s or 10m."
        )
    return seconds


def _check_cluster_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster options that are set; raise ClusterError if they name no one cluster."""
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        if not value:
            text = CLUSTER_HELP[name].split("  [")[0]
            raise ClusterError(f"{option_name(name)} is empty. Give the {text}.")
    if "gateway_cluster" in options and "gateway" not in options:
        raise ClusterError(
            "--gateway-cluster is set without a gateway. Add --gateway, the address of the gateway."
        )
    if len(options.keys() - {"gateway_cluster"}) > 1:
        names = " and ".join(option_name(name) for name in options)
        raise ClusterError(f"{names} name different clusters. Give one of them.")
    return options


PRESET_OPTION = grouped_option(
    "Network", "--preset", help="preset network to start from; see `rescnet presets`"
)
CONFIG_OPTION = grouped_option(
    *("Network", "--config"),
    help="TOML file with a [network] and a [run] table; flags override it",
)
SPLIT_OPTION = click.option(
    "--split", type=click.Choice(["train", "val", "test"]), help="split of DATA to use"
)
LOG_FORMAT_OPTION = grouped_option(
    *("Output", "--log-format"),
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="form of progress, warnings and errors",
)
BACKEND_OPTION = click.option(
    "--array-backend",
    type=click.Choice(declared_options(RunSpec)["array_backend"].choices),
    default="numpy",
    show_default=True,
    help="array library; cupy: on a GPU",
)


class Size(click.ParamType):
    """A size in pixels: one number, or height and width separated by x or ×."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Read "32" as (32, 32), and "28x32" as (28, 32)."""
        match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", str(value))
        if not match:
            self.fail(f"{value!r} is not a size such as 32 or 28x32.", param, ctx)
        return int(match[1]), int(match[2] or match[1])


RESIZE_OPTION = click.option("--resize", type=Size(), help="resize all images, such as 32 or 28x32")
CHANNELS_OPTION = click.option(
    "--channels", type=click.Choice(["gray", "color"]), help="convert all images to gray or color"
)
ON_ERROR_OPTION = click.option(
    "--on-error",
    type=click.Choice(["error", "skip"]),
    default="error",
    help="fail on images that cannot be used, or skip them  [default: error]",
)


def averaging_options(command: Any) -> Any:
    """Add the options that `resolve_averaging` reads to a command."""
    copies = "average over each image and this many copies, made as in training"
    command = click.option("--copies", type=click.IntRange(min=1), help=copies)(command)
    flips = "average over each image and its mirror image"
    return click.option("--flips", is_flag=True, help=flips)(command)


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
    name = preset or tables.get("preset")
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


def parse_size(option: str, size: str | None) -> int | None:
    """Return the bytes of the memory or disk size that an option has, such as 8GiB."""
    from dask.utils import parse_bytes

    if size is None:
        return None
    try:
        parsed = int(parse_bytes(size))
    except ValueError:
        parsed = 0
    if parsed < MIN_MEMORY_BYTES:
        raise SpecError(
            f"{option} {size} is not a size of memory of {format_bytes(MIN_MEMORY_BYTES)} or more. "
            "Give it with its unit, as in 80GiB."
        )
    return parsed
