"""The command `rescnet dashboard`: show runs in a browser from their stores."""

from __future__ import annotations

import signal
import sys

import click

from rescnet_dist.cli.clusters import show_status
from rescnet_dist.cli.options import HELP_SETTINGS
from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.errors import RescnetError


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
def dashboard_command(
    run_urls: tuple[str, ...], host: str, port: int, token: str | None, origins: tuple[str, ...]
) -> None:
    """Show runs in a browser: accuracy, time, memory, store traffic.

    Only the run stores are read, at any URL, live during runs and after them. Stop it with Ctrl-C.

    \b
    Example:
      rescnet dashboard runs/digits-20260101-120000
      rescnet dashboard s3://bucket/runs/1 s3://bucket/runs/2 --port 8080
    """
    try:
        from rescnet_dist.dashboard.server import Dashboard
    except ImportError:
        raise RescnetError(
            "The dashboard needs Bokeh. Run pip install 'rescnet-dist[dashboard]'."
        ) from None
    with show_status("reading the runs"):
        dashboard = Dashboard(run_urls, host=host, port=port, token=token, origins=origins)
    click.echo(f"page      {dashboard.url}", err=True)
    if dashboard.proxied:
        click.echo(f"          in JupyterHub: {dashboard.proxied}", err=True)
    click.echo("          stop with Ctrl-C", err=True)
    try:
        with raise_on_signal(signal.SIGINT):
            dashboard.serve()
    except KeyboardInterrupt:  # from Ctrl-C or SIGTERM
        sys.exit(0)
