"""Helpers for tests of commands: run `rescnet` in this process, write a small dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zarr
from click.testing import CliRunner, Result

import rescnet_dist as rd
from rescnet_dist.cli import main

SMALL = ["--filters", "4", "--max-layers", "2", "--block", "14", "--stride", "14"]


def run(*arguments: Any) -> Result:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def stored_digits(folder: Path, count: int, chunk: int) -> str:
    """Write a Zarr store of `count` digits with labels into a folder; return its URL."""
    images, labels = rd.load_digits()
    group = zarr.open_group(folder / "digits.zarr", mode="w")
    group.create_array("images", data=images[:count], chunks=(chunk, 28, 28, 1))
    group.create_array("labels", data=labels[:count], chunks=(chunk,))
    return str(folder / "digits.zarr")
