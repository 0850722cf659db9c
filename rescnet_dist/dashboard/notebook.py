"""Runs in a notebook: a run that shows itself, and goes on showing itself while it trains."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from html import escape
from typing import Any

from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.dashboard.render import rendered
from rescnet_dist.dashboard.report import report_of
from rescnet_dist.dashboard.summary import describe_html
from rescnet_dist.dashboard.svg import accuracy_chart
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError
from rescnet_dist.store import Location
from rescnet_dist.train import describe_run

WATCH_SECONDS = 2.0
STOP_SECONDS = 5.0  # that `stop` waits for a store that does not answer

# colors that are seen on light and on dark; nothing of the notebook's own is touched
STYLE = """<style>
.rescnet-run { max-width: 620px; }
.rescnet-run svg .grid { stroke: #8888; } .rescnet-run svg .line { fill: none; stroke-width: 2.2; }
.rescnet-run svg .tick, .rescnet-run svg .name { fill: #888; font-size: 12px; }
.rescnet-run svg .mark { stroke: #888; stroke-dasharray: 3 4; }
.rescnet-run svg .line.c1 { stroke: #d6604d; } .rescnet-run svg .dot.c1 { fill: #d6604d; }
.rescnet-run svg .line.c2 { stroke: #4393c3; } .rescnet-run svg .dot.c2 { fill: #4393c3; }
</style>"""


class Run:
    """A training run at a URL, to look at: `rd.open_run(url)`. In a notebook it shows itself.

    >>> run = Run("runs/digits")  # doctest: +SKIP
    >>> run.watch()  # shows it in this cell while it goes on  # doctest: +SKIP
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._stored = StoredRun(os.fspath(url))
        self.url: str = self._stored.store.url

    def __repr__(self) -> str:
        return f"<Run {Location(self.url)}>"  # a store may not answer

    def view(self) -> RunView:
        """The run as it is now: its state, layers, accuracies, times and memory."""
        return self._stored.view()

    def describe(self) -> dict[str, Any]:
        """All that its store tells, with sizes, as plain values."""
        return describe_run(self.url)

    @cached_property
    def plot(self) -> Plots:
        """Figures of its network: `.accuracy()`, `.filters(layer)`, `.maps(image)`,
        `.confusion()`."""
        return Plots.load(self.url)

    def report(self, **options: Any) -> str:
        """The report on the run as one page of HTML; options are those of `report_of`."""
        return rendered(report_of(self.url, **options), "html")

    def watch(self, every: float = WATCH_SECONDS) -> Watch:
        """Show the run in this cell, anew every so many seconds until it is done or `stop` is
        called. Other cells can be run meanwhile."""
        return Watch(self, every)

    def _repr_html_(self) -> str:
        return show(self.view())


def open_run(url: str | os.PathLike[str]) -> Run:
    """The run at a URL, which goes on or is done."""
    return Run(url)


class Watch:
    """A run that is shown in a cell and kept up to date by a thread."""

    def __init__(self, run: Run, every: float) -> None:
        try:
            from IPython.display import HTML, display
        except ImportError:
            raise RescnetError(
                "watch shows a run in a notebook, which needs IPython: look at it in the browser "
                f"with `rescnet dashboard {Location(run.url)}` instead"
            ) from None
        if not every > 0:
            raise RescnetError(f"every={every} is not a number of seconds above 0: give such as 2")
        self._run, self._every, self._html = run, every, HTML
        view = run.view()
        self._display = display(HTML(show(view)), display_id=True)
        self._ended, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._go_on, args=[view], daemon=True)
        if self._display is None:  # outside a notebook it has been printed, and that is all
            self._ended.set()
        self._thread.start()

    def _go_on(self, view: RunView) -> None:
        shown = ""
        while view.state != "done" and not self._ended.wait(self._every):
            try:
                view = self._run.view()
                text = show(view)
            except Exception as error:  # the store may come back
                text = show(view) + f"<p>{type(error).__name__}: {escape(str(error))}</p>"
            if text != shown:
                self._display.update(self._html(text))
                shown = text
        self._done = view.state == "done"
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether the cell is not kept up to date any more."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until watching ends, as the run is done, or so many seconds; whether it is."""
        self._thread.join(timeout)
        return self._done

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join(STOP_SECONDS)


def show(view: RunView) -> str:
    """A run as HTML: how far it is in words, and its accuracies by layer as a chart."""
    parts = [STYLE, describe_html(view)]
    known = [layer for layer in view.layers if layer.train is not None]
    if known:
        x = [layer.layer for layer in known]
        lines = [
            ("training", [layer.train for layer in known], "c1"),
            ("validation", [layer.validation for layer in known], "c2"),
        ]
        parts.append(accuracy_chart(x, lines, view.depth))
        names = "<span style='color:#d6604d'>training</span>"
        if known[-1].validation is not None:
            names += ", <span style='color:#4393c3'>validation</span>"
        parts.append(f"<small>{names}; dashed: the chosen depth</small>")
    return f"<div class='rescnet-run'>{''.join(parts)}</div>"
