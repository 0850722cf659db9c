"""Labels of any hashable type, and their integer codes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.data.classes import as_vector
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import DataError

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]

MAX_LISTED_CLASSES = 20  # in an error message
# Types of labels that may be mixed, the more special first: bool is a subclass of int.
LABEL_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("bool", (bool, np.bool_)),
    ("number", (int, float, np.integer, np.floating)),
    ("str", (str,)),
    ("bytes", (bytes,)),
)


def as_labels(source: Any, count: int, *, name: str = "y") -> Array | da.Array:
    """Return labels (N,), NumPy or dask; raise DataError if they are not `count` labels."""
    if source is None:
        raise DataError(f"{name} is missing. Give labels, or the URL of a dataset that has them.")
    data = source.data if hasattr(source, "dims") else source
    if not (isinstance(data, np.ndarray) or is_dask_array(data)):
        if isinstance(data, str | bytes) or not isinstance(data, Iterable):
            raise DataError(f"{name}={data!r} is not a vector (N,) of labels. Give one per image.")
        data = as_vector(data)
    if data.ndim != 1:
        raise DataError(f"{name} has shape {data.shape}. Labels must be a vector (N,).")
    if np.isnan(data.shape[0]):
        raise DataError(
            f"{name} has chunks of unknown length. Call its compute_chunk_sizes() first."
        )
    if data.shape[0] != count:
        raise DataError(
            f"{name} has {data.shape[0]} labels for {count} images. Give one label per image."
        )
    return data


def find_classes(labels: Array | da.Array) -> list[Hashable]:
    """Return the distinct labels, sorted if they can be, else in the order of appearance.

    A lazy array is computed chunk by chunk, and only the distinct labels are gathered. Raise
    DataError if a label is missing, if labels are continuous, or if they are of several types.
    """
    if is_dask_array(labels):
        blocks = labels.map_blocks(
            _find_distinct_in_block, dtype=object, chunks=(1,), meta=np.empty(0, "O")
        )
        values = [value for block in blocks.compute() for value in block]
        _check_types(values)
        return _sort_distinct(values)
    return _sort_distinct(_find_distinct(labels))


def _find_distinct(labels: Array) -> list[Hashable]:
    """Return the distinct labels of an array (n,); raise DataError for those of `find_classes`."""
    values = list(np.unique(labels)) if labels.dtype.kind != "O" else labels.tolist()
    for value in values:
        if missing := _describe_missing(value):
            raise DataError(f"y has {missing} among its labels. Give every image a class.")
    _check_types(values)  # before equal values of different types, such as True and 1, are merged
    try:
        values = list(dict.fromkeys(values))
    except TypeError as error:
        raise DataError(f"Labels must be hashable: {error}.") from error
    for value in values:
        if isinstance(value, float | np.floating) and value % 1:
            raise DataError(
                f"Unknown label type: continuous. y has the label {value:g}, and a classifier "
                "needs classes. Round the values, or divide them into a few intervals."
            )
    return values


def _describe_missing(value: Any) -> str | None:
    """Return the name of a value that stands for a missing label; None for a label."""
    if value is None or type(value).__name__ == "NAType":  # pandas.NA
        return "None" if value is None else "NA"
    if isinstance(value, np.datetime64 | np.timedelta64):
        return "NaT" if np.isnat(value) else None
    return "NaN" if isinstance(value, float | np.floating) and value != value else None


def _check_types(labels: Iterable[Any]) -> None:
    """Raise DataError if labels are of several types, of which `LABEL_KINDS` count as one each."""
    examples: dict[str, Any] = {}
    for type_ in set(map(type, labels)):
        kind = next((name for name, kinds in LABEL_KINDS if issubclass(type_, kinds)), None)
        example = next(label for label in labels if type(label) is type_)
        examples[kind or type_.__name__] = example
    if len(examples) > 1:
        (kind, label), (other_kind, other) = sorted(examples.items())[:2]
        raise DataError(
            f"y has labels of several types, such as {_plain(label)!r} ({kind}) and "
            f"{_plain(other)!r} ({other_kind}). Convert all labels to one type, such as str."
        )


def _plain(label: Any) -> Any:
    """Return a label as users write it, without a type of NumPy."""
    return label.item() if isinstance(label, np.generic) else label


def _find_distinct_in_block(labels: Array) -> Array:
    """Return the distinct labels of a block (n,) as an array (1,) with one list."""
    block = np.empty(1, dtype=object)
    block[0] = _find_distinct(labels)
    return block


def _sort_distinct(values: Sequence[Hashable]) -> list[Hashable]:
    """Return distinct values, sorted if they can be."""
    distinct = list(dict.fromkeys(values))
    try:
        return sorted(distinct)  # type: ignore[type-var]
    except TypeError:
        return distinct


def encode(labels: Array | da.Array, classes: Array, *, name: str = "y") -> Array | da.Array:
    """Return the codes (N,) int32 of labels (N,), which index `classes` (C,); lazy if they are.

    Labels that are not among the classes raise DataError, those of a lazy array when it is
    computed.
    """
    if is_dask_array(labels):
        return labels.map_blocks(_encode, classes, name, dtype=np.int32, meta=np.empty(0, np.int32))
    return _encode(labels, classes, name)


def _encode(labels: Array, classes: Array, name: str) -> Array:
    """Return the codes of `encode` for labels in memory."""
    code_of = {value: code for code, value in enumerate(classes.tolist())}
    try:
        codes = [code_of.get(value) for value in labels.tolist()]
    except TypeError as error:
        raise DataError(f"Labels must be hashable: {error}.") from error
    if None in codes:
        raise DataError(_describe_unknown_labels(labels.tolist(), list(code_of), name))
    return np.asarray(codes, dtype=np.int32)


def _describe_unknown_labels(labels: list[Any], classes: list[Any], name: str) -> str:
    """Return the message for labels of which some are not among the classes."""
    found, known = dict.fromkeys(labels), set(classes)
    unknown = [label for label in found if label not in known]
    with contextlib.suppress(TypeError):  # labels of several types have no order
        unknown.sort()
    named = f"label {unknown[0]!r}" if len(unknown) == 1 else f"labels {_list_labels(unknown)}"
    text = f"{name} has the {named}, which no training image has. "
    text += f"The classes are {_list_labels(classes)}. "
    types, expected = ({type(label).__name__ for label in part} for part in (unknown, classes))
    if len(unknown) < len(found):
        return text + "Drop the images with other labels, or train on images of all classes."
    if not types & expected:
        found_type, class_type = (" or ".join(sorted(part)) for part in (types, expected))
        text += f"The labels are of type {found_type}, the classes of type {class_type}. "
    return text + "Pass labels as they were given in training, or images of these classes."


def _list_labels(labels: list[Any]) -> str:
    """Return labels as text, at most MAX_LISTED_CLASSES of them."""
    more = ", …" if len(labels) > MAX_LISTED_CLASSES else ""
    return f"[{', '.join(map(repr, labels[:MAX_LISTED_CLASSES]))}{more}]"


def encode_groups(groups: Any, count: int) -> Array | da.Array:
    """Return an integer (N,) int64 for the group of each of `count` images; lazy if they are.

    Groups (N,) are labels of any hashable type; equal groups have equal integers.
    """
    labels = as_labels(groups, count, name="groups")
    if is_dask_array(labels):
        return labels.map_blocks(_encode_groups, dtype=np.int64, meta=np.empty(0, np.int64))
    return _encode_groups(labels)


def _encode_groups(groups: Array) -> Array:
    """Return the integers of `encode_groups` for groups in memory."""
    values = groups.tolist()
    try:
        codes = dict.fromkeys(values, 0)
    except TypeError as error:
        raise DataError(f"groups must be hashable: {error}.") from error
    for group in codes:
        digest = hashlib.blake2b(repr(group).encode(), digest_size=8).digest()
        codes[group] = int.from_bytes(digest, "little") >> 1
    return np.fromiter((codes[group] for group in values), np.int64, len(values))
