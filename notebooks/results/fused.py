"""Average networks of one or several results: python fused.py NAME FILE... writes fused/NAME.json.

The files are those of `make.py RESULT --seed K --scores FILE`. The scores of a fused network with
equal weights are the mean of the scores of its networks, so that nothing is evaluated again, and no
weight is fitted.
"""

from __future__ import annotations

import json
import os
import statistics
import zipfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from make import HERE, find_accuracy, format_accuracy
from records import make_folder, write_record

from rescnet_dist.cli.common import HELP_SETTINGS
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.errors import DataError, RescnetError, pluralize

FUSED_VERSION = 2  # 1 had the number of networks of one result
NOT_SCORES = ("codes", "name", "seed")  # of the arrays of a file
HEAD = ("networks", "test %, their mean", "test %, fused", "fused, averaged over flips")


@click.command(**HELP_SETTINGS)
@click.argument("name", required=False)
@click.argument("files", nargs=-1)
@click.option("--into", default=str(HERE / "fused"), help="folder of the record  [default: fused]")
@click.option("--table", "as_table", is_flag=True, help="print the table of all records")
def main(name: str | None, files: tuple[str, ...], into: str, as_table: bool) -> None:
    """Average the scores of networks, and write NAME.json, with a NAME of your choice.

    \b
    Example:
      python make.py cifar10 --data cifar10.npz --scores 0.npz
      python make.py cifar10 --data cifar10.npz --seed 1 --scores 1.npz
      python fused.py cifar10 0.npz 1.npz
      python fused.py --table
    """
    with exit_codes():
        if as_table:
            if name:
                raise RescnetError(
                    f"--table prints all records, but {name!r} is given. Omit the name."
                )
            click.echo(format_table(read_records(Path(into))))
            return
        if not name:
            raise RescnetError("No record is named. Give a name, then the files of scores.")
        if name.endswith(".npz"):
            raise RescnetError(
                f"The record would be named {name}, like a file of scores. Give a name, then the "
                "files of scores."
            )
        record = fuse(name, files)
        path = os.path.join(into, f"{name}.json")
        make_folder(path)
        write_record(path, record)
        click.echo(format_table([record]))
        click.echo(f"wrote {path}", err=True)


def fuse(name: str, files: tuple[str, ...]) -> dict[str, Any]:
    """Return the record of the networks whose scores are in these files."""
    if len(files) < 2:
        raise DataError(
            f"After the name come {pluralize(len(files), 'file')} of scores, but at least 2 "
            "networks are averaged. Name those that `make.py --scores` has written."
        )
    parts = [read_scores(path) for path in files]
    codes = parts[0]["codes"]
    for number, (path, part) in enumerate(zip(files, parts, strict=True)):
        check_comparable(path, part, files[0], parts[0])
        for other, earlier in zip(files[:number], parts, strict=False):
            if np.array_equal(part["plain"], earlier["plain"]):
                raise DataError(f"{path} has the scores of {other}. Name each network once.")
    averages = [key for key in parts[0] if key not in NOT_SCORES]
    alone = {key: [find_accuracy(part[key], codes) for part in parts] for key in averages}
    fused = {
        key: find_accuracy(np.mean([part[key] for part in parts], axis=0), codes)
        for key in averages
    }
    return {
        "version": FUSED_VERSION,
        "name": name,
        "networks": [{"name": str(part["name"]), "seed": int(part["seed"])} for part in parts],
        "test_images": len(codes),
        "alone": alone,
        "fused": fused,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def check_comparable(path: str, part: dict[str, Any], first: str, expected: dict[str, Any]) -> None:
    """Raise DataError if scores are of other images, classes or averages than the first ones."""
    if not np.array_equal(part["codes"], expected["codes"]):
        raise DataError(f"{path} has other test images than {first}. Name scores of the same ones.")
    shapes, known = (
        {key: array.shape for key, array in scores.items() if key not in NOT_SCORES}
        for scores in (part, expected)
    )
    if shapes != known:
        raise DataError(
            f"{path} has scores {shapes}, but {first} has {known}. Name networks of the same data "
            "whose scores are averaged over the same copies."
        )


def read_scores(path: str) -> dict[str, Any]:
    """Read the arrays of a file of scores."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            return {key: arrays[key] for key in (*NOT_SCORES, "plain", *arrays)}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as scores ({error}). Name a file that `make.py --scores` wrote."
        ) from None


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read all records in a folder, in the order of their names."""
    found = [read_record(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise RescnetError(f"There is no record in {folder}. Name another folder with --into.")
    return found


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of averaged networks."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        format_table([record])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RescnetError(
            f"{path} is not a record of this command ({type(error).__name__}: {error}). Name "
            "another folder with --into, or remove the file."
        ) from None
    return record


def format_table(records: list[dict[str, Any]]) -> str:
    """Return records as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for record in records:
        alone, fused, count = record["alone"], record["fused"], record["test_images"]
        counts = Counter(network["name"] for network in record["networks"])
        what = ", ".join(f"{number} of `{name}`" for name, number in counts.items())
        mean = f"{100 * statistics.mean(alone['plain']):.2f}"
        cells = [format_accuracy(fused.get(key), count) for key in ("plain", "flips")]
        lines.append((what, mean, *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
