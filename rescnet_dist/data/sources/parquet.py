"""Parquet files with encoded images, as Hugging Face lays them out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.data.sources.files import LARGEST, File, reading
from rescnet_dist.data.sources.source import Encoded, Samples, Source, coded, in_order, split_named
from rescnet_dist.errors import DataError

IMAGE_COLUMNS = ("image", "img", "images")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls")


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
            parts = file_url[len(url) :].split("/")
            split = next((s for part in reversed(parts) if (s := split_named(part))), "train")
            groups, codes, found = _scanned(file)
            self.groups.setdefault(split, []).extend(groups)
            labels.setdefault(split, []).append(codes)
            names = names or found
        together = {split: np.concatenate(labels[split]) for split in in_order(labels)}
        self.splits = {split: len(codes) for split, codes in together.items()}
        self.classes, self.labels = coded(together, names)

    def read(self, split: str, start: int, stop: int) -> Samples:
        """The bytes of the images."""
        data: list[Encoded] = []
        names: list[str] = []
        first = 0
        for group in self.groups[split]:
            if first < stop and start < first + group.rows:
                rows = range(max(start - first, 0), min(stop - first, group.rows))
                images = _images(group)
                data += [images[row] for row in rows]
                names += [f"{group.file.url}, row group {group.number}, row {row}" for row in rows]
            first += group.rows
        return Samples(data, names)


def _parquet(file: File, opened: Any) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{file.url} is a Parquet file, and pyarrow is not there to read it: "
            'pip install "rescnet-dist[parquet]"'
        ) from None
    return pyarrow.parquet.ParquetFile(opened)


def _scanned(file: File) -> tuple[list[RowGroup], np.ndarray[Any, Any], list[str] | None]:
    """The row groups of a file, its labels (n,) and, if it has them, class names."""
    with file.opened() as opened, reading(file.url):
        parquet = _parquet(file, opened)
        metadata, schema = parquet.metadata, parquet.schema_arrow
        column = _column(file, schema.names, LABEL_COLUMNS, "labels")
        _column(file, schema.names, IMAGE_COLUMNS, "images")
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if not 0 <= group.total_byte_size <= LARGEST or group.num_rows < 0:
                raise DataError(
                    f"{file.url} has a row group of {group.total_byte_size:,} bytes, and "
                    f"{LARGEST:,} are the limit: write it with smaller row groups"
                )
            groups.append(RowGroup(file, number, group.num_rows))
        labels = np.asarray(parquet.read(columns=[column]).column(column).to_numpy())
        if labels.dtype.kind not in "iu" or len(labels) != sum(group.rows for group in groups):
            raise DataError(
                f"{file.url} has {column} of type {labels.dtype}: whole numbers, one "
                "per row, are needed"
            )
        return groups, labels.astype(np.int64), _class_names(schema.metadata or {}, column)


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


def _images(group: RowGroup) -> list[Encoded]:
    """The bytes of all images of a row group."""
    with group.file.opened() as opened, reading(group.file.url):
        parquet = _parquet(group.file, opened)
        column = _column(group.file, parquet.schema_arrow.names, IMAGE_COLUMNS, "images")
        values = parquet.read_row_group(group.number, columns=[column]).column(column)
        found = [
            value["bytes"] if isinstance(value, dict) else value for value in values.to_pylist()
        ]
    if len(found) != group.rows:
        raise DataError(f"{group.file.url} is damaged: row group {group.number} is cut short")
    return [v if isinstance(v, bytes) else DataError("it has no bytes") for v in found]
