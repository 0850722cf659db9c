"""Runs in notebooks: an object that shows a run, and a cell that follows it during training."""

from __future__ import annotations

import os
import threading
import time
from functools import cached_property
from html import escape
from typing import Any, Self

from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.dashboard.render import render_report
from rescnet_dist.dashboard.report import make_report
from rescnet_dist.dashboard.summary import describe_html
from rescnet_dist.dashboard.svg import accuracy_chart
from rescnet_dist.dashboard.view import RunView, StoredRun
from rescnet_dist.errors import RescnetError
from rescnet_dist.events import ChunkDone, Event, RunStarted, event_to_dict
from rescnet_dist.formatting import train_suffix
from rescnet_dist.runs import describe_run
from rescnet_dist.store import Location

UPDATE_SECONDS = 1.0  # between two updates of a cell by finished chunks
WATCH_SECONDS = 2.0  # between two reads of the store
WATCH_STOP_SECONDS = 5.0  # that `stop` waits for a store that does not answer

# The colors are legible on light and on dark; the notebook's own styles are not affected.
NOTEBOOK_STYLE = """<style>
.rescnet-run { max-width: 620px; }
.rescnet-run svg .grid { stroke: #8888; } .rescnet-run svg .line { fill: none; stroke-width: 2.2; }
.rescnet-run svg .tick, .rescnet-run svg .name { fill: #888; font-size: 12px; }
.rescnet-run svg .mark { stroke: #888; stroke-dasharray: 3 4; }
.rescnet-run svg .line.c1 { stroke: #d6604d; } .rescnet-run svg .dot.c1 { fill: #d6604d; }
.rescnet-run svg .line.c2 { stroke: #4393c3; } .rescnet-run svg .dot.c2 { fill: #4393c3; }
</style>"""


class Run:
    """A training run at a URL, for looking at it. In a notebook, it shows itself.

    Parameters
    ----------
    url : str or path-like
        URL of the run store. The run may be in progress or done.

    Attributes
    ----------
    url : str
    plot : Plots
        Figures of the network of the run.

    Raises
    ------
    StoreError
        If there is no run at the URL.

    Examples
    --------
    >>> run = Run("runs/digits")  # doctest: +SKIP
    >>> run.watch()  # follow it in this cell during training  # doctest: +SKIP
    >>> run.plot.accuracy()  # doctest: +SKIP
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._stored = StoredRun(os.fspath(url))
        self.url: str = self._stored.store.url

    def __repr__(self) -> str:
        return f"<Run {Location(self.url)}>"  # without a read: the store may not answer

    def view(self) -> RunView:
        """Read the current state of the run.

        Returns
        -------
        RunView
            State, layers, accuracies, times and memory.
        """
        return self._stored.view()

    def describe(self) -> dict[str, Any]:
        """Read everything that the store has on the run, with sizes.

        Returns
        -------
        dict
            JSON-serializable values.
        """
        return describe_run(self.url)

    @cached_property
    def plot(self) -> Plots:
        """Figures of the network: `.accuracy()`, `.filters(layer)`, `.maps(image)`,
        `.confusion()`."""
        return Plots.load(self.url)

    def report(self, **options: Any) -> str:
        """Make the report on the run.

        Parameters
        ----------
        **options
            Keyword arguments of `make_report`: images, test, pictures.

        Returns
        -------
        str
            One page of HTML without external references.
        """
        return render_report(make_report(self.url, **options), "html")

    def watch(self, every: float = WATCH_SECONDS) -> Watch:
        """Show the run in this cell and update it until the run is done or `stop` is called.

        Other cells can be run in the meantime.

        Parameters
        ----------
        every : float, default=2.0
            Seconds between two updates.

        Returns
        -------
        Watch

        Raises
        ------
        RescnetError
            If `every` is not above 0, or IPython is not installed.
        """
        return Watch(self, every)

    def _repr_html_(self) -> str:
        return show_run(self.view())


def open_run(url: str | os.PathLike[str]) -> Run:
    """Open a run, in progress or done, for looking at it.

    Parameters
    ----------
    url : str or path-like
        URL of the run store.

    Returns
    -------
    Run
        The run. In a notebook, it shows itself.

    Raises
    ------
    StoreError
        If there is no run at the URL.

    Examples
    --------
    >>> open_run("runs/digits").watch()  # doctest: +SKIP
    """
    return Run(url)


class Watch:
    """A run shown in a notebook cell and updated by a thread; see `Run.watch`."""

    def __init__(self, run: Run, every: float) -> None:
        try:
            from IPython.display import HTML, display
        except ImportError:
            raise RescnetError(
                "watch shows a run in a notebook and needs IPython. Use "
                f"`rescnet dashboard {Location(run.url)}` to watch it in a browser instead."
            ) from None
        if not every > 0:
            raise RescnetError(f"every={every} is not above 0. Pass seconds, such as 2.")
        self._run, self._every, self._html = run, every, HTML
        view = run.view()
        self._display = display(HTML(show_run(view)), display_id=True)
        self._ended, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._update_until_done, args=[view], daemon=True)
        if self._display is None:  # outside a notebook, it was printed and cannot be updated
            self._ended.set()
        self._thread.start()

    def _update_until_done(self, view: RunView) -> None:
        """Read the run and update the cell, until the run is done or watching is stopped."""
        previous = ""
        while view.state != "done" and not self._ended.wait(self._every):
            try:
                view = self._run.view()
                text = show_run(view)
            except Exception as error:  # the store may come back
                text = show_run(view) + f"<p>{type(error).__name__}: {escape(str(error))}</p>"
            if text != previous:
                self._display.update(self._html(text))
                previous = text
        self._done = view.state == "done"
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether the cell is no longer updated."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until watching ends, or for `timeout` seconds; return whether the run is done."""
        self._thread.join(timeout)
        return self._done

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join(WATCH_STOP_SECONDS)


