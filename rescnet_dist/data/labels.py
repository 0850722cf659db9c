"""Labels of any hashable kind, their integer codes, and a stored form without pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import dask.array as da
import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


def as_labels(source: Any, count: int, *, name: str = "y") -> Array | da.Array:
    """Labels (N,), NumPy or dask, of `count` images; refuses another length or rank."""
    if source is None:
        raise DataError(f"{name} is missing: give labels, or the URL of a data set that has them")
    data = source.data if hasattr(source, "dims") else source
    if not isinstance(data, da.Array | np.ndarray):
        if isinstance(data, str | bytes) or not isinstance(data, Iterable):
            raise DataError(f"{name}={data!r} is not a vector (N,) of labels: give one per image")
        data = _as_vector(data)
    if data.ndim != 1:
        raise DataError(f"{name} has shape {data.shape}: labels are a vector (N,)")
    if np.isnan(data.shape[0]):
        raise DataError(
            f"{name} has chunks of unknown length: call its compute_chunk_sizes() first"
        )
    if data.shape[0] != count:
        raise DataError(
            f"{name} has {data.shape[0]} labels for {count} images: give one label per image"
        )
    return data


def _as_vector(values: Any) -> Array:
    """A vector that gives the labels back as they are: of their own dtype if NumPy has one."""
    values = list(values)
    vector = np.empty(len(values), dtype=object)
    for location, value in enumerate(values):  # a slice would take a list of tuples apart
        vector[location] = value
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        array = np.asarray(values)
        return array if array.tolist() == values else vector
    if len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic):
        return np.asarray(values)
    return vector


def classes_of(labels: Array | da.Array) -> list[Hashable]:
    """The distinct labels, sorted where they can be, else as first seen. Computes a lazy array,
    chunk by chunk, gathering the distinct ones only."""
    if isinstance(labels, da.Array):
        blocks = labels.map_blocks(
            _distinct_block, dtype=object, chunks=(1,), meta=np.empty(0, "O")
        )
        found = [value for block in blocks.compute() for value in block]
        return _sorted_distinct(found)
    return _sorted_distinct(_distinct(labels))


def _distinct(labels: Array) -> list[Hashable]:
    if labels.dtype.kind != "O":
        values = list(np.unique(labels))
    else:
        try:
            values = list(dict.fromkeys(labels.tolist()))
        except TypeError as error:
            raise DataError(f"labels must be hashable: {error}") from error
    for value in values:
        if value != value:  # NaN and NaT are the values that differ from themselves
            missing = "NaT" if isinstance(value, np.datetime64 | np.timedelta64) else "NaN"
            raise DataError(f"y has {missing} among its labels: give every image a class")
    return values


def _distinct_block(labels: Array) -> Array:
    block = np.empty(1, dtype=object)
    block[0] = _distinct(labels)
    return block


def _sorted_distinct(values: Sequence[Hashable]) -> list[Hashable]:
    distinct = list(dict.fromkeys(values))
    try:
        return sorted(distinct)  # type: ignore[type-var]
    except TypeError:
        return distinct


def classes_array(classes: Sequence[Hashable]) -> Array:
    """The classes (C,) as an array that gives them back as they were."""
    return _as_vector(classes)


def encode(
    labels: Array | da.Array, classes: Array, *, name: str = "y", unknown: int | None = None
) -> Array | da.Array:
    """Codes (N,) int32 of labels (N,): the place of each in `classes` (C,). Lazy in, lazy out.

    A label that is no class is an error, or gets the code `unknown`.
    """
    if isinstance(labels, da.Array):
        return labels.map_blocks(
            _encode, classes, name, unknown, dtype=np.int32, meta=np.empty(0, np.int32)
        )
    return _encode(labels, classes, name, unknown)


def _encode(labels: Array, classes: Array, name: str, unknown: int | None) -> Array:
    code_of = {value: code for code, value in enumerate(classes.tolist())}
    try:
        codes = [code_of.get(value, unknown) for value in labels.tolist()]
    except TypeError as error:
        raise DataError(f"labels must be hashable: {error}") from error
    if None in codes:
        label = labels.tolist()[codes.index(None)]
        raise DataError(
            f"{name} has the label {label!r}, which no training image has: "
            f"the classes are {classes.tolist()[:20]}"
        )
    return np.asarray(codes, dtype=np.int32)


def group_codes(groups: Any, count: int) -> Array | da.Array:
    """A whole number (N,) int64 for each of `count` images, the same for those whose groups (N,),
    labels of any kind, are the same. Lazy in, lazy out."""
    labels = as_labels(groups, count, name="groups")
    if isinstance(labels, da.Array):
        return labels.map_blocks(_group_codes, dtype=np.int64, meta=np.empty(0, np.int64))
    return _group_codes(labels)


def _group_codes(groups: Array) -> Array:
    values = groups.tolist()
    try:
        codes = dict.fromkeys(values, 0)
    except TypeError as error:
        raise DataError(f"groups must be hashable: {error}") from error
    for group in codes:
        digest = hashlib.blake2b(repr(group).encode(), digest_size=8).digest()
        codes[group] = int.from_bytes(digest, "little") >> 1
    return np.fromiter((codes[group] for group in values), np.int64, len(values))


def classes_to_json(classes: Array, *, lossy: bool = False) -> dict[str, Any]:
    """A JSON form from which `classes_from_json` gives back the same labels.

    lossy: labels of kinds that JSON cannot hold become their `repr` instead of an error.
    """
    plain = classes.astype(np.int64) if classes.dtype.kind in "mM" else classes
    values = [_label_to_json(label, lossy) for label in plain.tolist()]
    return {"dtype": classes.dtype.str, "values": values}


def classes_from_json(record: dict[str, Any]) -> Array:
    """The inverse of `classes_to_json`."""
    dtype = np.dtype(record["dtype"])
    if dtype.kind in "mM":
        return np.array(record["values"], np.int64).view(dtype)
    labels = [_label_from_json(value) for value in record["values"]]
    return classes_array(labels) if dtype.kind == "O" else np.array(labels, dtype)


def _label_to_json(label: Any, lossy: bool) -> Any:
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or isinstance(label, bool | int | float | str):
        return label
    if isinstance(label, bytes):
        return {"bytes": label.hex()}
    if isinstance(label, tuple):
        return {"tuple": [_label_to_json(part, lossy) for part in label]}
    if lossy:
        return repr(label)
    raise DataError(
        f"the label {label!r} of type {type(label).__name__} cannot be stored: a run store keeps "
        "numbers, strings, bytes, None and tuples of these; map your labels to one of them"
    )


def _label_from_json(value: Any) -> Hashable:
    if isinstance(value, dict):
        if "bytes" in value:
            return bytes.fromhex(value["bytes"])
        return tuple(_label_from_json(part) for part in value["tuple"])
    return value
