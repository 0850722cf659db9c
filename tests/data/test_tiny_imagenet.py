"""TinyImageNet in its own layout, with a few small images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from source_files import Files, encode_image, write_files

import rescnet_dist as rd
from rescnet_dist.data.sources import find_source
from rescnet_dist.errors import DataError

WNIDS = ("n01443537", "n01629819", "n02124075")
RNG = np.random.default_rng(7)
# Smooth, so that JPEG changes them little: color images, the second of each class gray
PIXELS = RNG.integers(0, 256, (9, 1, 1, 3), np.uint8).repeat(8, axis=1).repeat(8, axis=2)


def make_tiny_imagenet() -> Files:
    """Return files as in the published archive: two training images per class, three of val."""
    files = {
        "wnids.txt": "\n".join(reversed(WNIDS)).encode(),
        "words.txt": b"n01443537\tgoldfish\nn02124075\tEgyptian cat\n",
        "test/images/test_0.JPEG": encode_image(PIXELS[0], "JPEG"),
    }
    for number, wnid in enumerate(WNIDS):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = f"{wnid}_0.JPEG\t0\t0\t7\t7\n".encode()
        for image in range(2):
            path = f"train/{wnid}/images/{wnid}_{image}.JPEG"
            mode = "L" if image else None
            files[path] = encode_image(PIXELS[2 * number + image], "JPEG", mode, quality=95)
    lines = []
    for number, wnid in enumerate((WNIDS[2], WNIDS[0], WNIDS[0])):
        path = f"val/images/val_{number}.JPEG"
        files[path] = encode_image(PIXELS[6 + number], "JPEG", quality=95)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t7\t7\n")
    return files | {"val/val_annotations.txt": "".join(lines).encode()}


@pytest.mark.parametrize("below", ["", "tiny-imagenet-200/"])
def test_classes_splits_and_pixels(tmp_path: Path, below: str) -> None:
    """Val is the test split, test is left out, and gray images are color."""
    files = {below + path: content for path, content in make_tiny_imagenet().items()}
    data = rd.open_dataset(write_files(tmp_path, files))
    assert data.attrs["class_names"] == list(WNIDS)
    assert data["split"].to_numpy().tolist() == ["train"] * 6 + ["test"] * 3
    assert data["labels"].to_numpy().tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 0]
    with dask.config.set(scheduler="sync"):
        images = data["images"].to_numpy()
    assert images.shape == (9, 8, 8, 3)
    np.testing.assert_allclose(images[::2].astype(int), PIXELS[::2].astype(int), atol=6)
    gray = images[1:6:2]
    np.testing.assert_array_equal(gray, gray[..., :1].repeat(3, axis=3))


def test_import(tmp_path: Path, client: Client) -> None:
    """As it is, without options; the conversion is stored, so that photos are converted too."""
    folder = write_files(tmp_path / "tiny", make_tiny_imagenet())
    result = rd.import_dataset(folder, tmp_path / "tiny.zarr")
    assert result.splits == {"train": 6, "test": 3}
    assert result.classes == WNIDS
    assert (result.image_shape, result.skipped, result.passed_over) == ((8, 8, 3), (), ())
    imported = rd.open_dataset(tmp_path / "tiny.zarr")
    assert imported.attrs["channels"] == "color"
    opened = rd.open_dataset(folder)
    np.testing.assert_array_equal(imported["images"].to_numpy(), opened["images"].to_numpy())
    rd.import_dataset(folder, tmp_path / "gray.zarr", channels="gray")
    assert rd.open_dataset(tmp_path / "gray.zarr")["images"].shape == (9, 8, 8, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val/val_annotations.txt": b"val_0.JPEG\tn01443537\n"}, r"no line for val/images/val_1"),
        ({"val/val_annotations.txt": b"val_0.JPEG\n"}, r"Line 1 of .* separated by a tab"),
        ({"train": None}, r"no JPEG files in train/WNID/images"),
        ({"val/images": None}, r"no JPEG files in val/images"),
        ({f"train/{WNIDS[2]}": None}, rf"has the class {WNIDS[2]}, which is not a folder in train"),
    ],
)
def test_incomplete_folders_are_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """With what is missing; a folder is given as None."""
    files = make_tiny_imagenet()
    for path, content in changes.items():
        if content is None:
            files = {name: c for name, c in files.items() if not name.startswith(f"{path}/")}
        else:
            files[path] = content
    with pytest.raises(DataError, match=message):
        find_source(str(write_files(tmp_path, files)))


def test_folder_val_alone_is_rejected(tmp_path: Path) -> None:
    """It has no folders of classes; all its images would be of the class "images"."""
    write_files(tmp_path, make_tiny_imagenet())
    with pytest.raises(
        DataError, match=rf"is the folder val .* Give the folder above, .*{tmp_path}\.$"
    ):
        find_source(str(tmp_path / "val"))
