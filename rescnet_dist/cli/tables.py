"""Tables of predictions as CSV, JSON lines, Parquet or Zarr, which appear whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from rescnet_dist.cli.files import check_folder
from rescnet_dist.errors import RescnetError, StoreError
from rescnet_dist.store import Location, open_output

Array = np.ndarray[Any, np.dtype[Any]]

FORMATS = {
    ".csv": "csv",
    ".txt": "csv",
    "": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".zarr": "zarr",
}
ZARR_CHUNK_ROWS = 65_536
STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Columns:
    """What a table of predictions has.

    Attributes
    ----------
    classes : ndarray of shape (C,)
        Labels of the classes.
    has_files : bool
        Whether there is a column with the names of files.
    has_probabilities : bool
        Whether there are columns with the probability of each class.
    rows : int
        Number of rows, or more if images are left out.
    """

    classes: Array
    has_files: bool
    has_probabilities: bool
    rows: int

    @property
    def labels(self) -> list[Any]:
        """The labels as numbers, texts or None."""
        found = self.classes.tolist()
        return [
            x if x is None or isinstance(x, bool | int | float | str) else str(x) for x in found
        ]


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of n images: their numbers (n,), file names and probabilities (n, C)."""

    numbers: Array
    files: list[str] | None
    probabilities: Array

    @property
    def codes(self) -> Array:
        """The index (n,) of the most probable class of each image."""
        return np.asarray(self.probabilities.argmax(axis=1))


Write = Callable[[Predictions], None]


def select_format(output: str, *, as_json: bool) -> str:
    """Return the format of a table by the suffix of its file; standard output is CSV or JSON lines.

    >>> select_format("labels.parquet", as_json=False), select_format("-", as_json=True)
    ('parquet', 'jsonl')
    """
    if output == STANDARD_OUTPUT:
        return "jsonl" if as_json else "csv"
    suffix = os.path.splitext(output.rstrip("/"))[1].lower()
    if suffix not in FORMATS:
        raise RescnetError(
            f"--output {output} has the unknown suffix {suffix!r}. Use .csv, .jsonl, .parquet or "
            ".zarr."
        )
    return FORMATS[suffix]


def check_output(output: str, form: str) -> None:
    """Raise an error if a table cannot be written, before the work is done."""
    if form == "parquet":
        _import_pyarrow()
    if output == STANDARD_OUTPUT:
        return
    if "://" not in output:
        check_folder(output.rstrip("/"))
    if form == "zarr" and Location.of(output).exists():
        raise StoreError(f"{output} already holds something. Choose another URL.")


def open_table(output: str, form: str, columns: Columns) -> AbstractContextManager[Write]:
    """Return a context manager that yields a function which adds predictions to a table.

    The table appears when the body ends, and nothing is left of it if that fails.
    """
    if form == "zarr":
        return _open_zarr(Location.of(output), columns)
    return _open_file(
        output, {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}[form], columns
    )


@contextmanager
def _open_file(
    output: str,
    make: Callable[[IO[bytes], Columns], AbstractContextManager[Write]],
    columns: Columns,
) -> Iterator[Write]:
    """Yield the function that adds predictions to a file, or to standard output."""
    if output == STANDARD_OUTPUT:
        with make(sys.stdout.buffer, columns) as write:
            yield write
        return
    with open_output(Location.of(output)) as file, make(file, columns) as write:
        yield write


# rows of text -----------------------------------------------------------------------------------


@contextmanager
def _text(file: IO[bytes]) -> Iterator[io.TextIOWrapper]:
    """Yield a text file over a binary file, which stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    try:
        yield text
        text.flush()
    finally:
        text.detach()


@contextmanager
def _csv(file: IO[bytes], columns: Columns) -> Iterator[Write]:
    """Yield the function that adds rows to a CSV file with a header."""
    labels = columns.labels
    with _text(file) as text:
        writer = csv.writer(text)
        names = [f"p({label})" for label in labels] if columns.has_probabilities else []
        file_column = ["file"] if columns.has_files else []
        header = [["image", *file_column, "label", "probability", *names]]

        def write_header() -> None:
            """Write the header before the first row, so that there is none if that fails."""
            writer.writerows(header)
            header.clear()

        def write(found: Predictions) -> None:
            write_header()
            for row, (number, code) in enumerate(
                zip(found.numbers.tolist(), found.codes.tolist(), strict=True)
            ):
                values = found.probabilities[row]
                shown = values if columns.has_probabilities else ()
                file_name = [] if found.files is None else [found.files[row]]
                writer.writerow(
                    [
                        number,
                        *file_name,
                        labels[code],
                        *(f"{p:.6f}" for p in (values[code], *shown)),
                    ]
                )

        yield write
        write_header()


@contextmanager
def _json_lines(file: IO[bytes], columns: Columns) -> Iterator[Write]:
    """Yield the function that adds one JSON object per image, each on a line."""
    labels = columns.labels
    with _text(file) as text:

        def write(found: Predictions) -> None:
            for row, (number, code) in enumerate(
                zip(found.numbers.tolist(), found.codes.tolist(), strict=True)
            ):
                values = [round(p, 6) for p in found.probabilities[row].tolist()]
                record = {"image": number} | (
                    {} if found.files is None else {"file": found.files[row]}
                )
                record |= {"label": labels[code], "probability": values[code]}
                if columns.has_probabilities:
                    named = zip(map(str, labels), values, strict=True)
                    record["probabilities"] = dict(named)
                text.write(json.dumps(record) + "\n")
            text.flush()

        yield write


# columns ----------------------------------------------------------------------------------------


def _label_array(columns: Columns) -> Array:
    """Return the labels (C,) as an array of numbers or of texts."""
    array = np.asarray(columns.labels)
    kinds = {type(label) for label in columns.labels}
    return array if len(kinds) == 1 and array.dtype.kind in "biufU" else array.astype(str)


def _import_pyarrow() -> Any:
    """Return pyarrow with its Parquet module; raise RescnetError if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise RescnetError(
            'Parquet files need pyarrow. Run pip install "rescnet-dist[parquet]", or write .csv, '
            ".jsonl or .zarr."
        ) from None
    return pyarrow


