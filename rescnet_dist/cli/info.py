"""The command `rescnet info`: a run or a saved network as text."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS
from rescnet_dist.cli.defer import defer


@click.command("info", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("info")
def info_command() -> None:
    """Describe a run or a saved network.

    Of a run: its state, data, spec, sizes, and the accuracy of each layer. Of a saved network, a
    folder or a zip file: its images, classes, layers and size.

    \b
    Example:
      rescnet info runs/digits-20260101-120000
    """
