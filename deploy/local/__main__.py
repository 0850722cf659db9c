"""Command that runs the whole stack on one machine: python deploy/local; Ctrl-C stops it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click
from parts import PartError, Stopped
from stack import Settings, StackError, run_stack

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PORT_RANGE = click.IntRange(0, 65535)


@click.command(context_settings={"show_default": True})
@click.option("--folder", default="rescnet-stack", type=Path, help="for data, notebooks and logs")
@click.option("--user", default="rescnet", help="that may log in")
@click.option("--port", default=8000, type=PORT_RANGE, help="of JupyterHub; 0: any free port")
@click.option("--s3-port", default=0, type=PORT_RANGE, help="of the S3 server")
@click.option("--scheduler-port", default=0, type=PORT_RANGE, help="of the Dask scheduler")
@click.option("--dashboard-port", default=0, type=PORT_RANGE, help="of the Dask dashboard")
@click.option("--workers", default=2, type=click.IntRange(1), help="number of Dask workers")
@click.option("--threads", default=max(1, CORES // 2), type=click.IntRange(1), help="per worker")
@click.option("--memory", default="auto", help="per worker, such as 4GiB")
def main(**options: Any) -> None:
    """Run an S3 server, a Dask scheduler with workers, and a JupyterHub, on loopback only, until
    Ctrl-C or SIGTERM.

    Data and notebooks stay in FOLDER for the next start; secrets are generated at each start.
    """
    stopping = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: stopping.set())
    try:
        settings = Settings(**options)
        with run_stack(settings, stopping) as (access, parts):
            click.echo(
                f"JupyterHub  {access.url}\n"
                f"user        {settings.user}\n"
                f"password    {access.password}\n"
                f"S3          {access.s3}, bucket runs\n"
                f"Dask        {access.scheduler}, dashboard {access.dashboard}\n"
                f"in a shell  . {shlex.quote(str(access.environment))}\n"
                "Press Ctrl-C to stop."
            )
            while not stopping.wait(0.5):
                parts.check()
            click.echo("Stopping.", err=True)
    except Stopped:
        click.echo("Stopped before the stack was ready.", err=True)
    except (StackError, PartError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
