"""`rescnet runs` and `find_runs`: every run has its row, whatever its state, on disk and on S3."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zarr
from click.testing import CliRunner, Result
from distributed import Client
from fsspec.implementations.local import LocalFileSystem

import rescnet_dist as rd
from rescnet_dist.cli import main
from rescnet_dist.store import Claim, Location
from rescnet_dist.train.describe import describe_run

X, Y = (array[:120] for array in rd.load_digits())
SPEC = rd.NetworkSpec(filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, max_layers=2)
RUN = rd.RunSpec(chunk_images=60, accumulators=2, solve_threads=1, validation=0.25)


def run(*arguments: Any) -> Result:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """A finished run of two layers, to make copies of."""
    store = tmp_path_factory.mktemp("made") / "run"
    with Client(threads_cluster):
        rd.ResCNetClassifier(SPEC, store=store, run=RUN).fit(X[:, ::2, ::2], Y)
    return store


def edited(path: Path, **changes: Any) -> None:
    """Change attributes of a run."""
    record = json.loads(path.read_text())
    record["attributes"] |= changes
    path.write_text(json.dumps(record))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Runs in all states, nested, beside things that are none."""
    folder = tmp_path / "all"
    names = "b-done", "a/unfinished", "a/b/deep", "version", "record", "attributes", "no-data"
    for name in names:
        shutil.copytree(made, folder / name)
    (folder / "a/unfinished/result.json").unlink()
    (folder / "a/unfinished/commits/0002.json").unlink()
    edited(folder / "version/zarr.json", format_version=99)
    (folder / "record/result.json").write_text("{")
    (folder / "attributes/zarr.json").unlink()
    edited(folder / "no-data/zarr.json", data_complete=False)
    (folder / "note.txt").write_text("not a run")
    (folder / "a/b/c/d/e").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    data = zarr.open_group(folder / "data.zarr", mode="w", attributes={"class_names": ["0", "5"]})
    data.create_array("images", data=X[:2])
    (folder / "data.zarr" / "claims").mkdir()  # as some S3 servers list it after an import
    return folder


def test_each_run_has_a_row_that_says_how_it_is(folder: Path, made: Path) -> None:
    """One that is damaged or of another version does not hide the rest."""
    runs = {found["name"]: found for found in rd.find_runs(folder)}
    assert list(runs) == sorted(runs)
    assert {name: found["state"] for name, found in runs.items()} == {
        **{"a/b/deep": "done", "b-done": "done", "a/unfinished": "unfinished"},
        **{"attributes": "damaged", "record": "damaged", "no-data": "damaged"},
        "version": "unreadable",
    }
    whole, done = describe_run(made), runs["b-done"]
    best = whole["layers"][whole["depth"] - 1]
    assert (done["layers"], done["max_layers"], done["depth"]) == (2, 2, whole["depth"])
    assert (done["train"], done["validation"]) == (best["train"], best["validation"])
    assert done["updated"] == whole["layers"][-1]["finished"]
    assert done["bytes"] > sum(whole["bytes"].values())
    assert (runs["a/unfinished"]["layers"], runs["a/unfinished"]["train"]) == (1, None)
    for name, words in {
        **{"version": "format version 99", "record": "result.json is not valid JSON"},
        **{"attributes": "There is no Zarr group", "no-data": "never completely written"},
    }.items():
        assert words in runs[name]["problem"]
    assert not any(runs[name]["problem"] for name in ("b-done", "a/unfinished"))


def test_a_run_is_running_while_its_driver_lives(folder: Path) -> None:
    """Even one that was done, and is gone on with; and one that has just begun."""
    with (
        Claim.take(Location.of(folder / "b-done")).hold(),
        Claim.take(Location.of(folder / "new"), new=True).hold(),
    ):
        states = {found["name"]: found["state"] for found in rd.find_runs(folder)}
    assert (states["b-done"], states["new"]) == ("running", "running")
    states = {found["name"]: found["state"] for found in rd.find_runs(folder)}
    assert (states["b-done"], states["new"]) == ("done", "damaged")


