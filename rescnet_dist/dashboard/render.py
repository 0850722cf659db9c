"""Rendering of reports: self-contained HTML pages, Markdown and JSON."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from rescnet_dist.dashboard.evaluation import SampleKind
from rescnet_dist.dashboard.report import Report
from rescnet_dist.dashboard.svg import (
    Chart,
    accuracy_chart,
    layer_span,
    padded_range,
    percent,
    percent_tick,
)
from rescnet_dist.errors import pluralize
from rescnet_dist.events import PHASES
from rescnet_dist.formatting import format_bytes, format_time, plain_text

HTML_TEMPLATE = "report.html.jinja"
NOT_RECORDED = "not recorded"
REPORT_FORMATS = ("html", "markdown", "json")
MAX_REPORT_CLASSES = 30  # of the data, by name
MAX_WORKER_LINES = 5  # with more workers, the memory chart shows the largest of them only
ChartEntry = tuple[str, list[tuple[str, str]], str]  # title, legend of (CSS class, name), SVG


def render_report(report: Report, form: str) -> str:
    """Return a report in one of the `REPORT_FORMATS`."""
    if form == "json":
        return json.dumps(report.to_dict(), indent=1) + "\n"
    return to_markdown(report) if form == "markdown" else to_html(report)


# HTML -------------------------------------------------------------------------------------------


def to_html(report: Report) -> str:
    """Return a report as one HTML page without external references, light or dark."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = (files("rescnet_dist.dashboard") / HTML_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        report=report,
        data_rows=data_rows(report),
        planned_rows=planned_rows(report),
        layer_columns=layer_columns(report),
        layer_rows=layer_rows(report),
        environment_rows=environment_rows(report),
        charts=[(title, legend, Markup(svg)) for title, legend, svg in make_charts(report)],
        calibration=Markup(_calibration_chart(report)) if report.evaluation else None,
        matrix=_matrix_rows(report),
        evaluated_on=evaluated_on(report),
        plain=plain_text,
    )


def make_charts(report: Report) -> list[ChartEntry]:
    """Return the charts by layer for which there are data."""
    x = [layer["layer"] for layer in report.layers]
    if not x:
        return []
    charts = [_accuracy_chart(report, x)]
    if any(layer["residual"] for layer in report.layers):
        charts.append(_residual_chart(report, x))
    charts.append(_time_chart(report, x))
    if report.memory["workers"]:
        charts.append(_memory_chart(report, x))
    return charts


def _accuracy_chart(report: Report, x: list[int]) -> ChartEntry:
    """Return the chart of training and validation accuracy."""
    names = {"train": f"training{report.train_suffix}", "validation": "validation"}
    lines = [
        (names[key], [layer[key] for layer in report.layers], kind)
        for key, kind in zip(names, ("c1", "c2"), strict=True)
    ]
    legend = [
        (kind, name) for name, line, kind in lines if any(value is not None for value in line)
    ]
    if report.depth:
        legend.append(("mark", f"chosen depth, {report.depth}"))
    return "Accuracy by layer", legend, accuracy_chart(x, lines, report.depth)


def _residual_chart(report: Report, x: list[int]) -> ChartEntry:
    """Return the chart of the signs of the largest errors."""
    axes = ("layer", "training images (%)")
    chart = Chart(layer_span(x), (0, 1), axes, percent_tick, percent)
    shares = [layer["residual"] for layer in report.layers]
    for name, sign, kind in (("positive", 0, "c1"), ("negative", 1, "c2")):
        chart.draw_line(name, x, [share[sign] if share else None for share in shares], kind)
    title = "Sign of the largest error before each layer"
    return title, [("c1", "positive"), ("c2", "negative")], chart.to_svg(title)


def _time_chart(report: Report, x: list[int]) -> ChartEntry:
    """Return the chart of layer times: stacked phases if recorded, and the rest of each time."""
    seconds = [layer["seconds"] for layer in report.layers]
    chart = Chart(layer_span(x), padded_range(seconds, low=0), ("layer", "seconds"))
    phases = [(layer["observed"] or {}).get("seconds", {}) for layer in report.layers]
    low, legend = [0.0] * len(x), []
    for number, phase in enumerate(PHASES, start=1):
        if not any(phases):
            break
        high = [a + layer.get(phase, 0.0) for a, layer in zip(low, phases, strict=True)]
        chart.draw_bars(x, low, high, f"c{number}")
        legend.append((f"c{number}", phase))
        low = high
    chart.draw_bars(x, low, [max(pair) for pair in zip(low, seconds, strict=True)], "rest")
    legend.append(("rest", "other" if any(phases) else "all phases (not recorded separately)"))
    return "Time by layer and phase", legend, chart.to_svg("Time by layer and phase")


