"""Charts as inline SVG, without a library or a script; the page's style sheet has the colors.

matplotlib draws SVG too, but its files are four times as large, have fixed colors and no tooltips:
the page could not follow a dark theme. A report is part of the core, while matplotlib is an extra
of 38 MB whose import takes longer than the whole report. Figures for papers and notebooks, in
`figures`, are drawn by matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH_PIXELS, HEIGHT_PIXELS = 560, 260
LEFT_PIXELS, RIGHT_PIXELS, TOP_PIXELS, BOTTOM_PIXELS = 74, 14, 12, 40  # margins
MAX_DOTTED_POINTS = 40  # a line with more points has no dots
MAX_SEPARATED_BARS = 60  # more bars stand without gaps
Series = Sequence[float | None]
Format = Callable[[float], str]


class Chart:
    """Axes with ticks, on which lines and bars are drawn.

    Parameters
    ----------
    x, y : tuple of float
        Ranges of values.
    labels : tuple of str
        Labels of the x and the y axis.
    tick_format : callable
        Formats the ticks of the y axis.
    tooltip_format : callable, optional
        Formats the values in tooltips. By default, tick_format.
    integer_x : bool
        Whether ticks of the x axis are integers.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str],
        tick_format: Format = "{:g}".format,
        tooltip_format: Format | None = None,
        *,
        integer_x: bool = True,
    ) -> None:
        self.x, self.y, self.tooltip_format = x, y, tooltip_format or tick_format
        self.parts: list[str] = []
        right = WIDTH_PIXELS - RIGHT_PIXELS
        for value in make_ticks(*y):
            at = self._y(value)
            self.parts.append(
                f'<line class="grid" x1="{LEFT_PIXELS}" x2="{right}" y1="{at}" y2="{at}"/>'
                f'<text class="tick" x="{LEFT_PIXELS - 8}" y="{at}" dy="0.32em" text-anchor="end">'
                f"{escape(tick_format(value))}</text>"
            )
        for value in make_ticks(*x, integers=integer_x):
            self.parts.append(
                f'<text class="tick" x="{self._x(value)}" y="{HEIGHT_PIXELS - BOTTOM_PIXELS + 17}" '
                f'text-anchor="middle">{value:g}</text>'
            )
        middle = (TOP_PIXELS + HEIGHT_PIXELS - BOTTOM_PIXELS) / 2
        self.parts.append(
            f'<text class="name" x="{(LEFT_PIXELS + right) / 2}" y="{HEIGHT_PIXELS - 5}" '
            f'text-anchor="middle">{escape(labels[0])}</text>'
            f'<text class="name" transform="translate(13 {middle}) rotate(-90)" '
            f'text-anchor="middle">{escape(labels[1])}</text>'
        )

    def _x(self, value: float) -> float:
        """Return the horizontal pixel of a value."""
        low, high = self.x
        share = (value - low) / ((high - low) or 1)
        return round(LEFT_PIXELS + share * (WIDTH_PIXELS - LEFT_PIXELS - RIGHT_PIXELS), 2)

    def _y(self, value: float) -> float:
        """Return the vertical pixel of a value."""
        low, high = self.y
        share = (value - low) / ((high - low) or 1)
        bottom = HEIGHT_PIXELS - BOTTOM_PIXELS
        return round(bottom - share * (bottom - TOP_PIXELS), 2)

    def draw_line(self, name: str, x: Sequence[float], y: Series, kind: str) -> None:
        """Draw a line through the points whose y is not None; kind is its CSS class."""
        points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
        path = " ".join(f"{self._x(a)},{self._y(b)}" for a, b in points)
        self.parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        if len(points) <= MAX_DOTTED_POINTS:
            for a, b in points:
                tooltip = escape(f"{name}, {a:g}: {self.tooltip_format(b)}")
                self.parts.append(
                    f'<circle class="dot {kind}" cx="{self._x(a)}" cy="{self._y(b)}" r="3.6">'
                    f"<title>{tooltip}</title></circle>"
                )

    def draw_horizontal(self, value: float, kind: str) -> None:
        """Draw a horizontal line at a value of y."""
        left, right, at = LEFT_PIXELS, WIDTH_PIXELS - RIGHT_PIXELS, self._y(value)
        self.parts.append(
            f'<line class="level {kind}" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>'
        )

    def draw_vertical(self, value: float) -> None:
        """Draw a vertical line at a value of x."""
        top, bottom, at = TOP_PIXELS, HEIGHT_PIXELS - BOTTOM_PIXELS, self._x(value)
        self.parts.append(f'<line class="mark" x1="{at}" x2="{at}" y1="{top}" y2="{bottom}"/>')

    def draw_bars(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str
    ) -> None:
        """Draw bars of one step's width around x, from low to high, as a single path."""
        half_width = 0.36 if len(x) <= MAX_SEPARATED_BARS else 0.5
        path = []
        for at, bottom, top in zip(x, low, high, strict=True):
            left, right = self._x(at - half_width), self._x(at + half_width)
            path.append(f"M{left} {self._y(bottom)}V{self._y(top)}H{right}V{self._y(bottom)}Z")
        self.parts.append(f'<path class="bar {kind}" d="{"".join(path)}"/>')

    def draw_columns(self, columns: Sequence[tuple[float, float, float]], kind: str) -> None:
        """Draw bars given as (left, right, height)."""
        path = "".join(
            f"M{self._x(left) + 1} {self._y(0)}V{self._y(height)}H{self._x(right) - 1}"
            f"V{self._y(0)}Z"
            for left, right, height in columns
        )
        self.parts.append(f'<path class="bar {kind}" d="{path}"/>')

    def to_svg(self, label: str) -> str:
        """Return the chart as an SVG element; label describes it to screen readers."""
        return (
            f'<svg viewBox="0 0 {WIDTH_PIXELS} {HEIGHT_PIXELS}" role="img" '
            f'aria-label="{escape(label)}">' + "".join(self.parts) + "</svg>"
        )


