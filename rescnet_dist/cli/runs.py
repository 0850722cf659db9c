"""The command `rescnet runs`: which runs there are, and how far they got."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rescnet_dist.cli.clusters import working
from rescnet_dist.cli.options import SHOW
from rescnet_dist.errors import mask_secrets, pluralize
from rescnet_dist.formatting import format_bytes
from rescnet_dist.train import look_for_runs

WIDE = 1000  # columns where there is no terminal, so that nothing is cut off


def _accuracy(run: dict[str, Any]) -> float | None:
    return run["train"] if run["validation"] is None else run["validation"]


# by what runs can be sorted: the largest value is first, and what has none last
ORDERS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "accuracy": _accuracy,
    "age": lambda run: run["updated"],
    "layers": lambda run: run["layers"],
    "size": lambda run: run["bytes"],
}


@click.command("runs", **SHOW)
@click.argument("url", default="runs")
@click.option(
    "--sort", "order", type=click.Choice(["name", "state", *ORDERS]), default="name",
    show_default=True, help="by what: best, newest, deepest or largest first",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def runs_command(url: str, order: str, as_json: bool) -> None:
    """The runs in a folder or bucket: state, layers, accuracy, age and size.

    URL is any that a run store can be at  [default: runs]. Runs may be up to three levels deep in
    it; what is not a run is passed over.

    \b
    Example:
      rescnet runs s3://bucket/runs --sort accuracy
    """
    with working(f"looking for runs in {mask_secrets(url)}"):
        runs, others = look_for_runs(url)
    if order in ORDERS:
        runs.sort(key=lambda run: _last_if_unknown(ORDERS[order](run)))
    elif order == "state":
        runs.sort(key=lambda run: run["state"])
    if as_json:
        click.echo(json.dumps({"url": mask_secrets(url), "runs": runs, "others": others}, indent=1))
        return
    if runs:
        console = Console()
        Console(width=console.width if console.is_terminal else WIDE).print(_table(runs))
    for run in runs:
        if run["problem"]:
            click.echo(f"{run['name']}: {run['state']}: {run['problem']}")
    if not runs:
        click.echo(f"there are no runs in {mask_secrets(url)}")
    if others:
        click.echo(f"{pluralize(others, 'other thing')} passed over", err=True)


def _last_if_unknown(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0)


def _table(runs: list[dict[str, Any]]) -> Table:
    """A row for each run; names are never cut."""
    table = Table()
    table.add_column("run", overflow="fold")
    table.add_column("state")
    for name in ("layers", "depth", "accuracy %", "age", "size"):
        table.add_column(name, justify="right")
    now = time.time()
    for run in runs:
        most = "" if run["max_layers"] is None else f" of {run['max_layers']}"
        held_out = "" if run["validation"] is not None else " (train)"
        accuracy = _accuracy(run)
        table.add_row(
            Text(run["name"]),
            run["state"],
            "" if run["layers"] is None else f"{run['layers']}{most}",
            "" if run["depth"] is None else str(run["depth"]),
            "" if accuracy is None else f"{100 * accuracy:.2f}{held_out}",
            "" if run["updated"] is None else age(now - run["updated"]),
            "" if run["bytes"] is None else format_bytes(run["bytes"]),
        )
    return table


def age(seconds: float) -> str:
    """A time in its largest unit.

    >>> age(3), age(7300), age(200_000)
    ('3 s', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"
