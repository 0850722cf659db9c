"""Thousands of damaged and hostile files: each ends in images, or in a DataError that says why.

All files of a format are opened and read in one process of their own, so that a crash, a hang or
too much memory is seen for what it is.
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
from rescnet_dist.errors import DataError

SEED = 20240229
MEMORY = 2**30  # bytes that no file may bring a process to
HANG = 20  # seconds that no file may take
Change = Callable[[bytes], bytes]
Files = dict[str, bytes]  # of a data set, by path

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def same(content: bytes) -> bytes:
    """A change that is none."""
    return content


# small data sets, with a change of what lies under checksums and compression ---------------------


def encoded(image: Any, form: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, form, **options)
    return file.getvalue()


def png(change: Change = same) -> bytes:
    """A PNG file: header and pixels are changed, and all checksums are right."""
    content, at, chunks = encoded(PIXELS[0], "PNG"), 8, [b"\x89PNG\r\n\x1a\n"]
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if kind == b"IDAT":
            data = zlib.compress(change(zlib.decompress(data)))
        elif kind == b"IHDR":
            data = change(data)
        chunks.append(chunk(kind, data))
        at += 12 + size
    return b"".join(chunks)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def image_folder(name: str, content: bytes) -> Files:
    """A folder with this file."""
    return {f"a/{name}": content}


def idx(array: Any) -> bytes:
    """An IDX file of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def npy(array: Any) -> bytes:
    """A .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(change: Change, compression: int) -> bytes:
    """A .npz file whose arrays are changed, and all checksums are right."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("images.npy", change(npy(PIXELS)))
        archive.writestr("labels.npy", change(npy(LABELS)))
    return file.getvalue()


def cifar_python(change: Change = same) -> Files:
    """Two batches; the pixels are those of six images of 32×32."""
    pixels = np.resize(PIXELS, (6, 3072))
    batch = pickle.dumps({b"data": pixels, b"labels": LABELS.tolist()}, 2)
    return {"data_batch_1": change(batch), "test_batch": batch}


def cifar_binary(change: Change = same) -> Files:
    """Two batches of a label and 3,072 pixels per row."""
    rows = np.c_[LABELS.astype(np.uint8), np.resize(PIXELS, (6, 3072))].tobytes()
    return {"data_batch_1.bin": change(rows), "test_batch.bin": rows}


def parquet(**options: Any) -> bytes:
    """Six images in two row groups."""
    images = [{"bytes": encoded(image, "PNG"), "path": None} for image in PIXELS]
    table = pa.table({"image": images, "label": LABELS})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3, **options)
    return file.getvalue()


