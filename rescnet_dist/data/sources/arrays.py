"""Arrays in files: the bytes of rows, wherever in the file they begin; IDX and NumPy's formats."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.data.images import IMAGE_NAMES, LABEL_NAMES
from rescnet_dist.data.sources.files import LARGEST, SAID, File, brief, reading
from rescnet_dist.data.sources.source import (
    Array,
    NumberedReader,
    Reader,
    Samples,
    Source,
    check_counts,
    coded,
    in_order,
    split_of_file,
)
from rescnet_dist.errors import DataError

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
HEADER = 2**16  # bytes in which a header ends
MOST_HELD = 2**24  # images or labels of which the file is held in memory
MOST_NAMES = 2**16  # classes of labels that are strings
NAME_BYTES = 2**27  # of labels that are strings, as many as of the most numbers
MOST_CHANNELS = 4  # of images that have 1 or 3 rows, as those do whose channels come first
NUMBERS, STRINGS = "buif", "SU"  # kinds of types


@dataclass(frozen=True, slots=True)
class FileArray:
    """An array (n, …) in C order, that begins at `offset` of a file, or of `data` in its place; its
    name, where there may be several in the file."""

    file: File
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: bytearray | None = field(default=None, repr=False)
    name: str = ""

    def __str__(self) -> str:
        return _told(self.file, self.name)

    def __post_init__(self) -> None:
        needed = self.offset + math.prod(self.shape) * self.dtype.itemsize
        there = self.file.length if self.data is None else len(self.data)
        if needed > there:
            raise DataError(
                f"{self} is cut short: with shape {self.shape} and type {self.dtype} it takes "
                f"{needed:,} bytes, and {there:,} are there"
            )
        is_held = self.data is not None or self.file.is_gzipped
        if is_held and self.shape[0] > MOST_HELD:
            raise DataError(
                f"{self} has {self.shape[0]:,} rows, and a compressed one may have {MOST_HELD:,}: "
                "decompress it first"
            )

    def part(self, start: int, stop: int) -> FileArray:
        """Rows start to stop of it."""
        row, shape = math.prod(self.shape[1:]) * self.dtype.itemsize, self.shape[1:]
        first, last = self.offset + start * row, self.offset + stop * row
        if self.data is None:
            return replace(self, offset=first, shape=(stop - start, *shape))
        return replace(self, offset=0, shape=(stop - start, *shape), data=self.data[first:last])

    def rows(self) -> Array:
        """All of it, in the machine's byte order."""
        start, stop = self.offset, self.offset + math.prod(self.shape) * self.dtype.itemsize
        data = self.file.read(start, stop) if self.data is None else self.data[start:stop]
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        return array.astype(self.dtype.newbyteorder("="), copy=False)


def _told(file: File, name: str) -> str:
    """What an array is called in errors."""
    return f"the array {name[:SAID]} in {file.url}" if name else f"the array in {file.url}"


