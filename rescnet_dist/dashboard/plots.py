"""Bokeh plots of runs: each has a `root` model to show, and `update`s itself from run views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from bokeh.models import ColumnDataSource, Div, FactorRange, HoverTool, Model, Range1d, Span
from bokeh.palettes import Category10
from bokeh.plotting import figure

from rescnet_dist.dashboard.summary import describe_html
from rescnet_dist.dashboard.view import RunView
from rescnet_dist.events import PHASES

BYTES_PER_MIB = 2**20
NAN = float("nan")  # a single object: lists that contain the same object compare equal
RUN_COLORS = Category10[10]
PHASE_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756")
OTHER_COLOR = "#9aa5b1"
EMPTY_POINT = {"layer": [1], "value": [0]}  # invisible; Bokeh computes no range without points
MAX_PLOTTED_WORKERS = 24  # those with the most memory

Views = Callable[[], Sequence[RunView]]
Columns = dict[str, list[Any]]


def set_data(source: ColumnDataSource, data: Columns) -> None:
    """Set the data of a source, which sends them to browsers, if they have changed."""
    if dict(source.data) != data:
        source.data = data


def short_names(views: Sequence[RunView]) -> list[str]:
    """Return the shortest trailing parts of the URLs that distinguish the runs."""
    parts = [view.url.rstrip("/").split("/") for view in views]
    longest = max(map(len, parts), default=1)
    for count in range(1, longest + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(part) for part in parts]


class RunPlot:
    """A plot of the runs that `views` returns.

    A plot that shows only one run shows the run at `selected_url`, or else the last one that is
    running, or else the last one.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    root: Model

    def __init__(self, views: Views) -> None:
        self.views = views
        self.selected_url: str | None = None

    def selected_run(self) -> RunView | None:
        """Return the run to show in a plot of only one run."""
        views = self.views()
        selected = [view for view in views if view.url == self.selected_url]
        running = [view for view in views if view.state == "running"]
        candidates = selected or running or views
        return candidates[-1] if candidates else None

    def set_title(self, view: RunView | None) -> None:
        """Add the name of the shown run to the title if there are several runs."""
        plot: Any = self.root
        views = self.views()
        text = self.title
        if view and len(views) > 1:
            text += f" · {short_names(views)[[v.url for v in views].index(view.url)]}"
        if plot.title.text != text:
            plot.title.text = text

    def update(self) -> None:
        """Draw the current state of the runs."""
        raise NotImplementedError


def _make_figure(
    title: str, x: str, y: str, placeholder: ColumnDataSource | None = None, **options: Any
) -> Any:
    """Return a figure; one by layer has an invisible point, so that its axes show without data."""
    plot = figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        sizing_mode="stretch_both",
        min_height=180,
        min_width=260,
        tools="pan,box_zoom,reset,save",
        **options,
    )
    if x == "layer":
        plot.xaxis.ticker.min_interval = 1
        source = placeholder or ColumnDataSource(EMPTY_POINT)
        plot.scatter("layer", "value", source=source, alpha=0)
    plot.toolbar.autohide = True
    plot.toolbar.logo = None
    return plot


def _style_legend(plot: Any, columns: int = 3) -> None:
    """Make the legend small, and put it above the plot, where it hides nothing."""
    legend = plot.legend[0]
    legend.label_text_font_size, legend.orientation = "8pt", "horizontal"
    legend.spacing, legend.padding, legend.margin, legend.glyph_height = 8, 4, 4, 14
    legend.ncols = columns
    plot.add_layout(legend, "above")


