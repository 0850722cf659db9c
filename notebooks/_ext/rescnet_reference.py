"""A Sphinx extension that fills pages with Markdown generated from the package at build time.

A fence such as

    ```{rescnet-cli}
    ```

is replaced by the Markdown of `_reference_text.cli_markdown` before the page is parsed, so that
headings, links and the table of contents work as in hand-written text. What follows the name is
passed on, as in ```{rescnet-api} rescnet_dist.kernels. sphinx-click would do for the commands
alone; it makes no tables, does not know of specs, events and errors, and needs Sphinx in tests.
"""

from __future__ import annotations

import re
from typing import Any

import _reference_text

FENCE = re.compile(
    r"^```\{(?P<name>rescnet-[\w-]+)\}[ \t]*(?P<argument>\S*)[ \t]*\n```[ \t]*$", re.MULTILINE
)


def expand(text: str) -> str:
    """Return a page with all fences replaced by what they stand for."""

    def generated(found: re.Match[str]) -> str:
        make = _reference_text.GENERATED[found["name"]]
        return make(found["argument"]) if found["argument"] else make()

    return FENCE.sub(generated, text)


def expand_page(_app: Any, _page: str, source: list[str]) -> None:
    """Expand the fences of a page that Sphinx has just read."""
    source[0] = expand(source[0])


def escape_bars(
    _app: Any, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]
) -> None:
    """Escape the bars of absolute values in docstrings, which docutils takes for substitutions."""
    lines[:] = [
        line if "``" in line or line.lstrip().startswith((">>>", "|")) else line.replace("|", r"\|")
        for line in lines
    ]


def skip_routing(_app: Any, _what: str, name: str, _thing: Any, skip: bool, _options: Any) -> bool:
    """Leave out the methods that scikit-learn adds for metadata routing, with its own links."""
    return skip or re.fullmatch(r"(set_\w+_request|get_metadata_routing)", name) is not None


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", expand_page)
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-skip-member", skip_routing)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
