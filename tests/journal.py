"""A journal of JSON lines, so that a long test can be stopped at any time and continued later."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "notebooks/guide/faults.md"  # shows the tables of journals
dump = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Records in a file, one per line. A line that was cut off by a kill is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records: list[dict[str, Any]] = []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                self.records.append(json.loads(line))
            except ValueError:
                continue

    def append(self, *records: dict[str, Any]) -> None:
        """Add records, in one write."""
        is_cut = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
        text = "\n" * is_cut + "".join(dump(record) + "\n" for record in records)
        with self.path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.records += records


def read_table(name: str, page: Path = PAGE) -> str:
    """Return the table between the marks of this name on a page."""
    return _split_page(name, page)[1]


def write_table(name: str, table: str, page: Path) -> None:
    """Replace the table between the marks of this name on a page."""
    before, _, after = _split_page(name, page)
    page.write_text(f"{before}\n{table}\n{after}")


def _split_page(name: str, page: Path) -> tuple[str, str, str]:
    """Return what is up to the first mark, between the marks, and from the second one on."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.read_text().split(start)
    table, after = rest.split(end)
    return before + start, table.strip(), end + after
