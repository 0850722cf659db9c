"""Tables of paths and labels: CSV files and pandas DataFrames."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.data.classes import classes_array
from rescnet_dist.data.kinds import is_data_frame
from rescnet_dist.data.labels import encode, find_classes
from rescnet_dist.data.sources.files import File, read_files, translate_read_errors
from rescnet_dist.data.sources.source import Reader, Samples, Source, parse_split_name, sort_splits
from rescnet_dist.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

PATH_COLUMNS = ("path", "file", "filename", "image")
CLASS_COLUMNS = ("label", "class")
SPLIT_COLUMN = "split"
INTEGER = re.compile(r"-?(0|[1-9]\d*)")
DECIMAL = re.compile(r"-?\d+\.\d+")


class TableSource(Source):
    """Image files that are listed in a table, with their labels and splits if it has such columns.

    Parameters
    ----------
    url : str
        Name of the table in error messages.
    table : pandas.DataFrame
        A column of `PATH_COLUMNS`, and columns of `CLASS_COLUMNS` and `SPLIT_COLUMN` if any.
    folder : str
        Folder or URL that relative paths start from.
    """

    paths: dict[str, list[str]]

    def __init__(self, url: str, table: pd.DataFrame, folder: str) -> None:
        self.url, self.folder = url, folder
        if not len(table):
            raise DataError(f"{url} has no rows. Give at least one image.")
        paths = _get_texts(url, table, _find_column(url, table, PATH_COLUMNS))
        self._check_storage(paths)
        splits = np.full(len(table), "train")
        if column := _find_column(url, table, (SPLIT_COLUMN,), required=False):
            splits = np.array([_parse_split(url, s) for s in _get_texts(url, table, column)])
        rows = {split: np.flatnonzero(splits == split) for split in sort_splits(splits.tolist())}
        self.splits = {split: len(index) for split, index in rows.items()}
        self.paths = {split: [paths[row] for row in index] for split, index in rows.items()}
        self.classes, self.labels = (), {}
        if column := _find_column(url, table, CLASS_COLUMNS, required=False):
            labels = _get_labels(url, table, column)
            classes = classes_array(find_classes(labels))
            codes = encode(labels, classes)
            self.classes = tuple(classes.tolist())
            self.labels = {split: np.asarray(codes[index]) for split, index in rows.items()}

    def _check_storage(self, paths: list[str]) -> None:
        """Raise DataError if the files are in several file systems, which are read one by one."""
        protocols = {self._get_url(path).rpartition("://")[0] for path in paths}
        if len(protocols) > 1:
            raise DataError(
                f"{self.url} has paths of several kinds, {', '.join(sorted(protocols))}. Give "
                "paths of one kind."
            )

    def _get_url(self, path: str) -> str:
        """Return the URL of a path; relative ones start from the folder of the table."""
        is_absolute = "://" in path or os.path.isabs(path)
        return path if is_absolute else f"{self.folder}/{path}"

    def files(self, split: str) -> Sequence[str]:
        """Return the paths of the images of a split, as the table has them."""
        return self.paths[split]

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the bytes of the files."""
        return partial(_read, [self._get_url(path) for path in self.paths[split][start:stop]])


def open_csv(url: str) -> TableSource:
    """Return the images that a CSV file with a header lists, by paths relative to its folder."""
    import pandas as pd  # slow to import

    with translate_read_errors(url):
        # Text as it is: pandas would take names such as NA for missing values.
        table = pd.read_csv(io.BytesIO(File.at(url).read()), dtype=str, keep_default_na=False)
    if column := _find_column(url, table, CLASS_COLUMNS, required=False):
        table = table.assign(**{str(column): _parse_labels(table[column].tolist())})
    return TableSource(url, table, url.rpartition("/")[0])


def is_table_of_paths(value: Any) -> bool:
    """Return whether a value is a DataFrame with a column of paths."""
    return is_data_frame(value) and any(
        str(column).lower() in PATH_COLUMNS for column in value.columns
    )


def _read(urls: list[str]) -> Samples:
    """Return the bytes of image files, read lazily."""
    return Samples(read_files(urls), urls)


def _find_column(
    url: str, table: pd.DataFrame, candidates: Sequence[str], *, required: bool = True
) -> Hashable | None:
    """Return the first of the candidates, in any case of letters, that is a column of a table."""
    by_name = {str(column).strip().lower(): column for column in reversed(table.columns)}
    found = next((by_name[name] for name in candidates if name in by_name), None)
    if found is None and required:
        raise DataError(
            f"{url} has the columns {', '.join(map(str, table.columns))}, and none of "
            f"{', '.join(candidates)}. Name the column with the paths of the images path."
        )
    return found


def _get_texts(url: str, table: pd.DataFrame, column: Any) -> list[str]:
    """Return the values of a column as text; raise DataError if one is missing."""
    values = table[column]
    missing = np.flatnonzero(values.isna() | (values.astype(str).str.strip() == ""))
    if len(missing):
        raise DataError(
            f"{url} has no {column} in row {missing[0]}, counted from 0 after the header. Fill it "
            "in, or drop the row."
        )
    return [os.fspath(v) if isinstance(v, os.PathLike) else str(v) for v in values.tolist()]


def _get_labels(url: str, table: pd.DataFrame, column: Any) -> np.ndarray[Any, Any]:
    """Return the labels (n,) of a table as objects; raise DataError if one is missing."""
    _get_texts(url, table, column)
    return classes_array(table[column].tolist())


def _parse_labels(texts: list[str]) -> list[Any]:
    """Return labels of a CSV file as integers or decimals if all of them are, else as text.

    >>> _parse_labels(["3", "10"]), _parse_labels(["3", "x"]), _parse_labels(["007", "1"])
    ([3, 10], ['3', 'x'], ['007', '1'])
    """
    for pattern, kind in ((INTEGER, int), (DECIMAL, float)):
        if all(pattern.fullmatch(text) for text in texts):
            return [kind(text) for text in texts]
    return texts


def _parse_split(url: str, name: str) -> str:
    """Return the split that a table names; raise DataError if it is none."""
    split = parse_split_name(name.strip())
    if split is None:
        raise DataError(f"{url} has the split {name!r}. Name splits train, val or test.")
    return split
