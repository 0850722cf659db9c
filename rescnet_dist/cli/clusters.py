"""The Dask cluster that a command runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from rescnet_dist.cli.fork_server import start_fork_server
from rescnet_dist.cli.garbage import pause_gc
from rescnet_dist.cli.retry import SMALL_MACHINE, report_final_error
from rescnet_dist.cli.status import show_status
from rescnet_dist.errors import WorkersTooSmallError

if TYPE_CHECKING:
    from distributed import Client

    from rescnet_dist.planning import Problem
    from rescnet_dist.planning.division import Division
    from rescnet_dist.spec import NetworkSpec, RunSpec

MIN_WORKER_WAIT_SECONDS = 2.0  # for a worker once the scheduler answers


@contextmanager
def cluster(
    options: dict[str, Any],
    *,
    embedded: bool = True,
    quiet: bool = False,
    gpus: bool = False,
    divide: Callable[[], Division] | None = None,
) -> Iterator[Client]:
    """Yield a client of the cluster that the options name, else of an embedded one of processes.

    `divide` returns the workers of the embedded one, and is called only if it is started and has no
    GPUs; by default there is a worker for each core. Without options and with `embedded=False`,
    yield None: threads of this process are enough. With `quiet`, nothing is printed while the
    cluster starts. Raise ClusterLostError if the scheduler of a named cluster is lost in the body.
    """
    if not options and not embedded:
        yield None
        return
    from rescnet_dist.cluster import (  # slow to import, with distributed
        WORKER_TIMEOUT_SECONDS,
        current_client,
        hold_workers,
        open_client,
        translate_errors,
        wait_for_worker,
    )

    if options:
        wait, started = options.get("wait"), time.monotonic()
        if wait and not quiet:
            click.echo(f"waiting up to {wait:.0f} s for the cluster", err=True)
        address = {name: value for name, value in options.items() if name != "workers"}
        with ExitStack() as stack:
            client = stack.enter_context(open_client(**address))
            stack.enter_context(translate_errors(client, "run this again"))
            if workers := options.get("workers"):
                stack.enter_context(hold_workers(client, workers))
            if not client.nthreads():
                # The scheduler may have used up a part of the time.
                waited = time.monotonic() - started
                rest = WORKER_TIMEOUT_SECONDS
                if wait:
                    rest = max(wait - waited, MIN_WORKER_WAIT_SECONDS)
                elif not quiet:
                    click.echo(f"waiting up to {rest:.0f} s for a worker", err=True)
                wait_for_worker(client, rest)
            yield client
        return
    with ExitStack() as stack:
        # The scheduler imports the pages of its dashboard.
        with pause_gc(), show_status("starting an embedded Dask cluster", quiet=quiet):
            forked = not gpus and start_fork_server()
            embedded_client = current_client(
                processes=True, gpus=gpus, forked=forked, divide=divide
            )
            client = stack.enter_context(embedded_client)
        stack.enter_context(client.as_current())  # for the predictions at the end of a run
        try:
            yield client
        except WorkersTooSmallError:  # No larger worker can join, as it can elsewhere.
            report_final_error(SMALL_MACHINE)
            raise


def training_cluster(
    options: dict[str, Any],
    run_spec: RunSpec,
    spec: NetworkSpec,
    find_problem: Callable[[], Problem],
    *,
    quiet: bool = False,
) -> AbstractContextManager[Client]:
    """Return the `cluster` of a command that trains a network, or plans to.

    The cores of an embedded one are divided by the network and the sizes of the data, which
    `find_problem` returns.
    """
    from rescnet_dist.planning.backend import get_backend

    return cluster(
        options,
        quiet=quiet,
        gpus=get_backend(run_spec).on_gpu,
        divide=lambda: _divide_machine(find_problem(), spec),
    )


def _divide_machine(problem: Problem, spec: NetworkSpec) -> Division:
    """Return the division of this machine's cores between workers that train a network."""
    from rescnet_dist.cluster import available_cores
    from rescnet_dist.cluster.numa import count_numa_nodes
    from rescnet_dist.planning.division import divide_cores

    return divide_cores(problem, spec, cores=available_cores(), numa_nodes=count_numa_nodes())
