"""What `rescnet dashboard` does."""

from __future__ import annotations

import signal
import sys

import click

from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.cli.status import show_status
from rescnet_dist.errors import RescnetError


def dashboard(
    run_urls: tuple[str, ...], host: str, port: int, token: str | None, origins: tuple[str, ...]
) -> None:
    """Show runs in a browser: accuracy, time, memory, store traffic."""
    try:
        from rescnet_dist.dashboard.server import Dashboard
    except ImportError:
        raise RescnetError(
            "The dashboard needs Bokeh. Run pip install 'rescnet-dist[dashboard]'."
        ) from None
    with show_status("reading the runs"):
        dashboard = Dashboard(run_urls, host=host, port=port, token=token, origins=origins)
    try:
        with raise_on_signal(signal.SIGINT):  # before the page is printed, by which others stop it
            click.echo(f"page      {dashboard.url}", err=True)
            if dashboard.proxied:
                click.echo(f"          in JupyterHub: {dashboard.proxied}", err=True)
            click.echo("          stop with Ctrl-C", err=True)
            dashboard.serve()
    except KeyboardInterrupt:  # from Ctrl-C or SIGTERM
        sys.exit(0)