class _Curves(RunPlot):
    """Two curves per run by layer, in percent; the second one is dashed."""

    y_label: ClassVar[str]
    kinds: ClassVar[tuple[str, str]]

    def __init__(self, views: Views) -> None:
        super().__init__(views)
        self.lines = ColumnDataSource({"xs": [], "ys": [], "color": [], "dash": [], "label": []})
        self.points = ColumnDataSource(
            {"layer": [], "value": [], "color": [], "run": [], "kind": []},
            name=f"{self.name}-points",
        )
        self.placeholder = ColumnDataSource(EMPTY_POINT)
        self.root = plot = _make_figure(self.title, "layer", self.y_label, self.placeholder)
        plot.xaxis.ticker.desired_num_ticks = 8
        plot.xaxis.ticker.mantissas = [1, 2, 5]
        plot.multi_line(
            "xs",
            "ys",
            source=self.lines,
            line_color="color",
            line_dash="dash",
            line_width=2,
            legend_field="label",
        )
        dots = plot.scatter("layer", "value", source=self.points, color="color", size=5, alpha=0.8)
        tips = [("run", "@run"), ("layer", "@layer"), ("@kind", "@value{0.00} %")]
        plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))
        _style_legend(plot)

    def kind_names(self, view: RunView) -> tuple[str, str]:
        """Return the names of the two curves of a run."""
        return self.kinds

    def values(self, view: RunView, kind: int) -> list[tuple[int, float]]:
        """Return (layer, share) pairs of one of the two curves."""
        raise NotImplementedError

    def update(self) -> None:
        """Draw the curves of all runs."""
        views = self.views()
        names, several = short_names(views), len(views) > 1
        is_long = several or any(view.train_suffix for view in views)  # of a name in the legend
        self.root.legend[0].ncols = 2 if is_long else 3
        lines: Columns = {name: [] for name in self.lines.data}
        points: Columns = {name: [] for name in self.points.data}
        for number, view in enumerate(views):
            kinds = self.kind_names(view)
            for kind, dash in enumerate(("solid", "dashed")):
                pairs = self.values(view, kind)
                if not pairs:
                    continue
                layers, shares = zip(*pairs, strict=True)
                percents = [100 * share for share in shares]
                # with one run, each curve has its own color; with several, each run has
                color = RUN_COLORS[(number if several else kind) % len(RUN_COLORS)]
                label = f"{names[number]} {kinds[kind]}" if several else kinds[kind]
                row = (list(layers), percents, color, dash, label)
                for name, value in zip(lines, row, strict=True):
                    lines[name].append(value)
                n = len(layers)
                repeated = ([text] * n for text in (color, names[number], kinds[kind]))
                columns = (layers, percents, *repeated)
                for name, values in zip(points, columns, strict=True):
                    points[name].extend(values)
        first = {name: points[name][:1] for name in ("layer", "value")}
        set_data(self.placeholder, first if points["layer"] else EMPTY_POINT)
        set_data(self.lines, lines)
        set_data(self.points, points)


class AccuracyPlot(_Curves):
    """Training and validation accuracy after each layer, and the chosen depth."""

    name = "accuracy"
    title = "Accuracy by layer"
    y_label = "accuracy (%)"
    kinds = ("validation", "training")

    def __init__(self, views: Views) -> None:
        super().__init__(views)
        self.chosen = ColumnDataSource({"layer": [], "value": []}, name="accuracy-chosen")
        self.root.scatter(
            "layer",
            "value",
            source=self.chosen,
            marker="circle",
            size=14,
            line_width=2,
            fill_alpha=0,
            line_color="#d62728",
            legend_label="chosen depth",
        )

    def kind_names(self, view: RunView) -> tuple[str, str]:
        """Return the names of the two curves of a run; that of training says what it counts."""
        validation, training = self.kinds
        return validation, f"{training}{view.train_suffix}"

    def values(self, view: RunView, kind: int) -> list[tuple[int, float]]:
        """Return (layer, accuracy) pairs on validation images (0) or training images (1)."""
        pairs = [(layer.layer, (layer.validation, layer.train)[kind]) for layer in view.layers]
        return [(layer, share) for layer, share in pairs if share is not None]

    def update(self) -> None:
        """Draw the curves of all runs, and mark the chosen depths."""
        super().update()
        chosen: Columns = {"layer": [], "value": []}
        for view in self.views():
            pairs = self.values(view, 0) or self.values(view, 1)
            for layer, share in pairs:
                if layer == view.depth:
                    chosen["layer"].append(layer)
                    chosen["value"].append(100 * share)
        set_data(self.chosen, chosen)