class ArraySource(Source):
    """Splits that are each an array of images (n, H, W) or (n, H, W, d) and one of labels (n,),
    whole numbers or class names."""

    def __init__(
        self, url: str, images: dict[str, FileArray], labels: dict[str, FileArray]
    ) -> None:
        self.url, self.images = url, images
        if images.keys() != labels.keys() or not images:
            raise DataError(
                f"{url} has images to {', '.join(images) or 'nothing'} and labels to "
                f"{', '.join(labels) or 'nothing'}: each split needs both"
            )
        self.splits = {split: images[split].shape[0] for split in in_order(images)}
        for split, count in self.splits.items():
            check_counts(url, split, count, labels[split].shape[0])
            _check_images(images[split])
            _check_labels(labels[split])
        are_strings = {array.dtype.kind in STRINGS for array in labels.values()}
        if len(are_strings) > 1:
            raise DataError(
                f"{url} has labels of numbers and of strings: give one of them to all splits"
            )
        labels = {split: labels[split] for split in self.splits}
        if are_strings == {True}:
            self.classes, self.labels = _coded_names(labels)
        else:
            self.classes, self.labels = coded(
                {split: array.rows().reshape(-1) for split, array in labels.items()}
            )

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the images."""
        names = NumberedReader(f"{self.url}, {split}", start, stop)
        return partial(_read, self.images[split].part(start, stop), names)


def _read(array: FileArray, names: NumberedReader) -> Samples:
    images = array.rows()
    return Samples(images if images.ndim == 4 else images[..., np.newaxis], names)


def _add(url: str, found: dict[str, FileArray], split: str, name: str, array: FileArray) -> None:
    if split in found:
        raise DataError(
            f"{url} has two arrays to {split}, one of them {name}: keep one, or name their splits"
        )
    found[split] = array


def _check_images(images: FileArray) -> None:
    if len(images.shape) not in (3, 4) or 0 in images.shape:
        raise DataError(
            f"{images} has shape {images.shape}: images must be of shape (n, height, width) or (n, "
            "height, width, channels)"
        )
    if len(images.shape) == 4 and images.shape[1] in (1, 3) and images.shape[3] > MOST_CHANNELS:
        raise DataError(
            f"{images} has shape {images.shape}, which looks like (image, channel, y, x): "
            "transpose it to (n, height, width, channels), by images.transpose(0, 2, 3, 1)"
        )
    if images.dtype.kind not in NUMBERS:
        raise DataError(f"{images} is of type {images.dtype}: pixels must be numbers")


def _check_labels(labels: FileArray) -> None:
    if math.prod(labels.shape) != labels.shape[0]:
        raise DataError(f"{labels} has shape {labels.shape}: labels must be of shape (n,)")
    if labels.dtype.kind not in "iu" + STRINGS:
        raise DataError(
            f"{labels} is of type {labels.dtype}: labels must be whole numbers or strings"
        )
    size = labels.shape[0] * labels.dtype.itemsize
    if labels.dtype.kind in STRINGS and size > NAME_BYTES:
        raise DataError(
            f"{labels} has {size:,} bytes of strings, and labels may have {NAME_BYTES:,}: give "
            "whole numbers"
        )


def _coded_names(labels: dict[str, FileArray]) -> tuple[tuple[str, ...], dict[str, Array]]:
    """Class names and codes (n,) of each split from labels (n,) that are strings."""
    found = {split: _distinct(array) for split, array in labels.items()}
    classes = tuple(sorted({name for names, _ in found.values() for name in names}))
    code = {name: number for number, name in enumerate(classes)}
    return classes, {
        split: np.array([code[name] for name in names], np.int32)[places]
        for split, (names, places) in found.items()
    }


def _distinct(labels: FileArray) -> tuple[list[str], Array]:
    """The different names among labels that are strings, bytes being UTF-8, and the place (n,) of
    each label among them."""
    names, places = np.unique(labels.rows().reshape(-1), return_inverse=True)
    if len(names) > MOST_NAMES:
        raise DataError(
            f"{labels} has {len(names):,} different strings, and {MOST_NAMES:,} classes are the "
            "most: give class names, not names of images"
        )
    try:
        encoded = (name if isinstance(name, bytes) else name.encode() for name in names.tolist())
        return [name.decode() for name in encoded], places
    except (ValueError, SystemError) as error:  # the last of numbers that are no character
        raise DataError(f"{labels} has strings that are no text ({brief(error)})") from None


# IDX --------------------------------------------------------------------------------------------


def idx_source(url: str, files: Sequence[str]) -> ArraySource:
    """IDX files as of MNIST, plain or gzipped, by their URLs."""
    images: dict[str, FileArray] = {}
    labels: dict[str, FileArray] = {}
    for file_url in files:
        name = file_url.rsplit("/", 1)[-1]
        array = idx_array(File.at(file_url))
        kind = images if len(array.shape) > 1 else labels
        _add(url, kind, split_of_file(name), name, array)
    return ArraySource(url, images, labels)


def idx_array(file: File) -> FileArray:
    """The array of an IDX file, from its header."""
    head = file.read(0, min(HEADER, file.length))
    try:
        zero, kind, dims = struct.unpack_from(">HBB", head)
        shape = struct.unpack_from(f">{dims}I", head, 4)
    except struct.error:
        raise DataError(f"{file.url} is cut short: it has {len(head)} bytes") from None
    if zero or kind not in IDX_TYPES or not 1 <= dims <= 4:
        raise DataError(
            f"{file.url} is no IDX file: it begins with {head[:4].hex()}, which should be 0000, a "
            "type from 08 to 0e and up to 04 dimensions"
        )
    return FileArray(file, 4 + 4 * dims, np.dtype(IDX_TYPES[kind]), tuple(shape))


# NumPy ------------------------------------------------------------------------------------------


def numpy_source(url: str, files: Sequence[str]) -> ArraySource:
    """Arrays of .npy files, or in .npz files, by the URLs of these; their names tell what they are,
    as x_train, test_labels or images."""
    arrays: dict[str, FileArray] = {}
    for file_url in files:
        file = File.at(file_url)
        if file.name.endswith(".npz"):
            stem = file.name.removesuffix(".npz")
            arrays |= {f"{stem}/{name}": array for name, array in npz_arrays(file).items()}
        else:
            arrays[file.name.removesuffix(".npy")] = npy_array(file)
    images: dict[str, FileArray] = {}
    labels: dict[str, FileArray] = {}
    for name, array in arrays.items():
        words = name.rsplit("/", 1)[-1].replace("-", "_").split("_")
        if any(word in IMAGE_NAMES for word in words):
            _add(url, images, split_of_file(name), name, array)
        elif any(word in LABEL_NAMES for word in words):
            _add(url, labels, split_of_file(name), name, array)
    if not images:
        raise DataError(
            f"{url} has the arrays {', '.join(sorted(arrays))}: name them images and labels, or "
            "x_train, y_train, x_test and y_test"
        )
    return ArraySource(url, images, labels)


def npy_array(
    file: File, offset: int = 0, data: bytearray | None = None, name: str = ""
) -> FileArray:
    """The array of a .npy file, from its header; one of objects, which are pickled, is refused."""
    whole = file.length if data is None else len(data)
    stop = min(offset + HEADER, whole)
    head = io.BytesIO(file.read(offset, stop) if data is None else data[:HEADER])
    try:
        version = np.lib.format.read_magic(head)
        shape, fortran, dtype = HEADERS[version](head, max_header_size=10_000)
    except Exception as error:  # of the parser of Python, as headers are written in it
        raise DataError(f"{_told(file, name)} has no header of NumPy ({brief(error)})") from None
    if problem := _problem(shape, fortran, dtype):
        raise DataError(f"{_told(file, name)} {problem}")
    return FileArray(file, offset + head.tell(), dtype, tuple(shape), data, name)


def _problem(shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> str:
    """Why an array with such a header cannot be read."""
    if dtype.hasobject:
        return f"is of type {dtype}, which is pickled and not read: store numbers or strings"
    if dtype.kind not in NUMBERS + STRINGS or not dtype.itemsize:
        return f"is of type {dtype}: it must be of numbers, or labels of strings"
    if not shape or min(shape) < 0:
        return f"has shape {shape}: it must have one row for each image"
    if fortran:
        return "is in Fortran order: store it in C order, by np.ascontiguousarray"
    return ""


def npz_arrays(file: File) -> dict[str, FileArray]:
    """The arrays of a .npz file: read at random where they are not compressed, else held."""
    arrays, held = {}, 0
    with file.opened() as opened, reading(file.url), zipfile.ZipFile(opened) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type == zipfile.ZIP_STORED:
                with archive.open(entry):  # checks the local header
                    offset = _data_offset(opened, entry)
                arrays[name] = npy_array(file, offset, name=name)
            else:
                data = _member(file, archive, entry, LARGEST - held)
                arrays[name] = npy_array(file, 0, data, name)
                held += len(data)
    return arrays


def _data_offset(opened: Any, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin: behind its local header, which has a name and an extra."""
    opened.seek(entry.header_offset + 26)
    name, extra = struct.unpack("<HH", opened.read(4))
    return int(entry.header_offset + 30 + name + extra)


def _member(file: File, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int) -> bytearray:
    if entry.compress_type != zipfile.ZIP_DEFLATED:
        raise DataError(f"{file.url} is compressed in another way than np.savez_compressed has it")
    if entry.file_size > limit:
        raise DataError(
            f"{file.url} has more than {LARGEST:,} bytes in it, which are not held in memory: "
            "store it without compression, by np.savez"
        )
    data = bytearray()
    with archive.open(entry) as unpacked:  # which gives no more than was declared
        while piece := unpacked.read(HEADER):
            data += piece
    return data
