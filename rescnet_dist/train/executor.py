"""Execution of the graph of a pass, with retries after failures of workers and tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dask.delayed import Delayed
from distributed import Client, Future, KilledWorker

from rescnet_dist._compat import retry_future
from rescnet_dist.cluster.connect import CANCELLED_ERRORS
from rescnet_dist.cluster.workers import has_workers
from rescnet_dist.errors import ClusterLostError, PassError, RescnetError, mask_secrets
from rescnet_dist.events.metrics import PassMetrics
from rescnet_dist.planning.plan import Plan
from rescnet_dist.reduce import fold_graph, split_graph
from rescnet_dist.train.monitor import PassMonitor
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import Task


def run_pass(
    pass_: Pass,
    task: Task,
    parts: Sequence[tuple[Any, ...]],
    plan: Plan,
    monitor: PassMonitor,
) -> tuple[Any, PassMetrics]:
    """Compute a pass as one graph on the monitor's cluster; return its result and its metrics.

    `parts` are the arguments of each fold.

    Workers may die without limit while chunks get done. Other failures are retried, and end the
    pass with a PassError that names chunk and cause after `MAX_CONSECUTIVE_FAILURES` of them.
    A RescnetError is not retried: its message says what is wrong.
    """
    graph = fold_graph(
        pass_.fold,
        parts,
        pass_.merge,
        pass_.finish,
        task,
        split_every=plan.split_every,
        name=pass_.name,
        lazy_finish=pass_.lazy_finish,
    )
    client = monitor.client
    monitor.start(pass_.name, task.layer, plan)
    future: Future | None = None
    try:
        future = _submit(graph, client)
        return _get_result(future, monitor, plan, client), monitor.finish()
    except BaseException:
        if client.status == "running":
            if future:
                future.cancel()  # a cluster that outlives this run would continue to write
            monitor.cancel()
        raise
    finally:
        if future:
            future.release()  # an exception that was caught may refer to it for a long time


def _submit(graph: Delayed, client: Client) -> Future:
    """Send the graph of a pass in parts, and return the future of its result.

    The scheduler's event loop handles other messages between two parts. All are sent at once, in
    order, and each has a generation of its own, so that the tasks of earlier ones run first.
    """
    first, last = split_graph(graph)
    kept: list[Future] = []
    try:
        for part in first:
            keys = [key for layer in part.layers.values() for key in layer.get_output_keys()]
            kept += client.get(part, keys, sync=False, fifo_timeout=NEW_GENERATION)
        return client.compute(last, fifo_timeout=NEW_GENERATION)
    finally:
        for future in kept:
            future.release()  # the scheduler reads this after the last part, which needs them


NEW_GENERATION = "0s"  # no graph is as urgent as one that was sent before it
MAX_CONSECUTIVE_FAILURES = 3  # without a chunk done between them


def _get_result(future: Future, monitor: PassMonitor, plan: Plan, client: Client) -> Any:
    """Return the future's result; retry after failures that may be transient."""
    failures, known_done = 0, 0
    while True:
        try:
            return _wait_for_result(future, monitor, client)
        except RescnetError:
            raise
        except (Exception, *CANCELLED_ERRORS) as error:
            is_lost = client.status != "running" or isinstance(error, CANCELLED_ERRORS)
            reason = "" if is_lost else _describe_failure(error, monitor, plan)
        phase = f"the pass of layer {monitor.layer}" if monitor.layer else "the survey"
        if is_lost:
            raise ClusterLostError(
                f"The connection to the Dask scheduler was lost during {phase}. Everything "
                "committed is kept. Resume the run on a running cluster."
            )
        done = monitor.count_done()
        failures, known_done = 1 if done > known_done else failures + 1, done
        if failures == MAX_CONSECUTIVE_FAILURES:
            raise PassError(
                f"{phase.capitalize()} has failed {MAX_CONSECUTIVE_FAILURES} times without a chunk "
                f"done in between: {reason.rstrip('.')}. Everything committed is kept. Fix the "
                "cause, then resume the run."
            )
        monitor.publish_retry(reason)
        retry_future(client, future)


WORKER_CHECK_SECONDS = 20.0  # between two checks whether there is any worker
LISTENER_CHECK_SECONDS = 0.5  # between two checks whether a listener has stopped the run
DISCONNECT_SETTLE_SECONDS = 0.5


def _wait_for_result(future: Future, monitor: PassMonitor, client: Client) -> Any:
    """Wait for the result; publish a retry event once there has been no worker for a while."""
    has_published, last_check = False, time.monotonic()
    while True:
        monitor.bus.check()
        try:
            # waits for the end without fetching the result, so that the short timeout does not
            # cut off the transfer
            future.exception(timeout=LISTENER_CHECK_SECONDS)
            return future.result(timeout=WORKER_CHECK_SECONDS)
        except TimeoutError:
            if future.status == "error":
                return future.result()  # raises what the task has raised, a TimeoutError or not
        except CANCELLED_ERRORS:
            # the client learns of a lost connection and of this error in any order
            time.sleep(DISCONNECT_SETTLE_SECONDS)
            raise
        if has_published or time.monotonic() - last_check < WORKER_CHECK_SECONDS:
            continue
        last_check = time.monotonic()
        if client.status == "running" and not has_workers(client):
            monitor.publish_retry("There is no worker. Waiting for one to join.")
            has_published = True


def _describe_failure(error: BaseException, monitor: PassMonitor, plan: Plan) -> str:
    """Describe what failed, and on which chunk or task."""
    if not isinstance(error, KilledWorker):
        return mask_secrets(f"{error}" if str(error) else type(error).__name__)
    task = error.task
    if isinstance(task, tuple) and "-fold-" in str(task[0]):
        place = monitor.describe_suspect(int(task[1]), plan)
    else:
        place = str(task[0] if isinstance(task, tuple) else task).rsplit("-", 1)[0]
    return (
        f"workers died repeatedly at {place}, the last of them {error.last_worker.address}. Read "
        "its log; the usual cause is too little memory."
    )
