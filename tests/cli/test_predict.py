"""`rescnet predict`: photos, folders and datasets, to CSV, JSON lines, Parquet and Zarr."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from PIL import Image

import rescnet_dist as rd
from rescnet_dist import AugmentSpec, Network, NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.cli import tables
from rescnet_dist.cli.actions import predict
from rescnet_dist.cli.batches import compute_batches, compute_slices
from rescnet_dist.data.kinds import is_dask_array
from tests.commands import run
from tests.saved import edit_saved

Array = np.ndarray[Any, Any]

X, Y = (array[:80] for array in rd.load_digits())
X = X[:, ::2, ::2]
NAMES = np.array([f"digit {label}" for label in range(10)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the fixtures below."""
    return tmp_path_factory.mktemp("predict")


@pytest.fixture(scope="module")
def network(folder: Path, threads_cluster: LocalCluster) -> str:
    """Return the zip file of a network that was trained on digits of 14×14."""
    spec = NetworkSpec(filters=4, block=5, stride=2, head="regress", ridge=0.3, max_layers=1)
    spec = spec.replace(features="second-order,first-order")
    with Client(threads_cluster):
        clf = ResCNetClassifier(spec, run=RunSpec(chunk_images=80, solve_threads=1))
        clf.fit(X, NAMES[Y]).save(folder / "net.zip")
    return str(folder / "net.zip")


@pytest.fixture(scope="module")
def digits_network(folder: Path, threads_cluster: LocalCluster) -> str:
    """Return the zip file of a network for the embedded digits, which are in memory."""
    spec = NetworkSpec(filters=2, block=14, stride=7, head="regress", ridge=0.3, max_layers=1)
    with Client(threads_cluster):
        run_spec, augment = (
            RunSpec(chunk_images=80, solve_threads=1),
            AugmentSpec(copies=1, shift=2),
        )
        clf = ResCNetClassifier(spec, run=run_spec, augment=augment)
        clf.fit(*(array[:80] for array in rd.load_digits())).save(folder / "digits.zip")
    return str(folder / "digits.zip")


@pytest.fixture(scope="module")
def photos(folder: Path) -> Path:
    """Return a flat folder of 20 photos of several sizes, modes and formats."""
    path = folder / "photos"
    path.mkdir()
    for number, image in enumerate(X[:20, :, :, 0]):
        picture = Image.fromarray(image).convert("RGB" if number % 2 else "L")
        size = (14, 14) if number % 4 == 0 else (20 + number, 40)
        picture.resize(size).save(path / f"{number:02d}.{'jpg' if number % 3 == 1 else 'png'}")
    return path


@pytest.fixture(scope="module")
def data(folder: Path) -> str:
    """Return a Zarr store of 80 digits in small chunks."""
    group = zarr.open_group(folder / "data.zarr", mode="w")
    group.create_array("images", data=X, chunks=(7, 14, 14, 1))
    return str(folder / "data.zarr")


def read_csv(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(text.splitlines()))


# photos -----------------------------------------------------------------------------------------


def test_photos_of_any_size_by_name(network: str, photos: Path) -> None:
    """Each gets the label and the probability that Python predicts."""
    paths = sorted(photos.iterdir())[:5]
    result = run("predict", network, *paths, "--proba")
    assert result.exit_code == 0, result.output
    rows, clf = read_csv(result.stdout), rd.load(network)
    assert [row["file"] for row in rows] == [str(path) for path in paths]
    for path, row in zip(paths, rows, strict=True):
        found = clf.predict_image(path)
        assert row["label"] == found.label
        assert float(row["probability"]) == pytest.approx(found.probability, abs=1e-6)
        assert float(row[f"p({found.label})"]) == float(row["probability"])


