"""What users and stores get wrong with the engine: every command says what, the limit and the
remedy, and leaves everything as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from distributed import Client, LocalCluster

from rescnet_dist import (
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    StoreError,
    load,
    load_digits,
)
from rescnet_dist.cli import main

X, Y = (array[:150] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(  # with all maps in the store, to be damaged
    chunk_images=40, accumulators=2, solve_threads=1, validation=0.2, maps="store"
)
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
        None, ("plan", "nowhere.zarr", "--preset", "digits"), ["nowhere.zarr: check the URL"]
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
        ["memory://run is in this process's memory", "Use a folder or a bucket"],
    ),
    "data that are a run": (
        None, ("train", "run", "--preset", "digits", "--store", "new"), ["has no images variable"]
    ),
    "images without labels": (
        stored(images=X), OTHER, ["other.zarr has no labels", "name the variable labels"]
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
        None,
        ("resume", "run", "--max-layers", "1"),
        ["max_layers=1", "less than the 2 layers", "at least 2"],
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
        attribute("data_complete", None), RESUME, ["never completely written", "Remove it"]
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
    "a layer that is gone": (
        removed("run/layers/0001"), RESUME, ["layers/0001 is missing", "train again"]
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

AGAIN = "put back a copy of its zarr.json, or train again"
MADE_AGAIN = "remove it, then resume the run, which makes it again"

ATTRIBUTES: dict[str, Case] = {
    "no JSON": (
        replaced("run/zarr.json", "hello"), RESUME, ["Zarr group", "damaged", "zarr.json back"]
    ),
    "a list": (
        replaced("run/zarr.json", "[1]"), RESUME, ["Zarr group", "damaged", "zarr.json back"]
    ),
    "a version in words": (
        attribute("format_version", "one"), RESUME, ["format version one", "versions up to 4"]
    ),
    "no network": (attribute("network", None), RESUME, ["damaged (KeyError: 'network')", AGAIN]),
    "a network of the wrong kind": (
        attribute("network", 5), RESUME, ["attributes of", "damaged", AGAIN]
    ),
    "no run": (attribute("run", None), RESUME, ["damaged (KeyError: 'run')", AGAIN]),
    "a seed in words": (
        attribute("run", {"seed": "x"}), RESUME, ["seed='x' is not a whole number"]
    ),
    "no plan": (attribute("plan", None), RESUME, ["damaged (KeyError: 'plan')", AGAIN]),
    "a plan of another release": (
        attribute("plan", {"images": 150, "wings": 2}), RESUME, ["damaged", "'wings'", AGAIN]
    ),
    "a plan in words": (
        attribute("plan", {"images": "many"}), RESUME, ["images='many' is not a whole", AGAIN]
    ),
    "no classes": (attribute("classes", None), RESUME, ["damaged (KeyError: 'classes')", AGAIN]),
    "classes of the wrong kind": (
        attribute("classes", "cats"), ("evaluate", "run", "data.zarr"), ["damaged", AGAIN]
    ),
    "images of two dimensions": (
        attribute("image_shape", [14, 14]), RESUME, ["damaged", "expected 3, got 2", AGAIN]
    ),
    "no plan to check by": (
        attribute("plan", None), ("check", "run"), ["damaged (KeyError: 'plan')", AGAIN]
    ),
    "nothing to tell of": (
        attribute("image_shape", None), ("info", "run"), ["KeyError: 'image_shape'", AGAIN]
    ),
}  # fmt: skip

RECORDS: dict[str, Case] = {
    "checksums in words": (
        changed("run/commits/0002.json", checksums={"maps/0002": "all"}),
        RESUME,
        ["commits/0002.json is damaged", MADE_AGAIN],
    ),
    "too few checksums": (
        changed("run/commits/0002.json", checksums={"maps/0002": [1]}),
        RESUME,
        [
            "commits/0002.json has 1 checksums of maps/0002",
            "chunks. The record is damaged; remove it, then resume the run, which writes it anew",
        ],
    ),
    "an accuracy in words": (
        changed("run/commits/0002.json", accuracy="high"),
        RESUME,
        ["commits/0002.json is damaged", MADE_AGAIN],
    ),
    "half an accuracy": (
        changed("run/commits/0002.json", accuracy={"layer": 1}),
        ("info", "run"),
        ["commits/0002.json is damaged", MADE_AGAIN],
    ),
    "counts of different lengths": (
        changed("run/commits/0000.json", counts=[[1, 2], [3]]),
        RESUME,
        ["commits/0000.json is damaged", MADE_AGAIN],
    ),
    "counts in words": (
        changed("run/commits/0000.json", counts=["many"]),
        RESUME,
        ["commits/0000.json is damaged", MADE_AGAIN],
    ),
    "a depth in words": (
        changed("run/result.json", depth="deep"), RESUME, ["result.json is damaged", MADE_AGAIN]
    ),
    "accuracies in words": (
        changed("run/result.json", accuracies=["high"]),
        ("info", "run"),
        ["result.json is damaged", MADE_AGAIN],
    ),
    "a claim cut short": (
        lambda: (claimed()(), truncated("run/claims/000099.json")()),
        RESUME,
        ["has a claim that cannot be read, claims/000099.json", "--take-over"],
    ),
    "a claim that is a list": (
        lambda: (claimed()(), replaced("run/claims/000099.json", "[]")()),
        RESUME,
        ["has a claim that cannot be read, claims/000099.json", "--take-over"],
    ),
    "a claim of no time": (
        claimed(renewed="now"), RESUME, ["cannot be read, claims/000099.json", "--take-over"]
    ),
    "a claim from the future": (
        claimed(renewed=2**33), RESUME, ["process 1 on elsewhere", "2242-", "--take-over"]
    ),
    "a file for the claims": (
        lambda: (removed("run/claims")(), replaced("run/claims", "hello")()),
        RESUME,
        ["run/claims", "File exists"],
    ),
}  # fmt: skip

LINKED = ("resume", "linked", "--max-layers", "2")
PUT_BACK = "Put the images back as they were when the run began"

DATA: dict[str, Case] = {
    "gone": (removed("data.zarr"), LINKED, ["there is no Zarr array at", "data.zarr/images"]),
    "without images": (
        removed("data.zarr/images"), LINKED, ["there is no Zarr array at", "data.zarr/images"]
    ),
    "cut short": (
        truncated("data.zarr/images/c/1/0/0/0"),
        LINKED,
        ["of images are missing or altered: they cannot be decoded", PUT_BACK],
    ),
    "other images": (
        lambda: zarr.create_array("data.zarr", name="images", data=X[::-1], overwrite=True),
        LINKED,
        ["of images are missing or altered: they are not those", PUT_BACK],
    ),
    "a test set of other images": (
        stored(images=X[:, :7], labels=Y), (*TRAIN, "--test", "other.zarr"), ["(7, 14, 1)", "shape"]
    ),
}  # fmt: skip

USE: dict[str, Case] = {
    "layers in words": (
        None, ("resume", "run", "--max-layers", "many"), ["'many' is not a valid integer"]
    ),
    "take over a network": (
        None, ("resume", "network", "--take-over"), ["is not a rescnet-run store", "check the URL"]
    ),
    "take over what is new": (None, (*TRAIN, "--take-over"), ["No such option", "--take-over"]),
    "take over half a run": (
        attribute("data_complete", None),
        (*RESUME, "--take-over"),
        ["never completely written", "Remove it and train again"],
    ),
    "an empty address": (
        None, (*TRAIN, "--scheduler", ""), ["--scheduler is empty: give address of a Dask"]
    ),
    "a folder for a scheduler file": (
        None, (*TRAIN, "--scheduler-file", "run"), ["run is not a Dask scheduler's file"]
    ),
    "a port in words": (
        None, (*TRAIN, "--scheduler", "localhost:x"), ["no Dask scheduler answers at localhost:x"]
    ),
    "a gateway without a scheme": (
        None, (*TRAIN, "--gateway", "nonsense"), ["no Dask gateway answers at nonsense"]
    ),
    "a cluster to check with that is not there": (
        None,
        ("check", "run", "--scheduler", "tcp://127.0.0.1:1"),
        ["no Dask scheduler answers at tcp://127.0.0.1:1"],
    ),
    "predictions over a folder": (
        None, ("predict", "run", "data.zarr", "-o", "run"), ["run cannot be written", "directory"]
    ),
    "predictions in no folder": (
        None,
        ("predict", "run", "data.zarr", "-o", "none/labels.csv"),
        ["none/labels.csv cannot be written: none does not exist; create that folder"],
    ),
    "a store in this folder": (
        None, (*TRAIN[:-1], "."), ["already holds something that is not a run", "choose another"]
    ),
    "a store below a file": (
        None, (*TRAIN[:-1], "/dev/null/run"), ["/dev/null/run", "cannot be written"]
    ),
    "a name too long": (None, (*TRAIN[:-1], "x" * 300), ["File name too long", "check the URL"]),
    "a server that is not there": (
        None, (*TRAIN[:-1], "webdav://127.0.0.1:1/run"), ["cannot be opened", "webdav"]
    ),
}  # fmt: skip

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "plan": PLANS, "cluster": CLUSTERS, "store": STORES, "run": RUNS,
        "attributes": ATTRIBUTES, "record": RECORDS, "data": DATA, "use": USE,
    }.items()
    for name, case in cases.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster) -> Path:
    """A folder with data, a run of two layers on arrays, a saved network, and a run of one layer
    that refers to the data."""
    folder = tmp_path_factory.mktemp("place")
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(50, 14, 14, 1))
    group.create_array("labels", data=Y, chunks=(50,))
    with Client(threads_cluster):
        clf = ResCNetClassifier(SPEC, store=folder / "run", run=RUN).fit(X, Y)
        linked = ResCNetClassifier(SPEC.replace(max_layers=1), store=folder / "linked", run=RUN)
        linked.fit(str(folder / "data.zarr"))
    clf.save(folder / "network")
    return folder


@pytest.fixture
def location(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, and the folder that commands run in."""
    folder = Path(shutil.copytree(kept, tmp_path / "place"))
    record = folder / "linked/zarr.json"
    record.write_text(record.read_text().replace(str(kept), str(folder)))
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
    begun = ("run/maps/0003", "run/scores/0003", "linked/maps/0002", "linked/scores/0002")
    return path.startswith(begun) or path in ("run/zarr.json", "linked/zarr.json")


