"""HTML tables for notebooks, and text forms of option values, byte counts and times."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

from rescnet_dist.errors import mask_secrets

CELL_STYLE = "text-align:left;padding:1px 10px 1px 0"


def html_table(title: str, rows: Iterable[tuple[str, Any, bool]]) -> str:
    """Return an HTML table of rows `(name, value, is_bold)`; text is escaped, secrets are masked.

    >>> html_table("a < b", [("filters", 8, True)]).count("&lt;")
    1
    """
    lines = [f"<table><caption style='text-align:left'>{_escape(title)}</caption>"]
    for name, value, is_bold in rows:
        weight = "bold" if is_bold else "normal"
        style = f"{CELL_STYLE};font-weight:{weight}"
        lines.append(
            f"<tr><th scope='row' style='{style}'>{_escape(name)}</th>"
            f"<td style='{style}'>{_escape(value)}</td></tr>"
        )
    return "\n".join([*lines, "</table>"])


def _escape(value: Any) -> str:
    """Return a value as HTML-escaped text without secrets."""
    return html.escape(mask_secrets(plain_text(value)))


def plain_text(value: Any) -> str:
    """Return the value of an option as users write it.

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
    """Return the last part of a URL, which names a run.

    >>> url_name("s3://bucket/runs/first/")
    'first'
    """
    return url.rstrip("/").rsplit("/", 1)[-1]


def format_mib(size: float) -> str:
    """Return bytes as a number of MiB, rounded up, for sizes that users are to set.

    >>> format_mib(3 * 2**30 + 1)
    '3,073'
    """
    return f"{math.ceil(size / 2**20):,}"


def format_bytes(size: float) -> str:
    """Return bytes with the largest fitting unit.

    >>> format_bytes(1536 * 2**20)
    '1.5 GiB'
    """
    power = 0
    while size >= 1024 and power < 4:
        size, power = size / 1024, power + 1
    return f"{size:,.{power // 3}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def format_time(seconds: float) -> str:
    """Return seconds with the largest fitting unit.

    >>> format_time(4000)
    '1.1 h'
    """
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def format_changes(rows: Iterable[tuple[str, Any, bool]]) -> str:
    """Return the options of a spec that are not the default, of its `rows`, as text.

    >>> format_changes([("filters", 16, True), ("power", False, False), ("block", 7, True)])
    'filters=16, block=7'
    """
    return ", ".join(f"{name}={value}" for name, value, is_changed in rows if is_changed)


def option_name(field: str) -> str:
    """Return the command-line option of a field.

    >>> option_name("max_layers")
    '--max-layers'
    """
    return f"--{field.replace('_', '-')}"


def train_suffix(copies: int, leave_one_out: bool) -> str:
    """Return the suffix of a training accuracy: whether it counts copies, or images left out."""
    notes = (["leave-one-out"] if leave_one_out else []) + (["with copies"] if copies else [])
    return f" ({', '.join(notes)})" if notes else ""
