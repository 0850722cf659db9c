"""Charts as inline SVG: no library, no script, colors from the style sheet of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 74, 14, 12, 40
DOTS, GAPS = 40, 60  # points up to which each has a dot, and bars up to which they stand apart
Series = Sequence[float | None]
Format = Callable[[float], str]


class Chart:
    """Axes with ticks, on which lines and bars are drawn; x and y are ranges of values."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str],
        told: Format = "{:g}".format,
        *,
        whole: bool = True,
    ) -> None:
        self.x, self.y, self.told = x, y, told
        self.parts: list[str] = []
        for value in ticks(*y):
            at = self._y(value)
            self.parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
                f'<text class="tick" x="{LEFT - 8}" y="{at}" dy="0.32em" text-anchor="end">'
                f"{escape(told(value))}</text>"
            )
        for value in ticks(*x, whole=whole):
            self.parts.append(
                f'<text class="tick" x="{self._x(value)}" y="{HEIGHT - BOTTOM + 17}" '
                f'text-anchor="middle">{value:g}</text>'
            )
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.parts.append(
            f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 5}" '
            f'text-anchor="middle">{escape(labels[0])}</text>'
            f'<text class="name" transform="translate(13 {middle}) rotate(-90)" '
            f'text-anchor="middle">{escape(labels[1])}</text>'
        )

    def _x(self, value: float) -> float:
        low, high = self.x
        share = (value - low) / ((high - low) or 1)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)

    def _y(self, value: float) -> float:
        low, high = self.y
        share = (value - low) / ((high - low) or 1)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 2)

    def line(self, name: str, x: Sequence[float], y: Series, kind: str) -> None:
        """A line through the points that are known; kind is its class in the style sheet."""
        known = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
        points = " ".join(f"{self._x(a)},{self._y(b)}" for a, b in known)
        self.parts.append(f'<polyline class="line {kind}" points="{points}"/>')
        if len(known) <= DOTS:
            for a, b in known:
                self.parts.append(
                    f'<circle class="dot {kind}" cx="{self._x(a)}" cy="{self._y(b)}" r="3.6">'
                    f"<title>{escape(f'{name}, {a:g}: {self.told(b)}')}</title></circle>"
                )

    def level(self, value: float, kind: str) -> None:
        """A line across at a height."""
        at = self._y(value)
        self.parts.append(
            f'<line class="level {kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
        )

    def upright(self, value: float) -> None:
        """A line from the bottom to the top."""
        at = self._x(value)
        self.parts.append(
            f'<line class="mark" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )

    def bars(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str
    ) -> None:
        """Bars of one step's width around x, from low to high; one path for all of them."""
        share = 0.36 if len(x) <= GAPS else 0.5
        path = []
        for at, bottom, top in zip(x, low, high, strict=True):
            left, right = self._x(at - share), self._x(at + share)
            path.append(f"M{left} {self._y(bottom)}V{self._y(top)}H{right}V{self._y(bottom)}Z")
        self.parts.append(f'<path class="bar {kind}" d="{"".join(path)}"/>')

    def columns(self, edges: Sequence[tuple[float, float, float]], kind: str) -> None:
        """Bars from one x to another, of a height, given as (from, to, height)."""
        path = "".join(
            f"M{self._x(a) + 1} {self._y(0)}V{self._y(b)}H{self._x(c) - 1}V{self._y(0)}Z"
            for a, c, b in edges
        )
        self.parts.append(f'<path class="bar {kind}" d="{path}"/>')

    def drawn(self, label: str) -> str:
        """The chart as an element; label says what it shows to those who do not see it."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
            + "".join(self.parts)
            + "</svg>"
        )


def accuracy_chart(
    x: Sequence[int], lines: Sequence[tuple[str, Series, str]], depth: int | None
) -> str:
    """Shares of images classified rightly after the layers x, as lines of (name, shares, class in
    the style sheet), those of which something is known; the chosen depth is marked."""
    values = [value for _, line, _ in lines for value in line]
    chart = Chart(layer_span(x), reach(values), ("layer", "accuracy"), percent)
    if depth:
        chart.upright(depth)
    for name, line, kind in lines:
        if any(value is not None for value in line):
            chart.line(name, x, line, kind)
    return chart.drawn("Accuracy by layer")


def layer_span(x: Sequence[int]) -> tuple[float, float]:
    """The range of layers, with room for bars."""
    return x[0] - 0.5, x[-1] + 0.5


def percent(share: float) -> str:
    """A share as a tick or a label tells it."""
    return f"{100 * share:.4g} %"


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from low to high, about `count` of them.

    >>> ticks(0, 10), ticks(1, 3, whole=True)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0])
    """
    if high <= low:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + 1e-9 * step:
        found.append(round(first * step, 12))
        first += 1
    return found


def reach(values: Sequence[float | None], *, least: float | None = None) -> tuple[float, float]:
    """A range that holds all values that are known, with a little room; from `least` if given.

    >>> reach([None, 4.0], least=0)
    (0, 4.2)
    """
    known = [value for value in values if value is not None] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = 0.05 * ((high - (low if least is None else least)) or abs(high) or 1.0)
    return (low - room if least is None else least), high + room
