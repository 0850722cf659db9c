"""Errors of commands for bad options and damaged stores: messages, and that no file changes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from distributed import Client, LocalCluster

from rescnet_dist import ResCNetClassifier, StoreError, load
from rescnet_dist.cli import main
from rescnet_dist.data import import_dataset, open_dataset
from rescnet_dist.errors import CorruptDataError
from rescnet_dist.network import load_network
from tests.cli.damage import (
    RUN,
    SPEC,
    Damage,
    Snapshot,
    X,
    Y,
    add_claim,
    edit_record,
    may_be_written,
    overwrite,
    read_contents,
    remove,
    set_attribute,
    truncate,
    write_data,
)

TRAIN = ("train", "data.zarr", "--preset", "digits", "--block", "5", "--store", "new")
PLAN = ("plan", "data.zarr", "--preset", "digits", "--block", "5", "--no-measure")

Case = tuple[Damage | None, tuple[str, ...], list[str]]

RESUME = ("resume", "run", "--max-layers", "3")
OTHER = ("train", "other.zarr", "--preset", "digits", "--block", "5", "--store", "new")

PLANS: dict[str, Case] = {
    "chunks too large": (
        None,
        (*PLAN, "--chunk-images", "1000000000"),
        ["MiB of memory per worker", "Replace chunk_images=1000000000 by chunk_images of at most"],
    ),
    "too many filters": (
        None,
        (*PLAN, "--filters", "300000"),
        ["filters=300000 by filters of at most", "or use workers of at least"],
    ),
    "training what was not planned": (
        None,
        (*TRAIN, "--chunk-images", "1000000000"),
        ["Replace chunk_images=1000000000 by chunk_images of at most", "worker's"],
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
        None, (*PLAN, "--store", "run"), ["already holds another run", "Choose another URL"]
    ),
    "a plan of nothing": (
        None, ("plan", "nowhere.zarr", "--preset", "digits"), ["nowhere.zarr. Check the path"]
    ),
}  # fmt: skip

CLUSTERS: dict[str, Case] = {
    "no scheduler at the address": (
        None,
        (*TRAIN, "--scheduler", "tcp://127.0.0.1:1"),
        [
            "No Dask scheduler answers at tcp://127.0.0.1:1",
            "Connection refused",
            "Check the address",
        ],
    ),
    "an unknown protocol": (
        None, (*TRAIN, "--scheduler", "nonsense://x"), ["No Dask scheduler answers at nonsense://x"]
    ),
    "no scheduler file": (
        None,
        (*TRAIN, "--scheduler-file", "no.json"),
        ["There is no scheduler file no.json", "Check the path"],
    ),
    "a scheduler file of something else": (
        overwrite("some.json", '{"a": 1}'),
        (*TRAIN, "--scheduler-file", "some.json"),
        ["some.json is not a scheduler file of Dask", "Check the path"],
    ),
    "a scheduler file that is no JSON": (
        overwrite("some.json", "hello"),
        (*TRAIN, "--scheduler-file", "some.json"),
        ["some.json is not a scheduler file of Dask", "Check the path"],
    ),
    "two clusters": (
        None,
        (*TRAIN, "--scheduler", "tcp://a:1", "--scheduler-file", "b"),
        ["--scheduler and --scheduler-file name different clusters", "Give one of them"],
    ),
    "a gateway's cluster without the gateway": (
        None, (*TRAIN, "--gateway-cluster", "abc"),
        ["--gateway-cluster is set without a gateway", "Add --gateway"]
    ),
    "workers of no cluster": (
        None,
        (*TRAIN, "--workers", "3"),
        ["--workers 3 is for a cluster with an autoscaler, but none is named", "Add --scheduler"],
    ),
    "no gateway": (
        None,
        (*TRAIN, "--gateway", "http://127.0.0.1:1"),
        ["No Dask gateway answers at http://127.0.0.1:1", "Check the address"],
    ),
}  # fmt: skip

STORES: dict[str, Case] = {
    "no such protocol": (
        None,
        (*TRAIN[:-1], "nonsense://x/y"),
        ["nonsense://x/y cannot be opened", "Use a path, or a URL such as s3://"],
    ),
    "a protocol without its package": (
        None, (*TRAIN[:-1], "oss://bucket/run"), ["oss://bucket/run cannot be opened", "ossfs"]
    ),
    "a secret in the URL": (
        None,
        (*TRAIN[:-1], "nonsense://me:hidden@host/run"),
        ["nonsense://***@host/run cannot be opened"],
    ),
    "a file in the way": (
        overwrite("new", "hello"), TRAIN, ["already holds something", "Choose another URL"]
    ),
    "a file instead of a folder": (
        overwrite("file", "hello"), (*TRAIN[:-1], "file/run"), ["file/run"]
    ),
    "a run in the way": (
        None, (*TRAIN[:-1], "run"), ["already holds another run", "resume that run"]
    ),
    "a saved network in the way": (None, (*TRAIN[:-1], "network"), ["already holds something"]),
    "memory of another process": (
        None,
        (*TRAIN[:-1], "memory://run"),
        ["memory://run is in this process's memory", "Use a folder or a bucket"],
    ),
    "data that are a run": (
        None,
        ("train", "run", "--preset", "digits", "--store", "new"),
        ["is a rescnet-run store, not a dataset", "Give the data that it was trained on"],
    ),
    "images without labels": (
        write_data(images=X), OTHER, ["other.zarr has no labels", "Name the variable labels"]
    ),
    "labels of another length": (
        write_data(images=X, labels=Y[:10]), OTHER, ["10 labels for 150 images"]
    ),
    "one class only": (
        write_data(images=X, labels=np.zeros(150, int)), OTHER, ["one class 0 only", "at least 2"]
    ),
    "pixels that are not numbers": (
        write_data(images=np.full((4, 14, 14, 1), np.nan, "float32"), labels=np.arange(4) % 2),
        (*OTHER, "--validation", "0"),
        ["Image 0", "pixel value nan", "must be finite"],
    ),
}  # fmt: skip

RUNS: dict[str, Case] = {
    "resume nothing": (None, ("resume", "nowhere"), ["There is no Zarr group", "Check the path"]),
    "resume data": (None, ("resume", "data.zarr"), ["is not a rescnet-run", "Check the path"]),
    "resume a network": (None, ("resume", "network"), ["is not a rescnet-run store"]),
    "resume to fewer layers": (
        None,
        ("resume", "run", "--max-layers", "1"),
        ["max_layers=1", "less than the 2 layers", "at least 2"],
    ),
    "resume to no layer": (
        None, ("resume", "run", "--max-layers", "0"), ["max_layers=0", "at least"]
    ),
    "attributes cut short": (truncate("run/zarr.json"), RESUME, ["Zarr group", "damaged"]),
    "attributes of something else": (
        set_attribute("format", "other"), RESUME, ["is not a rescnet-run store", "'other'"]
    ),
    "a newer format": (
        set_attribute("format_version", 99), RESUME,
        ["format version 99", "install a newer release"]
    ),
    "data half written": (
        set_attribute("data_complete", None), RESUME, ["never completely written", "Remove it"]
    ),
    "a network of another release": (
        set_attribute("network", {"filters": 4, "wings": 2}), RESUME, ["no option 'wings'"]
    ),
    "a commit cut short": (
        truncate("run/commits/0001.json"), RESUME, ["commits/0001.json is not valid JSON"]
    ),
    "a commit that is a list": (
        overwrite("run/commits/0001.json", "[1, 2]"), RESUME, ["commits/0001.json", "damaged"]
    ),
    "a commit without checksums": (
        edit_record("run/commits/0002.json", checksums=None), RESUME,
        ["commits/0002.json", "damaged"]
    ),
    "a first commit without counts": (
        edit_record("run/commits/0000.json", counts=None), RESUME, ["commits/0000.json", "damaged"]
    ),
    "a result cut short": (truncate("run/result.json"), RESUME, ["result.json is not valid JSON"]),
    "a result of something else": (
        overwrite("run/result.json", '{"a": 1}'), RESUME, ["result.json", "damaged"]
    ),
    "a claim of another driver": (
        add_claim(), RESUME, ["process 1 on elsewhere", "last renewed", "--take-over"]
    ),
    "a layer that is gone": (
        remove("run/layers/0001"), RESUME, ["layers/0001 is missing", "train again"]
    ),
    "a layer without its filters": (
        remove("run/layers/0003/filters"), RESUME, ["layers/0003/filters", "no Zarr array"]
    ),
    "a layer cut short": (
        truncate("run/layers/0002/weights/c/0/0/0"), RESUME, ["layers/0002/weights", "altered"]
    ),
    "images cut short": (
        truncate("run/data/images/c/1/0/0/0"),
        RESUME,
        ["Rows 40 to 80 of data/images are missing or altered"],
    ),
    "labels removed": (
        remove("run/data/labels"), RESUME, ["data/labels", "There is no Zarr array"]
    ),
    "check nothing": (None, ("check", "nowhere"), ["There is no Zarr group at"]),
    "info of nothing": (None, ("info", "nowhere"), ["There is no run and no saved network at"]),
    "info of data": (
        None, ("info", "data.zarr"),
        ["data.zarr is a dataset of", "images, not a run", "`rescnet data info data.zarr` "]
    ),
    "info of a file of data": (
        lambda: np.savez("small.npz", images=X, labels=Y), ("info", "small.npz"),
        ["small.npz is a dataset of", "not a run or", "`rescnet data info small.npz` describes"]
    ),
    "evaluate nothing": (None, ("evaluate", "nowhere", "data.zarr"), ["There is no Zarr group at"]),
    "evaluate without data": (
        None, ("evaluate", "run"), ["have no test split", "Name the DATA"]
    ),
    "evaluate without a test split": (
        set_attribute("source", "data.zarr"), ("evaluate", "run"),
        ["data.zarr, which has no test split", "Name the DATA"]
    ),
    "evaluate on data that are gone": (
        set_attribute("source", "gone/data.npz"), ("evaluate", "run"),
        [
            "trained on gone/data.npz, which cannot be opened. There is nothing at",
            "name the DATA to evaluate on: `rescnet evaluate run DATA`",
        ]
    ),
}  # fmt: skip

RESTORE = "Restore a copy of its zarr.json, or train again"
REMOVE = "remove it, then resume the run, which writes it anew"

ATTRIBUTES: dict[str, Case] = {
    "no JSON": (
        overwrite("run/zarr.json", "hello"),
        RESUME,
        ["Zarr group", "damaged", "Restore its zarr.json"],
    ),
    "a list": (
        overwrite("run/zarr.json", "[1]"),
        RESUME,
        ["Zarr group", "damaged", "Restore its zarr.json"],
    ),
    "a version in words": (
        set_attribute("format_version", "one"), RESUME, ["format version one", "reads version 4"]
    ),
    "no network": (
        set_attribute("network", None), RESUME,
        ["damaged (KeyError: 'network')", RESTORE],
    ),
    "a network of the wrong kind": (
        set_attribute("network", 5), RESUME, ["attributes of", "damaged", RESTORE]
    ),
    "no run": (set_attribute("run", None), RESUME, ["damaged (KeyError: 'run')", RESTORE]),
    "a seed in words": (
        set_attribute("run", {"seed": "x"}), RESUME, ["seed='x' is not a whole number"]
    ),
    "no plan": (set_attribute("plan", None), RESUME, ["damaged (KeyError: 'plan')", RESTORE]),
    "a plan of another release": (
        set_attribute("plan", {"images": 150, "wings": 2}), RESUME, ["damaged", "'wings'", RESTORE]
    ),
    "a plan in words": (
        set_attribute("plan", {"images": "many"}), RESUME, ["images='many' is not a whole", RESTORE]
    ),
    "no classes": (
        set_attribute("classes", None), RESUME,
        ["damaged (KeyError: 'classes')", RESTORE],
    ),
    "classes of the wrong kind": (
        set_attribute("classes", "cats"), ("evaluate", "run", "data.zarr"), ["damaged", RESTORE]
    ),
    "images of two dimensions": (
        set_attribute("image_shape", [14, 14]), RESUME, ["damaged", "not a list of 3", RESTORE]
    ),
    "no image shape": (
        set_attribute("image_shape", None), ("info", "run"), ["KeyError: 'image_shape'", RESTORE]
    ),
}  # fmt: skip

SIXTEEN = {**SPEC.to_dict(), "filters": "sixteen"}
READERS = [
    RESUME,
    *(("info", name) for name in ("run", "network")),
    *(("evaluate", name, "data.zarr") for name in ("run", "network")),
    *(("predict", name, "data.zarr") for name in ("run", "network")),
    *(("export", name, "net.onnx") for name in ("run", "network")),
    ("fuse", "linked", "run", "-o", "fused"),
    ("check", "run"),
    ("report", "run"),
    (*TRAIN[:-1], "run", "--or-resume"),
]
SETTINGS: dict[str, Case] = {  # each command names the store, the value and the remedy
    " ".join(arguments[:2]): (
        set_attribute("network", SIXTEEN, "network" if "network" in arguments else "run"),
        arguments,
        [
            f"/{'network' if 'network' in arguments else 'run'} cannot be used: filters='sixteen'",
            "restore a copy of its zarr.json",
        ],
    )
    for arguments in READERS
}

RECORDS: dict[str, Case] = {
    "checksums in words": (
        edit_record("run/commits/0002.json", checksums={"maps/0002": "all"}),
        RESUME,
        ["commits/0002.json is damaged", REMOVE],
    ),
    "too few checksums": (
        edit_record("run/commits/0002.json", checksums={"maps/0002": [1]}),
        RESUME,
        ["commits/0002.json has 1 checksums of maps/0002", "chunks. The record is damaged", REMOVE],
    ),
    "an accuracy in words": (
        edit_record("run/commits/0002.json", accuracy="high"),
        RESUME,
        ["commits/0002.json is damaged", REMOVE],
    ),
    "half an accuracy": (
        edit_record("run/commits/0002.json", accuracy={"layer": 1}),
        ("info", "run"),
        ["commits/0002.json is damaged", REMOVE],
    ),
    "counts of different lengths": (
        edit_record("run/commits/0000.json", counts=[[1, 2], [3]]),
        RESUME,
        ["commits/0000.json is damaged", REMOVE],
    ),
    "counts in words": (
        edit_record("run/commits/0000.json", counts=["many"]),
        RESUME,
        ["commits/0000.json is damaged", REMOVE],
    ),
    "a depth in words": (
        edit_record("run/result.json", depth="deep"), RESUME, ["result.json is damaged", REMOVE]
    ),
    "accuracies in words": (
        edit_record("run/result.json", accuracies=["high"]),
        ("info", "run"),
        ["result.json is damaged", REMOVE],
    ),
    "a claim cut short": (
        lambda: (add_claim()(), truncate("run/claims/000099.json")()),
        RESUME,
        ["has a claim that cannot be read, claims/000099.json", "--take-over"],
    ),
    "a claim that is a list": (
        lambda: (add_claim()(), overwrite("run/claims/000099.json", "[]")()),
        RESUME,
        ["has a claim that cannot be read, claims/000099.json", "--take-over"],
    ),
    "a claim of no time": (
        add_claim(renewed="now"), RESUME, ["cannot be read, claims/000099.json", "--take-over"]
    ),
    "a claim from the future": (
        add_claim(renewed=2**33), RESUME, ["process 1 on elsewhere", "2242-", "--take-over"]
    ),
    "a file for the claims": (
        lambda: (remove("run/claims")(), overwrite("run/claims", "hello")()),
        RESUME,
        ["run/claims", "File exists"],
    ),
}  # fmt: skip

LINKED = ("resume", "linked", "--max-layers", "2")
RESTORE_DATA = "Put the images back as they were when the run began"

DATA: dict[str, Case] = {
    "gone": (remove("data.zarr"), LINKED, ["There is no Zarr array at", "data.zarr/images"]),
    "without images": (
        remove("data.zarr/images"), LINKED, ["There is no Zarr array at", "data.zarr/images"]
    ),
    "cut short": (
        truncate("data.zarr/images/c/1/0/0/0"),
        LINKED,
        ["of images are missing or altered: they cannot be decoded", RESTORE_DATA],
    ),
    "other images": (
        lambda: zarr.create_array("data.zarr", name="images", data=X[::-1], overwrite=True),
        LINKED,
        ["of images are missing or altered: they are not those", RESTORE_DATA],
    ),
    **{
        f"too few rows of {name}": (
            edit_record(f"run/data/{name}/zarr.json", shape=shape),
            ("fuse", "run", "linked", "-o", "fused"),
            ["/run has ", f"of shape ({shape[0]},", "restore a copy of the run"],
        )
        for name, shape in (("images", [10, 14, 14, 1]), ("labels", [10]), ("train", [0]))
    },
    "labels of other classes": (
        lambda: zarr.open_array("run/data/labels", mode="r+").__setitem__(slice(None), 77),
        ("fuse", "run", "linked", "-o", "fused"),
        ["/run has labels from 77 to 77, and 10 classes", "`rescnet check` lists"],
    ),
    "a mask of other rows in a report": (
        edit_record("run/data/train/zarr.json", shape=[10]),
        ("report", "run"),
        ["/run has a training mask of shape (10,)", "restore a copy of the run"],
    ),
    "a test set of other images": (
        write_data(images=X[:, :7], labels=Y), (*TRAIN, "--test", "other.zarr"),
        ["(7, 14, 1)", "shape"]
    ),
}  # fmt: skip

USE: dict[str, Case] = {
    "layers in words": (
        None, ("resume", "run", "--max-layers", "many"), ["'many' is not a valid integer"]
    ),
    "take over a network": (
        None, ("resume", "network", "--take-over"), ["is not a rescnet-run store", "Check the path"]
    ),
    "take over a new run": (None, (*TRAIN, "--take-over"), ["No such option", "--take-over"]),
    "take over half a run": (
        set_attribute("data_complete", None),
        (*RESUME, "--take-over"),
        ["never completely written", "Remove it and train again"],
    ),
    "an empty address": (
        None, (*TRAIN, "--scheduler", ""), ["--scheduler is empty. Give the address of a Dask"]
    ),
    "a folder for a scheduler file": (
        None, (*TRAIN, "--scheduler-file", "run"), ["run is not a scheduler file of Dask"]
    ),
    "a port in words": (
        None, (*TRAIN, "--scheduler", "localhost:x"), ["No Dask scheduler answers at localhost:x"]
    ),
    "a gateway without a scheme": (
        None, (*TRAIN, "--gateway", "nonsense"), ["No Dask gateway answers at nonsense"]
    ),
    "a cluster to check with that is not there": (
        None,
        ("check", "run", "--scheduler", "tcp://127.0.0.1:1"),
        ["No Dask scheduler answers at tcp://127.0.0.1:1", "Connection refused"],
    ),
    "predictions over a folder": (
        None, ("predict", "run", "data.zarr", "-o", "run"), ["run cannot be written", "directory"]
    ),
    "predictions in no folder": (
        None,
        ("predict", "run", "data.zarr", "-o", "none/labels.csv"),
        ["none/labels.csv cannot be written: none does not exist. Create that folder"],
    ),
    "a store in this folder": (
        None, (*TRAIN[:-1], "."), ["already holds something that is not a run", "Choose another"]
    ),
    "a store below a file": (
        None, (*TRAIN[:-1], "/dev/null/run"), ["/dev/null/run", "cannot be written"]
    ),
    "a name too long": (None, (*TRAIN[:-1], "x" * 300), ["File name too long", "Check the path"]),
    "a server that is not there": (
        None, (*TRAIN[:-1], "webdav://127.0.0.1:1/run"), ["cannot be opened", "webdav"]
    ),
}  # fmt: skip

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "plan": PLANS, "cluster": CLUSTERS, "store": STORES, "run": RUNS,
        "attributes": ATTRIBUTES, "settings": SETTINGS, "record": RECORDS, "data": DATA, "use": USE,
    }.items()
    for name, case in cases.items()
}  # fmt: skip


@pytest.fixture(scope="module")
def original(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> tuple[Path, Snapshot]:
    """Return a folder with data, a run on arrays, a saved network and a run that links to the data.

    The runs have two layers and one.
    """
    folder = tmp_path_factory.mktemp("original")
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    group.create_array("images", data=X, chunks=(50, 14, 14, 1))
    group.create_array("labels", data=Y, chunks=(50,))
    with Client(threads_cluster):
        clf = ResCNetClassifier(SPEC, store=folder / "run", run=RUN).fit(X, Y)
        linked = ResCNetClassifier(SPEC.replace(max_layers=1), store=folder / "linked", run=RUN)
        linked.fit(str(folder / "data.zarr"))
    clf.save(folder / "network")
    return folder, Snapshot.of(folder)


@pytest.fixture
def location(
    original: tuple[Path, Snapshot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Yield the folder to damage, in which commands run; it is restored afterwards.

    It has a path of its own in each test, as nothing of the others may be cached.
    """
    home, snapshot = original
    folder = home.rename(tmp_path / "copy")
    record = folder / "linked/zarr.json"
    record.write_text(record.read_text().replace(str(home), str(folder)))
    monkeypatch.chdir(folder)
    yield folder
    # First, as tasks that a failed command has left may still write: to the folder of this test.
    folder.rename(home)
    snapshot.restore(home)


