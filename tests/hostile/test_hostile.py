"""Some hostile inputs for each kind of target; `hostile.py` makes a hundred thousand."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import count_inputs, summarize
from journal import Journal, read_table
from targets import TARGETS, is_rejected, mutate

# Damaged sources have tests of their own in tests/data/test_fuzz.py.
INPUTS = {"source: csv": 60, "store: run": 60, "spec": 300, "toml": 150, "events": 200}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("ignore")
def test_hostile_inputs_are_used_or_rejected(name: str, tmp_path: Path) -> None:
    """There is no other error."""
    attack, rejected = TARGETS[name](tmp_path), 0
    for number in range(INPUTS[name]):
        rejected += is_rejected(attack, random.Random(f"{name} {number}"))
    assert rejected > 0 or name == "events"  # messages that cannot be read are ignored


def test_book_shows_the_journal() -> None:
    """`hostile.py --page` writes the table."""
    journal = Journal(Path(__file__).parent / "hostile.jsonl")
    assert read_table("hostile") == summarize(journal.records)


def test_mutated_values_differ() -> None:
    """Nearly all of them, and the original stays as it is."""
    value = {"a": [1, 2, {"b": "c"}], "d": None}
    mutated = [mutate(value, random.Random(number)) for number in range(100)]
    assert sum(repr(other) != repr(value) for other in mutated) > 90
    assert value == {"a": [1, 2, {"b": "c"}], "d": None}


@pytest.mark.endurance
def test_hostile_inputs_of_all_targets(tmp_path: Path) -> None:
    """Some batches of `hostile.py`."""
    journal, script = tmp_path / "hostile.jsonl", Path(__file__).parent / "hostile.py"
    command = [sys.executable, script, "--inputs", "6000", "--journal", journal]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert count_inputs(Journal(journal).records) >= 6000
