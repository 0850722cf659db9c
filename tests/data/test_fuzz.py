"""Thousands of damaged and malicious files: each is read, or raises a DataError with a reason.

All files of a format are opened and read in a process of their own, so that a crash, a hang or too
much memory is noticed.
"""

from __future__ import annotations

import gzip
import io
import math
import os
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
from damaged_sources import (
    FORMATS,
    LABELS,
    PIXELS,
    Files,
    encode_image,
    identity,
    make_damaged,
    make_idx,
    make_image_folder,
    make_npy,
    make_png,
    make_png_chunk,
    read_dataset,
    write_files,
)
from mutations import damage, keep
from peak_memory import read_peak_memory

from rescnet_dist.data.sources import DecodeOptions, Samples

DECODE: Any = sys.modules["rescnet_dist.data.sources.decode"]
SEED = 20240229
MAX_MEMORY_BYTES = 2**30  # of a process, for any file
PRELOADED = [  # imported once, not by each process
    *("rescnet_dist.data.dataset", "rescnet_dist.data.lazy", "distributed", "imagecodecs"),
    *("pyarrow.parquet", "pytest"),
]

PNG_FORMATS = ("png", "png16", "parquet", "plain parquet", "webdataset", "webdataset.gz")
PNG_HEADER_BYTES, PNG_END_BYTES = 33, 12  # up to and including IHDR; of IEND
CHUNK_BYTES = {  # the right sizes of chunks of PNG files
    **{b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7, b"tEXt": 12, b"tRNS": 6},
    **{b"bKGD": 6, b"iCCP": 20, b"zTXt": 20, b"eXIf": 20, b"acTL": 8, b"fcTL": 26, b"PLTE": 9},
}


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
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        yield pool


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
    return dict(found), read_peak_memory(os.getpid())


def read_one(folder: Path, decoder: str) -> tuple[str, int]:
    """Return the outcome of one dataset, and the peak memory."""
    use_decoder(decoder)
    return read_dataset(folder), read_peak_memory(os.getpid())


# tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_data_sets_are_read(name: str, tmp_path: Path) -> None:
    """Else the tests of damage would show nothing."""
    assert read_dataset(write_files(tmp_path, FORMATS[name](identity, identity))) == "read"


@pytest.mark.sampled(4)
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


@pytest.mark.sampled(8)
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
