"""Parquet files with encoded images, in the layout of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.data.sources.files import MAX_FILE_BYTES, File, translate_read_errors
from rescnet_dist.data.sources.source import (
    MAX_CLASS_NAMES,
    Encoded,
    Reader,
    Samples,
    Source,
    encode_labels,
    infer_split,
    sort_splits,
)
from rescnet_dist.errors import DataError

IMAGE_COLUMNS = ("image", "img", "images")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls")
MAX_PARQUET_ROWS = 2**24  # of one file, as equal labels compress to almost nothing
BATCH_ROWS = 64  # decoded at a time


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a Parquet file, with its number of rows."""

    file: File
    number: int
    rows: int


class ParquetSource(Source):
    """Files with a column of images and a column of integer labels or class names.

    An image is the bytes of an image file, or a struct with a field `bytes`.
    """

    def __init__(self, url: str, files: Sequence[str]) -> None:
        self.url = url
        self.groups: dict[str, list[RowGroup]] = {}
        labels: dict[str, list[np.ndarray[Any, Any]]] = {}
        names = None
        for file_url in files:
            file = File.at(file_url)
            split = infer_split(file_url[len(url) :] or file.name)
            groups, codes, file_names = _scan_file(file)
            self.groups.setdefault(split, []).extend(groups)
            labels.setdefault(split, []).append(codes)
            names = names or file_names
        kinds = {codes.dtype.kind for parts in labels.values() for codes in parts}
        if len(kinds) > 1:
            raise DataError(
                f"{url} has files with integer labels and files with labels that are text. Write "
                "all of them with labels of one type."
            )
        joined = {split: np.concatenate(labels[split]) for split in sort_splits(labels)}
        self.splits = {split: len(codes) for split, codes in joined.items()}
        self.classes, self.labels = encode_labels(joined, names)

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the bytes of the images."""
        parts: list[tuple[RowGroup, range]] = []
        first = 0
        for group in self.groups[split]:
            if first < stop and start < first + group.rows:
                rows = range(max(start - first, 0), min(stop - first, group.rows))
                parts.append((group, rows))
            first += group.rows
        return partial(_read, parts)


def _read(parts: list[tuple[RowGroup, range]]) -> Samples:
    """Return the bytes of images, given as rows of row groups, read lazily."""
    names = [
        f"{group.file.url}, row group {group.number}, row {row}"
        for group, rows in parts
        for row in rows
    ]
    return Samples((image for part in parts for image in _read_images(*part)), names)


def _open_parquet(file: File, opened: Any, **options: Any) -> Any:
    """Open a Parquet file; raise DataError if pyarrow is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{file.url} is a Parquet file, and pyarrow is not installed. Run "
            'pip install "rescnet-dist[parquet]".'
        ) from None
    return pyarrow.parquet.ParquetFile(opened, **options)


def _scan_file(file: File) -> tuple[list[RowGroup], np.ndarray[Any, Any], list[str] | None]:
    """Return the row groups of a file, its labels (n,) and its class names, if it has any."""
    with file.open() as opened, translate_read_errors(file.url):
        parquet = _open_parquet(file, opened)
        metadata, schema = parquet.metadata, parquet.schema_arrow
        column = _find_column(file, schema.names, LABEL_COLUMNS, "labels")
        _find_image_column(file, schema)
        _check_labels(file, column, schema.field(column).type, metadata.num_rows)
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if not 0 <= group.total_byte_size <= MAX_FILE_BYTES or group.num_rows < 0:
                raise DataError(
                    f"{file.url} has a row group of {group.total_byte_size:,} bytes. The limit is "
                    f"{MAX_FILE_BYTES:,} bytes; write the file with smaller row groups."
                )
            groups.append(RowGroup(file, number, group.num_rows))
        is_text = _is_text(schema.field(column).type)
        if is_text:  # Equal texts are held once.
            parquet = _open_parquet(file, opened, read_dictionary=[column])
        labels = parquet.read(columns=[column]).column(column)
        if not is_text:
            labels = labels.cast("int64")
        if labels.null_count or len(labels) != sum(group.rows for group in groups):
            raise DataError(f"{file.url} has rows without {column}. Give each row a label.")
        if is_text:
            return groups, _decode_text(file, column, labels), None
        names = _read_class_names(schema.metadata or {}, column)
        return groups, labels.to_numpy(), names


