"""Thousands of damaged and malicious files: each is read, or raises a DataError with a reason.

All files of a format are opened and read in a process of their own, so that a crash, a hang or too
much memory is noticed.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import math
import pickle
import random
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import rescnet_dist as rd
from rescnet_dist.data.sources import DecodeOptions, Samples
from rescnet_dist.errors import DataError

DECODE: Any = sys.modules["rescnet_dist.data.sources.decode"]
SEED = 20240229
MAX_MEMORY_BYTES = 2**30  # of a process, for any file
MAX_SECONDS = 20  # for any file
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

PNG_FORMATS = ("png", "png16", "parquet", "plain parquet", "webdataset", "webdataset.gz")
PNG_HEADER_BYTES, PNG_END_BYTES = 33, 12  # up to and including IHDR; of IEND
CHUNK_BYTES = {  # the right sizes of chunks of PNG files
    **{b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7, b"tEXt": 12, b"tRNS": 6},
    **{b"bKGD": 6, b"iCCP": 20, b"zTXt": 20, b"eXIf": 20, b"acTL": 8, b"fcTL": 26, b"PLTE": 9},
}

# damage -----------------------------------------------------------------------------------------

EXTREME_NUMBERS = [
    0,
    1,
    127,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**48,
    2**63 - 1,
    2**64 - 1,
]


def damage(content: bytes, rng: random.Random) -> bytes:
    """Damage the content in one to three ways, half of the time near its ends."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if content:
            content = rng.choice(DAMAGE_FUNCTIONS)(content, draw_offset(content, rng), rng)
    return content


def keep(content: bytes, rng: random.Random) -> bytes:
    """Return the content unchanged."""
    return content


def draw_offset(content: bytes, rng: random.Random) -> int:
    """Draw the offset at which to damage the content."""
    span = rng.choice((16, 64, 512, len(content), len(content)))
    at = rng.randrange(min(span, len(content)))
    return at if rng.random() < 0.6 else len(content) - 1 - at


def flip_bit(content: bytes, at: int, rng: random.Random) -> bytes:
    """Flip one bit."""
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def overwrite_span(content: bytes, at: int, rng: random.Random) -> bytes:
    """Overwrite a span with zeros, ones, or random bytes."""
    size = rng.choice((1, 2, 4, 8, 100))
    new = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size)))
    return content[:at] + new + content[at + size :]


