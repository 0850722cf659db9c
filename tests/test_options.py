"""Declared options: a class of a third party, its checks, forms, docstring and nested values."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import pickle
import tomllib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import click
import cloudpickle
import numpy as np
import pytest
from click.testing import CliRunner
from dask.tokenize import tokenize
from sklearn.base import clone

from rescnet_dist import SpecError
from rescnet_dist.cli.flag_table import declared_flags
from rescnet_dist.cli.options import spec_options
from rescnet_dist.options import Options, declared_options, option
from rescnet_dist.spec import Spec


@dataclass(frozen=True, slots=True)
class StackedLDA(Options):
    """Filters that separate a class from the others.

    They are learned from draws of patches.

    Raises
    ------
    SpecError
        If an option is not valid.
    """

    positives: int = option(2, help="patches of the class in each draw", low=1, old_name="samples")
    ridge: float = option(
        1e-2,
        help="ridge added to the covariance",
        doc="Ridge added to the covariance of a draw.",
        above=0,
    )
    pool: Literal["max", "mean"] = option(
        "max", help="pooling over the blocks of a cell", old_values={"avg": "mean"}
    )
    patience: int | None = option(None, help="draws without progress", low=1, high=9)
    weights: tuple[float, ...] = option((), help="weights of the classes", low=0)

    def check(self) -> None:
        """Raise SpecError for more weights than positives."""
        if len(self.weights) > self.positives:
            raise SpecError(f"weights={self.weights} are too many. Use fewer weights.")


@dataclass(frozen=True, slots=True)
class Head(Options):
    name: str
    ridge: float = option(1.0, help="ridge", low=0)


@dataclass(frozen=True, slots=True)
class Model(Spec):
    """A network of parts."""

    table: ClassVar[str] = "model"

    size: int = option(3, help="width and height", low=1)
    sizes: tuple[int, ...] = option((4, 2), help="cells per side")
    is_deep: bool = option(False, help="more layers", old_name="deep")
    head: Head = option(Head("linear"), help="the classifier")
    bank: tuple[StackedLDA, ...] = option((StackedLDA(),), help="the filters")


PARTS = Model(head=Head("ridge", 2.0), bank=(StackedLDA(positives=3), StackedLDA(pool="mean")))


# validation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"positives": 0}, "positives=0 is out of range. It must be at least 1."),
        ({"positives": 1.5}, "positives=1.5 is not a whole number."),
        (
            {"positives": 2**63},
            f"positives={2**63} is out of range. It must be at most {2**63 - 1}.",
        ),
        ({"ridge": 0}, "ridge=0 is out of range. It must be greater than 0."),
        ({"ridge": math.inf}, "ridge=inf is out of range. It must be greater than 0."),
        ({"ridge": "1"}, "ridge='1' is not a number."),
        (
            {"patience": 10},
            "patience=10 is out of range. It must be at least 1 and at most 9.",
        ),
        ({"weights": [1, -1]}, "weights=(1, -1) is out of range. Each item must be at least 0."),
        ({"weights": 3}, "weights=3 is not a list of numbers."),
        (
            {"pool": "maxx"},
            "pool='maxx' is not a choice. Did you mean 'max'? Known: max, mean.",
        ),
        ({"pool": "avg"}, "pool='avg' has been renamed. Use pool='mean'."),
        ({"samples": 4}, "The option 'samples' of StackedLDA has been renamed. Use positives=4."),
        ({"weights": [1, 2, 3]}, "weights=(1, 2, 3) are too many. Use fewer weights."),
    ],
)
def test_invalid_value_raises_spec_error(values: dict[str, Any], message: str) -> None:
    """In the constructor, in `replace`, in `set_params` and in `from_dict`."""
    default = StackedLDA()
    for make in (StackedLDA, default.replace, default.set_params):
        with pytest.raises(SpecError) as caught:
            make(**values)
        assert str(caught.value) == message
    with pytest.raises(SpecError) as caught:
        StackedLDA.from_dict(values)
    assert str(caught.value) == message


def test_unknown_option_suggests_the_closest() -> None:
    """Also one of a nested name."""
    with pytest.raises(SpecError, match=r"StackedLDA has no option 'rigde'\. Did you mean 'ridge'"):
        StackedLDA(rigde=1)  # type: ignore[call-arg]
    with pytest.raises(SpecError, match=r"Model has no option 'haed'\. Did you mean 'head'"):
        PARTS.set_params(haed__ridge=1)


def test_values_are_kept_as_python_values() -> None:
    """NumPy scalars and lists."""
    found = StackedLDA(positives=np.int64(3), weights=[np.float32(0.5), 1])  # type: ignore[arg-type]
    assert repr(found.positives) == "3"
    assert repr(found.weights) == "(0.5, 1)"


def test_option_without_default_must_be_given() -> None:
    """A dict without it raises SpecError, the constructor the usual TypeError."""
    with pytest.raises(SpecError, match=r"Head has no 'name'\. Add the option: a string\."):
        Head.from_dict({"ridge": 1})
    with pytest.raises(TypeError, match="name"):
        Head()  # type: ignore[call-arg]
    assert Head("a").rows() == [("name", "a", True), ("ridge", 1.0, False)]


# declaration --------------------------------------------------------------------------------------


def test_class_that_is_no_slotted_dataclass_is_an_error() -> None:
    """The remedy is the decorator."""

    class Plain(Options):
        size: int = 3

    @dataclass(frozen=True)
    class WithoutSlots(Options):
        size: int = 3

    for kind in (Plain, WithoutSlots):
        with pytest.raises(TypeError, match=r"Put @dataclass\(frozen=True, slots=True\) above"):
            kind()
    with pytest.raises(TypeError, match=r"Thawed is not frozen"):

        @dataclass(slots=True)
        class Thawed(Options):
            size: int = 3


def test_invalid_declaration_is_an_error() -> None:
    """When the class is created."""
    with pytest.raises(TypeError, match="low=1 and above=0 exclude each other"):
        option(3, help="size", low=1, above=0)
    with pytest.raises(SpecError, match=r"size=0 is out of range"):

        @dataclass(frozen=True, slots=True)
        class WrongDefault(Options):
            size: int = option(0, help="size", low=1)

    with pytest.raises(TypeError, match="cannot have an option 'rows'"):

        @dataclass(frozen=True, slots=True)
        class WrongName(Options):
            rows: int = option(0, help="rows")  # type: ignore[assignment]


def test_declared_options_are_what_the_field_says() -> None:
    """With the type from the annotation."""
    options = declared_options(StackedLDA)
    assert list(options) == ["positives", "ridge", "pool", "patience", "weights"]
    assert options["pool"].choices == ("max", "mean")
    assert options["patience"].value_type is int
    assert options["patience"].limits == "at least 1 and at most 9"
    assert options["weights"].item_type is float
    assert [o.name for o in declared_options(Model).values() if o.is_nested] == ["head", "bank"]


def test_docstring_has_the_options_ahead_of_the_other_sections() -> None:
    """In numpydoc form; the longer text if there is one."""
    doc = inspect.getdoc(StackedLDA)
    assert doc is not None
    assert doc.index("from draws of patches.") < doc.index("Attributes\n----------")
    assert doc.index("weights : tuple of float, default ()") < doc.index("Raises\n------")
    assert "positives : int, default 2\n    Patches of the class in each draw.\n" in doc
    assert "    Ridge added to the covariance of a draw.\n" in doc
    assert 'pool : {"max", "mean"}, default "max"' in doc
    assert "patience : int or None, default None" in doc
    assert str(inspect.getdoc(Head)).startswith(
        "Options of Head.\n\nAttributes\n----------\nname :"
    )
    assert "bank : tuple of StackedLDA, default (StackedLDA(),)" in str(inspect.getdoc(Model))


def test_signature_shows_the_options() -> None:
    """Although `__new__` takes anything."""
    assert list(inspect.signature(StackedLDA).parameters) == list(declared_options(StackedLDA))


# forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [StackedLDA(positives=3, weights=(1.0, 2.0)), PARTS])
def test_copies_are_equal(found: Options) -> None:
    """By pickle, by value as for a class of a script, by dict and by JSON."""
    copies = [
        pickle.loads(pickle.dumps(found)),
        copy.deepcopy(found),
        clone(found, safe=False),
        type(found).from_dict(found.to_dict()),
        type(found).from_stored(json.loads(json.dumps(found.to_dict()))),
        found.replace(),
    ]
    for same in copies:
        assert same == found
        assert hash(same) == hash(found)
        assert tokenize(same) == tokenize(found)
    assert clone(found, safe=False) is found


def test_class_travels_by_value() -> None:
    """As one of a notebook does to the workers, where its module does not exist."""
    cloudpickle.register_pickle_by_value(inspect.getmodule(StackedLDA))
    try:
        text = cloudpickle.dumps(PARTS)
    finally:
        cloudpickle.unregister_pickle_by_value(inspect.getmodule(StackedLDA))
    found = pickle.loads(text)
    assert found.replace(size=5).to_dict() == PARTS.replace(size=5).to_dict()
    with pytest.raises(SpecError, match="size=0 is out of range"):
        found.replace(size=0)


def test_objects_are_frozen() -> None:
    """No attribute can be set or added."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        StackedLDA().ridge = 3  # type: ignore[misc]
    assert not hasattr(StackedLDA(), "__dict__")