def webdataset(change: Change = same) -> bytes:
    """A tar file; the header of its third image is changed, and all checksums are right."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, image in enumerate(PIXELS):
            for name, content in (("png", encoded(image, "PNG")), ("cls", b"%d" % (number % 3))):
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
    # by outer change of the file as it is, and inner change below its checksums
    "png": lambda outer, inner: image_folder("1.png", outer(png(inner))),
    "png16": lambda outer, inner: image_folder(
        "1.png", outer(inner(encoded(PIXELS[0, ..., 0].astype(np.uint16) * 257, "PNG")))
    ),
    "jpeg": lambda outer, inner: image_folder("1.jpg", outer(inner(encoded(PIXELS[0], "JPEG")))),
    "progressive jpeg": lambda outer, inner: image_folder(
        "1.jpg", outer(inner(encoded(PIXELS[0], "JPEG", progressive=True)))
    ),
    "webp": lambda outer, inner: image_folder("1.webp", outer(inner(encoded(PIXELS[0], "WEBP")))),
    "lossless webp": lambda outer, inner: image_folder(
        "1.webp", outer(inner(encoded(PIXELS[0], "WEBP", lossless=True)))
    ),
    "idx": lambda outer, inner: {
        "train-images-idx3-ubyte": outer(idx(PIXELS[..., 0])),
        "train-labels-idx1-ubyte": inner(idx(LABELS)),
    },
    "idx.gz": lambda outer, inner: {
        "train-images-idx3-ubyte.gz": outer(gzip.compress(inner(idx(PIXELS[..., 0])))),
        "train-labels-idx1-ubyte.gz": outer(gzip.compress(inner(idx(LABELS)))),
    },
    "cifar python": lambda outer, inner: cifar_python(lambda batch: outer(inner(batch))),
    "cifar binary": lambda outer, inner: cifar_binary(lambda batch: outer(inner(batch))),
    "npy": lambda outer, inner: {
        "images.npy": outer(npy(PIXELS)),
        "labels.npy": inner(npy(LABELS)),
    },
    "npy of words": lambda outer, inner: {
        "images.npy": npy(PIXELS),
        "labels.npy": outer(inner(npy(np.array(["ant", "bee", "cow"])[LABELS]))),
    },
    "npz": lambda outer, inner: {"a.npz": outer(npz(inner, zipfile.ZIP_STORED))},
    "compressed npz": lambda outer, inner: {"a.npz": outer(npz(inner, zipfile.ZIP_DEFLATED))},
    "parquet": lambda outer, inner: {"a.parquet": outer(inner(parquet()))},
    "plain parquet": lambda outer, inner: {
        "a.parquet": outer(inner(parquet(compression="none", use_dictionary=False)))
    },
    "webdataset": lambda outer, inner: {"a.tar": outer(webdataset(inner))},
    "webdataset.gz": lambda outer, inner: {"a.tar.gz": outer(gzip.compress(webdataset(inner), 1))},
}

# damage -----------------------------------------------------------------------------------------

HUGE = [0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**64 - 1]


def damage(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three things wrong with it, half of the time near its ends."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if content:
            content = rng.choice(DAMAGES)(content, location(content, rng), rng)
    return content


def location(content: bytes, rng: random.Random) -> int:
    """Where there is damage to be done."""
    span = rng.choice((16, 64, 512, len(content), len(content)))
    at = rng.randrange(min(span, len(content)))
    return at if rng.random() < 0.6 else len(content) - 1 - at


def flipped(content: bytes, at: int, rng: random.Random) -> bytes:
    """With one bit another."""
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def overwritten(content: bytes, at: int, rng: random.Random) -> bytes:
    """With a span of zeros, of ones, or of anything."""
    size = rng.choice((1, 2, 4, 8, 100))
    new = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size)))
    return content[:at] + new + content[at + size :]


def numbered(content: bytes, at: int, rng: random.Random) -> bytes:
    """With a number of any size in place of another, as one that tells a length."""
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("big", "little"))
    new = (rng.choice(HUGE) & (1 << 8 * size) - 1).to_bytes(size, order)  # type: ignore[arg-type]
    return content[:at] + new + content[at + size :]


def written(content: bytes, at: int, rng: random.Random) -> bytes:
    """With a number in digits."""
    new = str(rng.choice(HUGE)).encode()
    return content[:at] + new + content[at + rng.choice((0, len(new))) :]


def cut(content: bytes, at: int, rng: random.Random) -> bytes:
    """With nothing after a place."""
    return content[:at]


def shortened(content: bytes, at: int, rng: random.Random) -> bytes:
    """Without a span."""
    return content[:at] + content[at + rng.choice((1, 2, 10, 512)) :]


def lengthened(content: bytes, at: int, rng: random.Random) -> bytes:
    """With a span twice, or many times."""
    span = content[at : at + rng.choice((1, 4, 64, 512))]
    return content[:at] + span * rng.choice((2, 2, 50)) + content[at + len(span) :]


DAMAGES = (flipped, overwritten, numbered, written, cut, shortened, lengthened)


def damaged(name: str, count: int, seed: int) -> Iterator[Files]:
    """Data sets with a file that is damaged as it is, below its checksums, or both."""
    rng = random.Random(f"{name} {seed}")
    for _ in range(count):
        where = rng.choice(("outer", "inner", "inner", "both"))
        harm: Change = lambda content: damage(content, rng)  # noqa: E731
        yield FORMATS[name](harm if where != "inner" else same, harm if where != "outer" else same)


# bombs ------------------------------------------------------------------------------------------

MUCH = 410 * 10**6  # bytes, more than are held of one file
MILLION = 10**6


def blank(width: int, height: int, rows: int) -> bytes:
    """A PNG file of a declared size with so many rows of zeros, of 4 bytes a pixel."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    pixels = zlib.compress(bytes(rows * (1 + width * 4)), 1)
    return png()[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def with_chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG file with a chunk that expands to 100 MB."""
    return png()[:33] + chunk(kind, data + zlib.compress(bytes(100 * MILLION), 1)) + png()[33:]


def black(form: str, **options: Any) -> bytes:
    """An image of nearly as many pixels as are allowed."""
    return encoded(np.zeros((5792, 5792, 3), np.uint8), form, **options)


def canvas() -> bytes:
    """A WebP file of one small image on a canvas of the largest size."""
    small = encoded(PIXELS[0], "WEBP")[12:]
    wide = b"VP8X" + struct.pack("<II", 10, 0) + b"\xff\x3f\0" * 2
    return b"RIFF" + struct.pack("<I", 4 + len(wide) + len(small)) + b"WEBP" + wide + small


def gzipped_idx(images: bytes, labels: bytes) -> Files:
    """IDX files that are compressed."""
    return {
        "train-images-idx3-ubyte.gz": gzip.compress(images, 1),
        "train-labels-idx1-ubyte.gz": gzip.compress(labels, 1),
    }


def tiny_images(count: int) -> Files:
    """Many images of one pixel."""
    return gzipped_idx(
        struct.pack(">HBBIII", 0, 8, 3, count, 1, 1) + bytes(count),
        struct.pack(">HBBI", 0, 8, 1, count) + bytes(count),
    )


def pickled(*operations: bytes) -> Files:
    """A CIFAR batch of these operations of a pickle."""
    return {"data_batch_1": b"\x80\x02" + b"".join(operations) + b"."}


def doubled() -> bytes:
    """Operations for a list that holds one twice that holds one twice, …: its text would have
    terabytes."""
    again = (b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(40))
    return b"]q\0" + b"".join(again)


def header(shape: str, kind: str = "|u1") -> bytes:
    """A .npy file that is a header only."""
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


def declared(images: bytes, labels: bytes | None = None) -> Files:
    """Two .npy files."""
    return {"images.npy": images, "labels.npy": labels or npy(LABELS)}


def zeros(*shape: int) -> bytes:
    """A .npy file of zeros."""
    return header(repr(shape)) + bytes(math.prod(shape))


def compressed(**members: bytes) -> Files:
    """A compressed .npz file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return {"a.npz": file.getvalue()}


def table(rows: int, image: bytes, **options: Any) -> Files:
    """A Parquet file with the same image in all rows."""
    images = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([image]))
    columns = {"image": images, "label": np.zeros(rows, np.uint8)}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False, **options)
    return {"a.parquet": file.getvalue()}