def _memory_chart(report: Report, x: list[int]) -> ChartEntry:
    """Return the chart of worker memory: a line per worker, or the largest of many workers."""
    memory, planned = report.memory, report.memory["planned"]
    lines = dict(memory["workers"])
    if len(lines) > MAX_WORKER_LINES:
        columns = zip(*lines.values(), strict=True)
        recorded = [[size for size in column if size is not None] for column in columns]
        lines = {f"largest of {len(lines)} workers": [max(c, default=None) for c in recorded]}
    values = [size for line in lines.values() for size in line] + [planned]
    largest = max(size for size in values if size is not None)
    unit, unit_name = (2**30, "GiB") if largest >= 4 * 2**30 else (2**20, "MiB")  # round ticks
    y_range = padded_range([largest / unit], low=0)
    chart = Chart(layer_span(x), y_range, ("layer", f"{unit_name} resident"), "{:,.4g}".format)
    legend = []
    if planned is not None:
        chart.draw_horizontal(planned / unit, "plan")
    for number, (name, line) in enumerate(lines.items(), start=1):
        chart.draw_line(name, x, [size and size / unit for size in line], f"c{number}")
        legend.append((f"c{number}", name))
    if planned is not None:
        legend.append(("plan", f"planned maximum, {format_bytes(planned)}"))
    return "Memory of workers by layer", legend, chart.to_svg("Memory of workers by layer")


def _calibration_chart(report: Report) -> str:
    """Return the chart of accuracy by largest predicted probability, next to the diagonal."""
    assert report.evaluation is not None
    axes = ("largest predicted probability", "accuracy (%)")
    chart = Chart((0, 1), (0, 1), axes, percent_tick, percent, integer_x=False)
    bins = [entry for entry in report.evaluation["calibration"] if entry["images"]]
    columns = [(entry["low"], entry["high"], entry["right"]) for entry in bins]
    chart.draw_columns(columns, "c2 faint")
    chart.draw_line("ideal", [0.0, 1.0], [0.0, 1.0], "ideal")
    means, shares = ([entry[key] for entry in bins] for key in ("mean", "right"))
    chart.draw_line("images", means, shares, "c2")
    return chart.to_svg("Accuracy by predicted probability")


def _matrix_rows(report: Report) -> list[tuple[str, list[tuple[int, int]]]] | None:
    """Return rows of the confusion matrix: true class, and counts with their percentages."""
    if report.evaluation is None or report.evaluation["confusion"] is None:
        return None
    rows = zip(report.data["classes"], report.evaluation["confusion"], strict=True)
    return [(name, [(n, round(100 * n / max(sum(row), 1))) for n in row]) for name, row in rows]


# shared by HTML and Markdown --------------------------------------------------------------------


def data_rows(report: Report) -> list[tuple[str, str]]:
    """Return names and texts that describe the data of a run."""
    data = report.data
    height, width, channels = data["image_shape"]
    names, more = data["classes"][:MAX_REPORT_CLASSES], len(data["classes"]) - MAX_REPORT_CLASSES
    copies = "none"
    if data["copies"]:
        copies = f"{data['copies']} of each training image, {data['rows']:,} rows in all"
    return [
        ("source", data["source"] or "arrays in memory"),
        ("images", f"{data['images']:,} of {height}×{width}×{channels} pixels"),
        ("split", f"{data['train']:,} for training, {data['held_out']:,} held out"),
        ("copies", copies),
        ("classes", f"{len(data['classes']):,}: {', '.join(names)}{', …' if more > 0 else ''}"),
        ("features", f"{data['features']:,} per layer"),
        ("run", report.url),
    ]


def _format_amount(value: float | None, kind: str) -> str:
    """Return a number of bytes, seconds or things as text."""
    if value is None:
        return NOT_RECORDED
    return {"bytes": format_bytes, "seconds": format_time, "count": "{:,}".format}[kind](value)


def planned_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """Return rows of text: name, planned value, observed value and their ratio."""
    rows = []
    for row in report.planned:
        planned, observed, ratio = row["planned"], row["observed"], ""
        if planned and observed is not None:
            ratio = f"{observed / planned:.2f} ×"
        planned_text, observed_text = (_format_amount(n, row["kind"]) for n in (planned, observed))
        rows.append((row["what"], planned_text, observed_text, ratio))
    return rows


def layer_columns(report: Report) -> tuple[str, ...]:
    """Return the titles of the columns of layers."""
    return (
        *("layer", f"training %{report.train_suffix}", "validation %", "positive %", "negative %"),
        *("seconds", "read", "written"),
    )


def layer_rows(report: Report) -> list[list[str]]:
    """Return a row of text for each layer, with the `layer_columns`."""
    rows = []
    for layer in report.layers:
        shares = [layer["train"], layer["validation"], *(layer["residual"] or (None, None))]
        observed = layer["observed"] or {}
        traffic = [format_bytes(observed[key]) if observed else "" for key in ("read", "written")]
        rows.append(
            [
                str(layer["layer"]),
                *("" if share is None else f"{100 * share:.2f}" for share in shares),
                f"{layer['seconds']:.1f}",
                *traffic,
            ]
        )
    return rows


