"""The records of the scripts in this folder: JSON files, each written whole or not at all."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from rescnet_dist.cli.files import check_folder, open_atomic


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder of a record, before hours are spent on it.

    Raises
    ------
    RescnetError
        If the record could not be written there.
    """
    with suppress(OSError):
        os.makedirs(os.path.dirname(os.fspath(path)) or ".", exist_ok=True)
    check_folder(os.fspath(path))  # raises an error that says what is wrong


def write_record(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Write a record as JSON."""
    with open_atomic(os.fspath(path)) as file:
        file.write(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
