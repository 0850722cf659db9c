"""Some hostile inputs for each kind of target; `hostile.py` makes a hundred thousand."""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from hostile import count_inputs, summarize
from journal import Journal, read_table
from targets import (
    HOSTILE_VALUES,
    RUN,
    SPEC,
    STORES,
    TARGETS,
    is_rejected,
    list_places,
    mutate,
    remove_at,
    replace_at,
    train_run,
    use_network,
)

from rescnet_dist.dashboard.evaluation import sample_from_run
from rescnet_dist.lifecycle import resume_run
from rescnet_dist.lifecycle.resume import Changes
from rescnet_dist.runs import open_held_out
from rescnet_dist.store import RunStore, read_region
from rescnet_dist.train import verify_run

# Damaged sources have tests of their own in tests/data/test_fuzz.py.
INPUTS = {"source: csv": 60, "store: run": 60, "spec": 300, "toml": 150, "events": 200}
MAX_SECONDS = 20.0  # of one input, on a busy machine
MAX_GROWTH_BYTES = 2**29  # of the process, with all inputs


def measure_peak() -> int:
    """Return the largest resident memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


RUN_METADATA = [  # of arrays and groups; those of a layer are read alike
    *("data/images", "data/labels", "data/train", "data", "image_scale/low", "image_scale"),
    *("layers/0001/weights", "layers/0001/rate", "layers/0001", "layers/0002/filters", "layers"),
    *("maps/0001", "maps", "scores/0001", "scores"),
]


def read_held_out(url: str) -> None:
    """Read the held-out images of a run, as reports and fusion do."""
    sample_from_run(RunStore.open(url))
    images, _ = open_held_out([url])
    images.compute(scheduler="sync")


def read_maps(url: str) -> None:
    """Read the maps and scores of a run, if they can be opened; others are computed again."""
    run = RunStore.open(url)
    if run.has_maps(1):
        for array in (run.maps(1), run.scores(1)):
            read_region(array, 0, 6)


READERS = {"data": read_held_out, "maps": read_maps, "scores": read_maps}


@pytest.mark.endurance
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", RUN_METADATA)
def test_every_entry_of_the_metadata_of_a_run_may_have_any_value(
    path: str, client: Client, tmp_path: Path
) -> None:
    """Of its arrays and groups, one at a time, or be missing; in bounded time and memory.

    All inputs are read, and one for each entry is given to a check and to a resumed run, too.
    """
    spec = SPEC.replace(stop_at_zero_error=False)
    train_run(tmp_path / "run", spec, RUN.replace(validation=0.5))
    damaged, peak = tmp_path / "damaged", measure_peak()
    inputs = rejected = 0

    def resume(url: str) -> None:
        resume_run(RunStore.open(url), client, changes=Changes(max_layers=2))

    def attack(metadata: Any, use: Callable[[str], Any]) -> None:
        nonlocal inputs, rejected
        shutil.copytree(tmp_path / "run", damaged)
        (damaged / path / "zarr.json").write_text(json.dumps(metadata))
        started = time.monotonic()
        rejected += is_rejected(lambda _: use(str(damaged)), random.Random(inputs))
        assert time.monotonic() - started < MAX_SECONDS, metadata
        assert measure_peak() < peak + MAX_GROWTH_BYTES, metadata
        shutil.rmtree(damaged)
        inputs += 1

    stored = json.loads((tmp_path / "run" / path / "zarr.json").read_text())
    read = READERS.get(path.split("/")[0], use_network)
    for number, place in enumerate(list_places(stored)):
        variants = [replace_at(stored, place, value) for value in HOSTILE_VALUES]
        variants.append(remove_at(stored, place))
        for variant in variants:
            attack(variant, read)
        drawn = random.Random(number).choice(variants)
        for use in (verify_run, resume):
            attack(drawn, use)
    print(f"{path}: {inputs:,} inputs, {rejected:,} rejected")
    assert rejected > 0 or "shape" not in stored  # nothing reads the metadata of some groups


@pytest.mark.endurance
def test_hostile_inputs_of_all_targets(tmp_path: Path) -> None:
    """Some batches of `hostile.py`."""
    journal, script = tmp_path / "hostile.jsonl", Path(__file__).parent / "hostile.py"
    command = [sys.executable, script, "--inputs", "6000", "--journal", journal]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert count_inputs(Journal(journal).records) >= 6000
