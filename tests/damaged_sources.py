"""Small datasets in every file format, their damage below checksums, and a reader of all of it."""

from __future__ import annotations

import faulthandler
import gzip
import io
import pickle
import random
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mutations import damage
from PIL import Image

import rescnet_dist as rd
from rescnet_dist.errors import DataError

MAX_SECONDS = 60  # for any file, on a busy machine
Change = Callable[[bytes], bytes]
Files = dict[str, bytes]  # of a dataset, by path

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def identity(content: bytes) -> bytes:
    """Return the content unchanged."""
    return content


# small datasets, changed below their checksums and compression --------------------------------


def encode_image(image: Any, form: str, **options: Any) -> bytes:
    """Return the bytes of an image file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, form, **options)
    return file.getvalue()


def make_png(change: Change = identity) -> bytes:
    """Return a PNG file whose header and pixels are changed, with correct checksums."""
    content, at, chunks = encode_image(PIXELS[0], "PNG"), 8, [b"\x89PNG\r\n\x1a\n"]
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if kind == b"IDAT":
            data = zlib.compress(change(zlib.decompress(data)))
        elif kind == b"IHDR":
            data = change(data)
        chunks.append(make_png_chunk(kind, data))
        at += 12 + size
    return b"".join(chunks)


def make_png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def make_image_folder(name: str, content: bytes) -> Files:
    """Return a folder with this file."""
    return {f"a/{name}": content}


def make_idx(array: Any) -> bytes:
    """Return an IDX file of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def make_npy(array: Any) -> bytes:
    """Return a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def make_npz(change: Change, compression: int) -> bytes:
    """Return a .npz file whose arrays are changed, with correct checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("images.npy", change(make_npy(PIXELS)))
        archive.writestr("labels.npy", change(make_npy(LABELS)))
    return file.getvalue()


def make_cifar_python(change: Change = identity) -> Files:
    """Return two batches of six images of 32×32."""
    pixels = np.resize(PIXELS, (6, 3072))
    batch = pickle.dumps({b"data": pixels, b"labels": LABELS.tolist()}, 2)
    return {"data_batch_1": change(batch), "test_batch": batch}


def make_cifar_binary(change: Change = identity) -> Files:
    """Return two batches of a label and 3,072 pixels per row."""
    rows = np.c_[LABELS.astype(np.uint8), np.resize(PIXELS, (6, 3072))].tobytes()
    return {"data_batch_1.bin": change(rows), "test_batch.bin": rows}


def make_parquet(**options: Any) -> bytes:
    """Return a Parquet file of six images in two row groups."""
    images = [{"bytes": encode_image(image, "PNG"), "path": None} for image in PIXELS]
    table = pa.table({"image": images, "label": LABELS})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3, **options)
    return file.getvalue()


def make_webdataset(change: Change = identity) -> bytes:
    """Return a tar file whose third header is changed, with correct checksums."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, image in enumerate(PIXELS):
            for name, content in (
                ("png", encode_image(image, "PNG")),
                ("cls", b"%d" % (number % 3)),
            ):
                entry = tarfile.TarInfo(f"{number:03}.{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    content = file.getvalue()
    at = content.index(b"002.png\0")
    changed = bytearray(change(content[at : at + 512]).ljust(512, b"\0")[:512])
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    return content[:at] + bytes(changed) + content[at + 512 :]


FORMATS: dict[str, Callable[[Change, Change], Files]] = {
    # The outer change is applied to the file, the inner one below its checksums.
    "png": lambda outer, inner: make_image_folder("1.png", outer(make_png(inner))),
    "png16": lambda outer, inner: make_image_folder(
        "1.png", outer(inner(encode_image(PIXELS[0, ..., 0].astype(np.uint16) * 257, "PNG")))
    ),
    "jpeg": lambda outer, inner: make_image_folder(
        "1.jpg", outer(inner(encode_image(PIXELS[0], "JPEG")))
    ),
    "progressive jpeg": lambda outer, inner: make_image_folder(
        "1.jpg", outer(inner(encode_image(PIXELS[0], "JPEG", progressive=True)))
    ),
    "webp": lambda outer, inner: make_image_folder(
        "1.webp", outer(inner(encode_image(PIXELS[0], "WEBP")))
    ),
    "lossless webp": lambda outer, inner: make_image_folder(
        "1.webp", outer(inner(encode_image(PIXELS[0], "WEBP", lossless=True)))
    ),
    "idx": lambda outer, inner: {
        "train-images-idx3-ubyte": outer(make_idx(PIXELS[..., 0])),
        "train-labels-idx1-ubyte": inner(make_idx(LABELS)),
    },
    "idx.gz": lambda outer, inner: {
        "train-images-idx3-ubyte.gz": outer(gzip.compress(inner(make_idx(PIXELS[..., 0])))),
        "train-labels-idx1-ubyte.gz": outer(gzip.compress(inner(make_idx(LABELS)))),
    },
    "cifar python": lambda outer, inner: make_cifar_python(lambda batch: outer(inner(batch))),
    "cifar binary": lambda outer, inner: make_cifar_binary(lambda batch: outer(inner(batch))),
    "npy": lambda outer, inner: {
        "images.npy": outer(make_npy(PIXELS)),
        "labels.npy": inner(make_npy(LABELS)),
    },
    "npy of strings": lambda outer, inner: {
        "images.npy": make_npy(PIXELS),
        "labels.npy": outer(inner(make_npy(np.array(["ant", "bee", "cow"])[LABELS]))),
    },
    "npz": lambda outer, inner: {"a.npz": outer(make_npz(inner, zipfile.ZIP_STORED))},
    "compressed npz": lambda outer, inner: {"a.npz": outer(make_npz(inner, zipfile.ZIP_DEFLATED))},
    "parquet": lambda outer, inner: {"a.parquet": outer(inner(make_parquet()))},
    "plain parquet": lambda outer, inner: {
        "a.parquet": outer(inner(make_parquet(compression="none", use_dictionary=False)))
    },
    "webdataset": lambda outer, inner: {"a.tar": outer(make_webdataset(inner))},
    "webdataset.gz": lambda outer, inner: {
        "a.tar.gz": outer(gzip.compress(make_webdataset(inner), 1))
    },
}


def make_damaged(name: str, count: int, seed: int) -> Iterator[Files]:
    """Yield datasets with a file damaged as it is, below its checksums, or both."""
    rng = random.Random(f"{name} {seed}")
    for _ in range(count):
        kind = rng.choice(("outer", "inner", "inner", "both"))
        change: Change = lambda content: damage(content, rng)  # noqa: E731
        outer = change if kind != "inner" else identity
        inner = change if kind != "outer" else identity
        yield FORMATS[name](outer, inner)


def write_files(folder: Path, files: Files) -> Path:
    """Write the files of a dataset to a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def read_dataset(folder: Path) -> str:
    """Open a dataset and read it whole; return "read" or "rejected"."""
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True, file=sys.__stderr__)
    try:
        data = rd.open_dataset(str(folder))
        images = data["images"].data.compute(scheduler="sync")
        assert images.shape == tuple(data.sizes.values())
        assert len(data.labels) == len(data.split) == len(images)
    except DataError as error:
        if str(folder) in str(error) and len(str(error)) < 1000:
            return "rejected"
        raise AssertionError(f"bad message: {str(error)[:1000]}") from None
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "read"
