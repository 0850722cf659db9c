"""Decoding, resizing and conversion of images."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from PIL import ExifTags, Image, ImageOps, PngImagePlugin
from source_cases import CASES
from source_files import (
    CLASS_NAMES,
    COLOR,
    GRAY,
    LABELS,
    Array,
    encode_image,
    make_npy,
    make_zarr_store,
    write_files,
)

import rescnet_dist as rd
from rescnet_dist.data.sources.decode import (
    DecodeOptions,
    _decode_png,
    decode_image,
    decode_picture,
)
from rescnet_dist.errors import DataError, SpecError

GAMMA = PngImagePlugin.PngInfo()

GAMMA.add(b"gAMA", struct.pack(">I", 30_000))


@pytest.mark.parametrize("image", [COLOR[0], GRAY[0]], ids=["color", "gray"])
@pytest.mark.parametrize(
    "options", [{}, {"compress_level": 0}, {"dpi": (9, 9)}, {"pnginfo": GAMMA}]
)
@pytest.mark.parametrize("decoder", ["imagecodecs", "pillow"])
def test_fast_png_decoder_equals_pillow(
    image: Array, options: Any, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast decoder returns the same pixels, and False for files it does not support."""
    if decoder == "pillow":
        monkeypatch.setattr(sys.modules[_decode_png.__module__], "imagecodecs", None)
    data, found = encode_image(image, **options), np.empty_like(image)
    assert _decode_png(data, found)
    np.testing.assert_array_equal(found, image)
    at = data.index(b"IDAT") + 10
    altered = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    for other in (data[:20], data[:-20], altered, b"RIFF" + data[4:]):
        assert not _decode_png(other, found)
    assert not _decode_png(data, found[1:])
    transparent = encode_image(image, transparency=7 if image.shape[2] == 1 else (7, 7, 7))
    assert not _decode_png(transparent, found)  # libpng would make that alpha
    assert not _decode_png(data + b"\0", found)
    if b"gAMA" in data:
        assert not _decode_png(data.replace(b"gAMA", b"gAMB"), found)  # libpng ignores checksums


def test_pillow_decodes_without_imagecodecs(tmp_path: Path) -> None:
    """imagecodecs is optional: the same pixels are read in a process that cannot import it."""
    write_files(tmp_path, {f"{name}/0.png": encode_image(COLOR[0]) for name in CLASS_NAMES})
    code = (
        "import sys; sys.modules['imagecodecs'] = None\n"
        "import dask, rescnet_dist as rd\n"
        "with dask.config.set(scheduler='sync'):\n"
        f"    images = rd.open_dataset({str(tmp_path)!r}).images[0].to_numpy()\n"
        "sys.stdout.write(images.tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert bytes.fromhex(done.stdout) == COLOR[0].tobytes()


@pytest.mark.parametrize(
    ("mode", "expected"), [("P", "RGB"), ("1", "L"), ("CMYK", "RGB"), ("I;16", "I;16")]
)
def test_convert_pillow_modes(tmp_path: Path, mode: str, expected: str) -> None:
    """Palettes and CMYK become colors, single bits become gray, and 16 bits stay."""
    form = "JPEG" if mode == "CMYK" else "PNG"
    pixels = GRAY[0, ..., 0].astype(np.uint16) * 257 if mode == "I;16" else COLOR[0]
    image = encode_image(pixels, form, None if mode == "I;16" else mode)
    write_files(tmp_path, {f"{word}/0.{form.lower()}": image for word in CLASS_NAMES})
    data = rd.open_dataset(tmp_path)
    with Image.open(io.BytesIO(image)) as picture:
        assert picture.mode == mode
        plain = np.asarray(picture if expected == mode else picture.convert(expected))
    found = data.images.data.compute(scheduler="sync")
    np.testing.assert_array_equal(found[0], plain.reshape(6, 5, -1))


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "PNG with text"])
def test_photos_are_turned_upright(tmp_path: Path, orientation: int, form: str) -> None:
    """The orientation in EXIF data is applied as by Pillow, also to a Pillow image."""
    exif, texts = Image.Exif(), PngImagePlugin.PngInfo()
    exif[ExifTags.Base.Orientation] = orientation
    options: dict[str, Any] = {"exif": exif}
    if form == "PNG with text":
        data = exif.tobytes()
        texts.add_text("Raw profile type exif", f"\nexif\n{len(data):8}\n{data.hex()}\n")
        options = {"pnginfo": texts}
    path = tmp_path / "a" / f"0.{form.split()[0].lower()}"
    path.parent.mkdir()
    path.write_bytes(encode_image(COLOR[0], form.split()[0], **options))
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
        np.testing.assert_array_equal(decode_picture(image, DecodeOptions()), expected)
        assert image.size == (5, 6)
    found = rd.open_dataset(tmp_path).images.data.compute(scheduler="sync")
    assert found.shape == ((1, 6, 5, 3) if orientation in (1, 2, 3, 4, 9) else (1, 5, 6, 3))
    np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("data", [b"Exif\0\0no EXIF data", b"Exif\0\0MM\0*\0\0\0\x08\0\xff\1"])
