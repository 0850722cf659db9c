"""`rescnet runs` and `find_runs`: a row for every run in any state, on disk and on S3."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import uuid
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
from rescnet_dist.runs.describe import describe_run
from rescnet_dist.store import Claim, Location

X, Y = (array[:120] for array in rd.load_digits())
SPEC = rd.NetworkSpec(filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, max_layers=2)
RUN = rd.RunSpec(chunk_images=60, accumulators=2, solve_threads=1, validation=0.25)


def run(*arguments: Any) -> Result:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """Return the path of a finished run of two layers, to be copied."""
    store = tmp_path_factory.mktemp("finished") / "run"
    with Client(threads_cluster):
        rd.ResCNetClassifier(SPEC, store=store, run=RUN).fit(X[:, ::2, ::2], Y)
    return store


@pytest.mark.parametrize("command", ["info", "runs"])
def test_records_are_read_without_dask(finished_run: Path, command: str) -> None:
    """These commands only read records; with these packages they would take twice as long."""
    code = f"""
import sys
from rescnet_dist.cli import main
main({[command, str(finished_run)]}, standalone_mode=False)
slow = {{"dask", "distributed", "matplotlib", "numba", "pandas", "scipy.linalg", "xarray"}}
print(sorted(slow & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "done" in done.stdout


def test_test_accuracy_needs_no_scikit_learn(finished_run: Path, tmp_path: Path) -> None:
    """Its import takes longer than to compute the accuracy, which is that of the estimator."""
    data = str(tmp_path / "data.zarr")
    group = zarr.open_group(data, mode="w")
    group.create_array("images", data=X[:, ::2, ::2])
    group.create_array("labels", data=Y)
    code = f"""
import sys
from rescnet_dist.cli.reporting import compute_accuracy
from rescnet_dist.network import load_network
print(compute_accuracy(load_network({str(finished_run)!r}), {data!r})[0], "sklearn" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{rd.ResCNetClassifier.load(finished_run).score(data)} False\n"


def edit_attributes(path: Path, **changes: Any) -> None:
    """Change attributes of a run."""
    record = json.loads(path.read_text())
    record["attributes"] |= changes
    path.write_text(json.dumps(record))


@pytest.fixture
def folder(finished_run: Path, tmp_path: Path) -> Path:
    """Return a folder of nested runs in all states, next to other objects."""
    folder = tmp_path / "all"
    names = "b-done", "a/unfinished", "a/b/deep", "version", "record", "attributes", "no-data"
    for name in names:
        shutil.copytree(finished_run, folder / name)
    (folder / "a/unfinished/result.json").unlink()
    (folder / "a/unfinished/commits/0002.json").unlink()
    edit_attributes(folder / "version/zarr.json", format_version=99)
    (folder / "record/result.json").write_text("{")
    (folder / "attributes/zarr.json").unlink()
    edit_attributes(folder / "no-data/zarr.json", data_complete=False)
    (folder / "note.txt").write_text("not a run")
    (folder / "a/b/c/d/e").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    data = zarr.open_group(folder / "data.zarr", mode="w", attributes={"class_names": ["0", "5"]})
    data.create_array("images", data=X[:2])
    (folder / "data.zarr" / "claims").mkdir()  # some S3 servers list it after an import
    return folder


def test_each_run_has_a_row_with_its_state(folder: Path, finished_run: Path) -> None:
    """A damaged run or one of another version does not hide the others."""
    runs = {found["name"]: found for found in rd.find_runs(folder)}
    assert list(runs) == sorted(runs)
    assert {name: found["state"] for name, found in runs.items()} == {
        **{"a/b/deep": "done", "b-done": "done", "a/unfinished": "unfinished"},
        **{"attributes": "damaged", "record": "damaged", "no-data": "damaged"},
        "version": "unreadable",
    }
    whole, done = describe_run(finished_run), runs["b-done"]
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


def test_run_is_running_while_its_driver_is_alive(folder: Path) -> None:
    """Also a finished run that is being resumed, and one that has just started."""
    with (
        Claim.take(Location.of(folder / "b-done")).hold(),
        Claim.take(Location.of(folder / "new"), new=True).hold(),
    ):
        states = {found["name"]: found["state"] for found in rd.find_runs(folder)}
    assert (states["b-done"], states["new"]) == ("running", "running")
    states = {found["name"]: found["state"] for found in rd.find_runs(folder)}
    assert (states["b-done"], states["new"]) == ("done", "damaged")


def test_command_lists_runs_and_names_others(folder: Path) -> None:
    """Problems are printed in full below the table; JSON has everything."""
    edit_attributes(folder / "b-done/zarr.json", provenance={})
    result = run("runs", folder)
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines() if "a/unfinished" in line]
    assert "1 of 2" in row
    header = next(line for line in result.stdout.splitlines() if "depth" in line)
    done = next(line for line in result.stdout.splitlines() if "b-done" in line)
    described = rd.find_runs(folder / "b-done")[0]
    for name, key in (("train %", "train"), ("validation %", "validation")):
        column = [cell.strip() for cell in header.split("┃")].index(name)
        assert done.split("│")[column].strip() == f"{100 * described[key]:.2f}"
    assert "version: unreadable: " in result.stdout
    assert "install a newer release" in result.stdout
    assert "skipped 3 other objects: a/b/c/d, data.zarr, note.txt\n" in result.stderr
    found = json.loads(run("runs", folder, "--json").stdout)
    assert (found["others"], len(found["runs"])) == (3, 7)
    assert found["runs"] == rd.find_runs(folder)


@pytest.mark.parametrize(
    ("head", "expected"), [("leave-one-out", True), ("regress", False), ("not-installed", None)]
)
def test_leave_one_out_accuracies_are_marked(
    finished_run: Path, tmp_path: Path, head: str, expected: bool | None
) -> None:
    """They are lower than training accuracies, and must not be compared with these."""
    shutil.copytree(finished_run, tmp_path / "run")
    network = json.loads((tmp_path / "run/zarr.json").read_text())["attributes"]["network"]
    edit_attributes(tmp_path / "run/zarr.json", network=network | {"head": head})
    (found,) = rd.find_runs(tmp_path)
    assert (found["state"], found["leave_one_out"]) == ("done", expected)
    assert (f"{100 * found['train']:.2f} (leave-one-out)" in run("runs", tmp_path).stdout) is bool(
        expected
    )


def test_sort_orders(folder: Path) -> None:
    """Best, newest, deepest and largest first; unknown values last."""
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


def test_url_of_one_run_lists_that_run(finished_run: Path) -> None:
    """The list has one entry."""
    (found,) = rd.find_runs(finished_run)
    assert (found["name"], found["url"], found["state"]) == ("run", str(finished_run), "done")


@pytest.mark.parametrize("command", ["info", "check"])
def test_other_commands_name_a_run_of_the_folder(folder: Path, command: str) -> None:
    """A folder of runs was taken for a dataset, or for something that is damaged."""
    result = run(command, folder)
    assert result.exit_code == 2
    assert f"{folder} is a folder of runs, not a run. Name one of them, such as " in result.stderr
    assert f"{folder}/" in result.stderr
    assert f"`rescnet runs {folder}` lists them" in result.stderr


def test_folder_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder is no error; a missing one is."""
    monkeypatch.chdir(tmp_path)
    result = run("runs")
    assert result.exit_code == 2
    missing = f"{tmp_path / 'runs'} does not exist. A folder or bucket is needed"
    assert missing in result.stderr
    (tmp_path / "file").touch()
    result = run("runs", "file")
    assert result.exit_code == 2
    assert "file is a file. A folder or bucket is needed. Check the path" in result.stderr
    result = run("runs", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"no runs in {tmp_path}\n")
    assert "skipped 1 other object: file\n" in result.stderr
    for name in "abc":
        (tmp_path / name).touch()
    assert "skipped 4 other objects: a, b, c, …\n" in run("runs", tmp_path).stderr
    (tmp_path / "\x1b[31m\n").touch()  # sorts first, and would color a terminal
    assert "skipped 5 other objects: ?[31m?, a, b, …\n" in run("runs", tmp_path).stderr
    assert run("runs", "no-such-protocol://x").exit_code == 2


def test_missing_bucket_has_the_same_remedy_in_all_commands(
    s3: None, object_store: str, tmp_path: Path
) -> None:
    """Also if only a part of the URL exists; `info` names the folder whose runs can be listed."""
    for url in ("s3://no-such-bucket", "s3://no-such-bucket/run"):
        for command in (
            ("runs", url),
            ("info", url),
            ("resume", url),
            ("evaluate", url, "digits"),
            ("train", "digits", "--store", url, "--max-layers", "1"),
        ):
            result = run(*command)
            assert result.exit_code == 2, result.output
            assert f"There is no bucket for {url}. Check the URL" in result.stderr, command
    result = run("info", "s3://runs/folder/nothing")
    assert result.exit_code == 2
    assert "no run and no saved network at s3://runs/folder/nothing" in result.stderr
    assert "`rescnet runs s3://runs/folder` lists" in result.stderr


def test_empty_bucket_has_no_runs(s3: None, object_store: str) -> None:
    """It exists, unlike a folder of a bucket without objects."""
    url = f"s3://{object_store}-{uuid.uuid4().hex}"
    fsspec.filesystem("s3").mkdir(url)
    result = run("runs", url)
    assert (result.exit_code, result.stdout) == (0, f"no runs in {url}\n"), result.output
    result = run("runs", f"{url}/folder")
    assert result.exit_code == 2
    assert f"{url}/folder does not exist" in result.stderr


def test_info_names_the_client_of_a_store(s3: None, object_store: str, finished_run: Path) -> None:
    """That of a run and of a saved network; nothing is said of local files."""
    client = {"fsspec": "s3fs", "obstore": "obstore"}[object_store]
    fs, folder = fsspec.filesystem("s3"), f"runs/info-{object_store}"
    fs.put(str(finished_run), f"{folder}/run", recursive=True)
    rd.load(finished_run).save(f"s3://{folder}/net")
    for name in ("run", "net"):
        result = run("info", f"s3://{folder}/{name}")
        assert f"iB, opened with {client}\n" in result.stdout, result.output
        record = json.loads(run("info", f"s3://{folder}/{name}", "--json").stdout)
        assert record["client"] == client
    assert "opened with" not in run("info", finished_run).stdout


def test_runs_in_a_bucket(s3: None, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows as on disk; errors for missing buckets and permissions, without secrets."""
    fs = fsspec.filesystem("s3")
    fs.put(str(finished_run), "runs/listed/group/one", recursive=True)
    fs.pipe_file("runs/listed/note.txt", b"not a run")
    (found,) = json.loads(run("runs", "s3://runs/listed", "--json").stdout)["runs"]
    (on_disk,) = rd.find_runs(finished_run)
    location = {"name": "group/one", "url": "s3://runs/listed/group/one"}
    assert found == on_disk | location
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


def test_folder_without_permissions_is_one_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system raises the error, because tests may run as root."""
    ls = LocalFileSystem.ls

    def deny(self: Any, path: str, **options: Any) -> Any:
        if path.endswith("b-done/commits") or path.endswith("all/a"):
            raise PermissionError(13, "Permission denied", path)
        return ls(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", deny)
    runs = {found["name"]: found for found in rd.find_runs(folder)}
    for name in ("a", "b-done"):
        assert runs[name]["state"] == "unreadable"
        assert "Permission denied" in runs[name]["problem"]
    assert runs["version"]["problem"]