@pytest.mark.parametrize(("damage", "arguments", "fragments"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_named_and_nothing_is_changed(
    location: Path,
    two_processes: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage | None,
    arguments: tuple[str, ...],
    fragments: list[str],
) -> None:
    """One row of the tables above: exit code 2, the message, no traceback, and no file more, less
    or other than before."""
    monkeypatch.setattr("rescnet_dist.cluster.connect.CONNECT_SECONDS", 1)
    if damage:
        damage()
    before = contents(location)
    named = {"--scheduler", "--scheduler-file", "--gateway", "--gateway-cluster"} & {*arguments}
    if arguments[0] in ("train", "plan", "resume") and not named:
        arguments = (*arguments, "--scheduler", two_processes.scheduler_address)
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2, (result.output, result.exception)
    for fragment in fragments:
        assert fragment in result.output
    assert "Traceback" not in result.output
    assert "hidden" not in result.output
    after = contents(location)
    assert {path: data for path, data in after.items() if not is_begun(path)} == {
        path: data for path, data in before.items() if not is_begun(path)
    }
    assert not os.path.exists("new") or Path("new").is_file()


REMEDIES = ("commits/0000.json", "commits/0001.json", "commits/0002.json", "result.json")


@pytest.mark.parametrize("record", REMEDIES)
def test_a_damaged_record_that_is_removed_is_made_again(
    location: Path, client: Client, record: str
) -> None:
    """As its message says: the run then goes on to the same layers."""
    before = contents(location / "run")
    (location / "run" / record).unlink()
    result = CliRunner().invoke(main, ["resume", "run"])
    assert result.exit_code == 0, result.output
    after = contents(location / "run")
    assert after.keys() == before.keys()
    for path, data in before.items():
        if not path.startswith(("commits/", "result")):  # which have times
            assert after[path] == data, path
    assert CliRunner().invoke(main, ["check", "run"]).exit_code == 0


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written to, not even by root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        folder.chmod(0o555)
    elif subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_folder_that_cannot_be_written_is_named(
    location: Path, client: Client, read_only: Path
) -> None:
    """Before anything is computed, by train and by save."""
    result = CliRunner().invoke(main, [*TRAIN[:-1], str(read_only / "run")])
    assert result.exit_code == 2
    for words in (f"{read_only}/run", "cannot be written", "check your rights"):
        assert words in result.output
    with pytest.raises(StoreError, match="cannot be written"):
        load(location / "network").save(read_only / "network")
    assert list(read_only.iterdir()) == []


BUCKETS: dict[str, tuple[dict[str, str | None], str, list[str]]] = {
    "closed": (
        {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"},
        "s3://runs/x",
        ["s3://runs/x cannot be reached", "your rights"],
    ),
    "without a key": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "s3://runs/x",
        ["s3://runs/x cannot be reached", "your rights"],
    ),
}


@pytest.mark.parametrize(("environment", "url", "fragments"), BUCKETS.values(), ids=BUCKETS.keys())
def test_buckets_that_cannot_be_used_are_named_at_once(
    location: Path,
    client: Client,
    s3: None,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str | None],
    url: str,
    fragments: list[str],
) -> None:
    """Whatever is asked of them; no secret is told."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(location / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # it keeps credentials
    for command in (
        (*TRAIN[:-1], url),
        ("train", url, "--preset", "digits", "--store", "new"),
        ("resume", url),
        ("check", url),
        ("evaluate", url, "data.zarr"),
    ):
        began = time.monotonic()
        result = CliRunner().invoke(main, list(command))
        assert time.monotonic() - began < 20
        assert result.exit_code in (2, 75), (command, result.output, result.exception)
        assert isinstance(result.exception, SystemExit), (command, result.exception)
        for fragment in fragments:
            assert fragment in result.output, (command, result.output)
        assert "secret" not in result.output
    assert not Path("new").exists()
