"""Types of stored JSON values."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from rescnet_dist.store import find_type_error
from rescnet_dist.store.schema import AccuracyRecord, CommitRecord


class Inner(TypedDict, total=False):
    """Some entries, none of which is required."""

    shape: tuple[int, int]
    ratio: float | None


class Outer(TypedDict):
    """Entries with parts."""

    name: str
    numbers: list[int]
    inner: dict[str, Inner]


VALID = {"name": "a", "numbers": [1, 2], "inner": {"b": {"shape": [3, 4], "ratio": 1}}}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"numbers": []},
        {"inner": {}},
        {"inner": {"b": {}}},
        {"inner": {"b": {"ratio": None}}},
        {"inner": {"b": {"ratio": 0.5, "unknown": [None]}}},
    ],
)
def test_values_of_their_types_are_accepted(change: dict[str, Any]) -> None:
    """An integer is a number, too, and further entries are ignored."""
    assert find_type_error(VALID | change, Outer) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": None}, "name is None, not a string"),
        ({"numbers": {}}, "numbers is {}, not a list"),
        ({"numbers": [1, True]}, "numbers[1] is True, not an integer"),
        ({"numbers": [1, 2.0]}, "numbers[1] is 2.0, not an integer"),
        ({"inner": []}, "inner is [], not an object"),
        ({"inner": {"b": 3}}, "inner['b'] is 3, not an object"),
        ({"inner": {"b": {"shape": [3]}}}, "inner['b'].shape is [3], not a list of 2"),
        ({"inner": {"b": {"shape": [3, "4"]}}}, "inner['b'].shape[1] is '4', not an integer"),
        ({"inner": {"b": {"ratio": False}}}, "inner['b'].ratio is False, not a number"),
    ],
)
def test_first_value_of_another_type_is_named(change: dict[str, Any], error: str) -> None:
    """The error has the path of the value."""
    assert find_type_error(VALID | change, Outer) == error


def test_missing_and_unknown_entries_are_named() -> None:
    """Those of accuracies are the arguments of a class, so there may be no other."""
    accuracy = {"layer": 1, "train": 0.5, "validation": None}
    commit = {"step": 1, "checksums": {}, "accuracy": accuracy}
    assert find_type_error(commit, CommitRecord) is None
    assert find_type_error({"step": 1}, CommitRecord) == "checksums is missing"
    assert find_type_error([], CommitRecord) == "it is [], not an object"
    del accuracy["train"]
    assert find_type_error(commit, CommitRecord) == "accuracy.train is missing"
    error = find_type_error({"layer": 1, "train": 1, "validation": 1, "c": 1}, AccuracyRecord)
    assert error == "it has the unknown entry 'c'"


def test_errors_of_large_values_are_short() -> None:
    """A damaged value may be of any size."""
    value = {"x" * 10_000: ["y" * 10_000]}
    error = find_type_error(value, dict[str, list[int]], "it")
    assert error is not None
    assert len(error) < 200


def test_integer_that_no_float_can_hold_is_no_number() -> None:
    """It could not be compared with a time, nor printed as an accuracy."""
    for sign in (1, -1):
        assert find_type_error(sign * 10**308, float) is None
        error = find_type_error(sign * 10**400, float)
        assert error is not None
        assert error.endswith("000, not a number")
