"""The figures for the digits that the README states: measured again, as stated."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
ROW = re.compile(r"^\| \w+ \| `(rescnet train.*?)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")


def rows() -> list[tuple[str, ...]]:
    """Command, depth and the three accuracies (%) of each row of the README's table."""
    found = (ROW.match(line) for line in README.read_text().splitlines())
    return [match.groups() for match in found if match]


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_digits_table(row: tuple[str, ...], tmp_path: Path) -> None:
    """Same seed, so the same depth and accuracies, but for BLAS of other machines; under 60 s."""
    command, depth, *accuracies = row
    began = time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).parent / "rescnet", *shlex.split(command)[1:], "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    chosen = outcome["layers"][outcome["depth"] - 1]
    measured = [100 * value for value in (chosen["train"], chosen["validation"], outcome["test"])]
    assert measured == pytest.approx([float(a) for a in accuracies], abs=0.35)
    assert abs(outcome["depth"] - int(depth)) <= 1
    assert outcome["test"] >= 0.975
    assert seconds < 60


def test_both_modes_are_in_the_table() -> None:
    """The default run, which regresses, and one that classifies."""
    commands = [row[0] for row in rows()]
    assert commands[0] == "rescnet train"
    assert "--residual classify" in commands[1]
