"""The cluster that a command runs on, and a sign of life while it does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click
from distributed import Client
from rich.console import Console

from rescnet_dist.cluster import WORKER_TIMEOUT, current_client, open_client, wait_for_worker

LEAST = 2.0  # seconds that are waited for a worker once there is a scheduler


@contextmanager
def cluster(
    where: dict[str, Any], *, embedded: bool = True, quiet: bool = False, gpus: bool = False
) -> Iterator[Client]:
    """A client of the cluster that the options name, or of an embedded one of processes, with or
    without GPUs; or none, where threads of this process will do. A quiet one is not told of while
    it starts."""
    if where:
        patience, began = where.get("wait"), time.monotonic()
        if patience and not quiet:
            click.echo(f"waiting up to {patience:.0f} s for the cluster", err=True)
        with open_client(**where) as client:
            if not client.nthreads():
                # what is left of it, as the scheduler may have taken its time
                waited = time.monotonic() - began
                left = max(patience - waited, LEAST) if patience else WORKER_TIMEOUT
                if not (patience or quiet):
                    click.echo(f"waiting up to {left:.0f} s for a worker", err=True)
                wait_for_worker(client, left)
            yield client
        return
    if not embedded:
        yield None
        return
    with ExitStack() as stack:
        with working("starting an embedded Dask cluster", quiet=quiet):
            client = stack.enter_context(current_client(processes=True, gpus=gpus))
        yield client


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Show on a terminal that something goes on, unless all is to be quiet."""
    console = Console(stderr=True)
    if console.is_terminal and not quiet:
        with console.status(what):
            yield
    else:
        yield