def overwrite_binary_number(content: bytes, at: int, rng: random.Random) -> bytes:
    """Overwrite bytes with a number of any size, such as a length."""
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("big", "little"))
    new = (rng.choice(EXTREME_NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, order)  # type: ignore[arg-type]
    return content[:at] + new + content[at + size :]


def insert_decimal_number(content: bytes, at: int, rng: random.Random) -> bytes:
    """Insert a number in digits."""
    new = str(rng.choice(EXTREME_NUMBERS)).encode()
    return content[:at] + new + content[at + rng.choice((0, len(new))) :]


def truncate(content: bytes, at: int, rng: random.Random) -> bytes:
    """Remove everything after the offset."""
    return content[:at]


def remove_span(content: bytes, at: int, rng: random.Random) -> bytes:
    """Remove a span."""
    return content[:at] + content[at + rng.choice((1, 2, 10, 512)) :]


def repeat_span(content: bytes, at: int, rng: random.Random) -> bytes:
    """Repeat a span, twice or many times."""
    span = content[at : at + rng.choice((1, 4, 64, 512))]
    return content[:at] + span * rng.choice((2, 2, 50)) + content[at + len(span) :]


DAMAGE_FUNCTIONS = (
    flip_bit,
    overwrite_span,
    overwrite_binary_number,
    insert_decimal_number,
    truncate,
    remove_span,
    repeat_span,
)


def make_damaged(name: str, count: int, seed: int) -> Iterator[Files]:
    """Yield datasets with a file damaged as it is, below its checksums, or both."""
    rng = random.Random(f"{name} {seed}")
    for _ in range(count):
        kind = rng.choice(("outer", "inner", "inner", "both"))
        change: Change = lambda content: damage(content, rng)  # noqa: E731
        outer = change if kind != "inner" else identity
        inner = change if kind != "outer" else identity
        yield FORMATS[name](outer, inner)


# bombs ------------------------------------------------------------------------------------------

TOO_MANY_BYTES = 410 * 10**6  # more than the limit of one file
MILLION = 10**6


def make_blank_png(width: int, height: int, rows: int) -> bytes:
    """Return a PNG file of a declared size with `rows` rows of zeros, 4 bytes a pixel."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    pixels = zlib.compress(bytes(rows * (1 + width * 4)), 1)
    return (
        make_png()[:8]
        + make_png_chunk(b"IHDR", header)
        + make_png_chunk(b"IDAT", pixels)
        + make_png_chunk(b"IEND", b"")
    )


def make_png_with_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a PNG file with a chunk that expands to 100 MB."""
    return (
        make_png()[:33]
        + make_png_chunk(kind, data + zlib.compress(bytes(100 * MILLION), 1))
        + make_png()[33:]
    )


def make_black_image(form: str, **options: Any) -> bytes:
    """Return an image of nearly the largest number of pixels."""
    return encode_image(np.zeros((5792, 5792, 3), np.uint8), form, **options)


def make_webp_canvas() -> bytes:
    """Return a WebP file of one small image on a canvas of the largest size."""
    small = encode_image(PIXELS[0], "WEBP")[12:]
    wide = b"VP8X" + struct.pack("<II", 10, 0) + b"\xff\x3f\0" * 2
    return b"RIFF" + struct.pack("<I", 4 + len(wide) + len(small)) + b"WEBP" + wide + small


def make_gzipped_idx(images: bytes, labels: bytes) -> Files:
    """Return compressed IDX files."""
    return {
        "train-images-idx3-ubyte.gz": gzip.compress(images, 1),
        "train-labels-idx1-ubyte.gz": gzip.compress(labels, 1),
    }


def make_tiny_images(count: int) -> Files:
    """Return many images of one pixel."""
    return make_gzipped_idx(
        struct.pack(">HBBIII", 0, 8, 3, count, 1, 1) + bytes(count),
        struct.pack(">HBBI", 0, 8, 1, count) + bytes(count),
    )


def make_pickle(*operations: bytes) -> Files:
    """Return a CIFAR batch of these pickle operations."""
    return {"data_batch_1": b"\x80\x02" + b"".join(operations) + b"."}


def make_nested_lists() -> bytes:
    """Return operations for nested lists whose text would have terabytes.

    Each list contains the previous one twice.
    """
    lists = (b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(40))
    return b"]q\0" + b"".join(lists)


def make_npy_header(shape: str, kind: str = "|u1") -> bytes:
    """Return a .npy file that is a header only."""
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


def make_npy_files(images: bytes, labels: bytes | None = None) -> Files:
    """Return two .npy files."""
    return {"images.npy": images, "labels.npy": labels or make_npy(LABELS)}


def make_npy_zeros(*shape: int) -> bytes:
    """Return a .npy file of zeros."""
    return make_npy_header(repr(shape)) + bytes(math.prod(shape))


def make_compressed_npz(**members: bytes) -> Files:
    """Return a compressed .npz file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return {"a.npz": file.getvalue()}


def make_parquet_table(rows: int, image: bytes, **options: Any) -> Files:
    """Return a Parquet file with the same image in all rows."""
    images = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([image]))
    columns = {"image": images, "label": np.zeros(rows, np.uint8)}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False, **options)
    return {"a.parquet": file.getvalue()}


def make_tar(size: int, kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> Files:
    """Return a tar file with a member of a declared size and type, and its actual content."""
    entry = tarfile.TarInfo("0.png")
    entry.size, entry.type = size, kind
    return {"a.tar": entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(1024)}


BOMBS: dict[str, Callable[[], Files]] = {
    "png, largest": lambda: make_image_folder("a.png", make_blank_png(2**31 - 1, 2**31 - 1, 0)),
    "png, above Pillow's limit": lambda: make_image_folder(
        "a.png", make_blank_png(12_000, 12_000, 100)
    ),
    "png, above our limit": lambda: make_image_folder("a.png", make_blank_png(8000, 8000, 8000)),
    "png, at the limit": lambda: make_image_folder("a.png", make_blank_png(5792, 5792, 5792)),
    "png, one row, at the limit": lambda: make_image_folder("a.png", make_blank_png(2**25, 1, 1)),
    "png, text": lambda: make_image_folder("a.png", make_png_with_chunk(b"zTXt", b"k\0\0")),
    "png, profile": lambda: make_image_folder("a.png", make_png_with_chunk(b"iCCP", b"k\0\0")),
    "png, empty": lambda: make_image_folder("a.png", b""),
    "jpeg, largest": lambda: make_image_folder(
        "a.jpg",
        encode_image(PIXELS[0], "JPEG").replace(
            b"\x11\x08\0\x08\0\x08", b"\x11\x08\xff\xff\xff\xff"
        ),
    ),
    "jpeg, at the limit": lambda: make_image_folder(
        "a.jpg", make_black_image("JPEG", progressive=True)
    ),
    "webp, at the limit": lambda: make_image_folder("a.webp", make_black_image("WEBP", method=0)),
    "webp, canvas": lambda: make_image_folder("a.webp", make_webp_canvas()),
    "idx, largest": lambda: {
        "train-images-idx3-ubyte": b"\0\0\x08\3" + b"\xff" * 12,
        "train-labels-idx1-ubyte": b"\0\0\x08\1" + b"\xff" * 4,
    },
    "idx, of no size": lambda: {
        "train-images-idx3-ubyte": b"\0\0\x08\3" + b"\xff" * 8 + b"\0" * 4,
        "train-labels-idx1-ubyte": make_idx(LABELS),
    },
    "idx.gz, zeros": lambda: make_gzipped_idx(
        make_idx(PIXELS[..., 0]) + bytes(TOO_MANY_BYTES), make_idx(LABELS)
    ),
    "idx.gz, tiny images": lambda: make_tiny_images(2**24 + 1),
    "idx.gz, tiny images, at the limit": lambda: make_tiny_images(2**24),
    "cifar, keys nested too deeply": lambda: make_pickle(b"})", b"\x85" * (MILLION // 2), b"K\1s"),
    "cifar, marks": lambda: make_pickle(b"K\1" * (MILLION // 4), b"(t" * (MILLION // 4)),
    "cifar, text of terabytes": lambda: make_pickle(
        make_nested_lists(), make_nested_lists(), b"\x93"
    ),
    "cifar, type of terabytes": lambda: make_pickle(
        b"cnumpy.core.numeric\n_frombuffer\n(U\1acnumpy\ndtype\n(",
        make_nested_lists(),
        b"tRK\1\x85tR",
    ),
    "cifar, string": lambda: make_pickle(b"T\xff\xff\xff\x7f"),
    "cifar, bytes": lambda: make_pickle(b"\x8e" + struct.pack("<Q", 2**62)),
    "cifar, number": lambda: make_pickle(b"\x8b" + struct.pack("<I", 2**31 - 1)),
    "cifar, digits": lambda: make_pickle(b"I" + b"9" * MILLION + b"\n"),
    "npy, terabytes": lambda: make_npy_files(make_npy_header("(1099511627776, 28, 28)")),
    "npy, sum": lambda: make_npy_files(make_npy_header("(2**40, 8)")),
    "npy, parentheses": lambda: make_npy_files(make_npy_header("(" * 9000)),
    "npy, signs": lambda: make_npy_files(make_npy_header("-" * 9000 + "1")),
    "npy, type": lambda: make_npy_files(make_npy_header("(1, 2, 3)", "(9999999,9999999)u1")),
    "npy, labels": lambda: make_npy_files(make_npy(PIXELS), make_npy_header("(999999999999,)")),
    "npy, strings": lambda: make_npy_files(
        make_npy(PIXELS), make_npy_header("(6,)", "<U500000000")
    ),
    "npz, strings, at the limit": lambda: make_compressed_npz(
        images=make_npy_zeros(2**14, 1, 1),
        labels=make_npy_header(f"({2**14},)", "|S8192") + bytes(2**27),
    ),
    "npz, zeros": lambda: make_compressed_npz(
        images=make_npy_zeros(TOO_MANY_BYTES, 1, 1), labels=make_npy(LABELS)
    ),
    "npz, one more": lambda: make_compressed_npz(
        train_images=make_npy_zeros(TOO_MANY_BYTES // 2, 1, 1),
        test_images=make_npy_zeros(TOO_MANY_BYTES // 2, 1, 1),
    ),
    "npz, tiny images": lambda: make_compressed_npz(
        images=make_npy_zeros(2**24 + 1, 1, 1), labels=make_npy(LABELS)
    ),
    "parquet, labels": lambda: make_parquet_table(2**24 + 1, b"", row_group_size=2**20),
    "parquet, zeros": lambda: make_parquet_table(1, bytes(TOO_MANY_BYTES), compression_level=1),
    "parquet, same image, at the limit": lambda: make_parquet_table(
        2000, encode_image(PIXELS[0], "PNG")
    ),
    "parquet, same zeros": lambda: make_parquet_table(10, bytes(TOO_MANY_BYTES // 4)),
    "tar, size": lambda: make_tar(2**33 - 1),
    "tar, largest": lambda: make_tar(2**62),
    "tar, name": lambda: make_tar(MILLION, tarfile.GNUTYPE_LONGNAME, b"n" * MILLION),
    "tar, long name": lambda: make_tar(2**40, tarfile.GNUTYPE_LONGNAME),
    "tar, header": lambda: make_tar(2**40, tarfile.XHDTYPE),
    "tar.gz, zeros": lambda: {"a.tar.gz": gzip.compress(bytes(TOO_MANY_BYTES), 1)},
    "tar.gz, empty files": lambda: {
        "a.tar.gz": gzip.compress(tarfile.TarInfo("0.png").tobuf() * 2**18 + bytes(1024), 1)
    },
}
SLOW_BOMBS = (
    *("png, one row, at the limit", "jpeg, at the limit", "npz, one more", "parquet, zeros"),
    *("tar.gz, zeros", "tar.gz, empty files", "npz, strings, at the limit"),
)


# processes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """A pool that runs each call in a process of its own; a crash is an error."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rescnet_dist.data", "dask.array", "pyarrow.parquet", "pytest"])
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        yield pool


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


