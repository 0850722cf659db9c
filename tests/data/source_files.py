"""Builders of small datasets in every supported format, as other programs write them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from PIL import Image

RNG = np.random.default_rng(20240229)
COLOR = RNG.integers(0, 256, (10, 6, 5, 3), np.uint8)
GRAY = COLOR[..., :1]
CIFAR = RNG.integers(0, 256, (10, 32, 32, 3), np.uint8)
LABELS = np.array([0, 2, 1, 0, 1, 2, 2, 0, 1, 2])
CLASS_NAMES = ("ant", "bee", "cow")
TRAIN, TEST = slice(0, 7), slice(7, 10)
Array = np.ndarray[Any, np.dtype[Any]]
Files = dict[str, bytes]


def write_files(folder: Path, files: Files) -> Path:
    """Write the files of a dataset to a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def encode_image(image: Any, form: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    """Return the bytes of an image file."""
    file = io.BytesIO()
    picture = Image.fromarray(np.asarray(image).squeeze())
    (picture.convert(mode) if mode else picture).save(file, form, **options)
    return file.getvalue()


def make_folder(images: Any, suffix: str = "png", splits: bool = True, **options: Any) -> Files:
    """Return image files by split and class, numbered in their order."""
    files = {}
    for number, (image, label) in enumerate(zip(images, LABELS, strict=True)):
        split = ("train/" if number < 7 else "test/") if splits else ""
        path = f"{split}{CLASS_NAMES[label]}/{number:02}.{suffix}"
        form = {"jpg": "JPEG", "jpeg": "JPEG"}.get(suffix.lower(), suffix.upper())
        files[path] = encode_image(image, form, **options)
    return files


def make_idx(array: Any, kind: str = "u1") -> bytes:
    """Return an IDX file."""
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[kind]
    shape = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return shape + array.astype(f">{kind}").tobytes()


def make_mnist(packed: bool = False, kind: str = "u1", dots: str = "-") -> Files:
    """Return the four files of MNIST."""
    files = {}
    for name, part in (("train", TRAIN), ("t10k", TEST)):
        files[f"{name}-images{dots}idx3-ubyte"] = make_idx(GRAY[part, ..., 0], kind)
        files[f"{name}-labels{dots}idx1-ubyte"] = make_idx(LABELS[part])
    return {f"{n}.gz": gzip.compress(f) for n, f in files.items()} if packed else files


def make_npy(array: Any) -> bytes:
    """Return a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def make_npz(save: Callable[..., Any] = np.savez, **arrays: Any) -> bytes:
    """Return a .npz file."""
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def to_planes(images: Any) -> Array:
    """Return images in the layout of CIFAR, (n, 3072)."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def make_python2_batch(images: Any, labels: Any, key: bytes = b"labels") -> bytes:
    """Return a batch as pickled by Python 2, whose strings are bytes in Python 3."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    data = to_planes(images).tobytes()
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


def make_cifar10(pickled: Callable[[Any, list[int]], bytes], meta: bytes) -> Files:
    """Return the batches of CIFAR-10, pickled by the given function."""
    folder = "cifar-10-batches-py"
    parts = {"data_batch_1": slice(0, 4), "data_batch_2": slice(4, 7), "test_batch": TEST}
    files = {f"{folder}/{n}": pickled(CIFAR[p], LABELS[p].tolist()) for n, p in parts.items()}
    return files | {f"{folder}/batches.meta": meta, f"{folder}/readme.html": b"<html>"}


def make_python3_cifar10(protocol: int) -> Files:
    """Return CIFAR-10 as pickled by Python 3."""
    names = {b"label_names": [word.encode() for word in CLASS_NAMES], b"num_vis": 3072}
    return make_cifar10(
        lambda images, labels: pickle.dumps(
            {b"data": to_planes(images), b"labels": labels, b"batch_label": b"1"}, protocol
        ),
        pickle.dumps(names, protocol),
    )


def make_python2_cifar10() -> Files:
    """Return CIFAR-10 as it is published."""
    names = b"".join(b"U\x03" + word.encode() for word in CLASS_NAMES)
    return make_cifar10(
        make_python2_batch,
        b"\x80\x02}q\x01(U\x0blabel_namesq\x02]q\x03(" + names + b"eU\x07num_visM\x00\x0cu.",
    )


def make_cifar100() -> Files:
    """Return CIFAR-100 in Python form, with coarse labels, which are not used."""
    files = {}
    for name, part in (("train", TRAIN), ("test", TEST)):
        record = {b"data": to_planes(CIFAR[part]), b"fine_labels": LABELS[part].tolist()}
        coarse = {b"coarse_labels": [9] * len(CIFAR[part])}
        files[f"cifar-100-python/{name}"] = pickle.dumps(record | coarse, 2)
    meta = {b"coarse_label_names": [b"x"], b"fine_label_names": [w.encode() for w in CLASS_NAMES]}
    return files | {"cifar-100-python/meta": pickle.dumps(meta, 2)}


def make_cifar_binary(coarse: bool) -> Files:
    """Return CIFAR-10 or, with coarse labels, CIFAR-100 in binary form."""

    def rows(part: slice) -> bytes:
        before = [np.full(len(LABELS[part]), 9)] if coarse else []
        return np.c_[(*before, LABELS[part], to_planes(CIFAR[part]))].astype(np.uint8).tobytes()

    text = "\n".join(CLASS_NAMES).encode()
    if coarse:
        return {
            "train.bin": rows(TRAIN),
            "test.bin": rows(TEST),
            "fine_label_names.txt": text + b"\n",
        }
    return {
        "data_batch_1.bin": rows(slice(0, 5)),
        "data_batch_2.bin": rows(slice(5, 7)),
        "test_batch.bin": rows(TEST),
        "batches.meta.txt": text + b"\n\n",
    }


def make_tar(files: Files, mode: str = "w") -> bytes:
    """Return a tar file with these members, after a folder."""
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


def make_parquet(
    part: slice = slice(None), *, plain: bool = False, names: bool = False, **columns: Any
) -> bytes:
    """Return a Parquet file in the layout of Hugging Face, with row groups of three."""
    images: list[Any] = [encode_image(image) for image in COLOR[part]]
    if not plain:
        images = [{"bytes": image, "path": "a.png"} for image in images]
    table = pa.table({"image": images, "label": LABELS[part], "id": LABELS[part]} | columns)
    if names:
        features = {
            "label": {"names": CLASS_NAMES, "_type": "ClassLabel"},
            "image": {"_type": "Image"},
        }
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3)
    return file.getvalue()


def make_shard(part: slice, label: str = "number", mode: str = "w") -> bytes:
    """Return a WebDataset shard."""
    files: Files = {}
    for number in range(10)[part]:
        code = int(LABELS[number])
        name, content = {
            "number": ("cls", b"%d\n" % code),
            "word": ("cls", CLASS_NAMES[code].encode()),
            "json": ("json", json.dumps({"label": code, "id": 7}).encode()),
            "json word": ("json", json.dumps({"cls": CLASS_NAMES[code]}).encode()),
        }[label]
        files |= {
            f"a/{number:04}.png": encode_image(COLOR[number]),
            f"a/{number:04}.{name}": content,
        }
        files |= {f"a/{number:04}.txt": b"a caption"}
    return make_tar(files, mode)


def make_zarr_store(folder: Path, **more: Any) -> Path:
    """Create a Zarr group with images and labels."""
    group = zarr.open_group(folder, mode="w")
    for name, array in {"images": COLOR, "labels": LABELS, **more}.items():
        group.create_array(name, data=array)
    return folder


def make_arrays(images: Any = COLOR, labels: Any = LABELS, **more: Any) -> Files:
    """Return .npy files."""
    found = {"images": images, "labels": labels} | more
    return {f"{name}.npy": make_npy(array) for name, array in found.items()}