def test_folder_of_photos(network: str, photos: Path) -> None:
    """Without folders of classes; names are relative to the folder."""
    result = run("predict", network, photos, "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["file"] for row in rows] == sorted(path.name for path in photos.iterdir())
    assert [row["image"] for row in rows] == list(range(20))
    clf = rd.load(network)
    assert [row["label"] for row in rows] == [
        clf.predict_image(photos / row["file"]).label for row in rows
    ]
    assert rows[0].keys() == {"image", "file", "label", "probability"}


def test_unreadable_photo_is_named_or_skipped(network: str, photos: Path, tmp_path: Path) -> None:
    """The others keep their numbers; nothing is written if it is an error."""
    good, bad = sorted(photos.iterdir())[0], tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    output = tmp_path / "labels.csv"
    failed = run("predict", network, good, bad, good, "-o", output)
    assert failed.exit_code == 2
    assert f"{bad}: The file is not a PNG" in failed.output
    assert "--on-error skip" in failed.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.png"]
    skipped = run("predict", network, good, bad, good, "-o", output, "--on-error", "skip", "--json")
    assert skipped.exit_code == 0, skipped.output
    outcome = json.loads(skipped.stdout)
    assert outcome["images"] == 2
    assert [str(bad) in problem for problem in outcome["skipped"]] == [True]
    assert [row["image"] for row in read_csv(output.read_text())] == ["0", "2"]
    zarr_output = tmp_path / "labels.zarr"
    arguments = ("-o", zarr_output, "--on-error", "skip")
    assert run("predict", network, good, bad, good, *arguments).exit_code == 0
    with xr.open_zarr(zarr_output, consolidated=False) as dataset:
        assert dataset["image"].values.tolist() == [0, 2]
    only_bad = run("predict", network, bad, "--on-error", "skip")
    assert only_bad.exit_code == 2
    assert "None of the images can be used" in only_bad.output


def test_options_where_the_network_does_not_know(
    network: str, photos: Path, tmp_path: Path
) -> None:
    """A network of an earlier release needs --resize and --channels."""
    rd.load(network).save(tmp_path / "net")
    edit_saved(tmp_path / "net", input=None)
    photo = sorted(photos.iterdir())[1]
    failed = run("predict", tmp_path / "net", photo)
    assert failed.exit_code == 2
    assert "trained on 14×14 with 1" in failed.output
    options = ("--resize", "14", "--channels", "gray")
    for given in (photo, photos):
        found = run("predict", tmp_path / "net", given, *options)
        assert found.exit_code == 0, found.output
        assert found.stdout == run("predict", network, given).stdout


def test_evaluate_photos_of_other_sizes(network: str, photos: Path, tmp_path: Path) -> None:
    """They are converted as by `rescnet predict`, by the command and by all methods."""
    paths = sorted(photos.iterdir())
    for path, label in zip(paths, NAMES[Y], strict=False):
        target = tmp_path / "data" / "test" / label / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    rows = read_csv(run("predict", network, *paths).stdout)
    correct = np.mean([row["label"] == label for row, label in zip(rows, NAMES[Y], strict=False)])
    clf, url = rd.load(network), str(tmp_path / "data")
    assert clf.score(url) == clf.evaluate(url).accuracy == clf.staged_score(url)[-1] == correct
    by_file = {row["file"].rsplit("/", 1)[-1]: row["label"] for row in rows}
    names = [path.name for path in sorted((tmp_path / "data").rglob("*.*g"))]
    assert np.asarray(clf.predict(url)).tolist() == [by_file[name] for name in names]
    clf.save(tmp_path / "net")
    edit_saved(tmp_path / "net", input=None)
    options = ("--resize", "14", "--channels", "gray")
    for given in (
        (network, url),
        (network, url, "--split", "test"),
        (tmp_path / "net", url, *options),
        (tmp_path / "net", url, "--split", "test", *options),
    ):
        done = run("evaluate", *given, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["accuracy"] == correct
    assert run("evaluate", tmp_path / "net", url).exit_code == 2


def test_evaluate_scales_photos_as_the_training_images(
    photos: Path, tmp_path: Path, threads_cluster: LocalCluster
) -> None:
    """A network of images from 0 to 1 sees photos from 0 to 1."""
    spec = NetworkSpec(filters=4, block=5, stride=2, head="regress", ridge=0.3, max_layers=1)
    with Client(threads_cluster):
        clf = ResCNetClassifier(spec, run=RunSpec(chunk_images=80, solve_threads=1))
        clf.fit((X / 255).astype(np.float32), Y)
        paths = sorted(photos.iterdir())
        expected = [clf.predict_image(path).label for path in paths]
        assert np.asarray(clf.predict(str(photos))).tolist() == expected


def test_only_photos_can_be_several(network: str, photos: Path, data: str) -> None:
    """Two datasets are an error that names the one that is no photo."""
    result = run("predict", network, sorted(photos.iterdir())[0], data)
    assert result.exit_code == 2
    assert f"{data} is not an image file" in result.output


def test_info_of_a_saved_network(network: str) -> None:
    """Its images, classes, layers and size."""
    text = run("info", network)
    assert text.exit_code == 0, text.output
    assert "images    14×14×1, uint8" in text.stdout
    assert "classes   10: digit 0, digit 1" in text.stdout
    described = json.loads(run("info", network, "--json").stdout)
    assert (described["depth"], described["state"]) == (1, "saved")
    assert described["bytes"] == Path(network).stat().st_size
    assert described["input"] == {"dtype": "uint8", "resize": None, "channels": None}


# tables -----------------------------------------------------------------------------------------


def test_formats_have_the_same_predictions(network: str, photos: Path, tmp_path: Path) -> None:
    """Chosen by the suffix; labels, file names and probabilities."""
    names = ("a.csv", "a.jsonl", "a.parquet", "a.zarr")
    for name in names:
        result = run("predict", network, photos, "--proba", "-o", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert "wrote 20 labels" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    rows = read_csv((tmp_path / "a.csv").read_text())
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    with xr.open_zarr(tmp_path / "a.zarr", consolidated=False) as dataset:
        stored = dataset.load()
    for column in ("file", "label"):
        expected = [row[column] for row in rows]
        assert [line[column] for line in lines] == expected
        assert table[column] == expected
        assert stored[column].values.tolist() == expected
    expected_values = [[float(row[f"p({name})"]) for name in NAMES] for row in rows]
    assert stored["class"].values.tolist() == NAMES.tolist()
    assert stored["probabilities"].dims == ("image", "class")
    for values in (
        [list(line["probabilities"].values()) for line in lines],
        np.transpose([table[f"p({name})"] for name in NAMES]),
        stored["probabilities"].values,
    ):
        np.testing.assert_allclose(values, expected_values, atol=1e-6)


def test_zarr_table_of_several_chunks(
    network: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end within a chunk; it can be written to any file system."""
    monkeypatch.setattr(tables, "ZARR_CHUNK_ROWS", 30)
    assert run("predict", network, data, "-o", "memory://tables/a.zarr").exit_code == 0
    with xr.open_zarr("memory://tables/a.zarr", consolidated=False) as dataset:
        assert dataset["label"].values.tolist() == rd.load(network).predict(X).tolist()
    assert run("predict", network, data, "-o", "memory://tables/a.csv").exit_code == 0
    fs = fsspec.filesystem("memory")
    assert len(read_csv(fs.cat_file("/tables/a.csv").decode())) == 80
    again = run("predict", network, data, "-o", "memory://tables/a.zarr")
    assert again.exit_code == 2
    assert "already holds something" in again.output
    fs.rm("/tables", recursive=True)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.zarr"])
def test_failure_leaves_nothing(
    network: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither a table nor a part of one, if a later batch fails."""

    def fail(*_arguments: Any) -> Any:
        yield 0, [np.full((20, 10), 0.1)]
        raise rd.DataError("image 20 is damaged")

    monkeypatch.setattr(predict, "compute_batches", fail)
    result = run("predict", network, data, "-o", tmp_path / name)
    assert result.exit_code == 2
    assert "image 20 is damaged" in result.output
    assert list(tmp_path.iterdir()) == []


def test_unknown_suffix_and_missing_pyarrow(
    network: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are found before the work."""
    result = run("predict", network, data, "-o", tmp_path / "a.xlsx")
    assert result.exit_code == 2
    assert "unknown suffix '.xlsx'. Use .csv, .jsonl, .parquet or .zarr" in result.output
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    result = run("predict", network, data, "-o", tmp_path / "a.parquet")
    assert result.exit_code == 2
    assert "rescnet-dist[parquet]" in result.output


# where it runs ----------------------------------------------------------------------------------


def test_all_threads_compute_and_rows_keep_their_order(network: str, data: str) -> None:
    """Batches run in several threads of this process; the result is that of one."""
    clf, seen = rd.load(network), set[str]()
    barrier = threading.Barrier(2, timeout=30)

    def meet(block: Array) -> Array:
        if len(block):
            seen.add(threading.current_thread().name)
            barrier.wait()
        return block

    images = predict.open_images((data,), clf.network_, 2, None, None, None)
    assert images.array.numblocks[0] == 2
    lazy = clf.predict_proba(images.array.map_blocks(meet, dtype=images.array.dtype, meta=X[:0]))
    batches = list(predict.compute_batches([lazy], None, 2))
    assert len(seen) == 2
    assert [start for start, _ in batches] == [0, 40]
    np.testing.assert_array_equal(
        np.concatenate([rows for _, (rows,) in batches]), clf.predict_proba(X)
    )


def test_on_a_cluster(network: str, photos: Path, threads_cluster: LocalCluster) -> None:
    """The named cluster computes the same table, photos included."""
    address = threads_cluster.scheduler_address
    if not address.startswith("tcp"):
        address = threads_cluster.scheduler.address
    expected = run("predict", network, photos)
    assert expected.exit_code == 0
    result = run("predict", network, photos, "--scheduler", address)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected.stdout


def test_photos_that_one_task_holds_are_not_lazy(
    network: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is the same as that of more tasks."""
    data, is_lazy = str(photos), list[bool]()
    expected = run("predict", network, data, "--proba", "--flips")
    assert expected.exit_code == 0, expected.output
    monkeypatch.setattr(Network, "batch_images", 7)

    def record(tables: Any, *arguments: Any) -> Any:
        is_lazy.append(is_dask_array(tables[0]))
        return compute_batches(tables, *arguments)

    monkeypatch.setattr(predict, "compute_batches", record)
    assert run("predict", network, data, "--proba", "--flips").stdout == expected.stdout
    monkeypatch.undo()
    monkeypatch.setattr(predict, "compute_batches", record)
    run("predict", network, data)
    assert is_lazy == [True]


@pytest.mark.parametrize("averaging", [("--flips",), ("--copies", "2")], ids=["flips", "random"])
def test_arrays_in_memory_are_predicted_in_batches(
    digits_network: str, averaging: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is that of all at once, and there is progress after each batch."""
    arguments = ("predict", digits_network, "digits", "--proba", *averaging)
    expected = run(*arguments)
    assert expected.exit_code == 0, expected.output
    starts = list[int]()

    def record(*arguments: Any) -> Iterator[Any]:
        for batch in compute_slices(*arguments):
            starts.append(batch[0])
            yield batch

    monkeypatch.setattr(Network, "batch_images", 200)
    monkeypatch.setattr(predict, "count_threads", lambda client: 2)
    monkeypatch.setattr(predict, "compute_slices", record)
    result = run(*arguments)
    assert result.stdout == expected.stdout
    assert starts == [0, 400, 800]


def test_tables_without_rows_have_no_header(network: str, photos: Path) -> None:
    """Nothing is written if the first images cannot be read, in any form."""
    missing = str(photos / "missing.png")
    for form in ((), ("--json",)):
        result = run("predict", network, missing, *form)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "missing.png" in result.stderr


def test_evaluations_name_the_copies_that_scores_are_averaged_over(digits_network: str) -> None:
    """Also accuracies by layer."""
    for averaging, text in (
        ((), "1 layer, 1,000 images"),
        (("--flips",), "1 layer, averaged over each image and its mirror image, 1,000 images"),
        (("--copies", "2"), "1 layer, averaged over each image and its copies (2), 1,000 images"),
    ):
        result = run("evaluate", digits_network, "digits", *averaging)
        assert result.stdout.splitlines()[0] == text
    result = run("evaluate", digits_network, "digits", "--flips", "--staged")
    assert result.stdout.endswith("1 layer, averaged over each image and its mirror image\n")


@pytest.mark.parametrize("what", ["photo", "arrays"])
def test_images_in_memory_do_not_import_dask_arrays(
    network: str, digits_network: str, photos: Path, what: str
) -> None:
    """Nor distributed: they take more than a second, and a photo a few milliseconds."""
    if what == "arrays":
        network, data, header = digits_network, "digits", "image,label,probability\n0,"
    else:
        data, header = str(photos / "00.png"), "image,file,label,probability\n0,"
    slow = {"dask.array", "distributed", "pandas", "scipy.linalg", "sklearn", "xarray"}
    code = (
        "import sys\nfrom rescnet_dist.cli import main\n"
        f"main(['predict', {network!r}, {data!r}], standalone_mode=False)\n"
        f"sys.exit(str({slow} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(header)
    assert done.stderr == "set()\n"


def test_batches_in_progress_are_bounded(network: str, data: str) -> None:
    """Images are not read ahead of the table by more than a few batches."""
    clf, read = rd.load(network), list[int]()

    def count(block: Array) -> Array:
        read.append(len(block))
        return block

    images = predict.open_images((data,), clf.network_, 20, None, None, None)
    counted = images.array.map_blocks(count, dtype=images.array.dtype, meta=X[:0])
    batches = predict.compute_batches([clf.predict_proba(counted)], None, 1)
    next(batches)
    assert images.array.numblocks[0] == 20
    assert len(read) <= 4
    assert len(list(batches)) == 19
