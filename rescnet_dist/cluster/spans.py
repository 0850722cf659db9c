"""One span of Dask for all passes of a run, which does not grow with each of them.

Dask's scheduler keeps every span as long as it lives, and in a span the group of every graph, with
its durations and states: 4 kB a layer. A plugin removes those of finished graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client, span
from distributed.diagnostics.plugin import SchedulerPlugin

from rescnet_dist._compat import find_scheduler_plugin, forget_task_groups

SPAN_NAME = "rescnet"
MAX_FINISHED_GROUPS = 30  # that a span keeps, for Dask's dashboard

logger = logging.getLogger(__name__)


class SpanPlugin(SchedulerPlugin):
    """Scheduler plugin that removes finished task groups from our spans."""

    name = "rescnet-span"

    def update_graph(self, scheduler: Any, **_: Any) -> None:
        """Remove those of earlier graphs when a graph comes in."""
        forget_task_groups(scheduler, SPAN_NAME, MAX_FINISHED_GROUPS)


@contextmanager
def passes_span(client: Client) -> Iterator[None]:
    """Have the graphs of the body in one span; a scheduler that cannot forget them keeps them."""
    try:
        client.run_on_scheduler(_install)
    except Exception as error:  # for example, the scheduler lacks this package
        logger.info("The scheduler keeps the task groups of all passes: %s", error)
    with span(SPAN_NAME):
        yield


def _install(dask_scheduler: Any) -> None:
    """Install the plugin on a scheduler if it is missing."""
    if find_scheduler_plugin(dask_scheduler, SpanPlugin.name) is None:
        dask_scheduler.add_plugin(SpanPlugin())
