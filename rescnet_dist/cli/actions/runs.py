"""What `rescnet runs` does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rescnet_dist.cli.status import show_status
from rescnet_dist.errors import mask_secrets, pluralize
from rescnet_dist.formatting import format_bytes, train_suffix
from rescnet_dist.runs import scan_runs

MAX_SHOWN_NAME = 60  # of an object that is no run
FILE_COLUMNS = 1000  # width of the table without a terminal, so that nothing is cut off


def _select_accuracy(run: dict[str, Any]) -> float | None:
    """Return the validation accuracy of a run, or else its training accuracy."""
    return run["train"] if run["validation"] is None else run["validation"]


# Keys to sort runs by: the largest value is first, and runs without a value are last.
SORT_KEYS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "accuracy": _select_accuracy,
    "age": lambda run: run["updated"],
    "layers": lambda run: run["layers"],
    "size": lambda run: run["bytes"],
}


def runs(url: str, order: str, as_json: bool) -> None:
    """List the runs in a folder or bucket."""
    with show_status(f"looking for runs in {mask_secrets(url)}"):
        runs, skipped, names = scan_runs(url)
    if order in SORT_KEYS:
        runs.sort(key=lambda run: _sort_last_if_none(SORT_KEYS[order](run)))
    elif order == "state":
        runs.sort(key=lambda run: run["state"])
    if as_json:
        click.echo(
            json.dumps({"url": mask_secrets(url), "runs": runs, "others": skipped}, indent=1)
        )
        return
    if runs:
        console = Console()
        Console(width=console.width if console.is_terminal else FILE_COLUMNS).print(
            _make_table(runs)
        )
    for run in runs:
        if run["problem"]:
            click.echo(f"{run['name']}: {run['state']}: {run['problem']}")
    if not runs:
        click.echo(f"no runs in {mask_secrets(url)}")
    if skipped:
        listed = ", ".join([*map(_shorten, names), *(["…"] if skipped > len(names) else [])])
        click.echo(f"skipped {pluralize(skipped, 'other object')}: {listed}", err=True)


def _shorten(name: str) -> str:
    """Return a name of a bucket that others may write to: printable, and not too long."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in name)
    is_long = len(printable) > MAX_SHOWN_NAME
    return printable[:MAX_SHOWN_NAME] + "…" * is_long


def _sort_last_if_none(value: float | None) -> tuple[bool, float]:
    """Return a sort key: descending values, None last."""
    return value is None, -(value or 0)


def _make_table(runs: list[dict[str, Any]]) -> Table:
    """Return a table with a row for each run; names are never cut."""
    table = Table()
    table.add_column("run", overflow="fold")
    table.add_column("state")
    for name in ("layers", "depth", "train %", "validation %", "age", "size"):
        table.add_column(name, justify="right")
    now = time.time()
    for run in runs:
        limit = "" if run["max_layers"] is None else f" of {run['max_layers']}"
        suffixes = train_suffix(run["copies"] or 0, bool(run["leave_one_out"])), ""
        accuracies = zip((run["train"], run["validation"]), suffixes, strict=True)
        table.add_row(
            Text(run["name"]),
            run["state"],
            "" if run["layers"] is None else f"{run['layers']}{limit}",
            "" if run["depth"] is None else str(run["depth"]),
            *(
                "" if share is None else f"{100 * share:.2f}{suffix}"
                for share, suffix in accuracies
            ),
            "" if run["updated"] is None else format_age(now - run["updated"]),
            "" if run["bytes"] is None else format_bytes(run["bytes"]),
        )
    return table


def format_age(seconds: float) -> str:
    """Return a time in its largest unit.

    >>> format_age(3), format_age(7300), format_age(200_000)
    ('3 s', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"
