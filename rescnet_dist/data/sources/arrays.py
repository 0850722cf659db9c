"""Arrays in IDX, .npy and .npz files, read row by row where they are not compressed."""

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

from rescnet_dist.data.images import IMAGE_NAMES, LABEL_NAMES, looks_channels_first
from rescnet_dist.data.sources.files import (
    MAX_ERROR_CHARACTERS,
    MAX_FILE_BYTES,
    File,
    summarize_error,
    translate_read_errors,
)
from rescnet_dist.data.sources.source import (
    MAX_CLASS_NAMES,
    Array,
    NumberedNames,
    Reader,
    Samples,
    Source,
    check_counts,
    encode_labels,
    infer_split,
    sort_splits,
)
from rescnet_dist.errors import DataError

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
HEADER_READERS = {  # by version of the .npy format
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
HEADER_BYTES = 2**16  # read to get a header
MAX_COMPRESSED_ROWS = 2**24  # images or labels of a file that is held in memory
MAX_LABEL_TEXT_BYTES = 2**27  # of labels that are strings, as many as of the most integers
NUMBER_KINDS, STRING_KINDS = "buif", "SU"  # of dtypes


@dataclass(frozen=True, slots=True)
class FileArray:
    """An array (n, …) in C order, at `offset` of a file, or of `data` if that is given.

    `name` is the name of the array, if the file may have several.
    """

    file: File
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: bytearray | None = field(default=None, repr=False)
    name: str = ""

    def __str__(self) -> str:
        return _describe_array(self.file, self.name)

    def __post_init__(self) -> None:
        needed = self.offset + math.prod(self.shape) * self.dtype.itemsize
        available = self.file.length if self.data is None else len(self.data)
        if needed > available:
            raise DataError(
                f"{self} is truncated. With shape {self.shape} and type {self.dtype} it takes "
                f"{needed:,} bytes, and it has {available:,}."
            )
        is_in_memory = self.data is not None or self.file.is_gzipped
        if is_in_memory and self.shape[0] > MAX_COMPRESSED_ROWS:
            raise DataError(
                f"{self} has {self.shape[0]:,} rows. A compressed array may have at most "
                f"{MAX_COMPRESSED_ROWS:,}; decompress it first."
            )

    def part(self, start: int, stop: int) -> FileArray:
        """Return the array of rows start to stop."""
        row_bytes, shape = math.prod(self.shape[1:]) * self.dtype.itemsize, self.shape[1:]
        first, last = self.offset + start * row_bytes, self.offset + stop * row_bytes
        if self.data is None:
            return replace(self, offset=first, shape=(stop - start, *shape))
        return replace(self, offset=0, shape=(stop - start, *shape), data=self.data[first:last])

    def read(self) -> Array:
        """Read the whole array (n, …), in native byte order."""
        start, stop = self.offset, self.offset + math.prod(self.shape) * self.dtype.itemsize
        data = self.file.read(start, stop) if self.data is None else self.data[start:stop]
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        return array.astype(self.dtype.newbyteorder("="), copy=False)


def _describe_array(file: File, name: str) -> str:
    """Return the name of an array in error messages."""
    if name:
        return f"The array {name[:MAX_ERROR_CHARACTERS]} in {file.url}"
    return f"The array in {file.url}"


class ArraySource(Source):
    """Splits that each have an array of images and one of labels.

    Images are (n, H, W) or (n, H, W, d), labels (n,) integers or class names.
    """

    def __init__(
        self, url: str, images: dict[str, FileArray], labels: dict[str, FileArray]
    ) -> None:
        self.url, self.images = url, images
        if images.keys() != labels.keys() or not images:
            raise DataError(
                f"{url} has images of {', '.join(images) or 'no split'} and labels of "
                f"{', '.join(labels) or 'no split'}. Each split needs both."
            )
        self.splits = {split: images[split].shape[0] for split in sort_splits(images)}
        for split, count in self.splits.items():
            check_counts(url, split, count, labels[split].shape[0])
            _check_images(images[split])
            _check_labels(labels[split])
        are_strings = {array.dtype.kind in STRING_KINDS for array in labels.values()}
        if len(are_strings) > 1:
            raise DataError(
                f"{url} has labels that are integers and labels that are strings. Use the same "
                "type in all splits."
            )
        labels = {split: labels[split] for split in self.splits}
        if are_strings == {True}:
            self.classes, self.labels = _encode_names(labels)
        else:
            self.classes, self.labels = encode_labels(
                {split: array.read().reshape(-1) for split, array in labels.items()}
            )

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the images."""
        names = NumberedNames(f"{self.url}, {split}", start, stop)
        return partial(_read, self.images[split].part(start, stop), names)


def _read(array: FileArray, names: NumberedNames) -> Samples:
    """Read images (n, H, W) or (n, H, W, d)."""
    images = array.read()
    return Samples(images if images.ndim == 4 else images[..., np.newaxis], names)


def _add_array(
    url: str, arrays: dict[str, FileArray], split: str, name: str, array: FileArray
) -> None:
    """Add the array of a split to `arrays`; raise DataError if the split has one already."""
    if split in arrays:
        raise DataError(
            f"{url} has two arrays for {split}, one of them {name}. Keep one, or name their splits."
        )
    arrays[split] = array


def _check_images(images: FileArray) -> None:
    """Raise DataError if an array cannot be images."""
    if len(images.shape) not in (3, 4) or 0 in images.shape:
        raise DataError(
            f"{images} has shape {images.shape}. Images must be of shape (n, height, width) or (n, "
            "height, width, channels)."
        )
    if len(images.shape) == 4 and looks_channels_first(images.shape):
        raise DataError(
            f"{images} has shape {images.shape}, which looks channels-first (image, channel, y, "
            "x). Transpose it to (n, height, width, channels) by images.transpose(0, 2, 3, 1)."
        )
    if images.dtype.kind not in NUMBER_KINDS:
        raise DataError(f"{images} is of type {images.dtype}. Pixels must be numbers.")


def _check_labels(labels: FileArray) -> None:
    """Raise DataError if an array cannot be labels."""
    if math.prod(labels.shape) != labels.shape[0]:
        raise DataError(f"{labels} has shape {labels.shape}. Labels must be of shape (n,).")
    if labels.dtype.kind not in "iu" + STRING_KINDS:
        raise DataError(f"{labels} is of type {labels.dtype}. Labels must be integers or strings.")
    size = labels.shape[0] * labels.dtype.itemsize
    if labels.dtype.kind in STRING_KINDS and size > MAX_LABEL_TEXT_BYTES:
        raise DataError(
            f"{labels} has {size:,} bytes of strings. Labels may have at most "
            f"{MAX_LABEL_TEXT_BYTES:,}; give integers."
        )


def _encode_names(labels: dict[str, FileArray]) -> tuple[tuple[str, ...], dict[str, Array]]:
    """Return class names and codes (n,) of each split, from labels (n,) that are strings."""
    found = {split: _find_names(array) for split, array in labels.items()}
    classes = tuple(sorted({name for names, _ in found.values() for name in names}))
    code = {name: number for number, name in enumerate(classes)}
    return classes, {
        split: np.array([code[name] for name in names], np.int32)[inverse]
        for split, (names, inverse) in found.items()
    }


def _find_names(labels: FileArray) -> tuple[list[str], Array]:
    """Return the distinct strings among labels, and the index (n,) of each label among them.

    Bytes are decoded as UTF-8.
    """
    names, inverse = np.unique(labels.read().reshape(-1), return_inverse=True)
    if len(names) > MAX_CLASS_NAMES:
        raise DataError(
            f"{labels} has {len(names):,} different strings. There may be at most "
            f"{MAX_CLASS_NAMES:,} classes; give class names, not names of images."
        )
    try:
        encoded = (name if isinstance(name, bytes) else name.encode() for name in names.tolist())
        return [name.decode() for name in encoded], inverse
    except (ValueError, SystemError) as error:  # SystemError: of code points out of range
        raise DataError(
            f"{labels} has strings that are not valid text ({summarize_error(error)})."
        ) from None


# IDX --------------------------------------------------------------------------------------------


def open_idx(url: str, files: Sequence[str]) -> ArraySource:
    """Return the source of IDX files as of MNIST, plain or gzipped, by their URLs."""
    images: dict[str, FileArray] = {}
    labels: dict[str, FileArray] = {}
    for file_url in files:
        name = file_url.rsplit("/", 1)[-1]
        array = open_idx_array(File.at(file_url))
        arrays = images if len(array.shape) > 1 else labels
        _add_array(url, arrays, infer_split(name), name, array)
    return ArraySource(url, images, labels)


def open_idx_array(file: File) -> FileArray:
    """Return the array of an IDX file, from its header."""
    header = file.read(0, min(HEADER_BYTES, file.length))
    try:
        zero, kind, dims = struct.unpack_from(">HBB", header)
        shape = struct.unpack_from(f">{dims}I", header, 4)
    except struct.error:
        raise DataError(f"{file.url} is truncated. It has {len(header)} bytes.") from None
    if zero or kind not in IDX_TYPES or not 1 <= dims <= 4:
        raise DataError(
            f"{file.url} is not an IDX file. It begins with {header[:4].hex()}, which should be "
            "0000, a type from 08 to 0e and up to 04 dimensions."
        )
    return FileArray(file, 4 + 4 * dims, np.dtype(IDX_TYPES[kind]), tuple(shape))


# NumPy ------------------------------------------------------------------------------------------


def open_numpy(url: str, files: Sequence[str]) -> ArraySource:
    """Return the source of .npy and .npz files, by their URLs.

    Names of arrays say what they are, as in x_train, test_labels or images.
    """
    arrays: dict[str, FileArray] = {}
    for file_url in files:
        file = File.at(file_url)
        if file.name.endswith(".npz"):
            stem = file.name.removesuffix(".npz")
            arrays |= {f"{stem}/{name}": array for name, array in open_npz_arrays(file).items()}
        else:
            arrays[file.name.removesuffix(".npy")] = open_npy_array(file)
    images: dict[str, FileArray] = {}
    labels: dict[str, FileArray] = {}
    for name, array in arrays.items():
        words = name.rsplit("/", 1)[-1].replace("-", "_").split("_")
        if any(word in IMAGE_NAMES for word in words):
            _add_array(url, images, infer_split(name), name, array)
        elif any(word in LABEL_NAMES for word in words):
            _add_array(url, labels, infer_split(name), name, array)
    if not images:
        raise DataError(
            f"{url} has the arrays {', '.join(sorted(arrays))}. Name them images and labels, or "
            "x_train, y_train, x_test and y_test."
        )
    return ArraySource(url, images, labels)


def open_npy_array(
    file: File, offset: int = 0, data: bytearray | None = None, name: str = ""
) -> FileArray:
    """Return the array of a .npy file, from its header; raise DataError if it has objects."""
    length = file.length if data is None else len(data)
    stop = min(offset + HEADER_BYTES, length)
    header = io.BytesIO(file.read(offset, stop) if data is None else data[:HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(header)
        shape, is_fortran, dtype = HEADER_READERS[version](header, max_header_size=10_000)
    except Exception as error:  # Headers are Python literals, whose parser raises all kinds.
        raise DataError(
            f"{_describe_array(file, name)} has no NumPy header ({summarize_error(error)})."
        ) from None
    if problem := _find_problem(shape, is_fortran, dtype):
        raise DataError(f"{_describe_array(file, name)} {problem}")
    return FileArray(file, offset + header.tell(), dtype, tuple(shape), data, name)


def _find_problem(shape: tuple[int, ...], is_fortran: bool, dtype: np.dtype[Any]) -> str:
    """Return why an array with such a header cannot be read; "" if it can."""
    if dtype.hasobject:
        return f"is of type {dtype}, which is pickled and not read. Store numbers or strings."
    if dtype.kind not in NUMBER_KINDS + STRING_KINDS or not dtype.itemsize:
        return f"is of type {dtype}. Images must be numbers, and labels integers or strings."
    if not shape or min(shape) < 0:
        return f"has shape {shape}. It must have one row per image."
    if is_fortran:
        return "is in Fortran order. Store it in C order, by np.ascontiguousarray."
    return ""


def open_npz_arrays(file: File) -> dict[str, FileArray]:
    """Return the arrays of a .npz file by name; those that are compressed are held in memory."""
    arrays, held_bytes = {}, 0
    with (
        file.open() as opened,
        translate_read_errors(file.url),
        zipfile.ZipFile(opened) as archive,
    ):
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type == zipfile.ZIP_STORED:
                with archive.open(entry):  # Checks the local header.
                    offset = _find_data_offset(opened, entry)
                arrays[name] = open_npy_array(file, offset, name=name)
            else:
                data = _read_member(file, archive, entry, MAX_FILE_BYTES - held_bytes)
                arrays[name] = open_npy_array(file, 0, data, name)
                held_bytes += len(data)
    return arrays


def _find_data_offset(opened: Any, entry: zipfile.ZipInfo) -> int:
    """Return the offset of the data of an entry, after its local header, name and extra field."""
    opened.seek(entry.header_offset + 26)
    name, extra = struct.unpack("<HH", opened.read(4))
    return int(entry.header_offset + 30 + name + extra)


def _read_member(
    file: File, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int
) -> bytearray:
    """Decompress a member of a .npz file of at most `limit` bytes."""
    if entry.compress_type != zipfile.ZIP_DEFLATED:
        raise DataError(
            f"{file.url} is compressed in another way than by np.savez_compressed. Store it by "
            "that, or by np.savez."
        )
    if entry.file_size > limit:
        raise DataError(
            f"{file.url} has more than {MAX_FILE_BYTES:,} decompressed bytes, which do not fit in "
            "memory. Store it without compression, by np.savez."
        )
    data = bytearray()
    with archive.open(entry) as unpacked:  # It yields no more bytes than were declared.
        while block := unpacked.read(HEADER_BYTES):
            data += block
    return data
