"""The command `rescnet runs`: list runs and their progress."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, Choice
from rescnet_dist.cli.defer import defer


@click.command("runs", **HELP_SETTINGS)
@click.argument("url", default="runs")
@click.option(
    "--sort",
    "order",
    type=Choice(["name", "state", "accuracy", "age", "layers", "size"]),
    default="name",
    show_default=True,
    help="sort key; best, newest, deepest or largest first",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("runs")
def runs_command() -> None:
    """List the runs in a folder or bucket.

    Each with its state, layers, age and size, and its training and validation accuracies at the
    chosen depth. --sort accuracy takes the validation accuracy, if there is one. URL is any fsspec
    URL  [default: runs]. Runs may be up to three levels deep in it; anything else is skipped.

    \b
    Example:
      rescnet runs s3://bucket/runs --sort accuracy
    """
