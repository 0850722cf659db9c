"""The cluster that a command runs on, and a sign of life while it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click
from distributed import Client
from rich.console import Console

from rescnet_dist.cluster import WORKER_TIMEOUT, connected, current_client


@contextmanager
def cluster(
    where: dict[str, str], *, embedded: bool = True, quiet: bool = False
) -> Iterator[Client]:
    """A client of the cluster that the options name, or of an embedded one of processes; or none,
    where threads of this process will do. A quiet one is not told of while it starts."""
    if where:
        with connected(**where) as client:
            if not client.nthreads() and not quiet:
                click.echo(f"waiting up to {WORKER_TIMEOUT} s for a worker", err=True)
            yield client
        return
    if not embedded:
        yield None
        return
    with ExitStack() as stack:
        with working("starting an embedded Dask cluster", quiet=quiet):
            client = stack.enter_context(current_client(processes=True))
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
