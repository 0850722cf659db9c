"""What the declarations of commands share: groups of options, and common options.

Nothing here imports the specs, Dask or the rest of the package, which takes seconds, so that
`--help` is fast.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

import click

from rescnet_dist.errors import ClusterError, SpecError, suggest_closest, suggest_name
from rescnet_dist.formatting import format_bytes, option_name

MIN_MEMORY_BYTES = 64 * 2**20  # smaller sizes are taken for a missing unit
ARRAY_BACKENDS = ("numpy", "cupy")  # those of RunSpec

# Arguments of every click command.
HELP_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}
}


class SuggestingGroup(click.Group):
    """A group of commands that suggests a name for one that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; suggest the nearest if there is none."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. {suggest_name(name, known)}")
        return super().resolve_command(ctx, args)


class Choice(click.Choice):
    """One of several values, of which the closest is suggested for any other."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value; raise BadParameter if it is none of them."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            closest = suggest_closest(value, self.choices)
            self.fail(f"{error.message} {closest}".rstrip(), param, ctx)


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


def names_cluster(options: dict[str, Any]) -> bool:
    """Return whether the options of a command, or the environment, name a cluster."""
    return bool(os.environ.get(SCHEDULER_VARIABLE) or any(map(options.get, CLUSTER_HELP)))


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
            f"--workers {workers} is for a cluster with an autoscaler, but none is named. {named} "
            "Without --workers, all cores of this machine are used."
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


SPLIT_OPTION = click.option(
    "--split", type=Choice(["train", "val", "test"]), help="split of DATA to use"
)
LOG_FORMAT_OPTION = grouped_option(
    *("Output", "--log-format"),
    type=Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="form of progress, warnings and errors",
)
BACKEND_OPTION = click.option(
    "--array-backend",
    type=Choice(ARRAY_BACKENDS),
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
    "--channels", type=Choice(["gray", "color"]), help="convert all images to gray or color"
)
ON_ERROR_OPTION = click.option(
    "--on-error",
    type=Choice(["error", "skip"]),
    default="error",
    help="fail on images that cannot be used, or skip them  [default: error]",
)


def averaging_options(command: Any) -> Any:
    """Add the options that `resolve_averaging` reads to a command."""
    copies = "average over each image and this many copies, made as in training"
    command = click.option("--copies", type=click.IntRange(min=1), help=copies)(command)
    flips = "average over each image and its mirror image"
    return click.option("--flips", is_flag=True, help=flips)(command)


def reporting_options(command: Any) -> Any:
    """Add the options that `pop_report_options` reads to a command."""
    command = LOG_FORMAT_OPTION(command)
    metrics = "serve metrics for Prometheus; without HOST on all addresses, PORT alone on loopback"
    command = grouped_option("Output", "--metrics-address", metavar="[[HOST]:]PORT", help=metrics)(
        command
    )
    mlflow = "also log the layers to MLflow at this URI, such as sqlite:///mlflow.db"
    models = "log the network at the end to MLflow, as a pyfunc and as ONNX"
    command = grouped_option("Output", "--mlflow-models", is_flag=True, help=models)(command)
    command = grouped_option("Output", "--mlflow", metavar="URI", help=mlflow)(command)
    tensorboard = "also write the layers for TensorBoard, to FOLDER/NAME-OF-THE-RUN"
    command = grouped_option("Output", "--tensorboard", metavar="FOLDER", help=tensorboard)(command)
    lines = "print each event, then the outcome, as a line of JSON, and no progress"
    command = grouped_option("Output", "--json-lines", is_flag=True, help=lines)(command)
    command = grouped_option(
        "Output", "--json", "as_json", is_flag=True, help="print the outcome as JSON"
    )(command)
    quiet = "print no progress, only warnings, errors and the outcome"
    return grouped_option("Output", "--quiet", "-q", is_flag=True, help=quiet)(command)


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