@pytest.fixture(scope="module")
def process_cluster() -> Any:
    """Yield a cluster of one worker process that the cases share."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("damage", "arguments", "fragments"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_an_error_and_changes_no_file(
    location: Path,
    process_cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage | None,
    arguments: tuple[str, ...],
    fragments: list[str],
) -> None:
    """One row of the tables above: the exit code, the message, and no traceback.

    The code is 75 if there is no scheduler, as it may start later, else 2.
    """
    monkeypatch.setattr("rescnet_dist.cluster.connect.CONNECT_SECONDS", 1)
    if damage:
        damage()
    before = read_contents(location)
    options = {"--scheduler", "--scheduler-file", "--gateway", "--gateway-cluster", "--workers"}
    cluster = options & {*arguments}
    if arguments[0] in ("train", "plan", "resume") and not cluster:
        arguments = (*arguments, "--scheduler", process_cluster.scheduler_address)
    result = CliRunner().invoke(main, list(arguments))
    expected = 75 if "Connection refused" in fragments else 2
    assert result.exit_code == expected, (result.output, result.exception)
    for fragment in fragments:
        assert fragment in result.output
    assert "Traceback" not in result.output
    assert "hidden" not in result.output
    after = read_contents(location)
    assert {path: data for path, data in after.items() if not may_be_written(path)} == {
        path: data for path, data in before.items() if not may_be_written(path)
    }
    assert not os.path.exists("new") or Path("new").is_file()


DAMAGED: dict[str, tuple[Damage, str, list[str]]] = {  # what `rescnet check` finds
    "attributes of a run cut short": (
        truncate("run/zarr.json"), "run", ["run is damaged", "Restore its zarr.json from a copy"]
    ),
    "attributes of a network cut short": (
        truncate("network/zarr.json"), "network", ["network is damaged", "Restore its zarr.json"]
    ),
    "attributes of a dataset cut short": (
        lambda: (
            import_dataset("data.zarr", "imported.zarr"), truncate("imported.zarr/zarr.json")()
        ),
        "imported.zarr", ["imported.zarr is damaged", "Restore its zarr.json"]
    ),
    "a zip file cut short": (
        lambda: (load("network").save("net.zip"), truncate("net.zip")()),
        "net.zip", ["net.zip is not a complete zip file", "save the network again"]
    ),
    "an array of a network cut short": (
        truncate("network/layers/0001/weights/zarr.json"),
        "network", ["layers/0001/weights is damaged", "Restore its zarr.json"]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "url", "fragments"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_metadata_are_problems(
    location: Path, client: Client, damage: Damage, url: str, fragments: list[str]
) -> None:
    """`rescnet check` ends with code 1, unlike for a wrong path; others raise CorruptDataError."""
    damage()
    result = CliRunner().invoke(main, ["check", url, "--json"])
    assert result.exit_code == 1, result.output
    (problem,) = json.loads(result.stdout)["problems"]
    for fragment in fragments:
        assert fragment in problem
    with pytest.raises(CorruptDataError):
        open_dataset(url) if url.endswith(".zarr") else load_network(url).in_memory()
    assert CliRunner().invoke(main, ["check", "nowhere"]).exit_code == 2


def test_check_finds_that_a_run_has_no_plan(location: Path, client: Client) -> None:
    """Which is needed to know its chunks."""
    set_attribute("plan", None)()
    result = CliRunner().invoke(main, ["check", "run"])
    assert result.exit_code == 1
    assert "damaged (KeyError: 'plan')" in result.stdout
    assert RESTORE in result.stdout


REMOVABLE_RECORDS = ("commits/0000.json", "commits/0001.json", "commits/0002.json", "result.json")


@pytest.mark.parametrize("record", REMOVABLE_RECORDS)
def test_removed_record_is_written_again_on_resume(
    location: Path, client: Client, record: str
) -> None:
    """As its message says: resuming the run gives the same layers."""
    before = read_contents(location / "run")
    (location / "run" / record).unlink()
    result = CliRunner().invoke(main, ["resume", "run"])
    assert result.exit_code == 0, result.output
    after = read_contents(location / "run")
    assert after.keys() == before.keys()
    for path, data in before.items():
        if not path.startswith(("commits/", "result")):  # these have timestamps
            assert after[path] == data, path
    assert CliRunner().invoke(main, ["check", "run"]).exit_code == 0


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that cannot be written to, not even by root."""
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


