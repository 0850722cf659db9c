"""Photos of any size: the input settings travel with data, run and network, and are applied."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from PIL import Image
from small_digits import NAMES, SPEC

import rescnet_dist as rd
from rescnet_dist import ResCNetClassifier, RunSpec
from rescnet_dist.data import ImageInput, Images
from tests.saved import edit_saved

Array = np.ndarray[Any, Any]


def write_photos(folder: Path, images: Array, labels: Array) -> None:
    """Write digits as color photos of 28×28 in folders of classes."""
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.repeat(image, 3, axis=2)).resize((28, 28)).save(path)


@pytest.fixture(scope="module")
def photos(images: Array, labels: Array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a photo of each of 60 digits, in folders of classes."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, images[:60], labels[:60])
    return folder


@pytest.fixture(scope="module")
def imported(
    photos: Path, threads_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> ResCNetClassifier:
    """Return a classifier that was trained on imported photos, resized and in gray."""
    folder = tmp_path_factory.mktemp("imported")
    with Client(threads_cluster) as client:
        data = str(folder / "photos.zarr")
        rd.import_dataset(photos, data, client, resize=(14, 14), channels="gray")
        run = RunSpec(validation=0, chunk_images=60, accumulators=1, solve_threads=1)
        store = str(folder / "run")
        return ResCNetClassifier(SPEC.replace(max_layers=1), store=store, run=run).fit(data)


# settings that travel ---------------------------------------------------------------------------


def test_import_settings_travel_with_data_run_and_network(
    imported: ResCNetClassifier, tmp_path: Path
) -> None:
    """As attributes of the dataset and of the run, and in a saved network."""
    assert imported.run_url_ is not None
    data = Path(imported.run_url_).parent / "photos.zarr"
    assert dict(zarr.open_group(data, mode="r").attrs)["resize"] == [14, 14]
    assert rd.open_dataset(data).attrs["channels"] == "gray"
    expected = ImageInput("uint8", (14, 14), "gray")
    imported.save(tmp_path / "net.zip")
    for url in (imported.run_url_, tmp_path / "net.zip"):
        assert rd.load(url).network_.input == expected
    assert list(rd.load(tmp_path / "net.zip").classes_) == sorted(NAMES)


def test_settings_of_a_lazy_dataset_travel(photos: Path) -> None:
    """A folder that is opened with options, without an import."""
    dataset = rd.open_dataset(photos, resize=(14, 14), channels="gray")
    assert (dataset.attrs["resize"], dataset.attrs["channels"]) == ([14, 14], "gray")


def test_network_of_arrays_knows_their_type(fitted: ResCNetClassifier) -> None:
    """Arrays were neither resized nor converted."""
    assert fitted.network_.input == ImageInput("uint8")


def test_stores_without_input_still_load(fitted: ResCNetClassifier, tmp_path: Path) -> None:
    """Networks of earlier releases; where they do not know, options are needed."""
    fitted.save(tmp_path / "net")
    edit_saved(tmp_path / "net", remove=["input"])
    loaded = rd.load(tmp_path / "net")
    assert loaded.network_.input is None
    photo = Image.fromarray(np.full((30, 20, 3), 200, np.uint8))
    with pytest.raises(rd.DataError, match=r"is 30×20 with 3 channels.*trained on 14×14 with 1"):
        loaded.predict_image(photo)
    found = loaded.predict_image(photo, resize=(14, 14), channels="gray")
    assert found.label == fitted.predict_image(photo).label


# photos -----------------------------------------------------------------------------------------


def test_photo_is_decoded_as_in_the_import(imported: ResCNetClassifier, photos: Path) -> None:
    """Each photo becomes its imported image, bit for bit, from the file or from Pillow."""
    assert imported.run_url_ is not None
    dataset = rd.open_dataset(Path(imported.run_url_).parent / "photos.zarr")
    pixels = dataset["images"][:8].to_numpy()
    paths = sorted(photos.glob("*/*.png"))[:8]
    decoder = imported.network_.photo_decoder()
    for path, image in zip(paths, pixels, strict=True):
        np.testing.assert_array_equal(decoder.read_photo(path), image)
        with Image.open(path) as picture:
            np.testing.assert_array_equal(decoder.read_photo(picture), image)


def test_result_has_label_and_probabilities(imported: ResCNetClassifier, photos: Path) -> None:
    """Those of predict and predict_proba, by the classifier and by its network."""
    path = next(photos.glob("seven/*.png"))
    image = imported.network_.photo_decoder().read_photo(path)[np.newaxis]
    for found in (imported.predict_image(path), imported.network_.predict_image(str(path))):
        assert found.label == imported.predict(image)[0]
        np.testing.assert_array_equal(found.probabilities, imported.predict_proba(image)[0])
        assert found.top(3)[0] == (found.label, found.probability)
        assert len(found.top(100)) == len(found.classes)
        assert str(found).startswith(str(found.label))


def test_photo_of_any_size_mode_and_place(imported: ResCNetClassifier) -> None:
    """Large, palette and transparent ones, also in memory://."""
    pixels = np.random.default_rng(1).integers(0, 256, (9, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((300, 90))
    fs = fsspec.filesystem("memory")
    for number, mode in enumerate(["RGB", "P", "RGBA", "L", "1", "CMYK"]):
        assert imported.predict_image(picture.convert(mode)).label in NAMES
        if mode in ("RGB", "P", "RGBA"):
            with fs.open(f"/photos/{number}.png", "wb") as file:
                picture.convert(mode).save(file, "PNG")
            assert imported.predict_image(f"memory://photos/{number}.png").label in NAMES
    fs.rm("/photos", recursive=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"", "The file is empty"),
        (b"\x89PNG\r\n\x1a\n no picture", r"is not a PNG, JPEG or WebP|cannot be decoded"),
    ],
)
def test_unreadable_photo_is_named(
    imported: ResCNetClassifier, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    """A missing, an empty and a damaged file."""
    if content is not None:
        (tmp_path / "cat.png").write_bytes(content)
    with pytest.raises(rd.DataError, match=rf"cat\.png: .*({problem})"):
        imported.predict_image(tmp_path / "cat.png")


def test_unreachable_photo_is_reported_at_once(imported: ResCNetClassifier) -> None:
    """A server that does not answer is not retried, and no run is mentioned."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/cat.png"
    pytest.importorskip("aiohttp")
    started = time.monotonic()
    with pytest.raises(rd.DataError, match=r"cat\.png: The photo cannot be read .*Check its") as e:
        imported.predict_image(url)
    assert time.monotonic() - started < 10
    assert "run" not in str(e.value)


def test_arrays_are_no_photos(imported: ResCNetClassifier) -> None:
    """predict takes them."""
    with pytest.raises(rd.DataError, match=r"ndarray is neither the path.*Use predict for arrays"):
        imported.predict_image(np.zeros((14, 14), np.uint8))


def test_pixels_get_the_range_of_the_training_images(fitted: ResCNetClassifier) -> None:
    """Floats from 0 to 1 and from 0 to 255; other ranges cannot be guessed."""
    photo = Image.fromarray(np.arange(196, dtype=np.uint8).reshape(14, 14))
    pixels = np.asarray(photo)[:, :, np.newaxis]

    def decode(dtype: str, high: float, low: float = 0.0) -> Array:
        scale = fitted.network_.image_scale
        changed = replace(scale, low=np.array([low]), scale=np.array([1 / (high - low)]))
        network = replace(fitted.network_, input=ImageInput(dtype), image_scale=changed)
        return network.photo_decoder().read_photo(photo)

    np.testing.assert_array_equal(decode("float32", 1), (pixels / 255).astype(np.float32))
    np.testing.assert_array_equal(decode("float32", 255), pixels.astype(np.float32))
    np.testing.assert_array_equal(decode("uint8", 255), pixels)
    for dtype, high, low in (("float32", 16, 0), ("float32", 2.5, -1.5), ("uint16", 65535, 0)):
        with pytest.raises(rd.DataError, match=rf"pixels of uint8, but .* on {dtype} from {low}"):
            decode(dtype, high, low)


def test_photo_gives_the_scores_of_its_array(fitted: ResCNetClassifier, images: Array) -> None:
    """A photo that has the size of the network is not changed."""
    photo = Image.fromarray(images[3, :, :, 0])
    scores = fitted.network_.scores(Images(images[3:4]))
    assert fitted.predict_image(photo).label == fitted.classes_[np.argmax(scores)]
