"""A report as a page of HTML that needs nothing else, as Markdown, and as JSON."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from rescnet_dist.dashboard.report import Report
from rescnet_dist.dashboard.svg import Chart, accuracy_chart, layer_span, percent, reach
from rescnet_dist.errors import pluralize
from rescnet_dist.formatting import format_bytes, format_time, plain_text
from rescnet_dist.train import PHASES

TEMPLATE = "report.html.jinja"
NOT_RECORDED = "not recorded"
FORMATS = ("html", "markdown", "json")
SHOWN_CLASSES = 30  # of the data, by name


def rendered(report: Report, form: str) -> str:
    """A report in one of the `FORMATS`."""
    if form == "json":
        return json.dumps(report.to_dict(), indent=1) + "\n"
    return to_markdown(report) if form == "markdown" else to_html(report)


# html -------------------------------------------------------------------------------------------


def to_html(report: Report) -> str:
    """One page without references to anything outside it; it is dark where the reader's are."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = (files("rescnet_dist.dashboard") / TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        report=report,
        facts=facts(report),
        planned=planned_rows(report),
        layers=layer_rows(report),
        environment=environment_rows(report),
        charts=[(title, legend, Markup(svg)) for title, legend, svg in charts(report)],
        calibration=Markup(_calibration_chart(report)) if report.judged else None,
        matrix=_matrix(report),
        evaluated_on=evaluated_on(report),
        plain=plain_text,
    )


def charts(report: Report) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Title, legend of (class, name), and SVG of each chart of the layers for which there is
    something to draw."""
    x = [layer["layer"] for layer in report.layers]
    if not x:
        return []
    found = [_accuracy_chart(report, x)]
    if any(layer["residual"] for layer in report.layers):
        found.append(_residual_chart(report, x))
    found.append(_time_chart(report, x))
    if report.memory["workers"]:
        found.append(_memory_chart(report, x))
    return found


def _accuracy_chart(report: Report, x: list[int]) -> tuple[str, list[tuple[str, str]], str]:
    names = {"train": "training", "validation": "held out"}
    lines = [
        (key, [layer[key] for layer in report.layers], kind)
        for key, kind in zip(names, ("c1", "c2"), strict=True)
    ]
    legend = [
        (kind, names[key]) for key, line, kind in lines if any(value is not None for value in line)
    ]
    if report.depth:
        legend.append(("mark", f"chosen depth, {report.depth}"))
    return "Accuracy by layer", legend, accuracy_chart(x, lines, report.depth)


def _residual_chart(report: Report, x: list[int]) -> tuple[str, list[tuple[str, str]], str]:
    chart = Chart(layer_span(x), (0, 1), ("layer", "share of images"), percent)
    shares = [layer["residual"] for layer in report.layers]
    for name, sign, kind in (("positive", 0, "c1"), ("negative", 1, "c2")):
        chart.line(name, x, [share[sign] if share else None for share in shares], kind)
    title = "Sign of the largest error of images that enter a layer"
    return title, [("c1", "positive"), ("c2", "negative")], chart.drawn(title)


def _time_chart(report: Report, x: list[int]) -> tuple[str, list[tuple[str, str]], str]:
    """Stacked phases where they are recorded, and the rest of each layer's time."""
    seconds = [layer["seconds"] for layer in report.layers]
    chart = Chart(layer_span(x), reach(seconds, least=0), ("layer", "seconds"))
    by_phase = [(layer["observed"] or {}).get("seconds", {}) for layer in report.layers]
    low, legend = [0.0] * len(x), []
    for number, phase in enumerate(PHASES, start=1):
        if not any(by_phase):
            break
        high = [a + of.get(phase, 0.0) for a, of in zip(low, by_phase, strict=True)]
        chart.bars(x, low, high, f"c{number}")
        legend.append((f"c{number}", phase))
        low = high
    chart.bars(x, low, [max(pair) for pair in zip(low, seconds, strict=True)], "rest")
    legend.append(("rest", "other" if any(by_phase) else "all phases, which are not recorded"))
    return "Time by layer and phase", legend, chart.drawn("Time by layer and phase")


