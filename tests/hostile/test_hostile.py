"""Some hostile inputs for each kind of target; `hostile.py` makes a hundred thousand."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import count_inputs, summarize
from journal import Journal, read_table
from targets import (
    HOSTILE_VALUES,
    STORES,
    TARGETS,
    is_rejected,
    list_places,
    mutate,
    replace_at,
)

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
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "files", "least"),
    [
        ("network", "zarr.json", 3000),
        ("dataset", "**/zarr.json", 2500),
        ("run", "zarr.json", 6000),
        ("run", "result.json", 400),
        ("run", "c*/*.json", 2000),  # claims and commits
    ],
)
def test_every_entry_of_a_store_may_have_any_value(
    name: str, files: str, least: int, tmp_path: Path
) -> None:
    """Each entry of its JSON files, one at a time, with each of the hostile values."""
    store, inputs = STORES[name](tmp_path), 0
    for file in sorted(store.root.glob(files)):
        content = file.read_text()
        stored = json.loads(content)
        for path in list_places(stored):
            for value in HOSTILE_VALUES:
                file.write_text(json.dumps(replace_at(stored, path, value)))
                is_rejected(store.use, random.Random(inputs))
                inputs += 1
        file.write_text(content)
    print(f"{inputs:,} inputs")
    assert inputs >= least


@pytest.mark.endurance
def test_hostile_inputs_of_all_targets(tmp_path: Path) -> None:
    """Some batches of `hostile.py`."""
    journal, script = tmp_path / "hostile.jsonl", Path(__file__).parent / "hostile.py"
    command = [sys.executable, script, "--inputs", "6000", "--journal", journal]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert count_inputs(Journal(journal).records) >= 6000
