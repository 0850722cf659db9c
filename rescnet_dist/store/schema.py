"""The types of stored JSON values: attributes and records are checked as they are read.

A type is `int`, `float` (any number that a float can hold), `str`, `bool`, `Any`, `list[...]`,
`tuple[..., ...]` (a list of that length), `dict[str, ...]`, a class derived from TypedDict, or one
of these `| None`. Values may have entries that such a class does not name, except those of
`CLOSED`.
"""

from __future__ import annotations

import reprlib
import sys
from functools import cache
from itertools import repeat
from types import UnionType
from typing import Any, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

# What has a checker of its own after it is read, such as a spec, is a dict of anything here.
JsonObject = dict[str, Any]


class _Claim(TypedDict):
    writer: str
    host: str
    pid: int
    process_started: float
    renewed: float


class ClaimRecord(_Claim, total=False):
    """Who writes to a run."""

    started_after_boot: float
    released: bool


class AccuracyRecord(TypedDict):
    """Accuracy after a layer."""

    layer: int
    train: float
    validation: float | None


class CalibrationRecord(TypedDict):
    """Calibration of the network that ends with a layer."""

    temperature: float
    fitted_on: str | None
    images: int
    log_loss: float | None


class ObservedRecord(TypedDict):
    """Metrics of a pass."""

    seconds: dict[str, float]
    read: int
    written: int
    memory: dict[str, int]
    redone: int


class _Commit(TypedDict):
    step: int
    checksums: dict[str, list[int]]


class CommitRecord(_Commit, total=False):
    """The record of a committed step."""

    accuracy: AccuracyRecord | None
    calibration: CalibrationRecord | None
    residual: tuple[float, float] | None
    seconds: float
    observed: ObservedRecord | None
    finished: float | None


class FirstCommitRecord(CommitRecord):
    """The record of step 0."""

    counts: list[list[int]]


class GrownRecord(TypedDict):
    """A layer whose features are in the work area."""

    layer: int
    checksums: dict[str, list[int]]
    work_checksums: dict[str, list[int]]
    accuracy: AccuracyRecord | None
    residual: tuple[float, float]
    calibration: CalibrationRecord | None
    observed: ObservedRecord


class IterateChecksums(TypedDict):
    """Checksums of the arrays of an iterate."""

    solution: int
    basis: int
    directions: int
    factor: int


class ProgressRecord(TypedDict):
    """How far the solver of a layer is."""

    number: int
    rank: int
    error: float
    arrays: IterateChecksums


class _Result(TypedDict):
    depth: int
    accuracies: list[AccuracyRecord]


class ResultRecord(_Result, total=False):
    """The result of a run."""

    reason: str | None
    calibrations: list[CalibrationRecord | None]


class TestRecord(TypedDict):
    """The accuracy of a network of `depth` layers, of `layers` grown, on test images of `data`."""

    data: str
    images: int
    accuracy: float
    depth: int
    layers: int


class ClassesRecord(TypedDict):
    """The classes of a network."""

    dtype: str
    values: list[Any]


class NetworkAttributes(TypedDict, total=False):
    """Attributes of a run or a network."""

    network: JsonObject
    run: JsonObject
    augment: JsonObject
    classes: ClassesRecord
    image_shape: tuple[int, int, int]
    input: JsonObject | None
    depth: int
    matmul_precision: str
    calibration: CalibrationRecord | None
    crc32c: int


class _ImagesReference(TypedDict):
    url: str
    path: str | None


class ImagesReference(_ImagesReference, total=False):
    """Where the images of a run are, if it has no copy of them."""

    start: int


class Provenance(TypedDict, total=False):
    """When and with which packages a run was created."""

    created: str
    versions: dict[str, str]


class ExpectedTraffic(TypedDict, total=False):
    """Planned bytes of a layer and of the store."""

    read: int
    written: int
    store: int


class ExpectedWorkers(TypedDict, total=False):
    """Workers that a run was planned for."""

    count: int
    memory: int | None


class Expected(TypedDict, total=False):
    """What was planned for a run."""

    traffic: ExpectedTraffic
    workers: ExpectedWorkers | None
    peak_memory: int | None


class RunAttributes(NetworkAttributes, total=False):
    """Attributes of a run."""

    source: str | None
    images: ImagesReference | None
    rows: JsonObject
    plan: JsonObject
    expected: Expected | None
    provenance: Provenance
    data_complete: bool


class FusedAttributes(TypedDict, total=False):
    """Attributes of a fused network."""

    networks: int
    weights: list[Any]
    calibration: CalibrationRecord | None
    averaging: JsonObject
    held_out: JsonObject | None
    crc32c: int


class DatasetAttributes(TypedDict, total=False):
    """Attributes of an imported dataset."""

    source: str
    class_names: list[Any]
    splits: dict[str, tuple[int, int]]
    skipped: int
    skipped_images: list[tuple[str, str]]


# Their entries are the arguments of a class.
CLOSED = (AccuracyRecord, CalibrationRecord, ProgressRecord)


def find_type_error(value: Any, expected: Any, name: str = "it") -> str | None:
    """Return which entry of a JSON value does not have its type, and why; None if all have it."""
    if is_typeddict(expected):
        return _find_entry_error(value, expected, name)
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is UnionType:
        return None if value is None else find_type_error(value, arguments[0], name)
    if not _is_instance(value, list if origin is tuple else origin or expected):
        return _describe(value, expected, name)
    if origin is tuple and len(value) != len(arguments):
        return _describe(value, expected, name)
    if not origin:
        return None
    items = value.items() if origin is dict else enumerate(value)
    kinds = arguments if origin is tuple else repeat(arguments[-1])
    for (key, item), kind in zip(items, kinds, strict=False):
        # checked first, as lists of numbers may be long
        is_same = kind is Any or type(item) is kind
        error = None if is_same else find_type_error(item, kind, f"{name}[{reprlib.repr(key)}]")
        if error:
            return error
    return None


def _find_entry_error(value: Any, expected: Any, name: str) -> str | None:
    """Return what is wrong with the entries of a dict that a TypedDict describes."""
    if not isinstance(value, dict):
        return _describe(value, expected, name)
    prefix = "" if name == "it" else f"{name}."
    missing = sorted(expected.__required_keys__ - value.keys())
    if missing:
        return f"{prefix}{missing[0]} is missing"
    types = _get_types(expected)
    if expected in CLOSED and (unknown := sorted(value.keys() - types)):
        return f"{name} has the unknown entry {reprlib.repr(unknown[0])}"
    known = ((key, types[key]) for key in types if key in value)
    errors = (find_type_error(value[key], kind, f"{prefix}{key}") for key, kind in known)
    return next((error for error in errors if error), None)


_get_types = cache(get_type_hints)


def _is_instance(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is of a type that has no parts, or that of its parts aside."""
    if kind is Any:
        return True
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _describe(value: Any, expected: Any, name: str) -> str:
    """Return that a value does not have its type."""
    return f"{name} is {reprlib.repr(value)}, not {_describe_type(expected)}"


def _describe_type(expected: Any) -> str:
    """Return the name of a type, in words of JSON."""
    if get_origin(expected) is tuple:
        return f"a list of {len(get_args(expected))}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return names.get(expected, "a list" if get_origin(expected) is list else "an object")
