"""Small tables for notebooks, and numbers in words: what all parts of the package show alike."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

from rescnet_dist.errors import mask_secrets

CELL = "text-align:left;padding:1px 10px 1px 0"


def html_table(title: str, rows: Iterable[tuple[str, Any, bool]]) -> str:
    """A table for notebooks: names and values, those in bold that stand out. All text is escaped,
    and secrets of URLs are masked.

    >>> html_table("a < b", [("filters", 8, True)]).count("&lt;")
    1
    """
    lines = [f"<table><caption style='text-align:left'>{_text(title)}</caption>"]
    for name, value, stands_out in rows:
        weight = "bold" if stands_out else "normal"
        style = f"{CELL};font-weight:{weight}"
        lines.append(
            f"<tr><th scope='row' style='{style}'>{_text(name)}</th>"
            f"<td style='{style}'>{_text(value)}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])


def _text(value: Any) -> str:
    """A value as escaped text without secrets."""
    return html.escape(mask_secrets(plain_text(value)))


def plain_text(value: Any) -> str:
    """The value of an option as users write it.

    >>> plain_text(None), plain_text(True), plain_text((4, 2, 1)), plain_text(0.5)
    ('none', 'yes', '4, 2, 1', '0.5')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(plain_text(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def url_name(url: str) -> str:
    """The last part of a run's URL.

    >>> url_name("s3://bucket/runs/first/")
    'first'
    """
    return url.rstrip("/").rsplit("/", 1)[-1]


def format_mib(size: float) -> str:
    """Bytes in MiB, rounded up, for sizes that somebody is to give.

    >>> format_mib(3 * 2**30 + 1)
    '3,073'
    """
    return f"{math.ceil(size / 2**20):,}"


def format_bytes(size: float) -> str:
    """Bytes in words.

    >>> format_bytes(1536 * 2**20)
    '1.5 GiB'
    """
    power = 0
    while size >= 1024 and power < 4:
        size, power = size / 1024, power + 1
    return f"{size:,.{power // 3}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def format_time(seconds: float) -> str:
    """Seconds in words.

    >>> format_time(4000)
    '1.1 h'
    """
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