def use_decoder(name: str) -> None:
    """Decode PNG files by "pillow" or "imagecodecs" in this process, which the caller ends."""
    if name == "pillow":
        DECODE.imagecodecs = None
    assert (DECODE.imagecodecs is None) == (name == "pillow")


def read_damaged(
    folder: Path, name: str, count: int, seed: int, decoder: str
) -> tuple[dict[str, int], int]:
    """Return the outcomes of many damaged datasets, and the peak memory."""
    use_decoder(decoder)
    found = Counter[str]()
    for number, files in enumerate(make_damaged(name, count, seed)):
        case = f"{number} of {name}, seed {seed}"
        print(case, file=sys.__stderr__)  # visible if the process dies
        try:
            found[read_dataset(write_files(folder / str(number), files))] += 1
        except Exception as error:
            raise AssertionError(f"{case}: {error!r}"[:2000]) from error
    return dict(found), get_peak_memory()


def read_one(folder: Path, decoder: str) -> tuple[str, int]:
    """Return the outcome of one dataset, and the peak memory."""
    use_decoder(decoder)
    return read_dataset(folder), get_peak_memory()


def get_peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


# tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_data_sets_are_read(name: str, tmp_path: Path) -> None:
    """Else the tests of damage would show nothing."""
    assert read_dataset(write_files(tmp_path, FORMATS[name](identity, identity))) == "read"


