"""Tables of paths and labels, and datasets of numbered items such as those of PyTorch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from PIL import Image
from source_files import COLOR, GRAY, LABELS, encode_image, write_files

import rescnet_dist as rd
from rescnet_dist import DataError
from rescnet_dist.data.sources.files import read_files

NAMES = np.array(["cat", "dog", "NA"])[LABELS]
SPLITS = ["test", "train", "validation"] * 3 + ["train"]
SPEC = rd.NetworkSpec(filters=3, block=2, stride=2, head="regress", max_layers=1)
RUN = rd.RunSpec(chunk_images=100, accumulators=1, solve_threads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of ten images."""
    files = {f"photos/{number}.png": encode_image(image) for number, image in enumerate(COLOR)}
    return write_files(tmp_path, files)


def make_table(**columns: Any) -> pd.DataFrame:
    """Return paths and labels of the images in the folder."""
    paths = [f"photos/{number}.png" for number in range(10)]
    return pd.DataFrame({"path": paths, "label": LABELS, **columns})


def check_images(data: Any, order: Any = slice(None)) -> None:
    """Assert that a dataset has the images of the folder in some order."""
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, COLOR[order])


def test_csv_of_paths_and_labels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the file, wherever it is read from."""
    make_table(label=NAMES).to_csv(folder / "labels.csv", index=False)
    monkeypatch.chdir(folder.parent)
    for url in (folder / "labels.csv", f"file://{folder}/labels.csv"):
        data = rd.open_dataset(url)
        check_images(data)
        assert data.class_names == ["NA", "cat", "dog"]
        assert np.array(data.class_names)[data.labels].tolist() == NAMES.tolist()
        assert data.file.to_numpy()[3] == "photos/3.png"


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["3", "10", "-1"], [-1, 3, 10]),
        (["1.0", "2.0", "3.0"], [1.0, 2.0, 3.0]),
        (["007", "1", "x"], ["007", "1", "x"]),
    ],
)
def test_labels_of_csv_files(folder: Path, texts: list[str], names: list[Any]) -> None:
    """Numbers if all of them are, else text as it is."""
    labels = [texts[code] for code in LABELS]
    make_table(label=labels).to_csv(folder / "labels.csv", index=False)
    found = rd.open_dataset(folder / "labels.csv").class_names
    assert found == names
    assert list(map(type, found)) == list(map(type, names))


def test_columns_have_other_names_and_splits(folder: Path) -> None:
    """In any case of letters; images are sorted by split."""
    table = make_table().rename(columns={"path": "Image", "label": "Class"}).assign(Split=SPLITS)
    table.to_csv(folder / "labels.csv", index=False)
    data = rd.open_dataset(folder / "labels.csv")
    order = [1, 4, 7, 9, 2, 5, 8, 0, 3, 6]
    check_images(data, order)
    assert data.labels.to_numpy().tolist() == LABELS[order].tolist()
    assert data.split.to_numpy().tolist() == ["train"] * 4 + ["val"] * 3 + ["test"] * 3


def test_csv_at_a_url_with_absolute_paths(folder: Path) -> None:
    """Of another file system, and with the options of image files."""
    fs = fsspec.filesystem("memory")
    fs.pipe({f"/test-table/{number}.png": encode_image(COLOR[number]) for number in range(10)})
    try:
        table = make_table(path=[f"memory://test-table/{number}.png" for number in range(10)])
        table.to_csv(folder / "labels.csv", index=False)
        check_images(rd.open_dataset(folder / "labels.csv"))
        gray = rd.open_dataset(folder / "labels.csv", resize=4, channels="gray")
        assert gray.images.shape == (10, 4, 4, 1)
    finally:
        fs.rm("/test-table", recursive=True)


def test_name_with_a_null_byte_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    """As any file that is missing."""
    (found,) = read_files([f"{tmp_path}/a\0.png"])
    assert isinstance(found, DataError)
    assert "null byte" in str(found)


def test_csv_is_imported(folder: Path, client: Client) -> None:
    """As any other source."""
    make_table(label=NAMES).to_csv(folder / "labels.csv", index=False)
    result = rd.import_dataset(folder / "labels.csv", folder / "data.zarr")
    assert result.classes == ("NA", "cat", "dog")
    check_images(rd.open_dataset(folder / "data.zarr"))


def test_fit_and_predict_data_frames(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths start from the current folder; a table to predict needs no labels."""
    monkeypatch.chdir(folder)
    table = make_table(label=NAMES)
    clf = rd.ResCNetClassifier(SPEC, run=RUN).fit(table)
    expected = rd.ResCNetClassifier(SPEC, run=RUN).fit(COLOR, NAMES).predict(COLOR)
    np.testing.assert_array_equal(clf.predict(table.drop(columns="label")), expected)
    assert clf.score(table) == np.mean(expected == NAMES)
    absolute = table.assign(path=[folder / path for path in table["path"]])
    monkeypatch.chdir("/")
    assert clf.score(absolute) == clf.score(COLOR, NAMES)


