"""Saved networks of earlier releases, whose attributes have no checksum."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any


def read_saved(folder: Path) -> dict[str, Any]:
    """Return the attributes of a saved network in a folder."""
    attributes = json.loads((folder / "zarr.json").read_text())["attributes"]
    assert isinstance(attributes, dict)
    return attributes


def edit_saved(folder: Path, remove: Collection[str] = (), **changes: Any) -> None:
    """Change and remove attributes of a saved network in a folder, and their checksum."""
    record = json.loads((folder / "zarr.json").read_text())
    attributes = record["attributes"] | changes
    for name in (*remove, "crc32c"):
        attributes.pop(name, None)
    record["attributes"] = attributes
    (folder / "zarr.json").write_text(json.dumps(record))
