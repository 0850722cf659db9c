"""The command `rescnet check`: whether a run, a network or a dataset is as it was stored."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, cluster_options
from rescnet_dist.cli.defer import defer


@click.command("check", **HELP_SETTINGS)
@click.argument("url", metavar="RUN")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("check")
def check_command() -> None:
    """Verify a run: find chunks that are missing, altered or stale.

    Chunks are compared with the commit records of the run. RUN may be an imported dataset or a
    saved network too, whose layers, classes and settings are verified. The exit code is 0 if
    everything is as it was stored, 1 if it is damaged, and 2 if there is none of these at RUN, or
    it cannot be read for another reason.

    \b
    Example:
      rescnet check runs/digits-20260101-120000
    """
