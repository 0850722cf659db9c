"""Every kind of source, on small real files: lazily opened, read in part, and refused by name."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from fsspec.registry import _registry as KNOWN_PROTOCOLS
from PIL import Image, PngImagePlugin

import rescnet_dist as rd
from rescnet_dist.data.sources import find_source
from rescnet_dist.data.sources.decode import _decode_png
from rescnet_dist.data.sources.files import File
from rescnet_dist.errors import DataError, SpecError, StoreError

RNG = np.random.default_rng(20240229)
COLOR = RNG.integers(0, 256, (10, 6, 5, 3), np.uint8)
GRAY = COLOR[..., :1]
CIFAR = RNG.integers(0, 256, (10, 32, 32, 3), np.uint8)
LABELS = np.array([0, 2, 1, 0, 1, 2, 2, 0, 1, 2])
WORDS = ("ant", "bee", "cow")
TRAIN, TEST = slice(0, 7), slice(7, 10)
Array = np.ndarray[Any, np.dtype[Any]]
Files = dict[str, bytes]


def refuse(*args: Any, **kwargs: Any) -> None:
    """A scheduler that fails the test: nothing may compute here."""
    raise AssertionError("something lazy was computed")


@dataclass(frozen=True)
class Case:
    """A data set as files by path, and what is in it: images (N, H, W, d), labels (N,) as places in
    the class names, splits in the order of the images. url: the part of it that is opened."""

    files: Files
    images: Array
    labels: Any = tuple(LABELS.tolist())
    names: tuple[Any, ...] = (0, 1, 2)
    splits: tuple[tuple[str, int], ...] = (("train", 7), ("test", 3))
    url: str = ""


def write(folder: Path, files: Files) -> Path:
    """Write the files of a data set to a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


# files as others write them ---------------------------------------------------------------------


def encoded(image: Any, form: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    picture = Image.fromarray(np.asarray(image).squeeze())
    (picture.convert(mode) if mode else picture).save(file, form, **options)
    return file.getvalue()


def folder_of(images: Any, suffix: str = "png", splits: bool = True, **options: Any) -> Files:
    """Image files by split and class, in the order of numbers within these."""
    files = {}
    for number, (image, label) in enumerate(zip(images, LABELS, strict=True)):
        split = ("train/" if number < 7 else "test/") if splits else ""
        path = f"{split}{WORDS[label]}/{number:02}.{suffix}"
        form = {"jpg": "JPEG", "jpeg": "JPEG"}.get(suffix.lower(), suffix.upper())
        files[path] = encoded(image, form, **options)
    return files


def sorted_case(files: Files, *, splits: bool = True) -> Case:
    """What a folder has, by Pillow alone: by split, then by path."""
    order = sorted(files, key=lambda path: ("test/" in path, path))
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(files[path]))) for path in order])
    labels = [WORDS.index(path.split("/")[-2]) for path in order]
    found = (("train", 7), ("test", 3)) if splits else (("train", 10),)
    return Case(files, pixels.reshape(*pixels.shape[:3], -1), labels, WORDS, found)


def idx(array: Any, kind: str = "u1") -> bytes:
    """An IDX file."""
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[kind]
    shape = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return shape + array.astype(f">{kind}").tobytes()


def mnist(packed: bool = False, kind: str = "u1", dots: str = "-") -> Files:
    """The four files of MNIST."""
    files = {}
    for name, part in (("train", TRAIN), ("t10k", TEST)):
        files[f"{name}-images{dots}idx3-ubyte"] = idx(GRAY[part, ..., 0], kind)
        files[f"{name}-labels{dots}idx1-ubyte"] = idx(LABELS[part])
    return {f"{n}.gz": gzip.compress(f) for n, f in files.items()} if packed else files


def npy(array: Any) -> bytes:
    """A .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(save: Callable[..., Any] = np.savez, **arrays: Any) -> bytes:
    """A .npz file."""
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def planes(images: Any) -> Array:
    """Images as CIFAR has them (n, 3072)."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def python2_batch(images: Any, labels: Any, key: bytes = b"labels") -> bytes:
    """A batch as Python 2 has pickled it: its strings are what are bytes today."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    data = planes(images).tobytes()
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"K" + bytes([len(images)]) + b"M\x00\x0c\x86"
    kind = (
        b"cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
    )
    parts = (
        *(b"\x80\x02}q\x01(", text(b"batch_label"), text(b"batch 1 of 5"), text(key), b"]q\x05("),
        *(numbers, b"e", text(b"data"), b"cnumpy.core.multiarray\n_reconstruct\nq\x07"),
        *(b"cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t(K\x01", shape, kind, b"K\x00tb\x89T"),
        *(
            struct.pack("<I", len(data)),
            data,
            b"tb",
            text(b"filenames"),
            b"]q\x0c(",
            text(b"a.png"),
        ),
        *(b"eu.",),
    )
    return b"".join(parts)


def cifar10(pickled: Callable[[Any, list[int]], bytes], meta: bytes) -> Files:
    """Batches of CIFAR-10."""
    folder = "cifar-10-batches-py"
    parts = {"data_batch_1": slice(0, 4), "data_batch_2": slice(4, 7), "test_batch": TEST}
    files = {f"{folder}/{n}": pickled(CIFAR[p], LABELS[p].tolist()) for n, p in parts.items()}
    return files | {f"{folder}/batches.meta": meta, f"{folder}/readme.html": b"<html>"}


def today(protocol: int) -> Files:
    """CIFAR-10 as Python 3 pickles it."""
    names = {b"label_names": [word.encode() for word in WORDS], b"num_vis": 3072}
    return cifar10(
        lambda images, labels: pickle.dumps(
            {b"data": planes(images), b"labels": labels, b"batch_label": b"1"}, protocol
        ),
        pickle.dumps(names, protocol),
    )


def python2() -> Files:
    """CIFAR-10 as it is published."""
    names = b"".join(b"U\x03" + word.encode() for word in WORDS)
    return cifar10(
        python2_batch,
        b"\x80\x02}q\x01(U\x0blabel_namesq\x02]q\x03(" + names + b"eU\x07num_visM\x00\x0cu.",
    )


def cifar100() -> Files:
    """CIFAR-100 in Python's form: a coarse label too, which is not used."""
    files = {}
    for name, part in (("train", TRAIN), ("test", TEST)):
        record = {b"data": planes(CIFAR[part]), b"fine_labels": LABELS[part].tolist()}
        coarse = {b"coarse_labels": [9] * len(CIFAR[part])}
        files[f"cifar-100-python/{name}"] = pickle.dumps(record | coarse, 2)
    meta = {b"coarse_label_names": [b"x"], b"fine_label_names": [w.encode() for w in WORDS]}
    return files | {"cifar-100-python/meta": pickle.dumps(meta, 2)}


