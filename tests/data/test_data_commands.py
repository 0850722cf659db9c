"""The commands `rescnet data info`, `preview` and `names`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client
from import_helpers import BAD_IMAGES, read_tree, run_command, save_image
from PIL import Image

import rescnet_dist as rd
from rescnet_dist.data import importing
from rescnet_dist.data.importing import import_dataset
from rescnet_dist.data.inspect import inspect_dataset
from rescnet_dist.data.named import DATASETS
from rescnet_dist.errors import DataError


def test_info_numbers_and_warnings(
    client: Client, tmp_path: Path, rng: np.random.Generator
) -> None:
    """The same in JSON and as text, for the source and its import.

    Splits, classes, chunks and bytes; copies within and between splits, class imbalance and
    constant images.
    """
    source, out = tmp_path / "a", tmp_path / "out"
    images = rng.integers(0, 256, (40, 8, 8), np.uint8)
    images[7], images[31], images[32] = images[3], images[3], images[4]
    images[11] = 128
    for number, pixels in enumerate(images):
        split, label = "train" if number < 30 else "test", "dog" if number in (0, 30) else "cat"
        save_image(source / split / label / f"{number:02}.png", pixels)
    import_dataset(source, out, client, chunk_images=16)
    found = json.loads(run_command("data", "info", out, "--json").stdout)
    assert found["images"] == 40
    assert found["image_shape"] == [8, 8, 1]
    assert found["dtype"] == "uint8"
    assert found["chunk_images"] == 16
    assert found["decoded_bytes"] == 40 * 64
    assert found["stored_bytes"] == sum(map(len, read_tree(out).values()))
    assert found["splits"] == {"train": 30, "test": 10}
    assert found["classes"] == {"cat": {"train": 29, "test": 9}, "dog": {"train": 1, "test": 1}}
    assert found["warnings"] == [
        "1 images of train are copies of others of train.",
        "2 images of test are also in train (the first is image 30). The accuracy on them is "
        "meaningless.",
        "train has 29 images of 'cat' and 1 of 'dog', more than 10 times as many.",
        "1 images have a single color (the first is image 10).",
    ]
    assert (
        json.loads(run_command("data", "info", source, "--json").stdout)["warnings"]
        == found["warnings"]
    )
    output = run_command("data", "info", out).output
    for part in (*found["warnings"], "40 of 8×8×1, uint8", "of 16 images", "cat", "29", "MiB"):
        assert part in output


def test_info_of_skipped_images(
    client: Client, bad_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number, and name and reason of the first of them."""
    monkeypatch.setattr(importing, "MAX_RECORDED_IMAGES", 3)
    import_dataset(bad_photos, tmp_path / "out", client, on_error="skip")
    output = run_command("data", "info", tmp_path / "out").output
    assert "skipped   4 images, such as\n" in output
    assert (
        f"          {bad_photos}/{BAD_IMAGES[0]}: The file is not a PNG, JPEG or WebP image.\n"
        in output
    )
    found = json.loads(run_command("data", "info", tmp_path / "out", "--json").stdout)
    assert found["skipped"] == 4
    assert [name for name, _ in found["skipped_images"]] == [
        f"{bad_photos}/{bad}" for bad in BAD_IMAGES[:3]
    ]
    import_dataset(tmp_path / "clean", tmp_path / "clean.zarr", client)
    assert "skipped  " not in run_command("data", "info", tmp_path / "clean.zarr").output


def test_info_without_warnings(client: Client, photos: Path) -> None:
    """There is no warning without a reason."""
    assert inspect_dataset(str(photos)).warnings == []