def _memory_chart(report: Report, x: list[int]) -> tuple[str, list[tuple[str, str]], str]:
    """At most a line for each of a few workers, else the fullest of them."""
    memory, planned = report.memory, report.memory["planned"]
    lines = dict(memory["workers"])
    if len(lines) > 5:
        columns = zip(*lines.values(), strict=True)
        known = [[size for size in column if size is not None] for column in columns]
        lines = {f"fullest of {len(lines)} workers": [max(c, default=None) for c in known]}
    values = [size for line in lines.values() for size in line] + [planned]
    most = max(size for size in values if size is not None)
    unit, name_of_unit = (2**30, "GiB") if most >= 4 * 2**30 else (2**20, "MiB")  # round ticks
    high = reach([most / unit], least=0)
    chart = Chart(layer_span(x), high, ("layer", f"{name_of_unit} resident"), "{:,.4g}".format)
    legend = []
    if planned is not None:
        chart.level(planned / unit, "plan")
    for number, (name, line) in enumerate(lines.items(), start=1):
        chart.line(name, x, [size and size / unit for size in line], f"c{number}")
        legend.append((f"c{number}", name))
    if planned is not None:
        legend.append(("plan", f"planned at most, {format_bytes(planned)}"))
    return "Memory of workers by layer", legend, chart.drawn("Memory of workers by layer")


def _calibration_chart(report: Report) -> str:
    """Share that is right by the largest probability, beside the diagonal."""
    assert report.judged is not None
    axes = ("largest predicted probability", "share that is right")
    chart = Chart((0, 1), (0, 1), axes, percent, whole=False)
    bins = [entry for entry in report.judged["calibration"] if entry["images"]]
    chart.columns([(entry["low"], entry["high"], entry["right"]) for entry in bins], "c2 faint")
    chart.line("ideal", [0.0, 1.0], [0.0, 1.0], "ideal")
    means, shares = ([entry[key] for entry in bins] for key in ("mean", "right"))
    chart.line("images", means, shares, "c2")
    return chart.drawn("Reliability of the predicted probabilities")


def _matrix(report: Report) -> list[tuple[str, list[tuple[int, int]]]] | None:
    """Rows of the confusion matrix: the true class, and numbers with their share in percent."""
    if report.judged is None or report.judged["confusion"] is None:
        return None
    rows = zip(report.data["classes"], report.judged["confusion"], strict=True)
    return [(name, [(n, round(100 * n / max(sum(row), 1))) for n in row]) for name, row in rows]


# what html and markdown share -------------------------------------------------------------------


def facts(report: Report) -> list[tuple[str, str]]:
    """The data of a run, in words."""
    data = report.data
    height, width, channels = data["image_shape"]
    names, more = data["classes"][:SHOWN_CLASSES], len(data["classes"]) - SHOWN_CLASSES
    split = f"{data['train']:,} to train on, {data['held_out']:,} held out"
    copies = "none"
    if data["copies"]:
        copies = f"{data['copies']} of each image to train on, {data['rows']:,} rows in all"
    return [
        ("source", data["source"] or "arrays in memory"),
        ("images", f"{data['images']:,} of {height}×{width}×{channels} pixels"),
        ("split", split),
        ("copies", copies),
        ("classes", f"{len(data['classes']):,}: {', '.join(names)}{', …' if more > 0 else ''}"),
        ("features", f"{data['features']:,} per layer"),
        ("run", report.url),
    ]


def _amount(value: float | None, kind: str) -> str:
    if value is None:
        return NOT_RECORDED
    return {"bytes": format_bytes, "seconds": format_time, "count": "{:,}".format}[kind](value)


def planned_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """What was planned and observed, and their ratio, in words."""
    rows = []
    for row in report.planned:
        planned, observed, ratio = row["planned"], row["observed"], ""
        if planned and observed is not None:
            ratio = f"{observed / planned:.2f} ×"
        told = [_amount(value, row["kind"]) for value in (planned, observed)]
        rows.append((row["what"], *told, ratio))
    return rows


def layer_rows(report: Report) -> list[list[str]]:
    """One row for each layer: number, accuracies in %, residual shares in %, seconds, bytes."""
    rows = []
    for layer in report.layers:
        shares = [layer["train"], layer["validation"], *(layer["residual"] or (None, None))]
        observed = layer["observed"] or {}
        moved = [format_bytes(observed[key]) if observed else "" for key in ("read", "written")]
        rows.append(
            [
                str(layer["layer"]),
                *("" if share is None else f"{100 * share:.2f}" for share in shares),
                f"{layer['seconds']:.1f}",
                *moved,
            ]
        )
    return rows