def accuracy_chart(
    x: Sequence[int], lines: Sequence[tuple[str, Series, str]], depth: int | None
) -> str:
    """Return a chart of the accuracies after layers x, with the chosen depth marked.

    Each line is (name, accuracies from 0 to 1, CSS class). Lines without a value are left out.
    """
    values = [value for _, line, _ in lines for value in line]
    chart = Chart(
        layer_span(x), padded_range(values), ("layer", "accuracy (%)"), percent_tick, percent
    )
    if depth:
        chart.draw_vertical(depth)
    for name, line, kind in lines:
        if any(value is not None for value in line):
            chart.draw_line(name, x, line, kind)
    return chart.to_svg("Accuracy by layer")


def layer_span(x: Sequence[int]) -> tuple[float, float]:
    """Return the range of layers, with room for bars."""
    return x[0] - 0.5, x[-1] + 0.5


def percent_tick(share: float) -> str:
    """Return a share from 0 to 1 as a number of percent, for an axis labeled with the unit."""
    return f"{100 * share:.4g}"


def percent(share: float) -> str:
    """Return a share from 0 to 1 as text with its unit."""
    return f"{percent_tick(share)} %"


def make_ticks(low: float, high: float, count: int = 5, *, integers: bool = False) -> list[float]:
    """Return about `count` round numbers from low to high.

    >>> make_ticks(0, 10), make_ticks(1, 3, integers=True)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0])
    """
    if high <= low:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    if integers:
        step = max(1.0, float(math.ceil(step)))
    index = math.ceil(low / step - 1e-9)
    ticks = []
    while index * step <= high + 1e-9 * step:
        ticks.append(round(index * step, 12))
        index += 1
    return ticks


def padded_range(
    values: Sequence[float | None], *, low: float | None = None
) -> tuple[float, float]:
    """Return a range that contains all values that are not None, with a margin of 5 %.

    The range starts at `low` if given.

    >>> padded_range([None, 4.0], low=0)
    (0, 4.2)
    """
    known = [value for value in values if value is not None] or [0.0, 1.0]
    least, largest = min(known), max(known)
    margin = 0.05 * ((largest - (least if low is None else low)) or abs(largest) or 1.0)
    return (least - margin if low is None else low), largest + margin
