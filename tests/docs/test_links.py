"""The README stays short, and the links of the README and the book lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import BOOK, README, ROOT, anchors, book_pages, links

MAX_LINES = 200
MAX_WORDS = 2_000
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *book_pages()]
RESULTS = (
    "digits",
    "mnist-kernel",
    "mnist-kernel-shifts",
    "cifar10-kernel",
    "cifar10-kernel-flips",
    "cifar100-kernel",
    "cifar100-kernel-flips",
    "tiny-imagenet-kernel",
    "cifar10-classify-left-out",
)
each = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_the_readme_is_short() -> None:
    """Details belong into the book."""
    text = README.read_text()
    assert text.count("\n") <= MAX_LINES
    assert len(text.split()) <= MAX_WORDS


@each
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Relative links name a file of the repository and, after #, one of its headings."""
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        generated = target.parent.name == "reference"  # Sphinx checks anchors in what it generates
        if anchor and not generated and target.suffix in (".md", ".ipynb"):
            assert anchor in anchors(target), link


@each
def test_tests_that_are_named_exist(page: Path) -> None:
    """A command that repeats a measurement can be run."""
    for name in re.findall(r"\btests/[\w/]+(?:\.(?:py|jsonl?))?", page.read_text()):
        assert (ROOT / name).exists(), name


def test_pages_render_without_sphinx() -> None:
    """Links have a text of their own: GitHub shows nothing for [](page.md)."""
    for page in (p for p in book_pages() if p.parent.name in ("start", "guide", BOOK.name)):
        assert "[](" not in page.read_text(), page


def test_the_short_table_of_results_is_correct() -> None:
    """The README's rows have the depth and the test accuracy of the stored results."""
    found = re.search(r"<!-- short results -->\n(.*?)<!-- end", README.read_text(), re.DOTALL)
    assert found
    rows = [re.split(r" *\| *", line.strip("| ")) for line in found[1].splitlines()[2:]]
    for name, row in zip(RESULTS, rows, strict=True):
        result = json.loads((BOOK / "results" / f"{name}.json").read_text())
        share, count = result["test"], result["data"]["test"]["images"]
        deviation = 100 * (share * (1 - share) / count) ** 0.5
        assert row[1:3] == [str(result["depth"]), f"{100 * share:.2f} ± {deviation:.2f}"], name
        if row[3] != "–":
            published = result.get("published") or result["paper"]  # earlier versions
            assert float(row[3].split()[0]) == pytest.approx(100 * published["test"])
