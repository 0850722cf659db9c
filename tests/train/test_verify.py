"""Damage to a run store is found, named, rebuilt if possible, and never trained on."""

from __future__ import annotations

import json
import math
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
from rescnet_dist.errors import CorruptDataError, StoreReadError
from rescnet_dist.events import ChunkRebuilt, RunStarted
from rescnet_dist.lifecycle import begin
from rescnet_dist.runs import describe_run
from rescnet_dist.store import Checksums, checksum
from rescnet_dist.store import run as store_run
from rescnet_dist.train import verify_run

SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(chunk_images=40, accumulators=2, solve_threads=1, validation=0.2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """Return a run of two layers over four chunks."""
    url = tmp_path_factory.mktemp("verify") / "run"
    images, labels = load_digits()
    with Client(threads_cluster), pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "BLOCK_IMAGES", 60)
        clf = ResCNetClassifier(SPEC, store=url, run=RUN)
        clf.fit(images[:150, ::2, ::2], labels[:150])
    return url


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(path: Path) -> None:
    """Flip one bit of the middle byte."""
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


def test_undamaged_run_has_no_problems(run: Path, client: Client) -> None:
    """This holds after resuming it, too."""
    assert verify_run(run) == []
    ResCNetClassifier.resume(run, max_layers=3)
    assert verify_run(run) == []


def damages(*names: str) -> list[Any]:
    """Return each chunk with each damage; all of the first one, one of the others is not slow."""
    slow = [pytest.mark.slow]
    return [
        pytest.param(name, damage, marks=[] if name == names[0] or damage is flip else slow)
        for name in names
        for damage in (flip, truncate, Path.unlink)
    ]


@pytest.mark.parametrize(("name", "damage"), damages("data/images", "data/labels", "data/train"))
def test_damaged_data_are_named_and_rejected(
    run: Path, client: Client, name: str, damage: Callable[[Path], None]
) -> None:
    """Flip a bit, truncate or delete a chunk: verification and resuming both find it."""
    damage(run / CHUNKS[name])
    (problem,) = verify_run(run)
    assert f"{name}, chunk 1" in problem
    with pytest.raises(StoreError, match=f"Rows {ROWS[name]} of {name} are missing or altered"):
        ResCNetClassifier.resume(run, max_layers=3)
    assert len(list((run / "commits").iterdir())) == 3  # nothing was committed on top


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """Return a run with one layer more that was not damaged."""
    folder = tmp_path_factory.mktemp("undamaged") / "run"
    images, labels = load_digits()
    with Client(threads_cluster), pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "BLOCK_IMAGES", 60)
        clf = ResCNetClassifier(SPEC.replace(max_layers=3), store=folder, run=RUN)
        clf.fit(images[:150, ::2, ::2], labels[:150])
    return folder


def resume_and_compare(run: Path, undamaged: Path) -> list[ChunkRebuilt]:
    """Resume for one layer, and compare everything stored; return what was rebuilt."""
    events: list[Any] = []
    ResCNetClassifier.resume(run, max_layers=3, listeners=[events.append])
    assert verify_run(run) == []
    for path in sorted(undamaged.rglob("c/**/*")):
        if path.is_file():
            assert (run / path.relative_to(undamaged)).read_bytes() == path.read_bytes(), path
    return [event for event in events if isinstance(event, ChunkRebuilt)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "damage"), damages("maps/0002", "scores/0002"))
