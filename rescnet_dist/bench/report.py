"""Benchmark results as a table, as a chart, and compared with earlier results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from rescnet_dist.bench.timing import NOT_INSTALLED, SECONDS_SUFFIX, Result
from rescnet_dist.errors import RescnetError, pluralize

NO_CHART = (
    'A chart needs matplotlib, which is not installed. Run pip install "rescnet-dist[plot]", or '
    "leave --chart out."
)
REPORTED_CHANGE_RATIO = 1.1  # smaller changes of a ratio, in either direction, are not reported


def table(results: Sequence[Result]) -> Table:
    """Return a table with one row for each result."""
    rows = Table("case", "ours", "compared with", "ratio", "bar", "")
    for result in results:
        others = [f"{name} {_format_seconds(seconds)}" for name, seconds in result.peers.items()]
        if result.floor is not None:
            others.append(f"floor {_format_seconds(result.floor)}")
        ratio = "" if result.ratio is None else f"{result.ratio:.2f} ×"
        ours, compared = _format_seconds(result.ours), "\n".join(others)
        rows.add_row(result.name, ours, compared, ratio, result.bar_text, result.verdict)
    return rows


def describe(machine: Mapping[str, Any]) -> str:
    """Return a machine as one line."""
    return (
        f"{machine.get('processor', machine['machine'])}, {pluralize(machine['cores'], 'core')}, "
        f"{machine['sgemm_gflops']:.0f} GFLOP/s in single precision, {machine['system']} "
        f"{machine['machine']}, Python {machine['python']}, NumPy {machine['numpy']}"
    )


def machines_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the ratios of several records, a column for each machine."""
    rows = Table("case", "bar", *(describe(record["machine"]) for record in records))
    results = [
        {found.name: found for found in map(Result.from_dict, record["results"])}
        for record in records
    ]
    for name in dict.fromkeys(name for found in results for name in found):
        known = [found.get(name) for found in results]
        bar = next(found.bar_text for found in known if found)
        rows.add_row(name, bar, *(_format_ratio(found) for found in known))
    return rows


def machines_markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the results of several records as Markdown: the machines, and a column for each."""
    names = [_short_name(record["machine"]) for record in records]
    lines = [f"- {describe(record['machine'])}" for record in records]
    lines += ["", f"| what | {' | '.join(names)} | bar |", "| --- " * (len(names) + 2) + "|"]
    results = [
        {found.name: found for found in map(Result.from_dict, record["results"])}
        for record in records
    ]
    for name in dict.fromkeys(name for found in results for name in found):
        known = [found.get(name) for found in results]
        bars = " / ".join(dict.fromkeys(found.bar_text for found in known if found))
        cells = [name.removesuffix(SECONDS_SUFFIX), *map(_format_times, known), bars or "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short_name(machine: Mapping[str, Any]) -> str:
    """Return the processor of a machine, without marks, and its cores.

    >>> _short_name({"processor": "Intel(R) Xeon(R) Processor", "cores": 2})
    'Intel Xeon Processor, 2 cores'
    """
    processor = re.sub(r"\((R|TM)\)", "", machine["processor"])
    return f"{processor}, {pluralize(machine['cores'], 'core')}"


def _format_times(result: Result | None) -> str:
    """Return the ratio of a result with the times that it is made of, and its verdict.

    >>> _format_times(Result("case", 2.0, {"PyTorch": 6.0}, bar=5))
    '3.00 ×, missed: 2 s, PyTorch 6 s'
    """
    if result is None:
        return "–"
    times = {name: seconds for name, seconds in result.peers.items() if seconds is not None}
    if result.floor is not None and not result.has_time_bar:
        times["floor"] = result.floor
    shown = [_format_seconds(result.ours)]
    shown += [f"{name} {_format_seconds(seconds)}" for name, seconds in times.items()]
    return f"{_format_ratio(result)}: {', '.join(shown)}" if times else _format_ratio(result)


def _format_ratio(result: Result | None) -> str:
    """Return the ratio of a result, or else its time, and whether its bar was reached."""
    if result is None:
        return "–"
    is_time = result.ratio is None or result.has_time_bar
    text = _format_seconds(result.ours) if is_time else f"{result.ratio:.2f} ×"
    return f"{text}, {result.verdict}" if result.verdict else text


def compare_results(results: Sequence[Result], before: dict[str, Any]) -> list[str]:
    """Describe what has become slower or faster than in earlier results.

    Ratios are compared, as they depend least on other load of the machine.
    """
    earlier = {entry["name"]: entry for entry in before.get("results", [])}
    lines = []
    for result in results:
        old = earlier.get(result.name, {}).get("ratio")
        if result.name not in earlier:
            lines.append(f"{result.name}: not in the earlier results, so not compared")
        if old is None or result.ratio is None:
            continue
        change = result.ratio / old if result.at_most else old / result.ratio
        if not 1 / REPORTED_CHANGE_RATIO <= change <= REPORTED_CHANGE_RATIO:
            word = "slower" if change > 1 else "faster"
            lines.append(
                f"{result.name}: {max(change, 1 / change):.2f} × {word} than before "
                f"(ratio {result.ratio:.2f}, was {old:.2f})"
            )
    return lines


def draw_chart(results: Sequence[Result], path: str) -> None:
    """Write a bar chart to a PNG file: the times of peers and of the floor, in units of ours."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RescnetError(NO_CHART) from None
    rows = [
        (result.name, name, seconds / result.ours)
        for result in results
        for name, seconds in (*result.peers.items(), ("floor", result.floor))
        if seconds is not None
    ]
    figure = Figure(figsize=(9, 0.6 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    colors = {"floor": "#9aa5b1", "ours": "#2166ac"}
    for location, (_, name, ratio) in enumerate(rows):
        axes.barh(location, ratio, 0.62, color=colors.get(name, "#d6604d"))
        text = f"{name}  {ratio:.{0 if ratio >= 10 else 2}f} ×"
        axes.text(max(ratio, 1) * 1.06, location, text, va="center", fontsize=8)
    axes.axvline(1, color=colors["ours"], linewidth=2)
    axes.set(
        xscale="log",
        xlabel="time, in units of ours (blue line)",
        yticks=range(len(rows)),
        yticklabels=[name for name, *_ in rows],
    )
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _format_seconds(seconds: float | None) -> str:
    """Return seconds with a unit.

    >>> _format_seconds(0.0021), _format_seconds(None)
    ('2.1 ms', 'not installed')
    """
    if seconds is None:
        return NOT_INSTALLED
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