def test_damaged_exif_data_is_ignored(data: bytes) -> None:
    """The image has the orientation of its pixels."""
    image = encode_image(COLOR[0], "PNG", exif=data)
    np.testing.assert_array_equal(decode_image(image, DecodeOptions()), COLOR[0])


def test_resize_and_convert_on_request_only(tmp_path: Path) -> None:
    """Images of mixed channels or sizes raise an error unless they are converted."""
    files = {"a/0.png": encode_image(COLOR[0]), "a/1.png": encode_image(GRAY[1]), "b/2.png": b""}
    files["b/2.png"] = encode_image(np.zeros((9, 5, 3), np.uint8))
    url = str(write_files(tmp_path, files))
    with dask.config.set(scheduler="sync"):
        for options, reason in (
            ({}, r"1\.png: The image is 6×5 with 1 .*gray or to color .*--channels color`"),
            (
                {"channels": "color"},
                r"2\.png: The image is 9×5.*Resize all images to one size \(--resize, resize=\)"
                rf".*`rescnet data import {tmp_path} {tmp_path.name}\.zarr --resize 32`",
            ),
        ):
            with pytest.raises(DataError, match=reason):
                rd.open_dataset(url, **options).images.compute()
        for channels, mode in (("gray", "L"), ("color", "RGB")):
            data = rd.open_dataset(url, resize=(4, 7), channels=channels)
            assert data.images.shape == (3, 4, 7, len(mode))
            picture = Image.fromarray(COLOR[0]).convert(mode)
            expected = np.asarray(picture.resize((7, 4), Image.Resampling.BILINEAR))
            np.testing.assert_array_equal(data.images[0], expected.reshape(4, 7, -1))


@pytest.mark.parametrize("source", ["IDX", "CIFAR-10 of Python 2", ".npz", "Zarr", "digits"])
def test_resize_and_convert_arrays(source: str, tmp_path: Path) -> None:
    """Images in arrays are resized and converted like image files."""
    url = str(tmp_path)
    if source in CASES:
        url = str(write_files(tmp_path, CASES[source]().files) / CASES[source]().url)
    elif source == "Zarr":
        make_zarr_store(tmp_path)
    else:
        url = source
    with dask.config.set(scheduler="sync"):
        plain = rd.open_dataset(url).images[0].to_numpy()
        data = rd.open_dataset(url, resize=(4, 7), channels="color").images[0].to_numpy()
    picture = Image.fromarray(plain.squeeze()).convert("RGB")
    np.testing.assert_array_equal(data, picture.resize((7, 4), Image.Resampling.BILINEAR))


def test_one_number_is_the_side_of_a_square() -> None:
    """As `--resize 14` on the command line."""
    with dask.config.set(scheduler="sync"):
        square = rd.open_dataset("digits", resize=14).images[:3].to_numpy()
        assert square.shape == (3, 14, 14, 1)
        pair = rd.open_dataset("digits", resize=(14, 14)).images[:3].to_numpy()
    np.testing.assert_array_equal(square, pair)


def test_resize_unsupported_pixels(tmp_path: Path) -> None:
    """The error says which pixels can be resized; invalid options are rejected."""
    write_files(
        tmp_path, {"images.npy": make_npy(GRAY.astype("f4")), "labels.npy": make_npy(LABELS)}
    )
    with pytest.raises(DataError, match=r"float32\. Only images with 1 or 3 channels of uint8"):
        rd.open_dataset(tmp_path, resize=(4, 4))
    with pytest.raises(
        DataError, match=r"cannot be applied to a Dataset\. They are for files of images"
    ):
        rd.open_dataset(xr.Dataset({"images": (("image", "y", "x"), GRAY[..., 0])}), resize=(4, 4))
    for wrong in (
        *({"resize": size} for size in ((0, 1), (4, 4, 1), 0, 2.5, "4", True)),
        {"channels": "sepia"},
    ):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            rd.open_dataset("digits", **wrong)