def test_damaged_chunk_is_named_and_rebuilt(
    run: Path, client: Client, undamaged: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """Verification names it; resuming recomputes it from the layers, to the same bits."""
    damage(run / CHUNKS[name])
    (problem,) = verify_run(run)
    assert f"{name}, chunk 1" in problem
    (rebuilt,) = resume_and_compare(run, undamaged)
    assert (rebuilt.layer, rebuilt.start, rebuilt.stop) == (2, 40, 80)
    assert rebuilt.unexpected
    assert name in rebuilt.reason


@pytest.mark.parametrize(
    "removed",
    [
        ("maps", "scores"),
        ("maps/0002",),
        pytest.param(("maps",), marks=pytest.mark.slow),
        pytest.param(("scores",), marks=pytest.mark.slow),
    ],
    ids="+".join,
)
def test_removed_maps_are_rebuilt(
    run: Path, client: Client, undamaged: Path, removed: tuple[str, ...]
) -> None:
    """All of them are rebuilt from the layers and the images."""
    for name in removed:
        shutil.rmtree(run / name)
    problems = verify_run(run)
    assert problems == [
        f"{name}/0002 is missing, with 4 chunks."
        for name in ("maps", "scores")
        if {name, f"{name}/0002"} & set(removed)
    ]
    assert len(resume_and_compare(run, undamaged)) == 4


def test_maps_that_cannot_be_rebuilt_are_rejected(run: Path, client: Client) -> None:
    """The layers do not give the committed values; nothing is committed on top."""
    (run / CHUNKS["maps/0002"]).unlink()
    record = json.loads((run / "commits/0002.json").read_text())
    record["checksums"]["maps/0002"][1] += 1
    (run / "commits/0002.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match="from the stored layers does not give the committed"):
        ResCNetClassifier.resume(run, max_layers=3)
    assert len(list((run / "commits").iterdir())) == 3


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("name", SMALL)
def test_damaged_layer_is_named_and_not_used(
    run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """Its network does not predict as if zeros had been learned."""
    damage(run / SMALL[name])
    (problem,) = verify_run(run)
    assert name in problem
    with pytest.raises(StoreError, match="missing in part or altered"):
        load(run).predict(load_digits("test")[0][:2, ::2, ::2])


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_damaged_commit_hides_no_other_damage(run: Path, text: str) -> None:
    """The steps before it are verified."""
    (run / "commits/0002.json").write_text(text)
    flip(run / SMALL["layer 1"])
    record, layer = verify_run(run)
    assert "commits/0002.json is" in record
    assert "remove it, then resume the run" in record
    assert layer.startswith("layer 1: ")
    assert CliRunner().invoke(main, ["check", str(run)]).exit_code == 1


def test_record_of_another_step_is_found(run: Path) -> None:
    """As if it had been copied from one name to another."""
    shutil.copyfile(run / "commits/0001.json", run / "commits/0002.json")
    assert any("commits/0002.json is the record of step 1" in line for line in verify_run(run))


def test_run_that_computes_lost_layers_again_can_be_described(run: Path, client: Client) -> None:
    """Its result is older than its records until it is done; pages show it meanwhile."""
    (run / "commits/0001.json").unlink()
    with pytest.raises(CorruptDataError, match="has a depth of 2, but 0 layers"):
        describe_run(run)
    states = list[str]()

    def describe(event: Any) -> None:
        if isinstance(event, RunStarted):
            states.append(describe_run(run)["state"])

    ResCNetClassifier.resume(run, listeners=[describe])
    assert states
    assert set(states) == {"running"}
    assert describe_run(run)["state"] == "done"


def test_stale_scores_are_found(run: Path) -> None:
    """The scores are readable, but not those that were committed."""
    shutil.copyfile(run / "scores/0002/c/0/0", run / "scores/0002/c/2/0")
    (problem,) = verify_run(run)
    assert "scores/0002, chunk 2" in problem


def test_missing_commit_is_found(run: Path) -> None:
    """The later steps do not count, and the maps before it are removed."""
    (run / "commits/0001.json").unlink()
    problems = verify_run(run)
    assert "commits/0001.json is missing" in problems[0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "commits/0002.json").unlink(), "has a depth of 2, but 1 layers"),
        (lambda run: (run / "commits/0002.json").write_text("{"), "0002.json is not valid JSON"),
        (lambda run: (run / "result.json").write_text('{"depth"'), "result.json is not valid JSON"),
        (lambda run: (run / "zarr.json").unlink(), "a run that has lost its zarr.json"),
    ],
    ids=["no commit", "commit", "result", "attributes"],
)
def test_all_commands_report_damaged_record(
    run: Path, damage: Callable[[Path], Any], words: str
) -> None:
    """No command takes the run for undamaged."""
    record = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(record | {"depth": 2}))
    damage(run)
    is_run = (run / "zarr.json").exists()  # else `check` cannot tell
    for command in ("info", "check", "report"):
        result = CliRunner().invoke(main, [command, str(run)])
        assert result.exit_code == (1 if command == "check" and is_run else 2), result.output
        assert words in result.output
    (found,) = find_runs(run)
    assert found["state"] == "damaged"
    assert words in found["problem"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"copies": 10**30}, "ValueError: no training image has 1000000000000000000"),
        ({"copies": math.inf}, "OverflowError: cannot convert float infinity"),
        ({"copies": -1}, "with -1 copies each"),
        ({"images": 121}, "block 2 of 1 images with 0 copies each has 30 rows"),
        ({"images": 2**40}, "the first rows of 18325193797 blocks are"),
        ({"block": 0}, "in blocks of 0"),
        ({"starts": []}, r"the first rows of 3 blocks are \(\)"),
        ({"starts": [0, 60, 120, 10**30]}, "the first rows of 3 blocks are"),
        ({"starts": [0, 120, 60, 150]}, "block 0 of 60 images with 0 copies each has 120 rows"),
        ({"copies": 4, "starts": [0, 60, 120, 151]}, "block 2 of 30 images .* has 31 rows"),
    ],
)
def test_table_of_rows_that_contradicts_itself_is_damage(
    run: Path, change: dict[str, Any], words: str
) -> None:
    """It is found before labels are read, whatever the numbers are."""
    record = json.loads((run / "zarr.json").read_text())
    record["attributes"]["rows"].update(change)
    (run / "zarr.json").write_text(json.dumps(record))
    with pytest.raises(CorruptDataError, match=rf"The attributes of .* are damaged \(.*{words}"):
        verify_run(run)


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        ("zarr.json", {"source": "\ud800"}, "is damaged: .*surrogates not allowed"),
        ("zarr.json", {"network": {}}, r"are damaged \(ValueError: block=16 does not fit"),
        ("result.json", {"reason": "\ud800"}, r"result.json is not valid JSON \(.*surrogates"),
        ("commits/0002.json", {"finished": math.nan}, None),
    ],
)
def test_damage_that_cannot_be_shown_is_no_crash(
    run: Path, path: str, change: dict[str, Any], words: str | None
) -> None:
    """Text that is none, and times that are no numbers; found by tests/hostile/hostile.py."""
    record = json.loads((run / path).read_text())
    (record["attributes"] if path == "zarr.json" else record).update(change)
    (run / path).write_text(json.dumps(record))
    if words:
        with pytest.raises(StoreReadError, match=words):
            describe_run(run)
    for command in ("info", "runs"):
        result = CliRunner().invoke(main, [command, str(run)])
        assert result.exit_code in (0, 1, 2), result.exception
        assert not result.exception or isinstance(result.exception, SystemExit)


