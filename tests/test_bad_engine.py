"""What users and stores get wrong with the engine: every command says what, the limit and the
remedy, and leaves everything as it was."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.cli import main

X, Y = (array[:150] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(chunk_images=40, accumulators=2, solve_threads=1, validation=0.2)
TRAIN = ("train", "data.zarr", "--preset", "digits", "--block", "5", "--store", "new")
PLAN = ("plan", "data.zarr", "--preset", "digits", "--block", "5", "--no-measure")

Damage = Callable[[], Any]
Case = tuple[Damage | None, tuple[str, ...], list[str]]


def truncated(path: str) -> Damage:
    """Cut the second half off a file of the place."""
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[: Path(path).stat().st_size // 2])


def replaced(path: str, text: str) -> Damage:
    """Put something else into a file of the place."""
    return lambda: Path(path).write_text(text)


def removed(path: str) -> Damage:
    """Remove a file or folder of the place."""
    return lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def changed(path: str, **entries: Any) -> Damage:
    """Change entries of a JSON record of the place; None removes one."""

    def change() -> None:
        record = json.loads(Path(path).read_text())
        record.update(entries)
        kept = {key: value for key, value in record.items() if value is not None}
        Path(path).write_text(json.dumps(kept))

    return change


def attribute(name: str, value: Any) -> Damage:
    """Change an attribute of the run; None removes it."""

    def change() -> None:
        path = Path("run/zarr.json")
        record = json.loads(path.read_text())
        record["attributes"][name] = value
        if value is None:
            del record["attributes"][name]
        path.write_text(json.dumps(record))

    return change


def claimed(**entries: Any) -> Damage:
    """Another driver, on another machine, that has just said that it lives."""

    def claim() -> None:
        record = {
            **{"writer": "another", "host": "elsewhere", "pid": 1, "process_started": 0.0},
            **{"renewed": time.time(), **entries},
        }
        Path("run/claims/000099.json").write_text(json.dumps(record))

    return claim


def stored(**arrays: Any) -> Damage:
    """A Zarr store `other.zarr` with these arrays."""

    def write() -> None:
        group = zarr.open_group("other.zarr", mode="w")
        for name, values in arrays.items():
            group.create_array(name, data=values)

    return write


RESUME = ("resume", "run", "--max-layers", "3")
OTHER = ("train", "other.zarr", "--preset", "digits", "--block", "5", "--store", "new")

PLANS: dict[str, Case] = {
    "chunks too large": (
        None,
        (*PLAN, "--chunk-images", "1000000000"),
        ["MiB of memory per worker", "replace chunk_images=1000000000 by chunk_images of at most"],
    ),
    "too many filters": (
        None,
        (*PLAN, "--filters", "300000"),
        ["filters=300000 by filters of at most", "or use workers of at least"],
    ),
    "training what was not planned": (
        None,
        (*TRAIN, "--chunk-images", "1000000000"),
        ["replace chunk_images=1000000000 by chunk_images of at most", "worker's"],
    ),
    "no image per chunk": (
        None, (*PLAN, "--chunk-images", "0"), ["chunk_images=0 is out of range", "at least 1"]
    ),
    "fewer accumulators than one": (
        None, (*PLAN, "--accumulators", "-1"), ["accumulators=-1 is out of range", "at least 1"]
    ),
    "no features per tile": (
        None, (*PLAN, "--tile-features", "0"), ["tile_features=0 is out of range", "at least 1"]
    ),
    "a tree of fan-in one": (
        None, (*PLAN, "--split-every", "1"), ["split_every=1 is out of range", "at least 2"]
    ),
    "no thread to solve": (
        None, (*PLAN, "--solve-threads", "0"), ["solve_threads=0 is out of range", "at least 1"]
    ),
    "maps kept of some": (
        None, (*PLAN, "--keep-maps", "some"), ["'some' is not one of 'last', 'all'"]
    ),
    "a plan for a store in use": (
        None, (*PLAN, "--store", "run"), ["already holds another run", "choose another URL"]
    ),
    "a plan of nothing": (
        None, ("plan", "nowhere.zarr", "--preset", "digits"), ["there is no Zarr", "nowhere.zarr"]
    ),
}  # fmt: skip

CLUSTERS: dict[str, Case] = {
    "nobody there": (
        None,
        (*TRAIN, "--scheduler", "tcp://127.0.0.1:1"),
        ["no Dask scheduler answers at tcp://127.0.0.1:1", "check the address"],
    ),
    "no address": (
        None, (*TRAIN, "--scheduler", "nonsense://x"), ["no Dask scheduler answers at nonsense://x"]
    ),
    "no scheduler file": (
        None,
        (*TRAIN, "--scheduler-file", "no.json"),
        ["there is no scheduler file no.json", "check the path"],
    ),
    "a scheduler file of something else": (
        replaced("some.json", '{"a": 1}'),
        (*TRAIN, "--scheduler-file", "some.json"),
        ["some.json is not a Dask scheduler's file", "check the path"],
    ),
    "a scheduler file that is no JSON": (
        replaced("some.json", "hello"),
        (*TRAIN, "--scheduler-file", "some.json"),
        ["some.json is not a Dask scheduler's file", "check the path"],
    ),
    "two clusters": (
        None,
        (*TRAIN, "--scheduler", "tcp://a:1", "--scheduler-file", "b"),
        ["--scheduler and --scheduler-file name different clusters", "give one of them"],
    ),
    "a gateway's cluster without the gateway": (
        None, (*TRAIN, "--gateway-cluster", "abc"), ["--gateway-cluster needs --gateway"]
    ),
    "no gateway": (
        None,
        (*TRAIN, "--gateway", "http://127.0.0.1:1"),
        ["no Dask gateway answers at http://127.0.0.1:1", "check the address"],
    ),
}  # fmt: skip

STORES: dict[str, Case] = {
    "no such protocol": (
        None, (*TRAIN[:-1], "nonsense://x/y"), ["nonsense://x/y cannot be opened", "nonsense"]
    ),
    "a protocol without its package": (
        None, (*TRAIN[:-1], "gs://bucket/run"), ["gs://bucket/run cannot be opened", "gcsfs"]
    ),
    "a secret in the URL": (
        None,
        (*TRAIN[:-1], "nonsense://me:hidden@host/run"),
        ["nonsense://***@host/run cannot be opened"],
    ),
    "a file in the way": (
        replaced("new", "hello"), TRAIN, ["already holds something", "choose another URL"]
    ),
    "a file where a folder is wanted": (
        replaced("file", "hello"), (*TRAIN[:-1], "file/run"), ["file/run"]
    ),
    "a run in the way": (
        None, (*TRAIN[:-1], "run"), ["already holds another run", "go on with it by resume"]
    ),
    "a saved network in the way": (None, (*TRAIN[:-1], "network"), ["already holds something"]),
    "memory of another process": (
        None,
        (*TRAIN[:-1], "memory://run"),
        ["memory://run is in this process's memory", "use a folder or a bucket"],
    ),
    "data that are a run": (
        None, ("train", "run", "--preset", "digits", "--store", "new"), ["has no images variable"]
    ),
    "images without labels": (
        stored(images=X), OTHER, ["other.zarr has no labels variable", "labels or label"]
    ),
    "labels of another length": (
        stored(images=X, labels=Y[:10]), OTHER, ["10 labels for 150 images"]
    ),
    "one class only": (
        stored(images=X, labels=np.zeros(150, int)), OTHER, ["one class 0 only", "at least 2"]
    ),
    "pixels that are not numbers": (
        stored(images=np.full((4, 14, 14, 1), np.nan, "float32"), labels=np.arange(4) % 2),
        (*OTHER, "--validation", "0"),
        ["image 0", "pixel value nan", "must be finite"],
    ),
}  # fmt: skip

RUNS: dict[str, Case] = {
    "resume nothing": (None, ("resume", "nowhere"), ["there is no Zarr group at", "check the URL"]),
    "resume data": (None, ("resume", "data.zarr"), ["is not a rescnet-run store", "check the URL"]),
    "resume a network": (None, ("resume", "network"), ["is not a rescnet-run store"]),
    "resume to fewer layers": (
        None, ("resume", "run", "--max-layers", "1"), ["max_layers=1", "has 2 layers", "at least 2"]
    ),
    "resume to no layer": (
        None, ("resume", "run", "--max-layers", "0"), ["max_layers=0", "at least"]
    ),
    "attributes cut short": (truncated("run/zarr.json"), RESUME, ["Zarr group", "damaged"]),
    "attributes of something else": (
        attribute("format", "other"), RESUME, ["is not a rescnet-run store", "'other'"]
    ),
    "a newer format": (
        attribute("format_version", 99), RESUME, ["format version 99", "install a newer release"]
    ),
    "data half written": (
        attribute("data_complete", None), RESUME, ["never completely written", "remove it"]
    ),
    "a network of another release": (
        attribute("network", {"filters": 4, "wings": 2}), RESUME, ["no option 'wings'"]
    ),
    "a commit cut short": (
        truncated("run/commits/0001.json"), RESUME, ["commits/0001.json is not valid JSON"]
    ),
    "a commit that is a list": (
        replaced("run/commits/0001.json", "[1, 2]"), RESUME, ["commits/0001.json", "damaged"]
    ),
    "a commit without checksums": (
        changed("run/commits/0002.json", checksums=None), RESUME, ["commits/0002.json", "damaged"]
    ),
    "a first commit without counts": (
        changed("run/commits/0000.json", counts=None), RESUME, ["commits/0000.json", "damaged"]
    ),
    "a result cut short": (truncated("run/result.json"), RESUME, ["result.json is not valid JSON"]),
    "a result of something else": (
        replaced("run/result.json", '{"a": 1}'), RESUME, ["result.json", "damaged"]
    ),
    "a claim of another driver": (
        claimed(), RESUME, ["process 1 on elsewhere", "last sign of life", "--take-over"]
    ),
    "a layer without its filters": (
        removed("run/layers/0003/filters"), RESUME, ["layers/0003/filters", "no Zarr array"]
    ),
    "a layer cut short": (
        truncated("run/layers/0002/weights/c/0/0/0"), RESUME, ["layers/0002/weights", "altered"]
    ),
    "images cut short": (
        truncated("run/data/images/c/1/0/0/0"),
        RESUME,
        ["rows 40 to 80 of data/images are missing or altered"],
    ),
    "labels removed": (
        removed("run/data/labels"), RESUME, ["data/labels", "there is no Zarr array"]
    ),
    "check nothing": (None, ("check", "nowhere"), ["there is no Zarr group at"]),
    "check a network": (None, ("check", "network"), ["is not a rescnet-run store"]),
    "info of nothing": (None, ("info", "nowhere"), ["there is no Zarr group at"]),
    "evaluate nothing": (None, ("evaluate", "nowhere", "data.zarr"), ["there is no Zarr group at"]),
    "evaluate without data": (
        None, ("evaluate", "run"), ["has no test split known here", "name the DATA"]
    ),
}  # fmt: skip

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "plan": PLANS, "cluster": CLUSTERS, "store": STORES, "run": RUNS
    }.items()
    for name, case in cases.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster) -> Path:
    """A folder with data, a run of two layers on arrays, and a saved network."""
    folder = tmp_path_factory.mktemp("place")
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(50, 14, 14, 1))
    group.create_array("labels", data=Y, chunks=(50,))
    with Client(threads_cluster):
        clf = ResCNetClassifier(SPEC, store=folder / "run", run=RUN).fit(X, Y)
    clf.save(folder / "network")
    return folder


@pytest.fixture
def place(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, and the folder that commands run in."""
    folder = Path(shutil.copytree(kept, tmp_path / "place"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def two_processes() -> Any:
    """Worker processes that are shared by the cases."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


def contents(folder: Path) -> dict[str, bytes]:
    """All that is stored, but who claims what."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "claims" not in path.parts
    }


def is_begun(path: str) -> bool:
    """Whether a file belongs to what a resume had begun when it met the damage: the layer that it
    was to add, which does not count, and the number of layers asked for."""
    return path.startswith(("run/maps/0003", "run/scores/0003")) or path == "run/zarr.json"


@pytest.mark.parametrize(("damage", "arguments", "fragments"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_named_and_nothing_is_changed(
    place: Path,
    two_processes: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage | None,
    arguments: tuple[str, ...],
    fragments: list[str],
) -> None:
    """One row of the tables above: exit code 2, the message, no traceback, and no file more, less
    or other than before."""
    monkeypatch.setattr("rescnet_dist.train.cluster.CONNECT_TIMEOUT", "1s")
    if damage:
        damage()
    before = contents(place)
    named = {"--scheduler", "--scheduler-file", "--gateway", "--gateway-cluster"} & {*arguments}
    if arguments[0] in ("train", "plan", "resume") and not named:
        arguments = (*arguments, "--scheduler", two_processes.scheduler_address)
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2, (result.output, result.exception)
    for fragment in fragments:
        assert fragment in result.output
    assert "Traceback" not in result.output
    assert "hidden" not in result.output
    after = contents(place)
    assert {path: data for path, data in after.items() if not is_begun(path)} == {
        path: data for path, data in before.items() if not is_begun(path)
    }
    assert not os.path.exists("new") or Path("new").is_file()
