"""The command `rescnet report`: write the report of a run."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, Choice
from rescnet_dist.cli.defer import defer


@click.command("report", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.option(
    "--output",
    "-o",
    help="file to write, - for standard output  [default: NAME-report.html with the name of RUN; "
    "standard output for other formats]",
)
@click.option(
    "--format",
    "form",
    type=Choice(["html", "markdown", "json"]),
    help="[default: by the extension of --output]",
)
@click.option(
    "--images",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="maximum number of images to evaluate the network on",
)
@click.option(
    "--test", "test_data", help="data to evaluate on  [default: images held out by the run]"
)
@defer("report")
def report_command() -> None:
    """Write a report of a run as one self-contained page.

    The run may be unfinished. The network is evaluated on images that the run held out, or on
    training images if it held none out; on test images only with --test. Markdown has no pictures;
    JSON has all numbers.

    \b
    Example:
      rescnet report runs/digits-20260101-120000 -o report.html
      rescnet report runs/digits-20260101-120000 --format json
    """