BAD_TABLES: dict[str, tuple[Callable[[], pd.DataFrame], str]] = {
    "no paths": (
        lambda: make_table().rename(columns={"path": "where"}),
        r"labels\.csv has the columns where, label, and none of path, file.* Name the column",
    ),
    "an empty path": (
        lambda: make_table(path=["a.png"] * 4 + [""] * 6),
        r"has no path in row 4, counted from 0 .* or drop the row",
    ),
    "an empty label": (lambda: make_table(label=["a"] * 9 + [""]), "has no label in row 9"),
    "no rows": (lambda: make_table()[:0], r"has no rows\. Give at least one image"),
    "an unknown split": (
        lambda: make_table(split=["train"] * 9 + ["rest"]),
        r"has the split 'rest'\. Name splits train, val or test",
    ),
    "continuous labels": (
        lambda: make_table(label=np.linspace(0.5, 1, 10)),
        r"Unknown label type: continuous\. y has the label 0\.5",
    ),
    "several file systems": (
        lambda: make_table(path=["s3://a/b.png"] + ["/b.png"] * 9),
        r"has paths of several kinds, .*s3\. Give paths of one kind",
    ),
    "a missing file": (
        lambda: make_table(path=["photos/0.png", "no.png"] + ["photos/0.png"] * 8),
        r"no\.png: The file cannot be read: No such file",
    ),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables(folder: Path, name: str) -> None:
    """The error has what was found, and a remedy."""
    make, reason = BAD_TABLES[name]
    make().to_csv(folder / "labels.csv", index=False)
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match=reason):
        rd.open_dataset(folder / "labels.csv").images.compute()


def test_bad_data_frames(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Labels of several types, or missing ones; a table of numbers is no table of paths."""
    monkeypatch.chdir(folder)
    with pytest.raises(DataError, match=r"y has labels of several types, such as 1 \(number\)"):
        rd.open_dataset(make_table(label=[1, "a"] * 5))
    with pytest.raises(DataError, match="The DataFrame has no label in row 1"):
        rd.open_dataset(make_table(label=["a", None] * 5))
    with pytest.raises(DataError, match=r"X has shape \(10, 2\)\. Images must be"):
        rd.ResCNetClassifier(SPEC, run=RUN).fit(pd.DataFrame(np.eye(10)[:, :2]), LABELS)


# items ------------------------------------------------------------------------------------------


class Items:
    """Numbered items (image, label), as a map-style Dataset of PyTorch has them."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels, self.read = images, labels, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        self.read += 1
        return self.images[number], self.labels[number]


IMAGES: dict[str, tuple[Any, Any]] = {
    "arrays": (list(COLOR), COLOR),
    "gray arrays": (list(GRAY[..., 0]), GRAY),
    "Pillow images": ([Image.fromarray(image) for image in COLOR], COLOR),
    "floats": (list(COLOR / 255), COLOR / 255),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_items_are_read_lazily(kind: str) -> None:
    """Images of any library, by all workers."""
    images, expected = IMAGES[kind]
    data = rd.open_dataset(Items(images, NAMES.tolist()))
    assert data.images.dtype == expected.dtype
    assert np.array(data.class_names)[data.labels].tolist() == NAMES.tolist()
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, expected)
        np.testing.assert_array_equal(data.images[4:7], expected[4:7])


def test_a_dataset_is_sent_once_and_not_with_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pickle is large if its images are in memory."""
    monkeypatch.setattr("rescnet_dist.data.lazy.READ_BLOCK_BYTES", COLOR[0].nbytes)
    items = Items(list(np.repeat(COLOR, 50, axis=0)), np.repeat(LABELS, 50).tolist())
    data = rd.open_dataset(items)
    assert data.images.data.npartitions == 500
    tasks = dict(data.images.data.__dask_graph__())
    large = [key for key, task in tasks.items() if len(pickle.dumps(task)) > COLOR.nbytes]
    assert len(large) == 1


def test_labels_are_the_targets_if_these_agree() -> None:
    """Else all items are read for their labels, such as those that a transform has changed."""
    items = Items(list(COLOR), LABELS.tolist())
    items.targets = LABELS  # type: ignore[attr-defined]
    assert rd.open_dataset(items).labels.to_numpy().tolist() == LABELS.tolist()
    assert items.read == 2
    items.targets = LABELS + 1  # type: ignore[attr-defined]
    assert rd.open_dataset(items).class_names == [0, 1, 2]
    assert items.read == 2 + 12


def test_fit_items(client: Client) -> None:
    """As the same images in memory."""
    items = Items([Image.fromarray(image) for image in COLOR], LABELS.tolist())
    clf = rd.ResCNetClassifier(SPEC, run=RUN).fit(items)
    expected = rd.ResCNetClassifier(SPEC, run=RUN).fit(COLOR, LABELS)
    np.testing.assert_array_equal(clf.predict(items), expected.predict(COLOR))
    assert clf.score(items) == expected.score(COLOR, LABELS)


def test_bad_items() -> None:
    """Items of another form, none, and images that are no images."""
    with pytest.raises(DataError, match=r"items of type ndarray\. Items must be pairs"):
        rd.open_dataset(type("Other", (Items,), {"__getitem__": lambda self, n: COLOR[n]})([1], 1))
    with pytest.raises(DataError, match="The Items has no items"):
        rd.open_dataset(Items([], []))
    with pytest.raises(DataError, match=r"The Items, image 0: The image has shape \(3,\)"):
        rd.open_dataset(Items([np.arange(3)] * 2, [0, 1]))


def test_dataset_of_pytorch(client: Client) -> None:
    """Tensors have channels first, and labels may be tensors too."""
    torch = pytest.importorskip("torch")
    tensors = torch.from_numpy(COLOR.transpose(0, 3, 1, 2).copy())
    dataset = torch.utils.data.TensorDataset(tensors, torch.from_numpy(LABELS))
    data = rd.open_dataset(dataset)
    check_images(data)
    assert data.class_names == [0, 1, 2]
    subset = torch.utils.data.Subset(dataset, range(5))
    assert rd.ResCNetClassifier(SPEC, run=RUN).fit(subset).predict(subset).shape == (5,)