class NotebookProgress:
    """A listener that shows a run in the current cell of a notebook; use it as a context manager.

    The cell has the same content as with `Run.watch`, but nothing is read from the store after the
    start. `note` is shown above it.
    """

    def __init__(self, note: str | None = None) -> None:
        self._header = f"<p style='margin:4px 8px'>{escape(note)}</p>" if note else ""
        self._view: RunView | None = None
        self._display: Any = None
        self._updated = 0.0

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._html = HTML
        text = f"{self._header}<p style='margin:4px 8px'>starting</p>"
        self._display = display(HTML(text), display_id=True)  # in this thread: that of the cell
        return self

    def __exit__(self, *_error: object) -> None:
        self._show()

    def __call__(self, event: Event) -> None:
        """Update the cell."""
        if isinstance(event, RunStarted):
            try:
                self._view = StoredRun(event.url).view()
            except RescnetError:  # events mask secrets of the URL
                suffix = train_suffix(event.copies, event.leave_one_out)
                self._view = RunView(
                    event.url, "running", event.images, event.max_layers, train_suffix=suffix
                )
        elif self._view is not None:
            self._view.handle_event(event_to_dict(event))
        if not isinstance(event, ChunkDone) or time.monotonic() - self._updated > UPDATE_SECONDS:
            self._show()

    def _show(self) -> None:
        """Show the current view."""
        self._updated = time.monotonic()
        if self._view is not None and self._display is not None:
            self._display.update(self._html(self._header + show_run(self._view)))


def show_run(view: RunView) -> str:
    """Return a run as HTML: a summary of its progress, and a chart of accuracy by layer."""
    parts = [NOTEBOOK_STYLE, describe_html(view)]
    layers = [layer for layer in view.layers if layer.train is not None]
    if layers:
        training = f"training{view.train_suffix}"
        x = [layer.layer for layer in layers]
        lines = [
            (training, [layer.train for layer in layers], "c1"),
            ("validation", [layer.validation for layer in layers], "c2"),
        ]
        parts.append(accuracy_chart(x, lines, view.depth))
        names = f"<span style='color:#d6604d'>{training}</span>"
        if layers[-1].validation is not None:
            names += ", <span style='color:#4393c3'>validation</span>"
        parts.append(f"<small>{names}; dashed: the chosen depth</small>")
    return f"<div class='rescnet-run'>{''.join(parts)}</div>"
