"""The command `rescnet dashboard`: show runs in a browser from their stores."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS
from rescnet_dist.cli.defer import defer


@click.command("dashboard", **HELP_SETTINGS)
@click.argument("run_urls", metavar="RUN...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5007,
    show_default=True,
    help="port to listen on; 0 for any free one",
)
@click.option(
    "--token", help="token that browsers must send  [default: a new one unless on loopback]"
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="HOST[:PORT]",
    help="another site that may open the page, such as a proxy",
)
@defer("dashboard")
def dashboard_command() -> None:
    """Show runs in a browser: accuracy, time, memory, store traffic.

    Only the run stores are read, at any URL, live during runs and after them. Stop it with Ctrl-C.

    \b
    Example:
      rescnet dashboard runs/digits-20260101-120000
      rescnet dashboard s3://bucket/runs/1 s3://bucket/runs/2 --port 8080
    """
