"""A Sphinx extension that fills pages with Markdown generated from the package at build time.

A fence such as

    ```{rescnet-cli}
    ```

is replaced by the Markdown of `_reference_text.cli_markdown` before the page is parsed, so that
headings, links and the table of contents work as in hand-written text. What follows the name is
passed on, as in ```{rescnet-api} rescnet_dist.kernels. sphinx-click would do for the commands alone;
it has no tables, does not know of specs, events and errors, and needs Sphinx to be tested.
"""

from __future__ import annotations

import re
from typing import Any

import _reference_text

FENCE = re.compile(r"^```\{(?P<name>rescnet-[\w-]+)\}[ \t]*(?P<argument>\S*)[ \t]*\n```[ \t]*$", re.MULTILINE)


def expand(text: str) -> str:
    """Return a page with all fences replaced by what they stand for."""

    def generated(found: re.Match[str]) -> str:
        make = _reference_text.GENERATED[found["name"]]
        return make(found["argument"]) if found["argument"] else make()

    return FENCE.sub(generated, text)


def expand_page(_app: Any, _page: str, source: list[str]) -> None:
    """Expand the fences of a page that Sphinx has just read."""
    source[0] = expand(source[0])


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", expand_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
