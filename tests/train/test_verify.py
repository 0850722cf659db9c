"""Damage to a run store is found, named, rebuilt where it can be, and never trained on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from rescnet_dist import (
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    StoreError,
    find_runs,
    load,
    load_digits,
)
from rescnet_dist.cli import main
from rescnet_dist.store import Checksums, checksum
from rescnet_dist.train import ChunkRebuilt, prepare, verify_run

SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(chunk_images=40, accumulators=2, solve_threads=1, validation=0.2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """A run of two layers over four chunks."""
    url = tmp_path_factory.mktemp("verify") / "run"
    images, labels = load_digits()
    with Client(threads_cluster), pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "BLOCK_IMAGES", 60)
        clf = ResCNetClassifier(SPEC, store=url, run=RUN)
        clf.fit(images[:150, ::2, ::2], labels[:150])
    return url


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(path: Path) -> None:
    """Alter one bit of the middle byte."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut the second half off."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


CHUNKS = {
    "data/images": "data/images/c/1/0/0/0",
    "data/labels": "data/labels/c/1",
    "data/train": "data/train/c/1",
    "maps/0002": "maps/0002/c/1/0/0/0",
    "scores/0002": "scores/0002/c/1/0",
}
ROWS = {"data/images": "40 to 80", "data/labels": "60 to 120", "data/train": "60 to 120"}
SMALL = {
    "image_scale": "image_scale/scale/c/0",
    "layer 1": "layers/0001/filters/c/0/0/0/0",
    "layer 2": "layers/0002/weights/c/0/0/0",
}