def test_the_command_lists_sorts_and_counts(folder: Path) -> None:
    """Problems are told in full below, other things counted; JSON has all of it."""
    edited(folder / "b-done/zarr.json", provenance={})
    result = run("runs", folder)
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines() if "a/unfinished" in line]
    assert "1 of 2" in row
    assert "version: unreadable: " in result.stdout
    assert "install a newer release" in result.stdout
    assert "3 other things passed over" in result.stderr  # note.txt, data.zarr, a/b/c/d
    found = json.loads(run("runs", folder, "--json").stdout)
    assert (found["others"], len(found["runs"])) == (3, 7)
    assert found["runs"] == rd.find_runs(folder)


def test_orders(folder: Path) -> None:
    """Best, newest, deepest and largest first; what is not known last."""
    now = time.time()
    record = json.loads((folder / "a/b/deep/commits/0002.json").read_text())
    (folder / "a/b/deep/commits/0002.json").write_text(json.dumps(record | {"finished": now}))
    result = json.loads((folder / "b-done/result.json").read_text())
    result["accuracies"][result["depth"] - 1]["validation"] = 1.0
    (folder / "b-done/result.json").write_text(json.dumps(result))
    (folder / "b-done/large").write_bytes(bytes(10_000_000))

    def names(order: str) -> list[str]:
        return [
            r["name"]
            for r in json.loads(run("runs", folder, "--json", "--sort", order).stdout)["runs"]
        ]

    assert names("age")[0] == "a/b/deep"
    assert names("accuracy")[:2] == ["b-done", "a/b/deep"]
    assert names("size")[0] == "b-done"
    assert names("layers")[:3] == ["a/b/deep", "b-done", "a/unfinished"]
    assert names("state")[0] == "attributes"
    assert run("runs", folder, "--sort", "color").exit_code == 2


def test_one_run_is_a_list_of_one(made: Path) -> None:
    """Whoever names a run itself means it."""
    (found,) = rd.find_runs(made)
    assert (found["name"], found["url"], found["state"]) == ("run", str(made), "done")


def test_nothing_to_list_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without runs is no error; one that is not there is."""
    monkeypatch.chdir(tmp_path)
    result = run("runs")
    assert result.exit_code == 2
    missing = f"{tmp_path / 'runs'} does not exist. A folder or bucket is needed"
    assert missing in result.stderr
    (tmp_path / "file").touch()
    result = run("runs", "file")
    assert result.exit_code == 2
    assert "file is a file. A folder or bucket is needed. Check the URL" in result.stderr
    result = run("runs", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"there are no runs in {tmp_path}\n")
    assert "1 other thing passed over" in result.stderr
    assert run("runs", "no-such-protocol://x").exit_code == 2


def test_runs_in_a_bucket(s3: None, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows as on disk; no rights and no such bucket are told, and no secret."""
    fs = fsspec.filesystem("s3")
    fs.put(str(made), "runs/listed/group/one", recursive=True)
    fs.pipe_file("runs/listed/note.txt", b"not a run")
    (found,) = json.loads(run("runs", "s3://runs/listed", "--json").stdout)["runs"]
    (on_disk,) = rd.find_runs(made)
    own = {"name": "group/one", "url": "s3://runs/listed/group/one"}
    assert found == on_disk | own
    for url in ("s3://runs/nothing-here", "s3://no-such-bucket"):
        result = run("runs", url)
        assert result.exit_code == 2, result.output
        assert url in result.stderr
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    result = run("runs", "s3://runs/listed")
    assert result.exit_code == 2
    assert "s3://runs/listed cannot be reached" in result.stderr
    assert "secret" not in result.output


def test_a_folder_without_rights_is_one_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised by the file system, as tests may run as root."""
    ls = LocalFileSystem.ls

    def closed(self: Any, path: str, **more: Any) -> Any:
        if path.endswith("b-done/commits") or path.endswith("all/a"):
            raise PermissionError(13, "Permission denied", path)
        return ls(self, path, **more)

    monkeypatch.setattr(LocalFileSystem, "ls", closed)
    runs = {found["name"]: found for found in rd.find_runs(folder)}
    for name in ("a", "b-done"):
        assert runs[name]["state"] == "unreadable"
        assert "Permission denied" in runs[name]["problem"]
    assert runs["version"]["problem"]
