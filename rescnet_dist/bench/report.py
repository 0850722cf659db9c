"""Results as a table, as a chart, and beside those of another day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from rescnet_dist.bench.timing import MISSING, Result
from rescnet_dist.errors import RescnetError

NO_CHART = 'a chart needs matplotlib: pip install "rescnet-dist[plot]", or leave --chart out'
SLOWER = 1.1  # times as slow as before is worth a word


def table(results: Sequence[Result]) -> Table:
    """One line for each result."""
    found = Table("what", "ours", "beside", "ratio", "bar", "")
    for result in results:
        others = [f"{name} {_time(seconds)}" for name, seconds in result.peers.items()]
        if result.floor is not None:
            others.append(f"floor {_time(result.floor)}")
        ratio = "" if result.ratio is None else f"{result.ratio:.2f} ×"
        sign = "≤" if result.at_most else "≥"
        bar = "" if result.bar is None else f"{sign} {result.bar:g} ×"
        verdict = {True: "reached", False: "missed", None: ""}[result.passes]
        found.add_row(result.name, _time(result.ours), "\n".join(others), ratio, bar, verdict)
    return found


def compared(results: Sequence[Result], before: dict[str, Any]) -> list[str]:
    """What has become slower or faster since, by the ratios, which other load moves least."""
    earlier = {entry["name"]: entry for entry in before.get("results", [])}
    lines = []
    for result in results:
        old = earlier.get(result.name, {}).get("ratio")
        if old is None or result.ratio is None:
            continue
        change = result.ratio / old if result.at_most else old / result.ratio
        if not 1 / SLOWER <= change <= SLOWER:
            word = "slower" if change > 1 else "faster"
            lines.append(
                f"{result.name}: {max(change, 1 / change):.2f} × {word} than before "
                f"(ratio {result.ratio:.2f}, was {old:.2f})"
            )
    return lines


def draw_chart(results: Sequence[Result], path: str) -> None:
    """Bars of how many times as long as ours the peers take, and the floor, as a PNG file."""
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


def _time(seconds: float | None) -> str:
    """Seconds in words.

    >>> _time(0.0021), _time(None)
    ('2.1 ms', 'not installed')
    """
    if seconds is None:
        return MISSING
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
