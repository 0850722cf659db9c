"""The figures for the digits that the book states: measured again, as stated."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, load_digits

Array = np.ndarray[Any, Any]
BOOK = Path(__file__).parents[2] / "notebooks"
RESULTS, AUGMENTATION = BOOK / "results.md", BOOK / "guide/augmentation.md"
ROW = re.compile(r"^\| \w+ \| `(rescnet train.*?)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")


def read_rows() -> list[tuple[str, ...]]:
    """Return command, depth and the three accuracies (%) of each row of the table in results.md."""
    found = (ROW.match(line) for line in RESULTS.read_text().splitlines())
    return [match.groups() for match in found if match]


@pytest.mark.slow
@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row[0])
def test_digits_table(row: tuple[str, ...], tmp_path: Path) -> None:
    """The same seed gives the same depth and accuracies, up to BLAS differences, under 60 s."""
    command, depth, *accuracies = row
    started = time.perf_counter()
    done = subprocess.run(
        [Path(sys.executable).parent / "rescnet", *shlex.split(command)[1:], "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    chosen = outcome["layers"][outcome["depth"] - 1]
    measured = [100 * value for value in (chosen["train"], chosen["validation"], outcome["test"])]
    assert measured == pytest.approx([float(a) for a in accuracies], abs=0.35)
    assert abs(outcome["depth"] - int(depth)) <= 1
    assert outcome["test"] >= 0.975
    assert seconds < 60


def test_both_modes_are_in_the_table() -> None:
    """The table has the default run, which regresses, and one that classifies."""
    commands = [row[0] for row in read_rows()]
    assert commands[0] == "rescnet train"
    assert "--head classify" in commands[1]


# copies ------------------------------------------------------------------------------------------

COPIES = re.compile(r"^\| (\d+) \| ([^|]*?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


def load_few_digits() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the first 100 images of each class, and a quarter of the rest for validation."""
    X, y = load_digits()
    selected = np.concatenate([np.flatnonzero(y == c)[:100] for c in range(10)])
    others = np.setdiff1d(np.arange(len(y)), selected)[::4]
    return (X[selected], y[selected]), (X[others], y[others])


def fit_few(augment: AugmentSpec | None) -> ResCNetClassifier:
    """Train on few digits and copies of them."""
    training, validation = load_few_digits()
    spec = NetworkSpec.preset("digits").replace(max_layers=3)
    return ResCNetClassifier(spec, augment=augment).fit(*training, validation)


@pytest.mark.slow
def test_copies_table() -> None:
    """Copies raise the accuracy on 1,000 training images by as much as augmentation.md says."""
    rows = COPIES.findall(AUGMENTATION.read_text())
    assert [int(row[0]) for row in rows] == [0, 4, 9]
    tested = []
    for copies, options, *stated in rows:
        parsed = {
            key.strip("`-"): float(value) if "." in value or key == "--rotate" else int(value)
            for key, value in re.findall(r"(--\w+) ([\d.]+)", options)
        }
        clf = fit_few(AugmentSpec(copies=int(copies), **parsed) if int(copies) else None)
        plain = 100 * clf.score(*load_digits("test"))
        averaged = plain
        if int(copies):
            averaged = 100 * clf.score(*load_digits("test"), augment=int(copies))
        validation = 100 * clf.accuracies_[clf.depth_ - 1]["validation"]
        print(f"| {copies} | {options} | {validation:.2f} | {plain:.2f} | {averaged:.2f} |")
        assert [validation, plain, averaged] == pytest.approx([float(v) for v in stated], abs=0.35)
        tested.append(plain)
    assert min(tested[1:]) > tested[0]
