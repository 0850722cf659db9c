"""The page inside Dask's own dashboard: runs of a cluster, served by its scheduler.

A listener on the driver tells the scheduler of a run by Dask's event log, which the tasks' reports
go to as well; a plugin there keeps a board of runs, and serves pages of it beside Dask's own.
Training knows nothing of it, and where the scheduler cannot show pages, nothing else changes. The
first run brings them; `dask scheduler --preload rescnet_dist.dashboard.scheduler` has them from the
start, for layouts of plots that are opened before.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.train import (
    ChunkDone,
    ChunkRebuilt,
    Event,
    RunStarted,
    event_to_dict,
    progress_topic,
)

PAGE = "rescnet"
TOPICS = f"{PAGE}-"  # what the topics of all runs begin with
MOST_RUNS = 10  # that a board keeps

logger = logging.getLogger(__name__)


class Board:
    """The runs of a cluster, as they are told of."""

    def __init__(self) -> None:
        self._runs: dict[str, RunView] = {}
        self._drivers: dict[str, str] = {}

    def views(self) -> list[RunView]:
        """All runs, the one that began last at the end."""
        return list(self._runs.values())

    def hear(self, topic: str, message: dict[str, Any]) -> None:
        """Take in a message of a run's topic."""
        kind = message.get("kind")
        if kind == "run":
            self._runs.pop(topic, None)
            self._runs[topic] = RunView.of(message["run"])
            self._drivers[topic] = message["driver"]
            for old in list(self._runs)[:-MOST_RUNS]:
                del self._runs[old], self._drivers[old]
        view = self._runs.get(topic)
        if view is None:
            return
        if kind == "event":
            view.hear(message)
            for layer in view.layers[:-1]:
                layer.memory = {}
        elif kind == "chunk":
            view.hear({"event": "chunk_done", **message})
        elif kind == "rebuilt":
            view.hear({"event": "chunk_rebuilt", **message})

    def driver_left(self, client: str) -> None:
        """A driver is gone: what it has not finished has stopped."""
        for topic, driver in self._drivers.items():
            view = self._runs[topic]
            if driver == client and view.state == "running":
                view.state, view.current = "unfinished", None


class RunsPlugin(SchedulerPlugin):
    """Keeps the board of runs on the scheduler."""

    name = "rescnet-runs"

    def __init__(self) -> None:
        self.board = Board()
        self.served = False  # whether there are pages of it

    def log_event(self, topic: str, msg: Any) -> None:
        """Put what is told of a run on the board."""
        if topic.startswith(TOPICS) and isinstance(msg, dict):
            self.board.hear(topic, msg)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Note that a driver has gone."""
        self.board.driver_left(client)


class SchedulerPage:
    """A listener that puts a run on the page of the scheduler's dashboard.

    `link` is the page's URL once a run has begun, None where the scheduler cannot show it.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._topic = client, ""
        self.link: str | None = None

    def __call__(self, event: Event) -> None:
        """Pass an event on; chunks are reported to the scheduler by their tasks."""
        if isinstance(event, ChunkDone | ChunkRebuilt):
            return
        if isinstance(event, RunStarted):
            self._begin(event.url)
        if self._topic:
            self._tell({"kind": "event", **event_to_dict(event)})

    def _begin(self, url: str) -> None:
        try:
            run = StoredRun(url)
            found = run.description()
            served = self._client.run_on_scheduler(install)
        except Exception as error:  # as where the scheduler has not got this package, or for a URL
            # whose secrets events do not tell
            logger.warning("the run is not shown in Dask's dashboard: %s", error)
            return
        link = self._client.dashboard_link
        self.link = link.rsplit("/", 1)[0] + f"/{PAGE}" if served and link else None
        self._topic = progress_topic(run.store)
        for layer in found["layers"][:-1]:  # of which nobody asks, and which may be much
            (layer["observed"] or {}).pop("memory", None)
        self._tell({"kind": "run", "run": found, "driver": self._client.id})

    def _tell(self, message: dict[str, Any]) -> None:
        self._client.log_event(self._topic, message)


def install(dask_scheduler: Any) -> bool:
    """On a scheduler: keep a board and serve its pages, unless that is done already; whether there
    is a dashboard to serve them."""
    plugin = dask_scheduler.plugins.get(RunsPlugin.name)
    if plugin is None:
        plugin = RunsPlugin()
        plugin.served = _serve(dask_scheduler, plugin.board)
        dask_scheduler.add_plugin(plugin)
    return bool(plugin.served)


def dask_setup(scheduler: Any) -> None:
    """Called by Dask where this module is a scheduler's preload."""
    install(scheduler)


def _serve(scheduler: Any, board: Board) -> bool:
    """Serve the pages of a board beside those of Dask's dashboard, if there is one."""
    try:
        from bokeh.server.tornado import BokehTornado
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables
        from tornado.ioloop import IOLoop

        from rescnet_dist.dashboard.plots import PLOTS
    except ImportError:  # no Bokeh, no dashboard
        return False
    there = [a for a in scheduler.http_application.applications if isinstance(a, BokehTornado)]
    if not there:
        return False
    single = {f"/individual-{PAGE}-{kind.name}": (kind,) for kind in PLOTS}
    kinds_of = {f"/{PAGE}": PLOTS, **single}
    pages = {path: partial(_document, board, kinds) for path, kinds in kinds_of.items()}
    variables = template_variables(scheduler)  # the same object as Dask's own pages have
    ours = BokehApplication(pages, scheduler, there[0].prefix, variables)
    scheduler.http_application.add_application(ours)
    ours.initialize(IOLoop.current())
    ours.start()
    # Dask lists the pages of its first application alone, as does JupyterLab's extension by it
    there[0]._applications.update(ours._applications)
    variables["pages"].insert(min(3, len(variables["pages"])), PAGE)
    names = {path.strip("/"): f"Rescnet {kinds[0].name.title()}" for path, kinds in single.items()}
    variables["plots"] += [{"url": url, "name": name} for url, name in names.items()]
    variables["plots"].sort(key=lambda plot: plot["name"])
    return True


def _document(board: Board, kinds: Any, _scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a document of the dashboard."""
    from distributed.dashboard.components.scheduler import env

    from rescnet_dist.dashboard.page import follow, show_plots, style, switch, wants_dark

    show_plots(doc, board.views, kinds)
    dark = wants_dark(doc)
    if len(kinds) == 1:  # without Dask's own frame, as its single plots are
        doc.template = env.from_string(
            "{% extends base %}{% block preamble %}"
            + style(dark)
            + follow(browser=False)  # Dask's own are always light
            + "{% endblock %}"
        )
    else:
        doc.template = env.from_string(
            '{% extends "base.html" %}{% block extra_resources %}'
            + style(dark, above="4.2rem")  # Dask's own bar
            + "{% endblock %}{% block content %}{{ plot_div }}{{ plot_script }}"
            + switch(dark)
            + "{% endblock %}"
        )
        doc.template_variables.update(extra)
