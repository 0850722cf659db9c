"""The classes of a network: labels of any hashable type, with a JSON form without pickle."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


def as_vector(values: Any) -> Array:
    """Return a vector of unchanged values, of their own dtype if NumPy has one, else object."""
    values = list(values)
    vector = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # A slice would unpack a list of tuples.
        vector[index] = value
    types = {type(value) for value in values}
    if len(types) == 1 and types <= {bool, int, float, str}:
        array = np.asarray(values)
        return array if array.tolist() == values else vector
    if len(types) == 1 and issubclass(next(iter(types)), np.generic):
        return np.asarray(values)
    return vector


def classes_array(classes: Sequence[Hashable]) -> Array:
    """Return the classes as an array (C,) that preserves their values and types."""
    return as_vector(classes)


def classes_to_json(classes: Array, *, lossy: bool = False) -> dict[str, Any]:
    """Return a JSON-serializable form, from which `classes_from_json` restores the labels.

    Labels of unsupported types raise DataError or, if `lossy`, are replaced by their `repr`.
    """
    plain = classes.astype(np.int64) if classes.dtype.kind in "mM" else classes
    values = [_label_to_json(label, lossy) for label in plain.tolist()]
    return {"dtype": classes.dtype.str, "values": values}


def classes_from_json(record: dict[str, Any]) -> Array:
    """Return the classes (C,) that `classes_to_json` has serialized."""
    dtype = np.dtype(record["dtype"])
    if dtype.kind in "mM":
        return np.array(record["values"], np.int64).view(dtype)
    labels = [_label_from_json(value) for value in record["values"]]
    return classes_array(labels) if dtype.kind == "O" else np.array(labels, dtype)


def _label_to_json(label: Any, lossy: bool) -> Any:
    """Return the JSON-serializable form of one label."""
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
        f"The label {label!r} of type {type(label).__name__} cannot be stored. A run store keeps "
        "numbers, strings, bytes and tuples of these; map your labels to one of them."
    )


def _label_from_json(value: Any) -> Hashable:
    """Return the label of its JSON form."""
    if isinstance(value, dict):
        if "bytes" in value:
            return bytes.fromhex(value["bytes"])
        return tuple(_label_from_json(part) for part in value["tuple"])
    return value