def test_checksums_of_too_many_chunks_are_reported(run: Path) -> None:
    """A damaged record may have more than there are chunks; found by tests/hostile/hostile.py."""
    record = json.loads((run / "commits/0000.json").read_text())
    count = len(record["checksums"]["data/images"])
    record["checksums"]["data/images"] += [1, 2]
    (run / "commits/0000.json").write_text(json.dumps(record))
    expected = f"data/images, chunk {count}: it has a checksum, but no images"
    assert verify_run(run) == [expected]


def test_exit_code_of_check_command(run: Path) -> None:
    """It is 0, or 1 with the list of problems, also as JSON."""
    sound = CliRunner().invoke(main, ["check", str(run)])
    assert sound.exit_code == 0
    assert "every chunk is as it was committed" in sound.output
    (run / CHUNKS["maps/0002"]).unlink()
    broken = CliRunner().invoke(main, ["check", str(run), "--json"])
    assert broken.exit_code == 1
    assert "maps/0002, chunk 1" in json.loads(broken.output)["problems"][0]
    text = CliRunner().invoke(main, ["check", str(run)]).output
    assert "`rescnet resume` recomputes the maps and scores of layer 2 " in text
    (run / CHUNKS["data/labels"]).unlink()  # which cannot be computed
    text = CliRunner().invoke(main, ["check", str(run)]).output
    assert "rescnet resume" not in text
    assert CliRunner().invoke(main, ["check", str(run / "no")]).exit_code == 2


