"""Training, evaluation and prediction on imported datasets."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from distributed import Client
from import_helpers import run_command, save_image

import rescnet_dist as rd
from rescnet_dist.data.importing import import_dataset

SMALL_NETWORK = (
    "--preset",
    "digits",
    "--filters",
    4,
    "--max-layers",
    1,
    "--block",
    14,
    "--stride",
    14,
)


@pytest.fixture(scope="module")
def digit_store(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """An import of a folder of digits: 200 to train, 40 to validate, 50 to test."""
    folder = tmp_path_factory.mktemp("digits")
    names, (images, labels) = ["zero", "one", "two", "three", "four"], rd.load_digits()
    chosen = np.flatnonzero(labels < 5)
    first = 0
    for split, count in (("train", 200), ("val", 40), ("test", 50)):
        for number in chosen[first : first + count]:
            path = folder / "png" / split / names[labels[number]] / f"{number:05}.png"
            save_image(path, images[number, ..., 0])
        first += count
    with Client(threads_cluster) as client:
        import_dataset(folder / "png", folder / "out", client, chunk_images=64)
    return folder / "out"


def test_train_on_imported_images(client: Client, digit_store: Path, tmp_path: Path) -> None:
    """A run refers to the images and has no copy of them.

    It has the train split, and the val split to validate on. The test accuracy is that of the test
    split, and predictions are class names.
    """
    url = tmp_path / "run"
    result = run_command("train", digit_store, "--store", url, "--json", *SMALL_NETWORK)
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    attributes = zarr.open_group(url, mode="r").attrs.asdict()
    assert attributes["images"] == {"url": str(digit_store), "path": "images", "start": 0}
    assert not (url / "data" / "images").exists()
    network = rd.load(url)
    assert network.classes_.tolist() == ["four", "one", "three", "two", "zero"]
    info = json.loads(run_command("info", url, "--json").stdout)
    assert info["images"] == 240
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(digit_store).compute()
    names = np.take(data.class_names, data.labels)
    for split, column in (("train", "train"), ("val", "validation"), ("test", None)):
        rows = (data.split == split).to_numpy()
        accuracy = network.score(data.images.to_numpy()[rows], names[rows])
        assert accuracy == pytest.approx(
            outcome["layers"][0][column] if column else outcome["test"]
        )
        evaluated = run_command("evaluate", url, digit_store, "--split", split, "--json")
        assert json.loads(evaluated.stdout)["accuracy"] == pytest.approx(accuracy)
        one_split = data.isel(image=rows).chunk()
        assert network.score(one_split) == pytest.approx(accuracy)
    result = run_command("predict", url, digit_store, "-o", tmp_path / "labels.csv")
    assert result.exit_code == 0, result.output
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    predicted = [row[rows[0].index("label")] for row in rows[-50:]]
    assert set(predicted) <= set(network.classes_.tolist())
    assert len(rows) in (50, 51)


def test_predict_folder_without_classes(client: Client, digit_store: Path, tmp_path: Path) -> None:
    """Predictions are listed by file; such a folder cannot be trained on or imported."""
    url, folder = tmp_path / "run", tmp_path / "new"
    assert run_command("train", digit_store, "--store", url, *SMALL_NETWORK).exit_code == 0
    with dask.config.set(scheduler="sync"):
        images = rd.open_dataset(digit_store)["images"][:7, :, :, 0].to_numpy()
    for number, image in enumerate(images):
        save_image(folder / f"{number}.png", image)
    result = run_command("predict", url, folder, "-o", tmp_path / "labels.csv")
    assert (result.exit_code, result.stderr) == (0, f"wrote 7 labels to {tmp_path}/labels.csv\n")
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [f"{number}.png" for number in range(7)]
    assert [row["label"] for row in rows] == rd.load(url).predict(images).tolist()
    for command in (["train", folder, "--preset", "digits"], ["data", "import", folder, "x.zarr"]):
        result = run_command(*command)
        assert result.exit_code == 2
        assert "has no" in result.output
        assert "labels" in result.output or "train" in result.output


def test_train_on_part_of_imported_images(
    client: Client, digit_store: Path, tmp_path: Path
) -> None:
    """With a fraction of the train split held out in place of the val split."""
    url = tmp_path / "run"
    result = run_command("train", digit_store, "--store", url, "--validation", 0.2, *SMALL_NETWORK)
    assert result.exit_code == 0, result.output
    assert "test" in result.output
    info = json.loads(run_command("info", url, "--json").stdout)
    assert info["images"] == 200
    assert not (url / "data" / "images").exists()


def test_estimator_uses_splits(client: Client, digit_store: Path) -> None:
    """`fit` uses the train and val splits, `score` and `predict` the test split."""
    spec = rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=1, block=14, stride=14)
    network = rd.ResCNetClassifier(spec).fit(str(digit_store))
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(digit_store).compute()
        is_test = data.split == "test"
        predicted = np.asarray(network.predict(str(digit_store)))
        expected = network.predict(data.images[is_test].to_numpy())
    np.testing.assert_array_equal(predicted, expected)
    truth = np.take(data.class_names, data.labels[is_test])
    assert network.score(str(digit_store)) == pytest.approx(np.mean(predicted == truth))
