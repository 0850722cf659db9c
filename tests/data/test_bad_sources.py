"""Errors for damaged and unsupported datasets."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pytest
from source_cases import NAMED_ARRAYS, NPZ_ARRAYS
from source_files import (
    CIFAR,
    COLOR,
    GRAY,
    LABELS,
    Files,
    encode_image,
    make_arrays,
    make_idx,
    make_mnist,
    make_npy,
    make_npz,
    make_parquet,
    make_shard,
    make_tar,
    to_planes,
    write_files,
)

import rescnet_dist as rd
from rescnet_dist.errors import DataError


def make_malicious_pickle(protocol: int) -> bytes:
    """Return a pickle that runs a program when Python loads it."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch /tmp/rescnet-was-here",)

    return pickle.dumps({b"data": Evil(), b"labels": [1]}, protocol)


def make_batch(**entries: Any) -> Files:
    """Return a CIFAR batch with some entries replaced."""
    record = {b"data": to_planes(CIFAR), b"labels": LABELS.tolist()}
    return {"data_batch_1": pickle.dumps(record | {k.encode(): v for k, v in entries.items()}, 2)}


def remove_file(files: Files, name: str) -> Files:
    """Return all files except one."""
    assert name in files
    return {path: content for path, content in files.items() if path != name}


def make_sample(**files: bytes) -> Files:
    """Return a shard with these files of one sample."""
    return {"a.tar": make_tar({f"0.{suffix}": content for suffix, content in files.items()})}


IMAGES, IMAGE_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"

