"""A journal of JSON lines, so that a long test can be stopped at any time and continued later."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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
