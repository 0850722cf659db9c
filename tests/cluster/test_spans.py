"""The span of all passes on a real scheduler: it forgets the task groups of finished graphs."""

from __future__ import annotations

import gc
from typing import Any

from distributed import Client, Event, Future, LocalCluster, span
from distributed.scheduler import TaskGroup

from rescnet_dist.cluster import passes_span
from rescnet_dist.cluster.spans import MAX_FINISHED_GROUPS, SPAN_NAME

GRAPHS = 2 * MAX_FINISHED_GROUPS
KEPT = "kept"  # the name of a task whose result is kept


def run_graphs(client: Client) -> Future:
    """Run graphs one after the other, as passes are; return the result that is kept."""
    kept = client.submit(int, 7, key=(KEPT, 0))
    for number in range(GRAPHS):
        assert client.submit(int, number, key=(f"graph-{number}", 0)).result() == number
    return kept


def describe_span(name: str, dask_scheduler: Any) -> tuple[set[str], int, float]:
    """Return the names of the groups, the number of graphs and the seconds of a span."""
    (found,) = dask_scheduler.extensions["spans"].spans_search_by_name[name,]
    groups = {group.name for group in found.groups}
    graphs = len(found.metadata["collections"]) if found.metadata else 0
    return groups, graphs, found.stop - found.enqueued


def count_groups(dask_scheduler: Any) -> int:
    """Return the number of task groups that anything on the scheduler refers to."""
    gc.collect()
    return sum(type(found) is TaskGroup for found in gc.get_objects())  # some are dead proxies


def test_nothing_keeps_finished_groups() -> None:
    """Nor does the computation that all graphs are of, if some task runs all the time."""
    options: Any = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    address = "127.0.0.1:0"
    with (
        LocalCluster(**options, dashboard_address=address) as cluster,
        Client(cluster) as client,
        passes_span(client),
    ):
        before, is_done = client.run_on_scheduler(count_groups), Event("is-done", client=client)
        waiting = client.submit(lambda: Event("is-done").wait(), key=("cache", 0))
        run_graphs(client)
        assert client.run_on_scheduler(count_groups) <= before + MAX_FINISHED_GROUPS + 5
        is_done.set()
        assert waiting.result()


def test_span_forgets_finished_groups() -> None:
    """But no group that has tasks, and no span of somebody else."""
    options: Any = {"n_workers": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        with passes_span(client):
            kept = run_graphs(client)
        groups, graphs, seconds = client.run_on_scheduler(describe_span, SPAN_NAME)
        assert KEPT in groups
        assert MAX_FINISHED_GROUPS <= len(groups) <= MAX_FINISHED_GROUPS + 5
        assert graphs <= MAX_FINISHED_GROUPS + 5
        assert seconds > 0
        kept.release()
        with span("other"):
            run_graphs(client)
        groups, _, _ = client.run_on_scheduler(describe_span, "other")
        assert len(groups) >= GRAPHS