def cifar_binary(coarse: bool) -> Files:
    """CIFAR-10 or, with coarse labels, CIFAR-100 in binary form."""

    def rows(part: slice) -> bytes:
        before = [np.full(len(LABELS[part]), 9)] if coarse else []
        return np.c_[(*before, LABELS[part], planes(CIFAR[part]))].astype(np.uint8).tobytes()

    text = "\n".join(WORDS).encode()
    if coarse:
        return {
            "train.bin": rows(TRAIN), "test.bin": rows(TEST), "fine_label_names.txt": text + b"\n",
        }  # fmt: skip
    return {
        "data_batch_1.bin": rows(slice(0, 5)), "data_batch_2.bin": rows(slice(5, 7)),
        "test_batch.bin": rows(TEST), "batches.meta.txt": text + b"\n\n",
    }  # fmt: skip


def tarred(files: Files, mode: str = "w") -> bytes:
    """A tar file with these members, in folders."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def parquet(
    part: slice = slice(None), *, plain: bool = False, names: bool = False, **columns: Any
) -> bytes:
    """A file as of Hugging Face, in row groups of three."""
    images: list[Any] = [encoded(image) for image in COLOR[part]]
    if not plain:
        images = [{"bytes": image, "path": "a.png"} for image in images]
    table = pa.table({"image": images, "label": LABELS[part], "id": LABELS[part]} | columns)
    if names:
        features = {"label": {"names": WORDS, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3)
    return file.getvalue()


def shard(part: slice, label: str = "number", mode: str = "w") -> bytes:
    """A WebDataset shard."""
    files: Files = {}
    for number in range(10)[part]:
        code = int(LABELS[number])
        name, content = {
            "number": ("cls", b"%d\n" % code),
            "word": ("cls", WORDS[code].encode()),
            "json": ("json", json.dumps({"label": code, "id": 7}).encode()),
            "json word": ("json", json.dumps({"cls": WORDS[code]}).encode()),
        }[label]
        files |= {f"a/{number:04}.png": encoded(COLOR[number]), f"a/{number:04}.{name}": content}
        files |= {f"a/{number:04}.txt": b"a caption"}
    return tarred(files, mode)


BOTH = {"x_train": GRAY[TRAIN], "y_train": LABELS[TRAIN], "x_test": GRAY[TEST, ..., 0]}
BOTH["y_test"] = LABELS[TEST].astype(np.uint8)
LIVING = ("ant", "ä bee", "語")
NAMED = BOTH | {  # bytes in one split, text in the other
    "y_train": np.array([name.encode() for name in LIVING])[LABELS[TRAIN]],
    "y_test": np.array(LIVING)[LABELS[TEST]].astype(">U9"),
}
MEDICAL = {
    f"{split}_{what}": array[part]
    for split, part in (("train", slice(0, 4)), ("val", slice(4, 7)), ("test", TEST))
    for what, array in (("images", COLOR), ("labels", LABELS[:, np.newaxis]))
}
ALL = (("train", 10),)
THREE = (("train", 4), ("val", 3), ("test", 3))

CASES: dict[str, Callable[[], Case]] = {
    "folder of PNG": lambda: sorted_case(folder_of(COLOR)),
    "folder of gray PNG": lambda: sorted_case(folder_of(GRAY)),
    "folder of 16-bit PNG": lambda: sorted_case(folder_of(GRAY.astype(np.uint16) * 257)),
    "folder of PNG with alpha": lambda: sorted_case(folder_of(COLOR, mode="RGBA")),
    "folder of JPEG": lambda: sorted_case(folder_of(COLOR, "jpg")),
    "folder of JPEG in capitals": lambda: sorted_case(folder_of(COLOR, "JPEG")),
    "folder of gray JPEG": lambda: sorted_case(folder_of(GRAY, "jpeg")),
    "folder of WebP": lambda: sorted_case(folder_of(COLOR, "webp", lossless=True)),
    "folder without splits": lambda: sorted_case(folder_of(COLOR, splits=False), splits=False),
    "IDX": lambda: Case(mnist(), GRAY),
    "IDX with dots": lambda: Case(mnist(dots="."), GRAY),
    "IDX in gzip": lambda: Case(mnist(packed=True), GRAY),
    "IDX with other words": lambda: Case(
        {f"emnist-{n.replace('t10k', 'test')}": f for n, f in mnist().items()}, GRAY
    ),
    **{
        f"IDX of {kind}": lambda kind=kind: Case(mnist(kind=kind), GRAY.astype(kind))  # type: ignore[misc]
        for kind in ("i2", "i4", "f4", "f8")
    },
    **{
        f"CIFAR-10, protocol {protocol}": lambda protocol=protocol: Case(  # type: ignore[misc]
            today(protocol), CIFAR, names=WORDS
        )
        for protocol in (2, 3, 4, 5)
    },
    "CIFAR-10 of Python 2": lambda: Case(python2(), CIFAR, names=WORDS),
    "CIFAR-10 in the folder itself": lambda: Case(
        python2(), CIFAR, names=WORDS, url="cifar-10-batches-py"
    ),
    "CIFAR-10 in tar.gz": lambda: Case(
        {"c.tar.gz": tarred(python2(), "w:gz")}, CIFAR, names=WORDS, url="c.tar.gz"
    ),
    "CIFAR-10 in tar": lambda: Case(
        {"c.tar": tarred(today(4))}, CIFAR, names=WORDS, url="c.tar"
    ),
    "CIFAR-100": lambda: Case(cifar100(), CIFAR, names=WORDS),
    "CIFAR-100 in tar.gz": lambda: Case(
        {"c.tar.gz": tarred(cifar100(), "w:gz")}, CIFAR, names=WORDS, url="c.tar.gz"
    ),
    "CIFAR-10 binary": lambda: Case(cifar_binary(False), CIFAR, names=WORDS),
    "CIFAR-100 binary": lambda: Case(cifar_binary(True), CIFAR, names=WORDS),
    "CIFAR-100 binary in tar.gz": lambda: Case(
        {"c.tgz": tarred(cifar_binary(True), "w:gz")}, CIFAR, names=WORDS, url="c.tgz"
    ),
    ".npy": lambda: Case(
        {"images.npy": npy(COLOR), "labels.npy": npy(LABELS)}, COLOR, splits=ALL
    ),
    ".npy of big-endian numbers": lambda: Case(
        {"X.npy": npy(GRAY.astype(">f4")), "y.npy": npy(LABELS.astype(">i2"))},
        GRAY.astype("f4"), splits=ALL,
    ),
    ".npy with splits": lambda: Case({f"{n}.npy": npy(a) for n, a in BOTH.items()}, GRAY),
    ".npz": lambda: Case({"a.npz": npz(**BOTH)}, GRAY, url="a.npz"),
    ".npz in its folder": lambda: Case({"a.npz": npz(**BOTH)}, GRAY),
    ".npz, compressed": lambda: Case(
        {"a.npz": npz(np.savez_compressed, **BOTH)}, GRAY, url="a.npz"
    ),
    ".npy of words": lambda: Case(
        {"images.npy": npy(COLOR), "labels.npy": npy(np.array(WORDS)[LABELS])},
        COLOR, names=WORDS, splits=ALL,
    ),
    ".npz of words": lambda: Case({"a.npz": npz(**NAMED)}, GRAY, names=LIVING, url="a.npz"),
    ".npz of words, compressed": lambda: Case(
        {"a.npz": npz(np.savez_compressed, **NAMED)}, GRAY, names=LIVING, url="a.npz"
    ),
    ".npz of MedMNIST": lambda: Case({"a.npz": npz(**MEDICAL)}, COLOR, splits=THREE, url="a.npz"),
    "Parquet": lambda: Case({"a.parquet": parquet()}, COLOR, splits=ALL, url="a.parquet"),
    "Parquet of Hugging Face": lambda: Case(
        {
            "README.md": b"",
            "data/train-00000-of-00002.parquet": parquet(slice(0, 4), names=True),
            "data/train-00001-of-00002.parquet": parquet(slice(4, 7), names=True),
            "data/test-00000-of-00001.parquet": parquet(TEST, names=True),
        },
        COLOR, names=WORDS,
    ),
    "Parquet of plain bytes": lambda: Case(
        {"mine_train.parquet": parquet(TRAIN, plain=True),
         "mine_test.parquet": parquet(TEST, plain=True)}, COLOR,
    ),
    "Parquet in folders": lambda: Case(
        {"train/0.parquet": parquet(slice(0, 4)), "validation/0.parquet": parquet(slice(4, 7)),
         "test/0.parquet": parquet(TEST)}, COLOR, splits=THREE,
    ),
    "WebDataset": lambda: Case(
        {"a.tar": shard(slice(None))}, COLOR, splits=ALL, url="a.tar"
    ),
    "WebDataset in gzip": lambda: Case(
        {"a.tar.gz": shard(slice(None), "json", "w:gz")}, COLOR, splits=ALL, url="a.tar.gz"
    ),
    "WebDataset of words": lambda: Case(
        {"a.tar": shard(slice(None), "word")}, COLOR, names=WORDS, splits=ALL, url="a.tar"
    ),
    "WebDataset of words in JSON": lambda: Case(
        {"a.tar": shard(slice(None), "json word")}, COLOR, names=WORDS, splits=ALL, url="a.tar"
    ),
    "WebDataset shards": lambda: Case(
        {
            "mine-train-0000.tar": shard(slice(0, 4)), "mine-train-0001.tar": shard(slice(4, 7)),
            "mine-test-0000.tar": shard(TEST), "classes.txt": "\n".join(WORDS).encode() + b"\n",
        },
        COLOR, names=WORDS,
    ),
    "WebDataset shards in folders": lambda: Case(
        {"train/0.tar": shard(slice(0, 4)), "val/0.tar.gz": shard(slice(4, 7), "json", "w:gz"),
         "test/0.tar": shard(TEST)}, COLOR, splits=THREE,
    ),
}  # fmt: skip


# the contract -----------------------------------------------------------------------------------


def check(url: str, case: Case) -> None:
    """What holds of every source."""
    with dask.config.set(scheduler=refuse):
        data = rd.open_dataset(url)
        assert data.images.dims == ("image", "y", "x", "channel")
        assert data.images.shape == case.images.shape
        assert data.images.dtype == case.images.dtype
        assert tuple(data.attrs["class_names"]) == case.names
        assert data.labels.dims == data.split.dims == ("image",)
        labels = data.labels.to_numpy()
        assert data.split.to_numpy().tolist() == [s for s, n in case.splits for _ in range(n)]
    assert labels.tolist() == list(case.labels)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, case.images)
        for part in (slice(0, 1), slice(3, 9), slice(6, 8), slice(9, 10), slice(None, None, 3)):
            np.testing.assert_array_equal(data.images[part], case.images[part])


@pytest.mark.parametrize("name", CASES)
def test_sources_are_read_from_disk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lazily; all of it, and parts of it, also where a part is read in several blocks."""
    case = CASES[name]()
    url = str(write(tmp_path, case.files) / case.url)
    check(url, case)
    monkeypatch.setattr("rescnet_dist.data.dataset.BLOCK_BYTES", 2 * case.images[0].nbytes)
    check(url, case)
    monkeypatch.chdir(tmp_path)
    check(case.url or ".", case)