class ResidualPlot(_Curves):
    """Shares of training images whose largest error is positive, and negative."""

    name = "residual"
    title = "Sign of the largest error before each layer"
    y_label = "training images (%)"
    kinds = ("positive", "negative")

    def values(self, view: RunView, kind: int) -> list[tuple[int, float]]:
        """Return (layer, share) pairs before each layer, positive (0) or negative (1)."""
        return [(layer.layer, layer.residual[kind]) for layer in view.layers if layer.residual]


class TimePlot(RunPlot):
    """Seconds of each layer of one run, by phase."""

    name = "time"
    title = "Time by layer and phase"

    def __init__(self, views: Views) -> None:
        super().__init__(views)
        self.source = ColumnDataSource(
            {name: [] for name in ("layer", *PHASES, "other", "total")}, name="time-bars"
        )
        self.root = plot = _make_figure(self.title, "layer", "seconds")
        plot.vbar_stack(
            [*PHASES, "other"],
            x="layer",
            width=0.8,
            color=[*PHASE_COLORS, OTHER_COLOR],
            source=self.source,
            legend_label=[*PHASES, "other"],
            line_color=None,
        )
        plot.y_range.start = 0
        phases = [(name, f"@{name}{{0.0}} s") for name in (*PHASES, "other")]
        tips = [("layer", "@layer"), *phases]
        plot.add_tools(HoverTool(tooltips=[*tips, ("total", "@total{0.0} s")]))
        _style_legend(plot)

    def update(self) -> None:
        """Draw the bars of the selected run."""
        view = self.selected_run()
        layers = view.layers if view else []
        columns: Columns = {"layer": [layer.layer for layer in layers]}
        for phase in PHASES:
            columns[phase] = [layer.phases.get(phase, 0.0) for layer in layers]
        phase_sums = [sum(layer.phases.values()) for layer in layers]
        # the rest of a layer's time is spent by the driver
        other = [max(0.0, a.seconds - s) for a, s in zip(layers, phase_sums, strict=True)]
        columns |= {"other": other, "total": [layer.seconds for layer in layers]}
        set_data(self.source, columns)
        self.set_title(view)


class MemoryPlot(RunPlot):
    """Resident memory of each worker, next to the planned memory and the limit."""

    name = "memory"
    title = "Memory of workers"

    def __init__(self, views: Views) -> None:
        super().__init__(views)
        self.source = ColumnDataSource({"worker": [], "mib": [], "text": []}, name="memory-bars")
        self.workers, self.x_range = FactorRange(factors=[]), Range1d(0, 1)
        self.root = plot = _make_figure(
            self.title, "MiB resident", "", y_range=self.workers, x_range=self.x_range
        )
        plot.hbar(y="worker", right="mib", height=0.7, source=self.source, color=PHASE_COLORS[0])
        plot.add_tools(HoverTool(tooltips=[("worker", "@worker"), ("memory", "@text")]))
        self.lines = {
            "planned": Span(dimension="height", line_color=PHASE_COLORS[1], line_width=2),
            "limit": Span(dimension="height", line_color=PHASE_COLORS[4], line_width=2),
        }
        for name, line in self.lines.items():
            line.line_dash = "dashed"
            plot.add_layout(line)
            # a Span cannot be in a legend; a line outside the visible range can
            plot.line(
                [-2, -1],
                [-1, -1],
                line_color=line.line_color,
                line_dash="dashed",
                line_width=2,
                legend_label=name,
            )
        _style_legend(plot)

    def update(self) -> None:
        """Draw the workers of the selected run that have the most memory."""
        view = self.selected_run()
        by_memory = sorted(view.memory.items(), key=lambda item: -item[1]) if view else []
        shown = sorted(by_memory[:MAX_PLOTTED_WORKERS])
        workers = [worker.rsplit("/", 1)[-1] for worker, _ in shown]
        if self.workers.factors != workers:
            self.workers.factors = workers
        mib = [memory / BYTES_PER_MIB for _, memory in shown]
        text = [f"{value:,.0f} MiB" for value in mib]
        set_data(self.source, {"worker": workers, "mib": mib, "text": text})
        planned, limit = (view.planned_memory, view.memory_limit) if view else (None, None)
        ends = [value / BYTES_PER_MIB for value in (planned, limit) if value] + mib
        # a limit that is far away would squeeze everything else
        near = [end for end in ends if end <= 3 * max([*mib, (planned or 0) / BYTES_PER_MIB])]
        self.x_range.end = 1.08 * max(near, default=1)
        for line, value in zip(self.lines.values(), (planned, limit), strict=True):
            line.location = value / BYTES_PER_MIB if value else -1
        self.set_title(view)


