"""Test the registries: what may be registered, and the errors of components of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.model import FEATURES, FILTERS, HEADS, VIEWS, FilterLearner, Registry, registry
from rescnet_dist.model.filters.gaussian import Gaussian
from rescnet_dist.model.heads.regress import Regress
from rescnet_dist.options import option


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of filter learners, restored after the test."""
    FILTERS.names()  # Modules are scanned once, and must not be forgotten after the test.
    monkeypatch.setattr(FILTERS, "_members", dict(FILTERS._members))
    monkeypatch.setattr(FILTERS, "_found_entry_points", None)
    return FILTERS


def set_entry_points(monkeypatch: pytest.MonkeyPatch, *values: tuple[str, str]) -> None:
    """Let installed packages have these entry points of filter learners."""
    found = [EntryPoint(name, value, FILTERS.group) for name, value in values]
    monkeypatch.setattr(registry, "scan_entry_points", lambda: EntryPoints(found))


@dataclass(frozen=True, slots=True)
class Named(Gaussian):
    """A learner of the user."""

    name: ClassVar[str] = "named"
    prefix: ClassVar[str] = "named_"

    size: int = option(help="a required option", low=1)


def test_registered_class_is_used_by_name(filters: Registry) -> None:
    """Twice is as good as once; a required option must be given."""
    assert filters.register(filters.register(Named)) is Named
    spec = NetworkSpec(bank=[{"name": "named", "size": 3}])
    assert spec.named_size == 3
    assert spec.replace(bank="gaussian").bank[0].learner == Gaussian()
    with pytest.raises(SpecError, match=r"Named has no 'size'\. Add the option"):
        NetworkSpec(bank="named")


@pytest.mark.parametrize(
    ("attributes", "base", "message"),
    [
        ({"name": "gaussian"}, Gaussian, r"'gaussian' is defined twice, by .*Gaussian and .*Bad"),
        ({"name": ""}, Gaussian, r"Bad has no name\. Give the filter learner a class attribute"),
        ({"name": "x"}, Regress, r"Bad is not a filter learner\. Derive it from"),
        (
            {"name": "x", "share": option(1, help="a share"), "__annotations__": {"share": int}},
            Gaussian,
            r"'x' has an option 'share', which has another meaning.*Rename",
        ),
    ],
)
def test_classes_that_cannot_be_registered(
    filters: Registry, attributes: dict[str, Any], base: type, message: str
) -> None:
    """The message says why."""
    bad = dataclass(frozen=True, slots=True)(type("Bad", (base,), attributes))
    with pytest.raises(SpecError, match=message):
        filters.register(bad)


def test_undecorated_class_and_odd_names(filters: Registry) -> None:
    """Without its decorator a class has no options; a name must be readable in text."""

    class Undecorated(Gaussian):
        name: ClassVar[str] = "undecorated"

    with pytest.raises(SpecError, match=r"@dataclass\(frozen=True, slots=True\) above the class"):
        filters.register(Undecorated)
    odd = dataclass(frozen=True, slots=True)(type("Odd", (Gaussian,), {"name": "My:Learner"}))
    with pytest.raises(SpecError, match=r"'My:Learner' cannot be the name .* hyphens"):
        filters.register(odd)


def test_heads_must_not_store_arrays_of_the_bank() -> None:
    """They would overwrite the filters."""

    @dataclass(frozen=True, slots=True)
    class Overwriting(Regress):
        name: ClassVar[str] = "overwriting"
        arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {"bias": ("class",)}

    with pytest.raises(SpecError, match=r"stores an array 'bias', a name that layers use"):
        HEADS.register(Overwriting)


@pytest.mark.parametrize(
    ("entries", "name", "message"),
    [
        ([("far", "no_such_package:X")], "far", r"'far' of the package no_such_package cannot be"),
        ([("far", f"{__name__}:Named")], "far", r"entry point 'far' .* whose name is 'named'"),
        ([("far", "builtins:int")], "far", r"'int'|int, whose name is None"),
        ([("pca", "a:X")], "pca", r"'pca' of the package a has the name of another one"),
        ([("far", "a:X"), ("far", "b:X")], "far", r"'far' of the package b has the name of"),
        ([], "far", r"Unknown filter learner 'far'.*install it here and on all workers"),
    ],
)
def test_errors_of_entry_points(
    filters: Registry,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[tuple[str, str]],
    name: str,
    message: str,
) -> None:
    """They name the package, and the built-in members still work if they can."""
    set_entry_points(monkeypatch, *entries)
    with pytest.raises(SpecError, match=message):
        filters.get(name) if name != "pca" else filters.names()


def test_installed_packages_are_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all kinds of components: reading the metadata of packages takes milliseconds."""
    scans: list[int] = []
    monkeypatch.setattr(registry, "entry_points", lambda: scans.append(1) or EntryPoints())
    registry.scan_entry_points.cache_clear()
    for members in (FILTERS, FEATURES, HEADS, VIEWS):
        monkeypatch.setattr(members, "_found_entry_points", None)
        assert members.names()
    registry.scan_entry_points.cache_clear()  # which has none
    assert scans == [1]


def test_learners_are_abstract() -> None:
    """A learner without `fit` cannot be made."""

    @dataclass(frozen=True, slots=True)
    class Incomplete(FilterLearner):
        name: ClassVar[str] = "incomplete"

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()
