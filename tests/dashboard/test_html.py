"""HTML of specs, plans and networks in notebooks: escaped, secrets masked, changes in bold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from rescnet_dist import AugmentSpec, Network, NetworkSpec, RunSpec
from rescnet_dist.cluster import Workers
from rescnet_dist.formatting import html_table
from rescnet_dist.model import ImageScale
from rescnet_dist.planning.estimates import estimate
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.spec import Spec


class Cells(HTMLParser):
    """The texts of table cells, all and those in bold, and the tags of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.all: list[str] = []
        self.bold: list[str] = []
        self.opened: list[str] = []
        self.kinds: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        bold = "font-weight:bold" in (dict(attrs).get("style") or "")
        self.kinds = [self.all, self.bold] if bold else [self.all]

    def handle_data(self, data: str) -> None:
        if data.strip():
            for kind in self.kinds:
                kind.append(data)


@pytest.mark.parametrize(
    ("spec", "changed"),
    [
        (NetworkSpec(), []),
        (NetworkSpec(filters=8, levels=(2, 1)), ["filters", "8", "levels", "2, 1"]),
        (RunSpec(seed=3), ["seed", "3"]),
        (AugmentSpec(copies=2, flip=True), ["copies", "2", "flip", "yes"]),
    ],
)
def test_specs_show_changed_fields_in_bold(spec: Spec, changed: list[str]) -> None:
    """Each field once."""
    cells = Cells(spec._repr_html_())  # type: ignore[attr-defined]
    assert cells.bold == changed
    assert [name for name, *_ in spec.rows()] == cells.all[1::2]


def test_plan_html_matches_printed_plan() -> None:
    """The same lines as `print`."""
    found = estimate(
        Problem(600, (28, 28, 1), 10),
        NetworkSpec.preset("digits"),
        RunSpec(),
        Workers(2, 2, 1, 2, 2**31),
        None,
    )
    cells = Cells(found._repr_html_()).all[1:]
    printed = [re.split(r" +", line, maxsplit=1) for line in str(found).splitlines()]
    assert [list(pair) for pair in zip(cells[::2], cells[1::2], strict=True)] == printed
    plan = Cells(found.plan._repr_html_()).all
    assert plan[plan.index("chunk_images") + 1] == str(found.plan.chunk_images)


def test_network_html_shows_size_classes_and_spec() -> None:
    """Without reading a layer."""
    labels: Any = np.array([f"<b>{n}</b>" for n in range(20)])
    scale = ImageScale(np.zeros(1), np.ones(1))
    network = Network(NetworkSpec(filters=8), labels, (28, 28, 1), scale, ())
    cells = Cells(network._repr_html_())
    assert cells.all[1:5] == ["layers", "0", "images", "28×28×1"]
    assert "<b>11</b>, …" in cells.all[6]  # escaped, otherwise it would not be text
    assert "b" not in cells.opened
    assert cells.bold == ["filters", "8"]


def test_html_table_escapes_and_masks() -> None:
    """Title, names and values."""
    found = html_table("<i>", [("<s>", "s3://me:word@host/<u>", True)])
    assert "word" not in found
    assert not {"i", "s", "u"} & set(Cells(found).opened)
    assert Cells(found).all == ["<i>", "<s>", "s3://***@host/<u>"]