@pytest.fixture
def memory() -> Iterator[str]:
    """A place in memory, empty before and after."""
    fs = fsspec.filesystem("memory")
    yield "memory://test-sources"
    fs.rm("/test-sources", recursive=True)


@pytest.mark.parametrize("name", CASES)
def test_sources_are_read_from_memory(name: str, memory: str) -> None:
    """As an example of any place that fsspec knows."""
    case = CASES[name]()
    fsspec.filesystem("memory").pipe({f"/test-sources/{n}": c for n, c in case.files.items()})
    check(f"{memory}/{case.url}", case)


@pytest.mark.parametrize(
    "name",
    [
        *("folder of PNG", "IDX in gzip", ".npz", "Parquet of Hugging Face", "WebDataset shards"),
        *("CIFAR-10 in tar.gz",),
    ],
)
def test_sources_are_read_from_s3(s3: None, name: str) -> None:
    """From a real server, with credentials from the environment."""
    case, folder = CASES[name](), name.replace(" ", "-")
    fsspec.filesystem("s3").pipe({f"runs/{folder}/{n}": c for n, c in case.files.items()})
    check(f"s3://runs/{folder}/{case.url}", case)


def test_sources_travel_to_workers(tmp_path: Path) -> None:
    """As pickles of a few bytes per image: what is in the files is read where it is needed."""
    for name in ("folder of PNG", "IDX", "CIFAR-10 of Python 2", ".npz", "Parquet", "WebDataset"):
        case = CASES[name]()
        data = rd.open_dataset(write(tmp_path / name, case.files) / case.url)
        again = pickle.loads(pickle.dumps(data.images.data))
        np.testing.assert_array_equal(again.compute(scheduler="sync"), case.images)