def test_read_only_folder_is_an_error(location: Path, client: Client, read_only: Path) -> None:
    """Before anything is computed, for train and for save."""
    result = CliRunner().invoke(main, [*TRAIN[:-1], str(read_only / "run")])
    assert result.exit_code == 2
    for words in (f"{read_only}/run", "cannot be written", "Check your permissions"):
        assert words in result.output
    with pytest.raises(StoreError, match="cannot be written"):
        load(location / "network").save(read_only / "network")
    assert list(read_only.iterdir()) == []


BUCKETS: dict[str, tuple[dict[str, str | None], str, list[str]]] = {
    "closed": (
        {"AWS_SECRET_ACCESS_KEY": "a-wrong-secret"},
        "s3://runs/x",
        ["s3://runs/x cannot be reached", "your permissions"],
    ),
    "without a key": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "s3://runs/x",
        ["s3://runs/x cannot be reached", "Set the credentials", "AWS_ACCESS_KEY_ID"],
    ),
}


@pytest.mark.parametrize(("environment", "url", "fragments"), BUCKETS.values(), ids=BUCKETS.keys())
def test_inaccessible_buckets_are_errors(
    location: Path,
    client: Client,
    s3: None,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str | None],
    url: str,
    fragments: list[str],
) -> None:
    """For all commands, within seconds and without secrets."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(location / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # it has the old credentials
    for command in (
        (*TRAIN[:-1], url),
        ("train", url, "--preset", "digits", "--store", "new"),
        ("resume", url),
        ("check", url),
        ("evaluate", url, "data.zarr"),
    ):
        started = time.monotonic()
        result = CliRunner().invoke(main, list(command))
        assert time.monotonic() - started < 20
        assert result.exit_code in (2, 75), (command, result.output, result.exception)
        assert isinstance(result.exception, SystemExit), (command, result.exception)
        for fragment in fragments:
            assert fragment in result.output, (command, result.output)
        assert "secret" not in result.output
    assert not Path("new").exists()