class StorePlot(RunPlot):
    """Bytes that each layer read and wrote, next to the plan, which moves each array once."""

    name = "store"
    title = "Store traffic by layer"
    columns = ("layer", "read", "written", "planned_read", "planned_written")

    def __init__(self, views: Views) -> None:
        super().__init__(views)
        self.source = ColumnDataSource({name: [] for name in self.columns}, name="store-lines")
        self.root = plot = _make_figure(self.title, "layer", "MiB")
        plot.y_range.start = 0
        for kind, color in (("read", PHASE_COLORS[0]), ("written", PHASE_COLORS[2])):
            style = {"source": self.source, "line_color": color}
            plot.line("layer", kind, legend_label=kind, line_width=2, **style)
            plot.scatter("layer", kind, source=self.source, color=color, size=5)
            plot.line(
                "layer",
                f"planned_{kind}",
                line_dash="dashed",
                line_width=4,
                alpha=0.5,
                legend_label=f"planned {kind}",
                **style,
            )
        tips = [(name.replace("_", " "), f"@{name}{{0,0.0}} MiB") for name in self.columns[1:]]
        plot.add_tools(HoverTool(tooltips=[("layer", "@layer"), *tips], mode="vline"))
        _style_legend(plot, columns=2)

    def update(self) -> None:
        """Draw the traffic of the selected run."""
        view = self.selected_run()
        layers = view.layers if view else []
        columns: Columns = {
            "layer": [layer.layer for layer in layers],
            "read": [layer.read / BYTES_PER_MIB for layer in layers],
            "written": [layer.written / BYTES_PER_MIB for layer in layers],
        }
        for name in ("planned_read", "planned_written"):
            planned = getattr(view, name) if view else None
            columns[name] = [NAN if planned is None else planned / BYTES_PER_MIB] * len(layers)
        columns["planned_read"][:1] = [NAN] * bool(layers)  # the first layer reads no maps
        set_data(self.source, columns)
        self.set_title(view)


class ProgressPanel(RunPlot):
    """Summaries of all runs as text: progress, accuracy and problems."""

    name = "progress"

    def __init__(self, views: Views) -> None:
        super().__init__(views)
        self.root = Div(
            sizing_mode="stretch_both",
            min_height=180,
            min_width=260,
            name="progress-text",
            styles={"overflow": "auto", "font-size": "13px"},
        )

    def update(self) -> None:
        """Show the summaries of all runs, the last one first."""
        runs = [describe_html(view) for view in reversed(self.views())]
        text = "".join(runs) or "<p>No run has started on this cluster yet.</p>"
        if self.root.text != text:
            self.root.text = text


PLOTS: tuple[type[RunPlot], ...] = (
    *(AccuracyPlot, ResidualPlot, TimePlot),
    *(ProgressPanel, MemoryPlot, StorePlot),
)