def environment_rows(report: Report) -> list[tuple[str, str]]:
    """Return names and texts that describe when and where a run was trained."""
    environment, workers = report.environment, report.environment["workers"]
    cluster = NOT_RECORDED
    if workers:
        memory = f", {format_bytes(workers['memory'])} each" if workers["memory"] else ""
        cluster = (
            f"{pluralize(workers['count'], 'worker')}, {pluralize(workers['slots'], 'thread')}"
        )
        cluster += memory
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    sizes = ", ".join(f"{name} {format_bytes(n)}" for name, n in environment["bytes"].items())
    plan = ", ".join(f"{name} {plain_text(value)}" for name, value in environment["plan"].items())
    return [
        ("started", environment["began"] or NOT_RECORDED),
        ("last layer finished", environment["last_layer"] or "none yet"),
        ("time of all layers", format_time(environment["seconds"])),
        ("cluster", cluster),
        ("plan", plan),
        ("store", sizes),
        ("versions", versions or NOT_RECORDED),
        ("this report", f"{environment['reported']}, by rescnet-dist {environment['reported_by']}"),
    ]


def evaluated_on(report: Report) -> str:
    """Return sentences on the images that the network is evaluated on, and its accuracy."""
    evaluation = report.evaluation
    if evaluation is None:
        return f"The network is not evaluated: {report.evaluation_problem}."
    count = f"{evaluation['images']:,} {evaluation['which']}"
    if evaluation["images"] < evaluation["of"]:
        count += f", evenly sampled from {evaluation['of']:,}"
    text = f"Evaluated on {count}: accuracy {100 * evaluation['accuracy']:.2f} %"
    text += f" with {pluralize(report.depth or 0, 'layer')}."
    if evaluation["kind"] == SampleKind.TRAINING:
        text += " No images were held out; expect a lower accuracy on new images."
    elif evaluation["kind"] == SampleKind.HELD_OUT:
        text += " These images were used to choose the depth; expect a slightly lower accuracy on"
        text += " new images."
    return text


# Markdown ---------------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """Return a report as text and tables, without pictures."""
    evaluation = report.evaluation
    parts = [f"# {_escape_markdown(report.title)}", _escape_markdown(report.outcome)]
    parts += ["## Data", _make_table(("", ""), data_rows(report))]
    for name, rows in report.spec.items():
        changed = [(option, plain_text(value)) for option, value, is_changed in rows if is_changed]
        parts.append(f"## Spec: {name}")
        head = ("not the default", "value")
        parts.append(_make_table(head, changed) if changed else "All default.")
    parts.append("## Planned and observed")
    parts.append(_make_table(("", "planned", "observed", "ratio"), planned_rows(report)))
    if report.layers:
        parts += ["## Layers", _make_table(layer_columns(report), layer_rows(report))]
    parts += ["## Network", _escape_markdown(evaluated_on(report))]
    if evaluation:
        parts += _evaluation_to_markdown(report, evaluation)
    parts += ["## Environment", _make_table(("", ""), environment_rows(report))]
    parts.append("## Reproduce this run")
    if report.command:
        parts.append(f"```bash\n{report.command}\n```")
    parts += [_escape_markdown(note) for note in report.notes]
    return "\n\n".join(parts) + "\n"


def _evaluation_to_markdown(report: Report, evaluation: dict[str, Any]) -> list[str]:
    """Return the sections on confusion, errors and calibration."""
    parts = []
    if evaluation["confusion"] is not None:
        names = report.data["classes"]
        matrix = zip(names, evaluation["confusion"], strict=True)
        rows = [(name, *map(str, row)) for name, row in matrix]
        parts += ["### Confusion matrix", _make_table(("true, predicted as", *names), rows)]
    pairs = [(p["true"], p["predicted"], str(p["images"])) for p in evaluation["pairs"]]
    if pairs:
        parts.append("### Most frequent errors")
        parts.append(_make_table(("true", "predicted", "images"), pairs))
        errors = [
            (str(e["image"]), e["true"], e["predicted"], f"{e['margin']:.3f}")
            for e in evaluation["errors"]
        ]
        parts.append("### Worst errors")
        parts.append(_make_table(("image", "true", "predicted", "margin"), errors))
    bins = [
        (
            f"{entry['low']:.2f} to {entry['high']:.2f}",
            f"{entry['images']:,}",
            f"{entry['mean']:.3f}",
            f"{entry['right']:.3f}",
        )
        for entry in evaluation["calibration"]
        if entry["images"]
    ]
    head = ("largest probability", "images", "mean", "correct")
    error = f"Expected calibration error: {evaluation['calibration_error']:.3f}, "
    error += f"log loss: {evaluation['log_loss']:.3f}."
    return [*parts, "### Calibration", error, _make_table(head, bins)]


def _make_table(head: tuple[str, ...], rows: Any) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_escape_markdown, line)) + " |" for line in lines)


def _escape_markdown(text: str) -> str:
    """Escape text for Markdown, also inside a table cell."""
    for sign in ("\\", "|", "<", "*", "_", "`", "[", "]", "!", "#", "&"):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
