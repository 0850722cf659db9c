"""Annotations of options: whether a value fits one, and what it is in words."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

TYPES_IN_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("a string", "strings"),
    type(None): ("nothing", "nothing"),
}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the hint itself."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    return get_args(hint) if is_union else (hint,)


def is_instance(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an annotation; an int is a float too."""
    if len(parts := alternatives(hint)) > 1:
        return any(is_instance(value, part) for part in parts)
    if get_origin(hint) is Literal:
        return isinstance(value, str)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return isinstance(value, tuple) and all(is_instance(v, item) for v in value)
    if hint in (int, float):
        allowed: Any = int if hint is int else int | float
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, hint)


def describe_type(hint: Any) -> str:
    """Return the type of an annotation in words, for error messages."""
    if len(parts := alternatives(hint)) > 1:
        return " or ".join(describe_type(part) for part in parts)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return "a list of " + (
            TYPES_IN_WORDS[item][1] if item in TYPES_IN_WORDS else f"{format_type(item)} objects"
        )
    return TYPES_IN_WORDS[hint][0] if hint in TYPES_IN_WORDS else f"a {hint.__name__}"


def format_type(hint: Any) -> str:
    """Return a type as docstrings have it."""
    if len(parts := alternatives(hint)) > 1:
        return " or ".join(format_type(part) for part in parts)
    if get_origin(hint) is Literal:
        return "{" + ", ".join(f'"{value}"' for value in get_args(hint)) + "}"
    if get_origin(hint) is tuple:
        return f"tuple of {format_type(get_args(hint)[0])}"
    return "None" if hint is type(None) else str(hint.__name__)