def _check_labels(file: File, column: str, dtype: Any, rows: int) -> None:
    """Raise DataError if labels are neither integers nor text, or for no or too many rows."""
    if not str(dtype).startswith(("int", "uint")) and not _is_text(dtype):
        raise DataError(
            f"{file.url} has {column} of type {dtype}. Labels must be integers or text."
        )
    if not 0 < rows <= MAX_PARQUET_ROWS:
        raise DataError(
            f"{file.url} has {rows:,} rows. A file may have from 1 to {MAX_PARQUET_ROWS:,} rows; "
            "write it as several files."
        )


def _decode_text(file: File, column: str, labels: Any) -> np.ndarray[Any, Any]:
    """Return labels (n,) of objects from text of pyarrow; raise DataError if it is too much."""
    codes = labels.dictionary_encode().unify_dictionaries().combine_chunks()
    if len(codes.dictionary) > MAX_CLASS_NAMES:
        raise DataError(
            f"{file.url} has {len(codes.dictionary):,} different texts in {column}. There may be "
            f"at most {MAX_CLASS_NAMES:,} classes."
        )
    names = np.empty(len(codes.dictionary), dtype=object)
    names[:] = codes.dictionary.to_pylist()
    return np.asarray(names[codes.indices.to_numpy()])


def _is_text(dtype: Any) -> bool:
    """Return whether a type of pyarrow is that of text, plain or with a dictionary."""
    return str(getattr(dtype, "value_type", dtype)) in ("string", "large_string", "string_view")


def _find_image_column(file: File, schema: Any) -> str:
    """Return the column with the bytes of the images, which may be a field of a struct."""
    column = _find_column(file, schema.names, IMAGE_COLUMNS, "images")
    dtype = schema.field(column).type
    fields = [field.name for field in dtype] if dtype.num_fields else []
    leaf = dtype.field("bytes").type if "bytes" in fields else dtype
    if str(leaf) not in ("binary", "large_binary"):
        raise DataError(
            f"{file.url} has {column} of type {dtype}. Images must be bytes of image files, or a "
            "struct with bytes."
        )
    return f"{column}.bytes" if fields else column


def _find_column(
    file: File, columns: Sequence[str], candidates: Sequence[str], purpose: str
) -> str:
    """Return the first of the candidates that is a column; raise DataError if none is."""
    for name in candidates:
        if name in columns:
            return name
    raise DataError(
        f"{file.url} has the columns {', '.join(columns)}, and none of {', '.join(candidates)} for "
        f"{purpose}. Rename the column of {purpose}."
    )


def _read_class_names(metadata: dict[bytes, bytes], column: str) -> list[str] | None:
    """Return the class names that Hugging Face's library has stored in the schema, if any."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def _read_images(group: RowGroup, rows: range) -> Iterator[Encoded]:
    """Yield the bytes of images of a row group, in small batches; equal images are held once."""
    with group.file.open() as opened, translate_read_errors(group.file.url):
        column = _find_image_column(group.file, _open_parquet(group.file, opened).schema_arrow)
        parquet, first = _open_parquet(group.file, opened, read_dictionary=[column]), 0
        for batch in parquet.iter_batches(BATCH_ROWS, [group.number], [column]):
            values = batch.column(0)
            for row in range(max(rows.start - first, 0), min(rows.stop - first, len(values))):
                value = values[row].as_py()
                value = value["bytes"] if isinstance(value, dict) else value
                yield value if isinstance(value, bytes) else DataError("The image has no bytes.")
            first += len(values)
            if first >= rows.stop:
                return
    raise DataError(f"{group.file.url} is damaged: row group {group.number} is truncated.")
