"""Parquet files with encoded images, as Hugging Face lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rescnet_dist.data.sources.files import LARGEST, File, reading
from rescnet_dist.data.sources.source import (
    Encoded,
    Reader,
    Samples,
    Source,
    coded,
    in_order,
    split_of_file,
)
from rescnet_dist.errors import DataError

IMAGE_COLUMNS = ("image", "img", "images")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls")
MOST_ROWS = 2**24  # of one file, as equal labels take no room there
AT_A_TIME = 64  # rows


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Part of a Parquet file that is read at a time, with its number of rows."""

    file: File
    number: int
    rows: int


class ParquetSource(Source):
    """Files with a column of images, each the bytes of an image file or a struct with `bytes`, and
    a column of whole-number labels."""

    def __init__(self, url: str, files: Sequence[str]) -> None:
        self.url = url
        self.groups: dict[str, list[RowGroup]] = {}
        labels: dict[str, list[np.ndarray[Any, Any]]] = {}
        names = None
        for file_url in files:
            file = File.at(file_url)
            split = split_of_file(file_url[len(url) :] or file.name)
            groups, codes, found = _scanned(file)
            self.groups.setdefault(split, []).extend(groups)
            labels.setdefault(split, []).append(codes)
            names = names or found
        together = {split: np.concatenate(labels[split]) for split in in_order(labels)}
        self.splits = {split: len(codes) for split, codes in together.items()}
        self.classes, self.labels = coded(together, names)

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the bytes of the images."""
        parts: list[tuple[RowGroup, range]] = []
        first = 0
        for group in self.groups[split]:
            if first < stop and start < first + group.rows:
                rows = range(max(start - first, 0), min(stop - first, group.rows))
                parts.append((group, rows))
            first += group.rows
        return partial(_read, parts)


def _read(parts: list[tuple[RowGroup, range]]) -> Samples:
    names = [
        f"{group.file.url}, row group {group.number}, row {row}"
        for group, rows in parts
        for row in rows
    ]
    return Samples((image for part in parts for image in _images(*part)), names)


def _parquet(file: File, opened: Any, **options: Any) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{file.url} is a Parquet file, and pyarrow is not there to read it: "
            'pip install "rescnet-dist[parquet]"'
        ) from None
    return pyarrow.parquet.ParquetFile(opened, **options)


def _scanned(file: File) -> tuple[list[RowGroup], np.ndarray[Any, Any], list[str] | None]:
    """The row groups of a file, its labels (n,) and, if it has them, class names."""
    with file.opened() as opened, reading(file.url):
        parquet = _parquet(file, opened)
        metadata, schema = parquet.metadata, parquet.schema_arrow
        column = _column(file, schema.names, LABEL_COLUMNS, "labels")
        _image_bytes(file, schema)
        _check_labels(file, column, schema.field(column).type, metadata.num_rows)
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if not 0 <= group.total_byte_size <= LARGEST or group.num_rows < 0:
                raise DataError(
                    f"{file.url} has a row group of {group.total_byte_size:,} bytes, and "
                    f"{LARGEST:,} are the limit: write it with smaller row groups"
                )
            groups.append(RowGroup(file, number, group.num_rows))
        labels = parquet.read(columns=[column]).column(column).cast("int64")
        if labels.null_count or len(labels) != sum(group.rows for group in groups):
            raise DataError(f"{file.url} has rows without {column}: give each a whole number")
        names = _class_names(schema.metadata or {}, column)
        return groups, labels.to_numpy(), names


def _check_labels(file: File, column: str, kind: Any, rows: int) -> None:
    if not str(kind).startswith(("int", "uint")):
        raise DataError(f"{file.url} has {column} of type {kind}: whole numbers are needed")
    if not 0 < rows <= MOST_ROWS:
        raise DataError(
            f"{file.url} has {rows:,} rows, and from 1 to {MOST_ROWS:,} are read: write it as "
            "several files"
        )


def _image_bytes(file: File, schema: Any) -> str:
    """The column with the bytes of the images, which may be part of a struct."""
    column = _column(file, schema.names, IMAGE_COLUMNS, "images")
    kind = schema.field(column).type
    fields = [field.name for field in kind] if kind.num_fields else []
    leaf = kind.field("bytes").type if "bytes" in fields else kind
    if str(leaf) not in ("binary", "large_binary"):
        raise DataError(
            f"{file.url} has {column} of type {kind}: bytes of image files, or a struct with bytes "
            "of them, are needed"
        )
    return f"{column}.bytes" if fields else column


def _column(file: File, found: Sequence[str], names: Sequence[str], what: str) -> str:
    for name in names:
        if name in found:
            return name
    raise DataError(
        f"{file.url} has the columns {', '.join(found)}, and none of {', '.join(names)} for {what}"
    )


def _class_names(metadata: dict[bytes, bytes], column: str) -> list[str] | None:
    """Those of a label column, from what Hugging Face's library writes into the schema."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def _images(group: RowGroup, rows: range) -> Iterator[Encoded]:
    """The bytes of images of a row group, a few at a time; those that are equal are held once."""
    with group.file.opened() as opened, reading(group.file.url):
        column = _image_bytes(group.file, _parquet(group.file, opened).schema_arrow)
        parquet, first = _parquet(group.file, opened, read_dictionary=[column]), 0
        for batch in parquet.iter_batches(AT_A_TIME, [group.number], [column]):
            values = batch.column(0)
            for row in range(max(rows.start - first, 0), min(rows.stop - first, len(values))):
                found = values[row].as_py()
                found = found["bytes"] if isinstance(found, dict) else found
                yield found if isinstance(found, bytes) else DataError("it has no bytes")
            first += len(values)
            if first >= rows.stop:
                return
    raise DataError(f"{group.file.url} is damaged: row group {group.number} is cut short")