def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    """What is kept of a file in memory is not taken for another of the same name and size."""
    for turn in range(3):
        images = np.roll(GRAY, turn, axis=0)[..., 0]
        files = {"x-images-idx3-ubyte.gz": idx(images), "x-labels-idx1-ubyte.gz": idx(LABELS)}
        write(tmp_path, {name: gzip.compress(c, 0) for name, c in files.items()})
        os.utime(tmp_path / "x-images-idx3-ubyte.gz", (turn, turn))
        read = rd.open_dataset(tmp_path).images.data.compute(scheduler="sync")
        np.testing.assert_array_equal(read[..., 0], images)


# what images are made into ----------------------------------------------------------------------


def test_npz_files_of_a_folder_are_splits_by_their_names(tmp_path: Path) -> None:
    """Each has arrays of the same names."""
    for name, part in (("train", TRAIN), ("test", TEST)):
        np.savez(tmp_path / f"{name}.npz", images=COLOR[part], labels=LABELS[part])
    data = rd.open_dataset(tmp_path)
    assert data["split"].to_numpy().tolist() == ["train"] * 7 + ["test"] * 3
    np.testing.assert_array_equal(data["images"], COLOR)


GAMMA = PngImagePlugin.PngInfo()
GAMMA.add(b"gAMA", struct.pack(">I", 30_000))


@pytest.mark.parametrize("image", [COLOR[0], GRAY[0]], ids=["color", "gray"])
@pytest.mark.parametrize(
    "options", [{}, {"compress_level": 0}, {"dpi": (9, 9)}, {"pnginfo": GAMMA}]
)
def test_the_short_way_to_decode_png_gives_the_same(image: Array, options: Any) -> None:
    """And is left where it does not lead."""
    data, found = encoded(image, **options), np.empty_like(image)
    assert _decode_png(data, found)
    np.testing.assert_array_equal(found, image)
    at = data.index(b"IDAT") + 10
    altered = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    for other in (data[:20], data[:-20], altered, b"RIFF" + data[4:]):
        assert not _decode_png(other, found)
    assert not _decode_png(data, found[1:])
    transparent = encoded(image, transparency=7 if image.shape[2] == 1 else (7, 7, 7))
    assert not _decode_png(transparent, found)  # libpng would make that alpha


@pytest.mark.parametrize(
    ("mode", "expected"), [("P", "RGB"), ("1", "L"), ("CMYK", "RGB"), ("I;16", "I;16")]
)
def test_ways_to_store_pixels_are_undone(tmp_path: Path, mode: str, expected: str) -> None:
    """Palettes and CMYK give colors, single bits gray, 16 bits stay."""
    form = "JPEG" if mode == "CMYK" else "PNG"
    pixels = GRAY[0, ..., 0].astype(np.uint16) * 257 if mode == "I;16" else COLOR[0]
    image = encoded(pixels, form, None if mode == "I;16" else mode)
    write(tmp_path, {f"{word}/0.{form.lower()}": image for word in WORDS})
    data = rd.open_dataset(tmp_path)
    with Image.open(io.BytesIO(image)) as picture:
        assert picture.mode == mode
        plain = np.asarray(picture if expected == mode else picture.convert(expected))
    found = data.images.data.compute(scheduler="sync")
    np.testing.assert_array_equal(found[0], plain.reshape(6, 5, -1))