def test_info_without_class_names_or_splits(tmp_path: Path, rng: Any) -> None:
    """As of a Zarr group of another program."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array(
        "images", data=rng.integers(0, 9, (6, 4, 4, 1), np.uint8), chunks=(3, 4, 4, 1)
    )
    group.create_array("labels", data=np.array([5, 7, 7, 5, 7, 7]))
    found = inspect_dataset(tmp_path / "a.zarr")
    assert found.classes == {"5": {"all": 2}, "7": {"all": 4}}
    assert found.splits == {"all": 6}


def test_sheet_in_python() -> None:
    """Images of each class, or images next to their copies; also of a Dataset."""
    data = rd.open_dataset("digits").isel(image=slice(0, 300))
    side = 2 * 28 + 4
    assert rd.sheet(data, images=3).size == (120 + 3 * side + 4, 10 * side + 4)
    augment = rd.AugmentSpec(copies=2, shift=1)
    copies = rd.sheet(data, augment, images=4, seed=1)
    assert copies.size == (120 + 3 * side + 4, 4 * side + 4)
    assert copies != rd.sheet(data, augment, images=4)
    with pytest.raises(DataError, match=r"copies=0 shows nothing\. Give a number of copies"):
        rd.sheet(data, rd.AugmentSpec())
    with pytest.raises(DataError, match="images=0 shows nothing"):
        rd.sheet("digits", images=0)


def test_sheet_commands(client: Client, photos: Path, tmp_path: Path) -> None:
    """A row for each class with ten samples, or for each image with its copies.

    The first image of a row of copies is the original.
    """
    result = run_command("data", "info", photos, "--sheet", tmp_path / "samples.png")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "samples.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 10 * 48
        assert 2 * 64 <= sheet.height < 3 * 64 + 20
    sheet = tmp_path / "copies.png"
    options = ("--copies", 3, "--flip", "--shift", 1, "--images", 5, "-o", sheet)
    result = run_command("data", "preview", photos, *options)
    assert result.exit_code == 0, result.output
    pixels = np.asarray(Image.open(sheet))
    assert pixels.shape[0] > 5 * 64
    with Image.open(photos / "train/cat/00.png") as image:
        first = np.asarray(image)
    scale = 64 // 8
    left, top = 120, 4
    first_image = pixels[top : top + 64 : scale, left : left + 6 * scale : scale]
    np.testing.assert_array_equal(first_image, first)
    assert (
        run_command("data", "preview", photos, "-o", sheet).exit_code == 2
    )  # There are no copies to show.
    missing = f"a.png cannot be written: {tmp_path / 'none'} does not exist. Create that folder"
    for command in (("preview", photos, *options[:-1]), ("info", photos, "--sheet")):
        result = run_command("data", *command, tmp_path / "none" / "a.png")
        assert result.exit_code == 2
        assert missing in result.output
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "pixels",
    [
        np.linspace(-1, 1, 4 * 8 * 8, dtype=np.float32).reshape(4, 8, 8, 1),
        np.arange(4 * 200 * 300, dtype=np.uint16).reshape(4, 200, 300, 1),
        np.zeros((4, 8, 8, 4), np.uint8),
        np.zeros((4, 8, 8, 7), np.int32),
    ],
    ids=["float", "large and 16 bits", "four channels", "seven channels"],
)
def test_sheet_of_any_dtype(tmp_path: Path, pixels: Any) -> None:
    """Pixels are scaled by their range, and large images are shrunk."""
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(4) % 2)
    result = run_command("data", "info", tmp_path / "a.npz", "--sheet", tmp_path / "a.png")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.width < 500


def test_names_command() -> None:
    """All names are listed, with home page and cache folder."""
    output = run_command("data", "names").output
    assert all(name in output for name in ("digits", *DATASETS))
    assert "downloaded to" in output
    assert json.loads(run_command("data", "names", "--json").stdout).keys() == DATASETS.keys()


def test_missing_data_set(client: Client, tmp_path: Path) -> None:
    """All commands print the name, without a traceback, and exit with 2."""
    copies = ["--copies", 1, "--flip"]
    for command, options in (("import", [tmp_path / "out"]), ("info", []), ("preview", copies)):
        result = run_command("data", command, tmp_path / "none", *options)
        assert result.exit_code == 2, result.output
        assert str(tmp_path / "none") in result.output
        result = run_command("data", command, "cifar-10", *options)
        assert "Did you mean 'cifar10'?" in result.output