def test_stored_values_of_earlier_releases_are_translated() -> None:
    """Names and values, in nested tables too."""
    assert StackedLDA.from_stored({"samples": 4, "pool": "avg"}) == StackedLDA(4, pool="mean")
    found = Model.from_stored({"bank": [{"samples": 4}], "head": {"name": "a"}, "deep": True})
    assert found == Model(bank=(StackedLDA(4),), head=Head("a"), is_deep=True)


def test_nested_values_in_dicts_and_toml() -> None:
    """Tables of tables; numbers of a list stay on one line."""
    values = PARTS.to_dict()
    assert values["head"] == {"name": "ridge", "ridge": 2.0}
    assert [part["positives"] for part in values["bank"]] == [3, 2]
    text = PARTS.to_toml()
    assert tomllib.loads(text) == {"model": values}
    assert "sizes = [4, 2]\n" in text
    assert "[model.head]\n" in text
    assert "bank = [\n    { positives = 3," in text
    large = PARTS.replace(bank=(StackedLDA(positives=90, weights=(0.5,) * 40),) * 2)
    assert large.to_toml().count("[[model.bank]]\n") == 2
    assert Model.from_dict(tomllib.loads(large.to_toml())["model"]) == large


def test_strings_in_toml_are_escaped() -> None:
    """Also those that look like a list."""
    found = Model(head=Head('a "quoted"\\ text = [\n    4,\n    2,\n]'))
    assert Model.from_dict(tomllib.loads(found.to_toml())["model"]) == found


