"""Docstrings of the public API: complete, and in numpydoc form."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from numpydoc.docscrape import ClassDoc
from numpydoc.validate import validate

import rescnet_dist
from rescnet_dist import kernels, model
from rescnet_dist.spec import Spec

# The checks of numpydoc that every public name must pass.
CHECKS = {
    "GL06": "unknown section",
    "GL07": "sections in the wrong order",
    "GL08": "no docstring",
    "SS01": "no summary",
    "SS02": "summary without a capital letter",
    "SS03": "summary without a period",
    "SS04": "summary with leading whitespace",
    "SS05": "summary in the third person, not imperative",
    "SS06": "summary of more than one line",
    "PR01": "parameters not documented",
    "PR02": "unknown parameters",
    "PR04": "parameters without a type",
    "PR07": "parameters without a description",
    "RT01": "no Returns section although it returns a value",
    "RT03": "return value without a description",
    "YD01": "no Yields section although it yields",
}
# Not for dataclasses, whose fields are documented as Attributes, which numpydoc does not compare
# with the signature (`test_dataclass_fields_are_documented` does), nor for inherited constructors.
PARAMETER_CHECKS = {"PR01", "PR02"}
PACKAGES = (rescnet_dist, model, kernels)


def is_constant(value: Any) -> bool:
    """Return whether a public name is neither a class nor a function, and so has no docstring."""
    return not (inspect.isclass(value) or callable(value))


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield the import path and value of each public name and of the public members of classes.

    Members that several classes inherit are given once.
    """
    seen = set()
    for package in PACKAGES:
        for name in package.__all__:
            value = getattr(package, name)
            if is_constant(value):
                continue
            path = f"{package.__name__}.{name}"
            yield path, value
            if not inspect.isclass(value):
                continue
            for member in public_members(value):
                static = inspect.getattr_static(value, member)
                if static not in seen:
                    seen.add(static)
                    yield f"{path}.{member}", static


def public_members(cls: type) -> list[str]:
    """Return the public methods and properties that classes of this package define."""
    kinds = (classmethod, staticmethod, property)
    return sorted(
        {
            name
            for base in cls.__mro__
            if base.__module__.startswith("rescnet_dist")
            for name, member in vars(base).items()
            if not name.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, kinds))
        }
    )


OBJECTS = dict(public_objects())
DATACLASSES = {
    path: value
    for path, value in OBJECTS.items()
    if inspect.isclass(value) and dataclasses.is_dataclass(value)
}


def documents_parameters(value: Any) -> bool:
    """Return whether a Parameters section must list the parameters of the signature."""
    if not inspect.isclass(value):
        return True
    if getattr(value, "_is_protocol", False):  # its constructor is that of typing.Protocol
        return False
    return "__init__" in vars(value) and not dataclasses.is_dataclass(value)


def test_docstrings_are_valid_numpydoc() -> None:
    """All `CHECKS` pass for every public name and every public member of a public class."""
    errors = []
    for path, value in OBJECTS.items():
        checks = set(CHECKS) - (set() if documents_parameters(value) else PARAMETER_CHECKS)
        found = validate(path)["errors"]
        errors += [f"{path}: {code}: {text}" for code, text in found if code in checks]
    assert not errors


@pytest.mark.parametrize("path", DATACLASSES)
def test_dataclass_fields_are_documented(path: str) -> None:
    """The Attributes (or Parameters) section has each field, in order, with a type and a text."""
    cls = OBJECTS[path]
    entries = {
        entry.name: entry
        for section in ("Parameters", "Attributes")
        for entry in ClassDoc(cls, config={"show_class_members": False})[section]
    }
    names = [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    assert [name for name in names if name not in entries] == []
    assert [name for name in entries if name in names] == names
    for name in names:
        assert entries[name].type, f"{path}.{name} has no type"
        assert "".join(entries[name].desc).strip(), f"{path}.{name} has no description"


@pytest.mark.parametrize(
    "path", [path for path, value in DATACLASSES.items() if issubclass(value, Spec)]
)
def test_documented_defaults_of_options_are_the_defaults(path: str) -> None:
    """Each option of a spec is documented as "name : type, default VALUE" with its own default."""
    doc = ClassDoc(OBJECTS[path], config={"show_class_members": False})
    documented = {entry.name: entry.type for entry in doc["Attributes"]}
    for name, option in OBJECTS[path].__options__.items():
        found = re.search(r", default (.+)$", documented[name])
        assert found, f"{path}.{name} has no default"
        assert found[1] == option.default_text, f"{path}.{name}"
        if isinstance(option.default, str | int | float | None):
            assert found[1].strip('"') == str(option.default)
