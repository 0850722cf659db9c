"""The cluster that a command runs on, and a sign of life while it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click
from distributed import Client
from rich.console import Console

from rescnet_dist.cluster import WORKER_TIMEOUT, connected, current_client


@contextmanager
def cluster(where: dict[str, str], *, embedded: bool = True) -> Iterator[Client]:
    """A client of the cluster that the options name, or of an embedded one of processes; or none,
    where threads of this process will do."""
    if where:
        with connected(**where) as client:
            if not client.nthreads():
                click.echo(f"waiting up to {WORKER_TIMEOUT} s for a worker", err=True)
            yield client
        return
    if not embedded:
        yield None
        return
    with ExitStack() as stack:
        with working("starting an embedded Dask cluster"):
            client = stack.enter_context(current_client(processes=True))
        yield client


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal that something goes on."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        yield
