"""The page of runs inside Dask's own dashboard, served by the scheduler of a cluster.

A listener on the driver sends the events of a run to the scheduler by Dask's event log, which the
tasks' own reports go to as well. A scheduler plugin keeps a board of runs and serves its pages next
to Dask's own. Training does not depend on it: if the scheduler cannot serve the pages, only the
pages are missing. The first run installs the plugin; with
`dask scheduler --preload rescnet_dist.dashboard.scheduler` it is there from the start, for plot
layouts that are opened before a run.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from rescnet_dist._compat import (
    add_dashboard_pages,
    add_to_dashboard,
    find_scheduler_plugin,
    make_dashboard_template,
)
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.events import ChunkDone, ChunkRebuilt, Event, RunStarted, event_to_dict
from rescnet_dist.train import progress_topic

PAGE_NAME = "rescnet"
TOPIC_PREFIX = f"{PAGE_NAME}-"  # of the topics of all runs
MAX_BOARD_RUNS = 10
LOOPBACK = "127.0.0.1"

logger = logging.getLogger(__name__)


class Board:
    """The last runs of a cluster, updated by the messages of their topics."""

    def __init__(self) -> None:
        self._runs: dict[str, RunView] = {}
        self._drivers: dict[str, str] = {}

    def views(self) -> list[RunView]:
        """Return the runs in the order in which they started."""
        return list(self._runs.values())

    def handle_message(self, topic: str, message: dict[str, Any]) -> None:
        """Update the run of a topic by a message; messages of unknown runs are ignored."""
        kind = message.get("kind")
        if kind == "run":
            view, driver = RunView.of(message["run"]), str(message["driver"])
            self._runs.pop(topic, None)
            self._runs[topic], self._drivers[topic] = view, driver
            for old in list(self._runs)[:-MAX_BOARD_RUNS]:
                del self._runs[old], self._drivers[old]
        if (known := self._runs.get(topic)) is None:
            return
        if kind == "event":
            known.handle_event(message)
            for layer in known.layers[:-1]:
                layer.memory = {}
        elif kind == "chunk":
            known.handle_event({"event": "chunk_done", **message})
        elif kind == "rebuilt":
            known.handle_event({"event": "chunk_rebuilt", **message})

    def remove_driver(self, client: str) -> None:
        """Mark the running runs of a driver that has disconnected as unfinished."""
        for topic, driver in self._drivers.items():
            view = self._runs[topic]
            if driver == client and view.state == "running":
                view.state, view.current = "unfinished", None


class RunsPlugin(SchedulerPlugin):
    """Scheduler plugin that keeps the board of runs."""

    name = "rescnet-runs"

    def __init__(self) -> None:
        self.board = Board()
        self.is_served = False  # whether the dashboard has pages of it

    def log_event(self, topic: str, msg: Any) -> None:
        """Pass messages of runs to the board; those that cannot be read are ignored."""
        if topic.startswith(TOPIC_PREFIX) and isinstance(msg, dict):
            try:
                self.board.handle_message(topic, msg)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                logger.warning("A message of %s is not readable: %r", topic, error)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Pass the disconnection of a client to the board."""
        self.board.remove_driver(client)


class SchedulerPage:
    """A listener that shows a run on a page of the scheduler's dashboard.

    `link` is the URL of the page once a run has started, or None if the scheduler has no pages.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._topic = client, ""
        self.link: str | None = None

    def __call__(self, event: Event) -> None:
        """Send an event to the scheduler; finished chunks are reported there by their tasks."""
        if isinstance(event, ChunkDone | ChunkRebuilt):
            return
        if isinstance(event, RunStarted):
            self._begin(event.url)
        if self._topic:
            self._send({"kind": "event", **event_to_dict(event)})

    def _begin(self, url: str) -> None:
        """Install the plugin and send the description of the run."""
        try:
            run = StoredRun(url)
            description = run.description()
            is_served = self._client.run_on_scheduler(install)
        except Exception as error:
            # for example, the scheduler lacks this package, or events mask secrets of the URL
            logger.warning("The run is not shown in Dask's dashboard: %s", error)
            return
        link = _find_dashboard_link(self._client)
        self.link = link.rsplit("/", 1)[0] + f"/{PAGE_NAME}" if is_served and link else None
        self._topic = progress_topic(run.store)
        for layer in description["layers"][:-1]:  # not shown, and may be large
            (layer["observed"] or {}).pop("memory", None)
        self._send({"kind": "run", "run": description, "driver": self._client.id})

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message by Dask's event log."""
        self._client.log_event(self._topic, message)


def _find_dashboard_link(client: Client) -> str | None:
    """Return the URL of Dask's dashboard, with the loopback address if it listens there only.

    For a scheduler inside this process Dask gives the address of the machine.
    """
    link, cluster = client.dashboard_link, client.cluster
    options = (getattr(cluster, "scheduler_spec", None) or {}).get("options", {})
    if link and str(options.get("dashboard_address")).startswith(f"{LOOPBACK}:"):
        host = cluster.scheduler_address.split("://")[1].split("/")[0].split(":")[0]
        link = link.replace(f"://{host}:", f"://{LOOPBACK}:")
    return link or None


def install(dask_scheduler: Any) -> bool:
    """Install the plugin on a scheduler if it is missing; return whether its pages are served.

    They are if the dashboard is imported later, too.
    """
    plugin = find_scheduler_plugin(dask_scheduler, RunsPlugin.name)
    if plugin is None:
        plugin = RunsPlugin()
        add_pages = partial(_serve, dask_scheduler, plugin.board)
        plugin.is_served = add_to_dashboard(dask_scheduler, add_pages)
        dask_scheduler.add_plugin(plugin)
    return bool(plugin.is_served)


def dask_setup(scheduler: Any) -> None:
    """Install the plugin; Dask calls this if the module is a preload of the scheduler."""
    install(scheduler)


def _serve(scheduler: Any, board: Board) -> bool:
    """Serve the pages of a board next to those of Dask's dashboard; return whether there is one."""
    try:
        from rescnet_dist.dashboard.plots import PLOTS
    except ImportError:  # no Bokeh, no dashboard
        return False
    single = {f"/individual-{PAGE_NAME}-{kind.name}": (kind,) for kind in PLOTS}
    page_kinds = {f"/{PAGE_NAME}": PLOTS, **single}
    pages = {path: partial(_document, board, kinds) for path, kinds in page_kinds.items()}
    titles = {path: f"Rescnet {kinds[0].name.title()}" for path, kinds in single.items()}
    return add_dashboard_pages(scheduler, pages, PAGE_NAME, titles)


def _document(board: Board, kinds: Any, _scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a document of Dask's dashboard."""
    from rescnet_dist.dashboard.page import (
        is_dark,
        show_plots,
        style_html,
        theme_link_html,
        theme_script_html,
    )

    show_plots(doc, board.views, kinds)
    dark = is_dark(doc)
    if len(kinds) == 1:  # without Dask's navigation bar, like its own single plots
        doc.template = make_dashboard_template(
            "{% extends base %}{% block preamble %}"
            + style_html(dark)
            + theme_script_html(follow_browser=False)  # Dask's own plots are always light
            + "{% endblock %}"
        )
    else:
        doc.template = make_dashboard_template(
            '{% extends "base.html" %}{% block extra_resources %}'
            + style_html(dark, above="4.2rem")  # the height of Dask's navigation bar
            + "{% endblock %}{% block content %}{{ plot_div }}{{ plot_script }}"
            + theme_link_html(dark)
            + "{% endblock %}"
        )
        doc.template_variables.update(extra)
