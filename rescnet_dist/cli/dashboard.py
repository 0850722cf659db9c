"""The command that shows runs in a browser, from their stores alone."""

from __future__ import annotations

import signal
import sys

import click

from rescnet_dist.cli.clusters import working
from rescnet_dist.cli.options import SHOW
from rescnet_dist.cli.signals import terminated_by_signal
from rescnet_dist.errors import RescnetError


@click.command("dashboard", **SHOW)
@click.argument("run_urls", metavar="RUN...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen at")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=5007, show_default=True,
    help="port to listen at; 0 for any that is free",
)  # fmt: skip
@click.option("--token", help="what browsers must bring  [default: one is made beyond loopback]")
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="HOST[:PORT]",
    help="a site beyond loopback through which the page may be opened, as that of a proxy",
)  # fmt: skip
def dashboard_command(
    run_urls: tuple[str, ...], host: str, port: int, token: str | None, origins: tuple[str, ...]
) -> None:
    """Show one or more runs in a browser: accuracy, time, memory, store traffic.

    Reads the run stores alone, at any URL: live while runs go on, and long after. Ends with Ctrl-C.

    \b
    Example:
      rescnet dashboard runs/digits-20260101-120000
      rescnet dashboard s3://bucket/runs/1 s3://bucket/runs/2 --port 8080
    """
    try:
        from rescnet_dist.dashboard.server import Dashboard
    except ImportError:
        needed = "the dashboard needs Bokeh: pip install 'rescnet-dist[dashboard]'"
        raise RescnetError(needed) from None
    with working("reading the runs"):
        served = Dashboard(run_urls, host=host, port=port, token=token, origins=origins)
    click.echo(f"watch     {served.url}", err=True)
    if served.proxied:
        click.echo(f"          in JupyterHub: {served.proxied}", err=True)
    click.echo("          Ctrl-C ends it", err=True)
    try:
        with terminated_by_signal(signal.SIGINT):
            served.serve()
    except KeyboardInterrupt:  # or SIGTERM
        sys.exit(0)