MANY_CHUNKS = {
    "one factorization": SPEC,
    "tiles": SPEC,
    "conjugate gradients": SPEC.replace(head="regress", solver="cg", cg_iterations=3),
}


@pytest.mark.parametrize(
    "kind",
    [
        "one factorization",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tiles", "conjugate gradients")),
    ],
)
def test_checksums_in_files_are_checked_and_resumed_from(
    kind: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file is a problem; without the record that names it, its layer is grown again."""
    monkeypatch.setattr(store_run, "MAX_RECORD_CHUNKS", 3)
    url, (images, labels) = tmp_path / "run", (array[:150] for array in load_digits())
    run_spec = RUN.replace(tile_features=64 if kind == "tiles" else None, maps="store")
    classifier = ResCNetClassifier(MANY_CHUNKS[kind], store=url, run=run_spec)
    classifier.fit(images[:, ::2, ::2], labels)
    expected = {file.name: file.read_bytes() for file in (url / "checksums").iterdir()}
    assert {name[:4] for name in expected} == {"0000", "0001", "0002"}
    for step in range(3):
        record = json.loads((url / f"commits/{step:04d}.json").read_text())
        paths = [path for path in record["checksums"] if path.startswith(("maps", "scores"))]
        assert not any(record["checksums"][path] for path in paths)
    assert verify_run(url) == []
    (last,) = (url / "checksums").glob("0002-*")
    last.unlink()
    (problem,) = verify_run(url)
    assert f"{last.name} is missing or damaged" in problem
    with pytest.raises(StoreError, match=r"remove commits/0002\.json"):
        ResCNetClassifier.resume(url, max_layers=3)
    (url / "commits/0002.json").unlink()
    ResCNetClassifier.resume(url)
    found = {file.name: file.read_bytes() for file in (url / "checksums").iterdir()}
    assert found.items() > expected.items()
    assert verify_run(url) == []


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4), max_size=5), st.data())
def test_merging_checksums_keeps_order_and_is_associative(groups: Any, data: Any) -> None:
    """Whatever the shape of the tree, the chunks of each array stay in order."""
    number = iter(range(100))
    parts = [
        [Checksums({path: (next(number),)}) for path in group] or [Checksums()] for group in groups
    ]
    flat = [part for group in parts for part in group] or [Checksums()]
    one = flat[0]
    for part in flat[1:]:
        one = one.merge(part)
    while len(flat) > 1:
        i = data.draw(st.integers(0, len(flat) - 2))
        flat[i : i + 2] = [flat[i].merge(flat[i + 1])]
    assert flat[0] == one
    assert all(list(chunks) == sorted(chunks) for chunks in one.chunks.values())


def test_checksum_depends_on_every_value() -> None:
    """The memory order does not matter, and values at the edges of its blocks count."""
    values = np.arange(700_000, dtype=np.float32).reshape(700, 1000)
    assert checksum(values) == checksum(np.asfortranarray(values))
    for location in (0, 262_143, 262_144, 699_999):
        changed = values.copy()
        changed.flat[location] += 1
        assert checksum(changed) != checksum(values)