@contextmanager
def _parquet(file: IO[bytes], columns: Columns) -> Iterator[Write]:
    """Yield the function that adds row groups to a Parquet file."""
    arrow, labels = _import_pyarrow(), _label_array(columns)
    kind = arrow.string() if labels.dtype.kind == "U" else arrow.from_numpy_dtype(labels.dtype)
    fields = [("image", arrow.int64()), ("label", kind), ("probability", arrow.float32())]
    if columns.has_files:
        fields.insert(1, ("file", arrow.string()))
    if columns.has_probabilities:
        fields += [(f"p({label})", arrow.float32()) for label in columns.labels]
    schema = arrow.schema(fields)
    with arrow.parquet.ParquetWriter(file, schema) as writer:

        def write(found: Predictions) -> None:
            values = found.probabilities.astype(np.float32)
            files = [] if found.files is None else [found.files]
            data = [found.numbers, *files, labels[found.codes], values.max(axis=1)]
            data += list(values.T) if columns.has_probabilities else []
            arrays = [
                arrow.array(column, field.type) for column, field in zip(data, schema, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))

        yield write


@contextmanager
def _open_zarr(location: Location, columns: Columns) -> Iterator[Write]:
    """Yield the function that adds rows to a Zarr group, whose metadata are written last."""
    try:
        table = _ZarrTable(location, columns)
        yield table.write
        table.finish()
    except BaseException:
        location.remove()
        raise


class _ZarrTable:
    """Arrays of a Zarr group, which are written in whole chunks of rows."""

    def __init__(self, location: Location, columns: Columns) -> None:
        self.location, self.columns, self.labels = location, columns, _label_array(columns)
        label_type = "str" if self.labels.dtype.kind == "U" else self.labels.dtype
        self.arrays: dict[str, tuple[tuple[int, ...], Any, tuple[str, ...]]] = {
            "image": ((), "int64", ("image",)),
            "label": ((), label_type, ("image",)),
            "probability": ((), "float32", ("image",)),
        }  # shape of a row, type and dimensions
        if columns.has_files:
            self.arrays["file"] = (), "str", ("image",)
        if columns.has_probabilities:
            self.arrays["probabilities"] = (len(columns.classes),), "float32", ("image", "class")
        self.chunk = max(1, min(ZARR_CHUNK_ROWS, columns.rows))
        self.pending: dict[str, list[Array]] = {name: [] for name in self.arrays}
        self.written = 0
        for name, (shape, dtype, dims) in self.arrays.items():
            create = (location / name).create_array
            create("", (columns.rows, *shape), dtype, self.chunk, dims, compress=True)

    def write(self, found: Predictions) -> None:
        """Add rows."""
        values = found.probabilities.astype(np.float32)
        data = {
            "image": found.numbers,
            "label": self.labels[found.codes],
            "probability": values.max(axis=1),
            "file": np.array(found.files, object) if found.files is not None else None,
            "probabilities": values,
        }
        for name in self.arrays:
            self.pending[name].append(np.asarray(data[name]))
        self._flush()

    def _flush(self, *, everything: bool = False) -> None:
        """Write whole chunks of the pending rows, or all of them."""
        merged = {name: np.concatenate(parts) for name, parts in self.pending.items() if parts}
        rows = len(merged.get("image", ()))
        whole = rows if everything else rows // self.chunk * self.chunk
        for name, values in merged.items():
            if whole:
                array = (self.location / name).open_array(write=True)
                array[self.written : self.written + whole] = values[:whole]
            self.pending[name] = [values[whole:]]
        self.written += whole

    def finish(self) -> None:
        """Write the rows that are left, the names of the classes and the metadata of the group."""
        self._flush(everything=True)
        if self.written < self.columns.rows:
            for name, (shape, _, _) in self.arrays.items():
                (self.location / name).open_array(write=True).resize((self.written, *shape))
        if self.columns.has_probabilities:
            names, count = self.location / "class", len(self.labels)
            label_type = self.arrays["label"][1]
            names.create_array("", (count,), label_type, count, ("class",), compress=True)
            names.open_array(write=True)[...] = self.labels
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        (self.location / "zarr.json").write_json(group)