def test_nested_value_is_checked() -> None:
    """By its own class, and by the type of the option."""
    with pytest.raises(SpecError, match="ridge=-1 is out of range"):
        Model(head={"name": "a", "ridge": -1})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"head=3 is not a Head\."):
        Model(head=3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"bank=\(3,\) is not a list of StackedLDA objects\."):
        Model(bank=[3])  # type: ignore[arg-type]


def test_html_table_has_changed_options_in_bold() -> None:
    """All options are in the table."""
    html = StackedLDA(positives=3)._repr_html_()
    assert html.count("font-weight:bold") == 2  # the name and the value
    assert all(name in html for name in declared_options(StackedLDA))


# nested names -------------------------------------------------------------------------------------


def test_get_params_has_nested_names() -> None:
    """Of options in options and in tuples of options."""
    params = PARTS.get_params()
    assert params["head__ridge"] == 2.0
    assert params["bank__1__pool"] == "mean"
    assert list(PARTS.get_params(deep=False)) == list(declared_options(Model))
    assert PARTS.set_params(**params) == PARTS


def test_set_params_returns_a_new_object() -> None:
    """Options that are not named stay the same."""
    found = PARTS.set_params(size=5, head__ridge=0.5, bank__1__positives=7)
    assert found.head == Head("ridge", 0.5)
    assert found.bank == (StackedLDA(positives=3), StackedLDA(positives=7, pool="mean"))
    assert (PARTS.size, PARTS.head.ridge, found.size) == (3, 2.0, 5)
    assert PARTS.set_params(head=Head("new"), head__ridge=0.5).head == Head("new", 0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("size__ridge", r"size__ridge cannot be set: size=3 has no options of its own"),
        ("bank__2__ridge", r"bank has no item '2'\. Known: 0, 1\."),
        ("bank__2", r"bank has no item '2'"),
        ("head__size", r"Head has no option 'size'"),
        ("head__ridge", r"ridge=-1 is out of range"),
    ],
)
def test_set_params_rejects_wrong_names_and_values(name: str, message: str) -> None:
    """The message names the option."""
    with pytest.raises(SpecError, match=message):
        PARTS.set_params(**{name: -1})


# command line -------------------------------------------------------------------------------------


@click.command()
@spec_options(declared_flags(Model))
def command(**flags: Any) -> None:
    """Print the flags that are set."""
    click.echo(json.dumps({name: value for name, value in flags.items() if value is not None}))


def test_flags_follow_from_the_types() -> None:
    """A list is comma-separated, a bool has a negation; nested options have no flag."""
    run = CliRunner().invoke
    result = run(command, ["--size", "4", "--sizes", "3,1", "--no-is-deep"])
    assert json.loads(result.output) == {"size": 4, "sizes": [3, 1], "is_deep": False}
    assert "Use --is-deep" in run(command, ["--deep", "yes"]).output
    assert "is not a list of whole numbers" in run(command, ["--sizes", "3;1"]).output
    text = run(command, ["--help"]).output
    assert "--sizes SIZES" in text
    assert "cells per side" in text
    assert "--head" not in text
    assert "--bank" not in text