def test_colors_and_sizes_change_on_request_only(tmp_path: Path) -> None:
    """Gray and color images, or images of several sizes, do not go together by themselves."""
    files = {"a/0.png": encoded(COLOR[0]), "a/1.png": encoded(GRAY[1]), "b/2.png": b""}
    files["b/2.png"] = encoded(np.zeros((9, 5, 3), np.uint8))
    url = str(write(tmp_path, files))
    with dask.config.set(scheduler="sync"):
        for options, reason in (
            ({}, r"1\.png: it is 6×5 with 1 .*gray or for color \(--channels, channels=\)"),
            ({"channels": "color"}, r"2\.png: it is 9×5.*size to resize to \(--resize, resize=\)"),
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
def test_arrays_are_resized_and_colored_too(source: str, tmp_path: Path) -> None:
    """By the same rules."""
    url = str(tmp_path)
    if source in CASES:
        url = str(write(tmp_path, CASES[source]().files) / CASES[source]().url)
    elif source == "Zarr":
        zarr_store(tmp_path)
    else:
        url = source
    with dask.config.set(scheduler="sync"):
        plain = rd.open_dataset(url).images[0].to_numpy()
        data = rd.open_dataset(url, resize=(4, 7), channels="color").images[0].to_numpy()
    picture = Image.fromarray(plain.squeeze()).convert("RGB")
    np.testing.assert_array_equal(data, picture.resize((7, 4), Image.Resampling.BILINEAR))


def test_pixels_that_pillow_cannot_change_are_refused(tmp_path: Path) -> None:
    """With what can be."""
    write(tmp_path, {"images.npy": npy(GRAY.astype("f4")), "labels.npy": npy(LABELS)})
    with pytest.raises(DataError, match=r"float32: only 1 or 3 channels of uint8 can be resized"):
        rd.open_dataset(tmp_path, resize=(4, 4))
    with pytest.raises(DataError, match="for files of images, not for a Dataset"):
        rd.open_dataset(xr.Dataset({"images": (("image", "y", "x"), GRAY[..., 0])}), resize=(4, 4))
    for wrong in ({"resize": (0, 1)}, {"channels": "sepia"}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            rd.open_dataset("digits", **wrong)


# Zarr and xarray --------------------------------------------------------------------------------


def zarr_store(folder: Path, **more: Any) -> Path:
    """A Zarr group with images and labels."""
    group = zarr.open_group(folder, mode="w")
    for name, array in {"images": COLOR, "labels": LABELS, **more}.items():
        group.create_array(name, data=array)
    return folder


def test_a_zarr_group_is_a_data_set(tmp_path: Path) -> None:
    """Lazily; without class names and splits if it has none."""
    zarr_store(tmp_path, groups=np.arange(10) // 2)
    with dask.config.set(scheduler=refuse):
        data = rd.open_dataset(tmp_path)
    assert "split" not in data.coords
    assert "class_names" not in data.attrs
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, COLOR)
        np.testing.assert_array_equal(data.labels, LABELS)
        np.testing.assert_array_equal(data.groups, np.arange(10) // 2)


def dataset(**more: Any) -> xr.Dataset:
    """A lazy Dataset with other names, and dimensions in another order."""
    return xr.Dataset(
        {
            "X": (("channel", "image", "x", "y"), COLOR.transpose(3, 0, 2, 1)),
            "label": ("image", LABELS),
        },
        attrs={"class_names": list(WORDS)},
        **more,
    ).chunk(image=4)


def test_a_dataset_of_xarray_is_taken(tmp_path: Path) -> None:
    """By what its variables and dimensions are called, lazily, with its splits."""
    splits = ["training"] * 4 + ["valid"] * 3 + ["test"] * 3
    given = dataset().assign_coords(split=("image", splits))
    with dask.config.set(scheduler=refuse):
        data = rd.open_dataset(given)
    assert data.images.dims == ("image", "y", "x", "channel")
    assert data.split.to_numpy().tolist() == ["train"] * 4 + ["val"] * 3 + ["test"] * 3
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images, COLOR)
        np.testing.assert_array_equal(data.labels, LABELS)
    assert data.attrs["class_names"] == list(WORDS)
    with pytest.raises(DataError, match=r"splits \['fold1'\]: name them train, val or test"):
        rd.open_dataset(dataset(coords={"split": ("image", ["fold1"] * 10)}))
    with pytest.raises(DataError, match=r"variables \['pixels'\]: name"):
        rd.open_dataset(xr.Dataset({"pixels": ("image", [1])}))
    with pytest.raises(DataError, match=r"images are \(image, y, x, channel\)"):
        rd.open_dataset(xr.Dataset({"images": ("image", [1])}))


def test_splits_that_xarray_has_stored_are_found(tmp_path: Path) -> None:
    """In a Zarr store with a variable of that name, if each is in one piece."""
    splits = np.array(["train"] * 7 + ["test"] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Zarr's, about strings
        for name, values in (("a", splits), ("b", splits[::-1]), ("c", np.roll(splits, 1))):
            data = dataset(coords={"split": ("image", values)})
            data = data.transpose("image", "y", "x", "channel")
            data.to_zarr(tmp_path / name, consolidated=False)
        first, second = (rd.open_dataset(tmp_path / name) for name in "ab")
        with pytest.raises(DataError, match=r"c/split has 't.*each in one row"):
            rd.open_dataset(tmp_path / "c")
    assert first.split.to_numpy().tolist() == splits.tolist()
    assert second.split.to_numpy().tolist() == splits[::-1].tolist()
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(second.images, COLOR)


def test_images_in_another_order_of_dimensions_are_refused(tmp_path: Path) -> None:
    """Where a store tells their names; they would be read as something else."""
    dataset().to_zarr(tmp_path / "a", consolidated=False)
    with pytest.raises(DataError, match="X has the dimensions channel, image, x, y: store it as"):
        rd.open_dataset(tmp_path / "a")


def test_netcdf_files_are_read(tmp_path: Path) -> None:
    """As xarray reads them; what is none is named."""
    data = dataset().transpose("image", "y", "x", "channel").astype(np.int32)
    data["X"] = data["X"].astype(np.float32)
    data.drop_attrs().to_netcdf(tmp_path / "a.nc")
    found = rd.open_dataset(tmp_path / "a.nc")
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(found.images, COLOR)
        np.testing.assert_array_equal(found.labels, LABELS)
    found.close()
    (tmp_path / "b.nc").write_bytes(b"nothing of the kind")
    for name, reason in (("b.nc", "cannot be read"), ("c.nc", "no file at")):
        with pytest.raises(DataError, match=f"{reason}.*{name}|{name} {reason}"):
            rd.open_dataset(tmp_path / name)


# what is wrong ----------------------------------------------------------------------------------


def evil(protocol: int) -> bytes:
    """A pickle that runs a program when Python loads it."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch /tmp/rescnet-was-here",)

    return pickle.dumps({b"data": Evil(), b"labels": [1]}, protocol)


def batch(**entries: Any) -> Files:
    """A CIFAR batch with something else in it."""
    record = {b"data": planes(CIFAR), b"labels": LABELS.tolist()}
    return {"data_batch_1": pickle.dumps(record | {k.encode(): v for k, v in entries.items()}, 2)}


def arrays(images: Any = COLOR, labels: Any = LABELS, **more: Any) -> Files:
    """NumPy files."""
    found = {"images": images, "labels": labels} | more
    return {f"{name}.npy": npy(array) for name, array in found.items()}


def without(files: Files, name: str) -> Files:
    """All files but one."""
    assert name in files
    return {path: content for path, content in files.items() if path != name}


def member(**files: bytes) -> Files:
    """A shard with these files of one sample."""
    return {"a.tar": tarred({f"0.{suffix}": content for suffix, content in files.items()})}


IMAGES, IMAGE_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
WRONG: dict[str, tuple[Callable[[], Files], str]] = {
    "nothing": (lambda: {}, "there is nothing at .*: check the URL"),
    "junk": (lambda: {"readme.txt": b"", "a/b.gif": b""}, r"no image files \(\.png.*check the URL"),
    "hidden images": (lambda: {"a/._1.png": b"", ".b/2.png": b""}, "no image files"),
    "images without class": (
        lambda: {"a/0.png": b"", "1.png": b""},
        r"1\.png lies in no folder that names its class: .*or class/; move it into one, or away",
    ),
    "splits without class": (
        lambda: {"train/0.png": b"", "test/1.png": b""},
        r"1\.png lies in no folder that names",
    ),
    "splits for some": (
        lambda: {"train/a/0.png": b"", "b/1.png": b""},
        "has b beside train: put all images into",
    ),
    "no image at all": (
        lambda: {"a/0.png": b"no"},
        r"no image among the first.*0\.png: it is no PNG, JPEG or WebP image$",
    ),
    "an image of another kind": (
        lambda: {"a/0.png": encoded(COLOR[0], "BMP")},
        r"0\.png: it is no PNG, JPEG or WebP image$",
    ),
    "an empty image": (lambda: {"a/0.png": b""}, r"0\.png: it is empty$"),
    "half an image": (
        lambda: {"a/0.jpg": encoded(np.tile(COLOR[0], (40, 40, 1)), "JPEG")[:2000]},
        r"0\.jpg: it is no image that can be read \(OSError: image file is truncated.*\)$",
    ),
    "unknown file": (lambda: {"a.txt": b""}, r"a\.txt is a file of no kind.*or the folder"),
    "one array": (
        arrays,
        r"images\.npy is one array.*: give the folder that holds images\.npy and labels\.npy",
    ),
    "IDX without labels": (
        lambda: without(mnist(), IMAGE_LABELS),
        "has images to .*train.* and labels to test: each split needs both",
    ),
    "IDX of another count": (
        lambda: mnist() | {IMAGE_LABELS: idx(LABELS[:6])},
        "has 7 images and 6 labels to train: there must be as many",
    ),
    "IDX twice": (
        lambda: mnist() | {"train-images.idx": idx(GRAY[..., 0])},
        "two arrays to train, one of them",
    ),
    "IDX cut short": (
        lambda: mnist() | {IMAGES: mnist()[IMAGES][:-1]},
        r"train-images-idx3-ubyte is cut short.*takes 226 bytes, and 225 are there",
    ),
    "IDX of no kind": (
        lambda: {IMAGES: b"\x00\x01\x08\x03" + bytes(99)},
        "is no IDX file: it begins",
    ),
    "IDX without a header": (lambda: {IMAGES: b"\0\0"}, "is cut short: it has 2 bytes"),
    "IDX without images": (
        lambda: {IMAGES: idx(GRAY[:0, ..., 0]), IMAGE_LABELS: idx(LABELS[:0])},
        "no images to train",
    ),
    "IDX of five dimensions": (lambda: {IMAGES: b"\0\0\x08\x05" + bytes(99)}, "is no IDX file"),
    "gzip that is none": (lambda: {f"{IMAGES}.gz": b"no"}, r"ubyte\.gz cannot be read \(BadGzip"),
    "CIFAR that runs a program": (
        lambda: {"data_batch_1": evil(2)},
        r"data_batch_1 is no CIFAR batch.*asks for posix system",
    ),
    "CIFAR that runs a program, protocol 4": (
        lambda: {"data_batch_1": evil(4)},
        r"data_batch_1 is no CIFAR batch.*asks for posix system",
    ),
    "CIFAR of another count": (
        lambda: batch(labels=[1]),
        r"should have images \(n, 3072\) and n lab",
    ),
    "CIFAR without labels": (lambda: batch(labels=None), "should have images"),
    "CIFAR of words": (lambda: batch(labels=["a"] * 10), "labels that are no whole numbers"),
    "CIFAR of objects": (lambda: batch(data=np.array([None] * 3)), "another type than uint8"),
    "CIFAR of floats": (lambda: batch(data=np.zeros((10, 3072))), "another type than uint8"),
    "CIFAR of flat pixels": (lambda: batch(data=planes(CIFAR).reshape(-1)), "should have images"),
    "CIFAR in Fortran order": (
        lambda: batch(data=np.asfortranarray(planes(CIFAR))),
        "in Fortran order",
    ),
    "CIFAR that is a list": (lambda: {"test_batch": pickle.dumps([1])}, "it holds no dictionary"),
    "CIFAR with few names": (
        lambda: batch() | {"batches.meta": pickle.dumps({b"label_names": [b"a", b"b"]}, 2)},
        "labels from 0 to 2, and 2 class names",
    ),
    "CIFAR binary cut short": (
        lambda: {"data_batch_1.bin": bytes(3072)},
        "has 3,072 bytes, no multiple of 3073",
    ),
    "objects": (
        lambda: arrays(np.array([None, 1])),
        r"the array in .*images\.npy is of type object, which is pickled and not read: store",
    ),
    "Fortran order": (
        lambda: arrays(np.asfortranarray(COLOR)),
        r"images\.npy is in Fortran order: store it in C order",
    ),
    "complex numbers": (
        lambda: arrays(COLOR * 1j),
        r"images\.npy is of type complex128: it must be of numbers, or labels of strings$",
    ),
    "one number": (lambda: arrays(np.array(1)), r"has shape \(\): it must have one row for each"),
    "flat images": (lambda: arrays(LABELS), r"shape \(10,\): images must be of shape \(n, height"),
    "channels first": (
        lambda: arrays(np.ascontiguousarray(COLOR.transpose(0, 3, 1, 2))),
        r"\(10, 3, 6, 5\), which looks like \(image, channel, y, x\): transpose it to \(n, height",
    ),
    "one channel first": (
        lambda: {"a.npz": npz(images=GRAY.transpose(0, 3, 1, 2).copy(), labels=LABELS)},
        r"the array images in .*a\.npz has shape \(10, 1, 6, 5\), which looks like \(image, chan",
    ),
    "images of words": (
        lambda: arrays(np.full((10, 6, 5), "a")),
        r"images\.npy is of type <U1: pixels must be numbers",
    ),
    "labels of two dimensions": (
        lambda: arrays(labels=np.zeros((10, 3), int)),
        r"labels\.npy has shape \(10, 3\): labels must be of shape \(n,\)",
    ),
    "labels of fractions": (
        lambda: arrays(labels=LABELS / 2),
        r"labels\.npy is of type float64: labels must be whole numbers or strings",
    ),
    "labels of words and numbers": (
        lambda: {"a.npz": npz(**BOTH | {"y_test": NAMED["y_test"]})},
        "labels of numbers and of strings: give one of them to all splits",
    ),
    "labels in another script": (
        lambda: arrays(labels=np.array([b"a", b"\xff"])[LABELS // 2]),
        r"labels\.npy has strings that are no text \(UnicodeDecodeError",
    ),
    "labels of no character": (
        lambda: arrays(labels=np.full(10, 2**31, np.uint32).view("U1")),
        r"labels\.npy has strings that are no text",
    ),
    "labels of no length": (lambda: {"labels.npy": npy(LABELS).replace(b"<i8", b"<U0")}, "<U0"),
    "labels that are names of images": (
        lambda: arrays(np.zeros((2**16 + 1, 1, 1), "u1"), np.arange(2**16 + 1).astype("U5")),
        "has 65,537 different strings, and 65,536 classes are the most: give class names",
    ),
    "no labels": (
        lambda: without(arrays(), "labels.npy"),
        "labels to nothing: each split needs both",
    ),
    "two arrays": (lambda: arrays(x=COLOR), "two arrays to train, one of them x"),
    "other names": (
        lambda: {"a.npz": npz(data=COLOR, target=LABELS)},
        "has the arrays a/data, a/target: name them",
    ),
    "objects in .npz": (
        lambda: {"a.npz": npz(images=np.array([None]))},
        r"the array images in .*a\.npz is of type object",
    ),
    "no zip file": (lambda: {"a.npz": b"PK no"}, r"a\.npz cannot be read \(BadZipFile"),
    "no Parquet": (lambda: {"a.parquet": b"PAR1 no"}, r"a\.parquet cannot be read"),
    "Parquet without images": (
        lambda: {"a.parquet": parquet().replace(b"image", b"photo")},
        "none of image, img.* for images",
    ),
    "Parquet of words": (
        lambda: {"a.parquet": parquet(label=["a"] * 10)},
        "label of type string: whole numbers",
    ),
    "Parquet with gaps": (
        lambda: {"a.parquet": parquet(label=[None] * 9 + [1])},
        "rows without label: give each",
    ),
    "Parquet of numbers": (
        lambda: {"a.parquet": parquet(image=LABELS)},
        "image of type int64: bytes of image files",
    ),
    "Parquet of paths": (
        lambda: {"a.parquet": parquet(image=[{"path": "a"}] * 10)},
        "a struct with bytes",
    ),
    "Parquet of nothing": (
        lambda: {"a.parquet": parquet(image=pa.array([None] * 10, pa.binary()))},
        "row group 0, row 0: it has no bytes",
    ),
    "Parquet without rows": (
        lambda: {"a.parquet": parquet(slice(0, 0), plain=True)},
        "of type|0 rows",
    ),
    "shard without labels": (
        lambda: member(png=encoded(COLOR[0])),
        r"no label to sample 0: add 0\.cls or 0\.json",
    ),
    "shard without images": (lambda: member(cls=b"1"), r"a\.tar has no images"),
    "empty label": (lambda: member(png=b"", cls=b" "), r"0\.cls has no label but"),
    "label of JSON without one": (
        lambda: member(png=b"", json=b'{"a": 1}'),
        r"0\.json has no label",
    ),
    "label that is no JSON": (lambda: member(png=b"", json=b"{"), r"0\.json has no label"),
    "fraction as label": (
        lambda: member(png=b"", json=b'{"label": 1.5}'),
        r"0\.json has no label but",
    ),
    "label too large": (lambda: member(png=b"", cls=b"9" * 30), r"0\.cls has no label but"),
    "label too long": (lambda: member(png=b"", cls=b"9" * 10**5), "too many for a label"),
    "label in another script": (lambda: member(png=b"", cls=b"\xff\xfe"), "has no label.*Unicode"),
    "no tar file": (lambda: {"a.tar": b"no" * 1000}, r"a\.tar cannot be read"),
    "tar file cut short": (
        lambda: {"a.tar": shard(slice(None))[:20_000]},
        r"a\.tar (ends in the middle|cannot be read)",
    ),
    "tar file cut between members": (
        lambda: {"a.tar": shard(slice(None)).split(b"a/0003.png")[0]},
        r"a\.tar ends in the middle",
    ),
    "classes that are too few": (
        lambda: {"a.tar": shard(slice(None)), "classes.txt": b"one\n"},
        "labels from 0 to 2, and 1 class",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    """With where it is, what is wrong and, if there is one, the remedy; no pickle is ever run."""
    make, reason = WRONG[name]
    write(tmp_path, make())
    url = tmp_path / {"unknown file": "a.txt", "one array": "images.npy"}.get(name, "")
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match=reason) as refusal:
        rd.open_dataset(url).images.compute()
    assert str(tmp_path) in str(refusal.value) or "class names" in str(refusal.value)
    assert not Path("/tmp/rescnet-was-here").exists()


@pytest.mark.parametrize("shape", [(10, 3, 5, 4), (10, 1, 5, 3), (10, 2, 6, 7), (10, 6, 5, 9)])
def test_low_images_and_many_channels_are_no_channels_first(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """Unless both come together."""
    data = rd.open_dataset(write(tmp_path, arrays(np.zeros(shape, np.uint8))))
    assert data.images.shape == shape


def test_labels_that_are_long_texts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are read; numbers may be as many as there are images."""
    monkeypatch.setattr("rescnet_dist.data.sources.arrays.NAME_BYTES", 79)
    assert len(rd.open_dataset(write(tmp_path / "a", arrays()))["labels"]) == 10
    reason = r"labels\.npy has 80 bytes of strings, and labels may have 79: give whole numbers"
    with pytest.raises(DataError, match=reason):
        rd.open_dataset(write(tmp_path / "b", arrays(labels=np.full(10, "ab"))))


def test_a_bad_image_is_named_when_it_is_read(tmp_path: Path) -> None:
    """With its path; also one that is gone by then."""
    files = folder_of(COLOR, splits=False)
    files["cow/09.png"] = files["cow/09.png"][:50]
    data = rd.open_dataset(write(tmp_path, files))
    reason = r"cow/09\.png: it is no image.*can leave such images out"
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match=reason):
        data.images.compute()
    (tmp_path / "cow" / "09.png").unlink()
    with dask.config.set(scheduler="sync"), pytest.raises(DataError, match="No such file"):
        data.images.compute()


def test_class_folders_may_be_called_like_splits(tmp_path: Path) -> None:
    """Where not all are: a train is a vehicle too."""
    write(tmp_path, {f"{name}/0.png": encoded(COLOR[0]) for name in ("bus", "car", "train")})
    data = rd.open_dataset(tmp_path)
    assert data.attrs["class_names"] == ["bus", "car", "train"]


def test_deeper_folders_belong_to_the_class_above(tmp_path: Path) -> None:
    """Of a split or without one."""
    for split in ("", "train/"):
        paths = (f"{split}ant/a/0.png", f"{split}ant/b/c/1.png", f"{split}bee/2.png")
        files = dict.fromkeys(paths, encoded(GRAY[0]))
        data = rd.open_dataset(write(tmp_path / f"of {split}", files))
        assert data.attrs["class_names"] == ["ant", "bee"]
        assert data.labels.to_numpy().tolist() == [0, 0, 1]


def test_what_lies_beside_images_is_no_image(tmp_path: Path) -> None:
    """Notes, hidden files, and what macOS leaves in archives."""
    files = folder_of(COLOR)
    junk = ("notes.txt", "train/Thumbs.db", "train/ant/.hidden.png", "__MACOSX/train/ant/._00.png")
    write(tmp_path, files | dict.fromkeys(junk, b"junk"))
    check(str(tmp_path), sorted_case(files))
    assert find_source(str(tmp_path)).passed_over == ()


def test_files_among_images_that_are_none_are_told(tmp_path: Path) -> None:
    """By name, in the folders of classes, also in one that has no other files."""
    files = folder_of(COLOR, splits=False)
    other = ("ant/a.bmp", "ant/deep/notes.txt", "dog/1.gif")
    write(tmp_path / "a", files | dict.fromkeys((*other, "labels.csv", "dog/Thumbs.db"), b""))
    assert find_source(str(tmp_path / "a")).passed_over == other
    files = folder_of(COLOR)
    write(tmp_path / "b", files | {"train/labels.csv": b"", "test/ant/a.tif": b""})
    assert find_source(str(tmp_path / "b")).passed_over == ("test/ant/a.tif",)


def test_files_know_what_they_are_asked_for(tmp_path: Path) -> None:
    """Parts that are not there, and files that are not."""
    (tmp_path / "a").write_bytes(b"0123456789")
    file = File.at(str(tmp_path / "a"))
    assert file.read(2, 5) == b"234"
    with pytest.raises(DataError, match=r"a is cut short: bytes 8 to 12 .*2 are there"):
        file.read(8, 12)
    with pytest.raises(DataError, match=r"asks for .* bytes at once"):
        file.read(0, 2**40)
    with pytest.raises(DataError, match=r"there is no file at .*b: check the URL"):
        File.at(str(tmp_path / "b"))
    with pytest.raises(StoreError, match="nowhere://a cannot be opened"):
        File.at("nowhere://a")


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket/a.npz", "s3fs", "s3"),
        ("simplecache::s3://bucket/a.npz", "s3fs", "s3"),
        ("http://host/a.npz", "aiohttp", "http"),
        ("https://me:word@host/a.npz", "aiohttp", "http"),
    ],
)
def test_what_a_protocol_needs_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    """Wherever URLs are opened, with the command that installs it."""
    for protocol in ("s3", "http", "https"):
        monkeypatch.delitem(KNOWN_PROTOCOLS, protocol, raising=False)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    reason = rf'a\.npz cannot be opened \(.*{package}.*\): pip install "rescnet-dist\[{extra}\]"'
    opened = (rd.open_dataset, lambda url: rd.import_dataset("digits", url), File.at, find_source)
    for reader in opened:
        with pytest.raises(StoreError, match=reason) as refusal:
            reader(url)
        assert "word" not in str(refusal.value)
    with pytest.raises(StoreError, match="gcsfs"):
        rd.open_dataset("gs://bucket/a.npz")


def test_stored_arrays_are_read_in_place(tmp_path: Path) -> None:
    """A .npz file that is not compressed is not held in memory: its arrays are read by row, also
    where another program has written it."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo("images.npy")
        entry.extra = b"\x99\x99\x04\x00abcd"  # which lies between header and data
        archive.writestr(entry, npy(COLOR))
        archive.writestr("labels.npy", npy(LABELS))
    data = rd.open_dataset(path)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(data.images[4:6], COLOR[4:6])