@pytest.mark.parametrize(
    ("name", "decoder"),
    [*((name, "imagecodecs") for name in FORMATS), *((name, "pillow") for name in PNG_FORMATS)],
)
@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_rejected(
    process: ProcessPoolExecutor, tmp_path: Path, name: str, decoder: str, count: int
) -> None:
    """There is no other error, no crash, no hang and at most 1 GiB of memory.

    Files are truncated, flipped, overwritten, shortened, repeated, or declare too much.
    """
    arguments = tmp_path, name, count, SEED + count, decoder
    found, peak_bytes = process.submit(read_damaged, *arguments).result()
    assert sum(found.values()) == count
    assert found["rejected"] > count / 10
    assert found["read"]
    assert peak_bytes < MAX_MEMORY_BYTES


def add_chunks(png: bytes, rng: random.Random) -> bytes:
    """Insert up to two chunks that may affect the decoding, of right or of wrong sizes."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        kind, size = rng.choice(list(CHUNK_BYTES.items()))
        size = size if rng.random() < 0.8 else rng.randrange(40)
        at = rng.choice((PNG_HEADER_BYTES, len(png) - PNG_END_BYTES))
        png = png[:at] + make_png_chunk(kind, rng.randbytes(size)) + png[at:]
    return png


def decode_by(decoder: str, png: bytes) -> bytes | str:
    """Return the pixels of a damaged PNG file, or the reason why it is rejected.

    The decoder is "imagecodecs", "pillow", or "Image.open", the one of all other files.
    """
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the number of pixels
        if decoder == "pillow":
            patch.setattr(DECODE, "imagecodecs", None)
        elif decoder == "Image.open":
            patch.setattr(DECODE, "_decode_png", lambda *_: False)
        samples = Samples(images=[png], names=["1.png"])
        block = DECODE.decode(samples, DecodeOptions(), PIXELS[0].shape, PIXELS.dtype)
    return block.bad[0][2] if block.bad else block.images.tobytes()


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_decoders_agree_on_damaged_files(count: int) -> None:
    """Workers with and without imagecodecs import the same images and skip the same ones."""
    rng, fast, outcomes = random.Random(SEED), 0, Counter[type]()
    for _ in range(count):
        png = add_chunks(make_png(lambda content: rng.choice((damage, keep))(content, rng)), rng)
        png = rng.choice((damage, keep))(png, rng)
        outcome = decode_by("Image.open", png)
        assert decode_by("pillow", png) == decode_by("imagecodecs", png) == outcome
        outcomes[type(outcome)] += 1
        fast += DECODE._decode_png(png, np.empty_like(PIXELS[0]))
    assert outcomes[str] > count / 10
    assert outcomes[bytes] > fast > count / 50


@pytest.mark.parametrize(
    ("name", "decoder"),
    [
        pytest.param(name, decoder, marks=[pytest.mark.slow] * (name in SLOW_BOMBS))
        for decoder in ("imagecodecs", "pillow")
        for name in BOMBS
        if decoder == "imagecodecs" or name.startswith("png")
    ],
)
def test_bombs_are_rejected(
    process: ProcessPoolExecutor, tmp_path: Path, name: str, decoder: str
) -> None:
    """Files that declare or expand to too much are rejected; those at the limit fit."""
    folder = write_files(tmp_path, BOMBS[name]())
    found, peak_bytes = process.submit(read_one, folder, decoder).result()
    assert found == ("read" if name.endswith("at the limit") else "rejected")
    assert peak_bytes < MAX_MEMORY_BYTES