LAYER_HEAD = (
    *("layer", "train %", "held out %", "positive %", "negative %"),
    *("seconds", "read", "written"),
)


def environment_rows(report: Report) -> list[tuple[str, str]]:
    """Where and when, in words."""
    found, workers = report.environment, report.environment["workers"]
    cluster = NOT_RECORDED
    if workers:
        memory = f", {format_bytes(workers['memory'])} each" if workers["memory"] else ""
        cluster = (
            f"{pluralize(workers['count'], 'worker')}, {pluralize(workers['slots'], 'thread')}"
        )
        cluster += memory
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in found["bytes"].items())
    plan = ", ".join(f"{name} {plain_text(value)}" for name, value in found["plan"].items())
    return [
        ("began", found["began"] or NOT_RECORDED),
        ("last layer finished", found["last_layer"] or "none yet"),
        ("time of all layers", format_time(found["seconds"])),
        ("cluster", cluster),
        ("plan", plan),
        ("store", sizes),
        ("versions", versions or NOT_RECORDED),
        ("this report", f"{found['reported']}, by rescnet-dist {found['reported_by']}"),
    ]


def evaluated_on(report: Report) -> str:
    """Which images the network is judged on, and how well it does, in a sentence."""
    judged = report.judged
    if judged is None:
        return f"The network is not judged: {report.not_judged}."
    count = f"{judged['images']:,} {judged['which']}"
    if judged["images"] < judged["of"]:
        count += f", taken evenly from {judged['of']:,}"
    text = f"Judged on {count}: {100 * judged['accuracy']:.2f} % right"
    text += f" with {pluralize(report.depth or 0, 'layer')}."
    if judged["which"] == "training images":
        text += " Nothing was held out, so that images not trained on would do worse."
    elif judged["which"] == "held-out images":
        text += " They have chosen the depth, so that new images may do a little worse."
    return text


# markdown ---------------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """Text and tables, without pictures."""
    judged = report.judged
    parts = [f"# {_cell(report.title)}", _cell(report.outcome)]
    parts += ["## Data", _table(("", ""), facts(report))]
    for name, rows in report.spec.items():
        changed = [(option, plain_text(value)) for option, value, stands_out in rows if stands_out]
        parts.append(f"## Spec: {name}")
        parts.append(_table(("not the default", "value"), changed) if changed else "All default.")
    parts.append("## Plan and what was observed")
    parts.append(_table(("", "planned", "observed", "ratio"), planned_rows(report)))
    if report.layers:
        parts += ["## Layers", _table(LAYER_HEAD, layer_rows(report))]
    parts += ["## Network", _cell(evaluated_on(report))]
    if judged:
        parts += _judged_markdown(report, judged)
    parts += ["## Environment", _table(("", ""), environment_rows(report)), "## Train it again"]
    if report.command:
        parts.append(f"```bash\n{report.command}\n```")
    parts += [_cell(note) for note in report.notes]
    return "\n\n".join(parts) + "\n"


def _judged_markdown(report: Report, judged: dict[str, Any]) -> list[str]:
    parts = []
    if judged["confusion"] is not None:
        names = report.data["classes"]
        rows = [
            (name, *map(str, row)) for name, row in zip(names, judged["confusion"], strict=True)
        ]
        parts += ["### Confusion", _table(("true, predicted as", *names), rows)]
    pairs = [(p["true"], p["predicted"], str(p["images"])) for p in judged["pairs"]]
    if pairs:
        parts.append("### Most frequent errors")
        parts.append(_table(("true", "predicted", "images"), pairs))
        errors = [
            (str(e["image"]), e["true"], e["predicted"], f"{e['margin']:.3f}")
            for e in judged["errors"]
        ]
        parts.append("### Worst errors")
        parts.append(_table(("image", "true", "predicted", "margin"), errors))
    bins = [
        (f"{b['low']:.1f} to {b['high']:.1f}", f"{b['images']:,}", f"{b['mean']:.3f}",
         f"{b['right']:.3f}")
        for b in judged["calibration"] if b["images"]
    ]  # fmt: skip
    head = ("largest probability", "images", "mean", "right")
    error = f"Expected calibration error: {judged['calibration_error']:.3f}."
    return [*parts, "### Calibration", error, _table(head, bins)]


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that stays what it is in Markdown and within a cell."""
    for sign in ("\\", "|", "<", "*", "_", "`", "[", "]", "!", "#", "&"):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