def tarred(size: int, kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> Files:
    """A tar file with one member of a declared size and kind, and what really follows."""
    entry = tarfile.TarInfo("0.png")
    entry.size, entry.type = size, kind
    return {"a.tar": entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(1024)}


BOMBS: dict[str, Callable[[], Files]] = {
    "png, largest": lambda: image_folder("a.png", blank(2**31 - 1, 2**31 - 1, 0)),
    "png, beyond Pillow's limit": lambda: image_folder("a.png", blank(12_000, 12_000, 100)),
    "png, beyond ours": lambda: image_folder("a.png", blank(8000, 8000, 8000)),
    "png, just allowed": lambda: image_folder("a.png", blank(5792, 5792, 5792)),
    "png, one row, just allowed": lambda: image_folder("a.png", blank(2**25, 1, 1)),
    "png, text": lambda: image_folder("a.png", with_chunk(b"zTXt", b"k\0\0")),
    "png, profile": lambda: image_folder("a.png", with_chunk(b"iCCP", b"k\0\0")),
    "png, empty": lambda: image_folder("a.png", b""),
    "jpeg, largest": lambda: image_folder(
        "a.jpg",
        encoded(PIXELS[0], "JPEG").replace(b"\x11\x08\0\x08\0\x08", b"\x11\x08\xff\xff\xff\xff"),
    ),
    "jpeg, just allowed": lambda: image_folder("a.jpg", black("JPEG", progressive=True)),
    "webp, just allowed": lambda: image_folder("a.webp", black("WEBP", method=0)),
    "webp, canvas": lambda: image_folder("a.webp", canvas()),
    "idx, largest": lambda: {
        "train-images-idx3-ubyte": b"\0\0\x08\3" + b"\xff" * 12,
        "train-labels-idx1-ubyte": b"\0\0\x08\1" + b"\xff" * 4,
    },
    "idx, of no size": lambda: {
        "train-images-idx3-ubyte": b"\0\0\x08\3" + b"\xff" * 8 + b"\0" * 4,
        "train-labels-idx1-ubyte": idx(LABELS),
    },
    "idx.gz, zeros": lambda: gzipped_idx(idx(PIXELS[..., 0]) + bytes(MUCH), idx(LABELS)),
    "idx.gz, tiny images": lambda: tiny_images(2**24 + 1),
    "idx.gz, tiny images, just allowed": lambda: tiny_images(2**24),
    "cifar, keys nested too deeply": lambda: pickled(b"})", b"\x85" * (MILLION // 2), b"K\1s"),
    "cifar, marks": lambda: pickled(b"K\1" * (MILLION // 4), b"(t" * (MILLION // 4)),
    "cifar, text of terabytes": lambda: pickled(doubled(), doubled(), b"\x93"),
    "cifar, type of terabytes": lambda: pickled(
        b"cnumpy.core.numeric\n_frombuffer\n(U\1acnumpy\ndtype\n(", doubled(), b"tRK\1\x85tR"
    ),
    "cifar, string": lambda: pickled(b"T\xff\xff\xff\x7f"),
    "cifar, bytes": lambda: pickled(b"\x8e" + struct.pack("<Q", 2**62)),
    "cifar, number": lambda: pickled(b"\x8b" + struct.pack("<I", 2**31 - 1)),
    "cifar, digits": lambda: pickled(b"I" + b"9" * MILLION + b"\n"),
    "npy, terabytes": lambda: declared(header("(1099511627776, 28, 28)")),
    "npy, sum": lambda: declared(header("(2**40, 8)")),
    "npy, parentheses": lambda: declared(header("(" * 9000)),
    "npy, signs": lambda: declared(header("-" * 9000 + "1")),
    "npy, type": lambda: declared(header("(1, 2, 3)", "(9999999,9999999)u1")),
    "npy, labels": lambda: declared(npy(PIXELS), header("(999999999999,)")),
    "npy, words": lambda: declared(npy(PIXELS), header("(6,)", "<U500000000")),
    "npz, words, just allowed": lambda: compressed(
        images=zeros(2**14, 1, 1), labels=header(f"({2**14},)", "|S8192") + bytes(2**27)
    ),
    "npz, zeros": lambda: compressed(images=zeros(MUCH, 1, 1), labels=npy(LABELS)),
    "npz, one more": lambda: compressed(
        train_images=zeros(MUCH // 2, 1, 1), test_images=zeros(MUCH // 2, 1, 1)
    ),
    "npz, tiny images": lambda: compressed(images=zeros(2**24 + 1, 1, 1), labels=npy(LABELS)),
    "parquet, labels": lambda: table(2**24 + 1, b"", row_group_size=2**20),
    "parquet, zeros": lambda: table(1, bytes(MUCH), compression_level=1),
    "parquet, same image, just allowed": lambda: table(2000, encoded(PIXELS[0], "PNG")),
    "parquet, same zeros": lambda: table(10, bytes(MUCH // 4)),
    "tar, size": lambda: tarred(2**33 - 1),
    "tar, largest": lambda: tarred(2**62),
    "tar, name": lambda: tarred(MILLION, tarfile.GNUTYPE_LONGNAME, b"n" * MILLION),
    "tar, long name": lambda: tarred(2**40, tarfile.GNUTYPE_LONGNAME),
    "tar, header": lambda: tarred(2**40, tarfile.XHDTYPE),
    "tar.gz, zeros": lambda: {"a.tar.gz": gzip.compress(bytes(MUCH), 1)},
    "tar.gz, empty files": lambda: {
        "a.tar.gz": gzip.compress(tarfile.TarInfo("0.png").tobuf() * 2**18 + bytes(1024), 1)
    },
}
SLOW = (
    *("png, one row, just allowed", "jpeg, just allowed", "npz, one more", "parquet, zeros"),
    *("tar.gz, zeros", "tar.gz, empty files", "npz, words, just allowed"),
)


# processes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """Runs each call in a process of its own, which costs little; one that crashes is an error."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rescnet_dist.data", "dask.array", "pyarrow.parquet", "pytest"])
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        yield pool


def write(folder: Path, files: Files) -> Path:
    """Write the files of a data set to a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def outcome(folder: Path) -> str:
    """Open a data set and read it whole: what became of it, in a word."""
    faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)
    try:
        data = rd.open_dataset(str(folder))
        images = data["images"].data.compute(scheduler="sync")
        assert images.shape == tuple(data.sizes.values())
        assert len(data.labels) == len(data.split) == len(images)
    except DataError as refusal:
        if str(folder) in str(refusal) and len(str(refusal)) < 1000:
            return "refused"
        raise AssertionError(f"this is no good message: {str(refusal)[:1000]}") from None
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "read"


def outcomes(folder: Path, name: str, count: int, seed: int) -> tuple[dict[str, int], int]:
    """What becomes of so many damaged data sets, and the memory that it takes."""
    found = Counter[str]()
    for number, files in enumerate(damaged(name, count, seed)):
        case = f"{number} of {name}, seed {seed}"
        print(case, file=sys.__stderr__)  # to be seen if the process dies
        try:
            found[outcome(write(folder / str(number), files))] += 1
        except Exception as error:
            raise AssertionError(f"{case}: {error!r}"[:2000]) from error
    return dict(found), peak_memory()


def single(folder: Path) -> tuple[str, int]:
    """What becomes of one data set, and the memory that it takes."""
    return outcome(folder), peak_memory()


def peak_memory() -> int:
    """Bytes of memory that this process has had at most."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


# tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_whole_data_sets_are_read(name: str, tmp_path: Path) -> None:
    """Without damage, or damage would show nothing."""
    assert outcome(write(tmp_path, FORMATS[name](same, same))) == "read"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(
    process: ProcessPoolExecutor, tmp_path: Path, name: str, count: int
) -> None:
    """There is no other error, no crash, no hang and no more than 1 GiB of memory, whatever is cut
    off, flipped, overwritten, left out, doubled, or declared too large."""
    found, memory = process.submit(outcomes, tmp_path, name, count, SEED + count).result()
    assert sum(found.values()) == count
    assert found["refused"] > count / 10
    assert found["read"]
    assert memory < MEMORY


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BOMBS],
)
def test_bombs_do_not_explode(process: ProcessPoolExecutor, tmp_path: Path, name: str) -> None:
    """What declares or expands to more than fits is refused, and what is just allowed fits."""
    found, memory = process.submit(single, write(tmp_path, BOMBS[name]())).result()
    assert found == ("read" if name.endswith("just allowed") else "refused")
    assert memory < MEMORY