def test_a_whole_run_has_no_problem(run: Path, client: Client) -> None:
    """Before any damage, and however often it is resumed."""
    assert verify_run(run) == []
    ResCNetClassifier.resume(run, max_layers=3)
    assert verify_run(run) == []


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("name", [name for name in CHUNKS if name.startswith("data/")])
def test_damaged_data_are_named_and_refused(
    run: Path, client: Client, name: str, damage: Callable[[Path], None]
) -> None:
    """A bit flipped, a half cut off, a chunk deleted: by the check, and by a resume."""
    damage(run / CHUNKS[name])
    (problem,) = verify_run(run)
    assert f"{name}, chunk 1" in problem
    with pytest.raises(StoreError, match=f"Rows {ROWS[name]} of {name} are missing or altered"):
        ResCNetClassifier.resume(run, max_layers=3)
    assert len(list((run / "commits").iterdir())) == 3  # nothing was committed on top


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """The run with one layer more that nothing has happened to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    images, labels = load_digits()
    with Client(threads_cluster), pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "BLOCK_IMAGES", 60)
        clf = ResCNetClassifier(SPEC.replace(max_layers=3), store=folder, run=RUN)
        clf.fit(images[:150, ::2, ::2], labels[:150])
    return folder


def resume_and_compare(run: Path, undisturbed: Path) -> list[ChunkRebuilt]:
    """Go on for one layer; all that is stored then is what it would have been. Returns what was
    rebuilt on the way."""
    events: list[Any] = []
    ResCNetClassifier.resume(run, max_layers=3, listeners=[events.append])
    assert verify_run(run) == []
    for path in sorted(undisturbed.rglob("c/**/*")):
        if path.is_file():
            assert (run / path.relative_to(undisturbed)).read_bytes() == path.read_bytes(), path
    return [event for event in events if isinstance(event, ChunkRebuilt)]


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("name", [name for name in CHUNKS if not name.startswith("data/")])
def test_a_damaged_chunk_is_named_and_rebuilt(
    run: Path, client: Client, undisturbed: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """By the check it is named; a resume makes it again from the layers, to the bit."""
    damage(run / CHUNKS[name])
    (problem,) = verify_run(run)
    assert f"{name}, chunk 1" in problem
    (rebuilt,) = resume_and_compare(run, undisturbed)
    assert (rebuilt.layer, rebuilt.start, rebuilt.stop) == (2, 40, 80)
    assert name in rebuilt.reason


@pytest.mark.parametrize("removed", [("maps",), ("scores",), ("maps", "scores"), ("maps/0002",)])
def test_maps_that_were_removed_are_rebuilt(
    run: Path, client: Client, undisturbed: Path, removed: tuple[str, ...]
) -> None:
    """All of them, though nothing but the layers and the images is left."""
    for name in removed:
        shutil.rmtree(run / name)
    assert len(resume_and_compare(run, undisturbed)) == 4


def test_maps_that_cannot_be_rebuilt_are_refused(run: Path, client: Client) -> None:
    """Where the layers do not give what was committed, nothing is averaged in."""
    (run / CHUNKS["maps/0002"]).unlink()
    record = json.loads((run / "commits/0002.json").read_text())
    record["checksums"]["maps/0002"][1] += 1
    (run / "commits/0002.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match="what the stored layers give for them is not what was"):
        ResCNetClassifier.resume(run, max_layers=3)
    assert len(list((run / "commits").iterdir())) == 3


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("name", SMALL)
def test_a_damaged_layer_is_named_and_never_predicted_with(
    run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """Nor does its network load and predict as if zeros had been learned."""
    damage(run / SMALL[name])
    (problem,) = verify_run(run)
    assert name in problem
    with pytest.raises(StoreError, match="missing in part or altered"):
        load(run).predict(load_digits("test")[0][:2, ::2, ::2])


def test_stale_scores_are_found(run: Path) -> None:
    """Scores that are whole, but not those that were committed."""
    shutil.copyfile(run / "scores/0002/c/0/0", run / "scores/0002/c/2/0")
    (problem,) = verify_run(run)
    assert "scores/0002, chunk 2" in problem


def test_a_missing_commit_is_found(run: Path) -> None:
    """What lies behind it does not count, and the maps before it are gone."""
    (run / "commits/0001.json").unlink()
    problems = verify_run(run)
    assert "commits/0001.json is missing" in problems[0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "commits/0002.json").unlink(), "tells of a depth of 2, and 1 layers"),
        (lambda run: (run / "result.json").write_text('{"depth"'), "result.json is not valid JSON"),
        (lambda run: (run / "zarr.json").unlink(), "a run that has lost its zarr.json"),
    ],
    ids=["commit", "result", "attributes"],
)
def test_all_commands_tell_of_a_damaged_record(
    run: Path, damage: Callable[[Path], Any], words: str
) -> None:
    """Whatever is asked of the run: none takes it for whole."""
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"depth": 2}))
    damage(run)
    for command in ("info", "check", "report"):
        told = CliRunner().invoke(main, [command, str(run)])
        assert told.exit_code in (1, 2), (command, told.output)
        assert words in told.output
    (found,) = find_runs(run)
    assert found["state"] == "damaged"
    assert words in found["problem"]


def test_the_command_tells_problems_by_its_exit_code(run: Path) -> None:
    """0 and a sentence, or 1 and the list; as JSON too."""
    whole = CliRunner().invoke(main, ["check", str(run)])
    assert whole.exit_code == 0
    assert "every chunk is as it was committed" in whole.output
    (run / CHUNKS["maps/0002"]).unlink()
    broken = CliRunner().invoke(main, ["check", str(run), "--json"])
    assert broken.exit_code == 1
    assert "maps/0002, chunk 1" in json.loads(broken.output)["problems"][0]
    assert CliRunner().invoke(main, ["check", str(run / "no")]).exit_code == 2


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4), max_size=5), st.data())
def test_merging_checksums_keeps_order_and_is_associative(groups: Any, data: Any) -> None:
    """However the tree is shaped, each array's chunks come in their order."""
    number = iter(range(100))
    parts = [
        [Checksums({path: (next(number),)}) for path in group] or [Checksums()] for group in groups
    ]
    flat = [part for group in parts for part in group] or [Checksums()]
    one = flat[0]
    for part in flat[1:]:
        one = one.merge(part)
    while len(flat) > 1:
        at = data.draw(st.integers(0, len(flat) - 2))
        flat[at : at + 2] = [flat[at].merge(flat[at + 1])]
    assert flat[0] == one
    assert all(list(chunks) == sorted(chunks) for chunks in one.chunks.values())


def test_checksum_depends_on_every_value() -> None:
    """In whatever memory order, and across the pieces it is computed by."""
    values = np.arange(700_000, dtype=np.float32).reshape(700, 1000)
    assert checksum(values) == checksum(np.asfortranarray(values))
    for location in (0, 262_143, 262_144, 699_999):
        changed = values.copy()
        changed.flat[location] += 1
        assert checksum(changed) != checksum(values)
