"""The README and the pages of the book, their code blocks and their links."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BOOK = ROOT / "notebooks"
FENCE = re.compile(r"^(`{3,}|:{3,})([^\n]*)\n(.*?)^\1 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def book_pages() -> list[Path]:
    """Return all Markdown pages of the book."""
    return sorted(p for p in BOOK.rglob("*.md") if "results" not in p.relative_to(BOOK).parts)


def code_blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language in a page, in order."""
    return [body for _, info, body in FENCE.findall(page.read_text()) if info == language]


def links(page: Path) -> Iterator[str]:
    """Yield the targets of the links and images in a page, except in code."""
    text = FENCE.sub("", page.read_text())
    for target in LINK.findall(re.sub(r"`[^`\n]+`", "", text)):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings in a page or a notebook, as GitHub and MyST make them."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    else:
        text = page.read_text()
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE)
    explicit = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings} | {*explicit}
