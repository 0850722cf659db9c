"""One machine, the whole stack: python deploy/local; Ctrl-C stops it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click
from parts import PartFailed, Stopped
from stack import Settings, StackError, started

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PORT = click.IntRange(0, 65535)


@click.command(context_settings={"show_default": True})
@click.option("--folder", default="rescnet-stack", type=Path, help="of all that the stack keeps")
@click.option("--user", default="rescnet", help="who may log in")
@click.option("--port", default=8000, type=PORT, help="of JupyterHub; 0: any that is free")
@click.option("--s3-port", default=0, type=PORT, help="of the S3 server")
@click.option("--scheduler-port", default=0, type=PORT, help="of the Dask scheduler")
@click.option("--dashboard-port", default=0, type=PORT, help="of its dashboard")
@click.option("--workers", default=2, type=click.IntRange(1), help="of Dask")
@click.option("--threads", default=max(1, CORES // 2), type=click.IntRange(1), help="of a worker")
@click.option("--memory", default="auto", help="of a worker, such as 4GiB")
def main(**options: Any) -> None:
    """Start an S3 server, a Dask scheduler with workers, and a JupyterHub, on loopback only, and
    wait. Ctrl-C or SIGTERM stops all of them.

    Data and notebooks stay in FOLDER for the next start; secrets are made anew each time.
    """
    stopping = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: stopping.set())
    try:
        wanted = Settings(**options)
        with started(wanted, stopping) as (access, parts):
            click.echo(
                f"JupyterHub  {access.url}\n"
                f"user        {wanted.user}\n"
                f"password    {access.password}\n"
                f"S3          {access.s3}, bucket runs\n"
                f"Dask        {access.scheduler}, dashboard {access.dashboard}\n"
                f"in a shell  . {shlex.quote(str(access.environment))}\n"
                "Ctrl-C stops it"
            )
            while not stopping.wait(0.5):
                parts.check()
            click.echo("stopping", err=True)
    except Stopped:
        click.echo("stopped before it was up", err=True)
    except (StackError, PartFailed) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