BAD_SOURCES: dict[str, tuple[Callable[[], Files], str]] = {
    "nothing": (lambda: {}, r"The folder .* holds no images: it is empty\. Check the path"),
    "junk": (
        lambda: {"readme.txt": b"", "a/b.gif": b""},
        r"no image files \(\.png.*Check the path",
    ),
    "hidden images": (lambda: {"a/._1.png": b"", ".b/2.png": b""}, "no image files"),
    "images without class": (
        lambda: {"a/0.png": b"", "1.png": b""},
        r"1\.png is not in a folder that names its class\. .*or class/; move it there, or remove",
    ),
    "splits without class": (
        lambda: {"train/0.png": b"", "test/1.png": b""},
        r"1\.png is not in a folder that names",
    ),
    "splits for some": (
        lambda: {"train/a/0.png": b"", "b/1.png": b""},
        "has b next to train. Put either all images or none into",
    ),
    "no image at all": (
        lambda: {"a/0.png": b"no"},
        r"no readable image among the first.*0\.png: The file is not a PNG, JPEG or WebP image\.$",
    ),
    "an image of another kind": (
        lambda: {"a/0.png": encode_image(COLOR[0], "BMP")},
        r"0\.png: The file is not a PNG, JPEG or WebP image\.$",
    ),
    "an empty image": (lambda: {"a/0.png": b""}, r"0\.png: The file is empty\.$"),
    "half an image": (
        lambda: {"a/0.jpg": encode_image(np.tile(COLOR[0], (40, 40, 1)), "JPEG")[:2000]},
        r"0\.jpg: The image cannot be decoded \(OSError: image file is truncated.*\)\.$",
    ),
    "unknown file": (
        lambda: {"a.txt": b""},
        r"a\.txt is a file of unknown kind.*PNG, JPEG or WebP",
    ),
    "one array": (
        make_arrays,
        r"images\.npy is a single array.*Give the folder that holds images\.npy and labels\.npy",
    ),
    "IDX without labels": (
        lambda: remove_file(make_mnist(), IMAGE_LABELS),
        "has images of .*train.* and labels of test. Each split needs both",
    ),
    "IDX of another count": (
        lambda: make_mnist() | {IMAGE_LABELS: make_idx(LABELS[:6])},
        "has 7 images and 6 labels in train. Their numbers must be equal",
    ),
    "IDX twice": (
        lambda: make_mnist() | {"train-images.idx": make_idx(GRAY[..., 0])},
        "two arrays for train, one of them",
    ),
    "IDX cut short": (
        lambda: make_mnist() | {IMAGES: make_mnist()[IMAGES][:-1]},
        r"train-images-idx3-ubyte is truncated.*takes 226 bytes, and it has 225",
    ),
    "IDX of no kind": (
        lambda: {IMAGES: b"\x00\x01\x08\x03" + bytes(99)},
        "is not an IDX file. It begins",
    ),
    "IDX without a header": (lambda: {IMAGES: b"\0\0"}, "is truncated. It has 2 bytes"),
    "IDX without images": (
        lambda: {IMAGES: make_idx(GRAY[:0, ..., 0]), IMAGE_LABELS: make_idx(LABELS[:0])},
        "no images in train",
    ),
    "IDX of five dimensions": (lambda: {IMAGES: b"\0\0\x08\x05" + bytes(99)}, "is not an IDX file"),
    "gzip that is none": (lambda: {f"{IMAGES}.gz": b"no"}, r"ubyte\.gz cannot be read \(BadGzip"),
    "CIFAR that runs a program": (
        lambda: {"data_batch_1": make_malicious_pickle(2)},
        r"data_batch_1 is not a readable CIFAR batch.*asks for posix system",
    ),
    "CIFAR that runs a program, protocol 4": (
        lambda: {"data_batch_1": make_malicious_pickle(4)},
        r"data_batch_1 is not a readable CIFAR batch.*asks for posix system",
    ),
    "CIFAR of another count": (
        lambda: make_batch(labels=[1]),
        r"should have images \(n, 3072\) and n lab",
    ),
    "CIFAR without labels": (lambda: make_batch(labels=None), "should have images"),
    "CIFAR with labels of strings": (
        lambda: make_batch(labels=["a"] * 10),
        "labels that are not integers from 0",
    ),
    "CIFAR of objects": (lambda: make_batch(data=np.array([None] * 3)), "another type than uint8"),
    "CIFAR of floats": (lambda: make_batch(data=np.zeros((10, 3072))), "another type than uint8"),
    "CIFAR of flat pixels": (
        lambda: make_batch(data=to_planes(CIFAR).reshape(-1)),
        "should have images",
    ),
    "CIFAR in Fortran order": (
        lambda: make_batch(data=np.asfortranarray(to_planes(CIFAR))),
        "in Fortran order",
    ),
    "CIFAR that is a list": (lambda: {"test_batch": pickle.dumps([1])}, "it holds no dictionary"),
    "CIFAR with few names": (
        lambda: make_batch() | {"batches.meta": pickle.dumps({b"label_names": [b"a", b"b"]}, 2)},
        "labels from 0 to 2, and 2 class names",
    ),
    "CIFAR binary cut short": (
        lambda: {"data_batch_1.bin": bytes(3072)},
        "has 3,072 bytes, which is not a multiple of 3073",
    ),
    "objects": (
        lambda: make_arrays(np.array([None, 1])),
        r"The array in .*images\.npy is of type object, which is pickled and not read\. Store",
    ),
    "Fortran order": (
        lambda: make_arrays(np.asfortranarray(COLOR)),
        r"images\.npy is in Fortran order\. Store it in C order",
    ),
    "complex numbers": (
        lambda: make_arrays(COLOR * 1j),
        r"images\.npy is of type complex128\. Images must be numbers, and labels integers or "
        r"strings\.$",
    ),
    "one number": (
        lambda: make_arrays(np.array(1)),
        r"has shape \(\)\. It must have one row per image",
    ),
    "flat images": (
        lambda: make_arrays(LABELS),
        r"shape \(10,\)\. Images must be of shape \(n, height",
    ),
    "channels first": (
        lambda: make_arrays(np.ascontiguousarray(COLOR.transpose(0, 3, 1, 2))),
        r"\(10, 3, 6, 5\), which looks channels-first \(image, channel, y, x\)\. "
        r"Transpose it to \(n, height",
    ),
    "one channel first": (
        lambda: {"a.npz": make_npz(images=GRAY.transpose(0, 3, 1, 2).copy(), labels=LABELS)},
        r"The array images in .*a\.npz has shape \(10, 1, 6, 5\), which looks channels-first "
        r"\(image, chan",
    ),
    "images of strings": (
        lambda: make_arrays(np.full((10, 6, 5), "a")),
        r"images\.npy is of type <U1\. Pixels must be numbers",
    ),
    "labels of two dimensions": (
        lambda: make_arrays(labels=np.zeros((10, 3), int)),
        r"labels\.npy has shape \(10, 3\)\. Labels must be of shape \(n,\)",
    ),
    "labels of fractions": (
        lambda: make_arrays(labels=LABELS / 2),
        r"labels\.npy is of type float64\. Labels must be integers or strings",
    ),
    "labels of strings and integers": (
        lambda: {"a.npz": make_npz(**NPZ_ARRAYS | {"y_test": NAMED_ARRAYS["y_test"]})},
        "labels that are strings. Use the same type in all splits",
    ),
    "labels in another script": (
        lambda: make_arrays(labels=np.array([b"a", b"\xff"])[LABELS // 2]),
        r"labels\.npy has strings that are not valid text \(UnicodeDecodeError",
    ),
    "labels of no character": (
        lambda: make_arrays(labels=np.full(10, 2**31, np.uint32).view("U1")),
        r"labels\.npy has strings that are not valid text",
    ),
    "labels of no length": (
        lambda: {"labels.npy": make_npy(LABELS).replace(b"<i8", b"<U0")},
        "<U0",
    ),
    "labels that are names of images": (
        lambda: make_arrays(np.zeros((2**16 + 1, 1, 1), "u1"), np.arange(2**16 + 1).astype("U5")),
        "has 65,537 different strings. There may be at most 65,536 classes; give class names",
    ),
    "no labels": (
        lambda: remove_file(make_arrays(), "labels.npy"),
        "labels of no split. Each split needs both",
    ),
    "two arrays": (lambda: make_arrays(x=COLOR), "two arrays for train, one of them x"),
    "other names": (
        lambda: {"a.npz": make_npz(data=COLOR, target=LABELS)},
        "has the arrays a/data, a/target. Name them",
    ),
    "objects in .npz": (
        lambda: {"a.npz": make_npz(images=np.array([None]))},
        r"The array images in .*a\.npz is of type object",
    ),
    "no zip file": (lambda: {"a.npz": b"PK no"}, r"a\.npz cannot be read \(BadZipFile"),
    "no Parquet": (lambda: {"a.parquet": b"PAR1 no"}, r"a\.parquet cannot be read"),
    "Parquet without images": (
        lambda: {"a.parquet": make_parquet().replace(b"image", b"photo")},
        "none of image, img.* for images",
    ),
    "Parquet with labels of numbers": (
        lambda: {"a.parquet": make_parquet(label=[0.5] * 10)},
        "label of type double. Labels must be integers or text",
    ),
    "Parquet with gaps": (
        lambda: {"a.parquet": make_parquet(label=[None] * 9 + [1])},
        "rows without label. Give each",
    ),
    "Parquet with gaps in text": (
        lambda: {"a.parquet": make_parquet(label=[None] * 9 + ["a"])},
        "rows without label. Give each",
    ),
    "Parquet with text and integers": (
        lambda: {
            "a.parquet": make_parquet(slice(0, 4)),
            "b.parquet": make_parquet(slice(4, 10), label=["a"] * 6),
        },
        "files with integer labels and files with labels that are text. Write all",
    ),
    "Parquet of numbers": (
        lambda: {"a.parquet": make_parquet(image=LABELS)},
        "image of type int64. Images must be bytes of image files",
    ),
    "Parquet of paths": (
        lambda: {"a.parquet": make_parquet(image=[{"path": "a"}] * 10)},
        "a struct with bytes",
    ),
    "Parquet of nothing": (
        lambda: {"a.parquet": make_parquet(image=pa.array([None] * 10, pa.binary()))},
        "row group 0, row 0: The image has no bytes",
    ),
    "Parquet without rows": (
        lambda: {"a.parquet": make_parquet(slice(0, 0), plain=True)},
        "of type|0 rows",
    ),
    "shard without labels": (
        lambda: make_sample(png=encode_image(COLOR[0])),
        r"no label for sample 0\. Add 0\.cls or 0\.json",
    ),
    "shard without images": (lambda: make_sample(cls=b"1"), r"a\.tar has no images"),
    "empty label": (lambda: make_sample(png=b"", cls=b" "), r"0\.cls has no label, but"),
    "label of JSON without one": (
        lambda: make_sample(png=b"", json=b'{"a": 1}'),
        r"0\.json has no label",
    ),
    "label that is no JSON": (lambda: make_sample(png=b"", json=b"{"), r"0\.json has no label"),
    "fraction as label": (
        lambda: make_sample(png=b"", json=b'{"label": 1.5}'),
        r"0\.json has no label, but",
    ),
    "label too large": (lambda: make_sample(png=b"", cls=b"9" * 30), r"0\.cls has no label, but"),
    "label too long": (lambda: make_sample(png=b"", cls=b"9" * 10**5), "too many for a label"),
    "label in another script": (
        lambda: make_sample(png=b"", cls=b"\xff\xfe"),
        "has no label.*Unicode",
    ),
    "no tar file": (lambda: {"a.tar": b"no" * 1000}, r"a\.tar cannot be read"),
    "tar file cut short": (
        lambda: {"a.tar": make_shard(slice(None))[:20_000]},
        r"a\.tar (has no end mark|cannot be read)",
    ),
    "tar file cut between members": (
        lambda: {"a.tar": make_shard(slice(None)).split(b"a/0003.png")[0]},
        r"a\.tar has no end mark",
    ),
    "classes that are too few": (
        lambda: {"a.tar": make_shard(slice(None)), "classes.txt": b"one\n"},
        "labels from 0 to 2, and 1 class",
    ),
}


@pytest.mark.parametrize("name", BAD_SOURCES)
def test_error_names_file_problem_and_remedy(name: str, tmp_path: Path) -> None:
    """The error has the URL, the problem and a remedy; no pickle is ever run."""
    make, reason = BAD_SOURCES[name]
    write_files(tmp_path, make())
    url = tmp_path / {"unknown file": "a.txt", "one array": "images.npy"}.get(name, "")
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match=reason) as caught:
        rd.open_dataset(url).images.compute()
    assert str(tmp_path) in str(caught.value) or "class names" in str(caught.value)
    assert not Path("/tmp/rescnet-was-here").exists()


@pytest.mark.parametrize("shape", [(10, 3, 5, 4), (10, 1, 5, 3), (10, 2, 6, 7), (10, 6, 5, 9)])
def test_few_rows_or_many_channels_are_allowed(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Only both together look like channels first."""
    data = rd.open_dataset(write_files(tmp_path, make_arrays(np.zeros(shape, np.uint8))))
    assert data.images.shape == shape


def test_label_strings_have_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long strings are rejected before they are read; integers are not limited."""
    monkeypatch.setattr("rescnet_dist.data.sources.arrays.MAX_LABEL_TEXT_BYTES", 79)
    assert len(rd.open_dataset(write_files(tmp_path / "a", make_arrays()))["labels"]) == 10
    reason = r"labels\.npy has 80 bytes of strings\. Labels may have at most 79; give integers"
    with pytest.raises(DataError, match=reason):
        rd.open_dataset(write_files(tmp_path / "b", make_arrays(labels=np.full(10, "ab"))))
