"""Declared options: frozen dataclasses whose fields hold the range, the help and the default.

An option is declared once, by its field:

>>> @dataclass(frozen=True, slots=True)
... class StackedLDA(Options):
...     positives: int = option(2, help="patches of the class in each draw", low=1)
...     ridge: float = option(1e-2, help="ridge added to the covariance of a draw", above=0)
...     pool: Literal["max", "mean"] = option("max", help="pooling over the blocks of a cell")
>>> StackedLDA(positives=3).to_dict()
{'positives': 3, 'ridge': 0.01, 'pool': 'max'}

Validation, dicts, nested parameters for scikit-learn, tables and the Attributes section of the
docstring follow from it. So do the flags of the command line and the tables of the book, which read
`declared_options`.

Why not a library: a validator of attrs is a function, from which no range can be read for flags
and tables, so the metadata would be our own anyway. pydantic declares ranges and descriptions, but
each of its errors would have to be translated to say what to do, and every worker would need its
compiled core in the same version. What is left to write is this module.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.formatting import html_table

METADATA_KEY = "rescnet_dist.option"  # in the metadata of a dataclass field
DOCSTRING_COLUMNS = 96
TYPES_IN_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("a string", "strings"),
    type(None): ("nothing", "nothing"),
}


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    doc: str | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    old_name: str | None = None,
    old_values: Mapping[str, str] | None = None,
) -> Any:
    """Declare an option of a class that derives from `Options`.

    The annotation of the field is its type: int, float, bool, str, a `Literal` of strings, whose
    values are the choices, another class of options, a tuple of one of these such as
    `tuple[int, ...]`, or one of these or None. A range of a tuple is that of its items.

    Parameters
    ----------
    default : object, optional
        The default, which must be valid. An option without default must be given.
    help : str
        One line for the command line and for tables, in lower case without a period.
    doc : str or None, default None
        Text of the docstring, as sentences; None is `help` as a sentence.
    low, above : float or None, default None
        Smallest valid value, or the limit that valid values are greater than. Give one of them.
    high : float or None, default None
        Largest valid value.
    old_name : str or None, default None
        Name of the option in earlier releases. It is an error that names the new one; specs in
        stores are translated.
    old_values : dict or None, default None
        Choices of earlier releases and what they are now, treated in the same way.

    Returns
    -------
    dataclasses.Field
        The field.
    """
    if low is not None and above is not None:
        raise TypeError(f"low={low} and above={above} exclude each other. Give one of them.")
    declared = {
        "help": help,
        "doc": doc or f"{help[:1].upper()}{help[1:]}.",
        "low": low,
        "above": above,
        "high": high,
        "old_name": old_name,
        "old_values": dict(old_values or {}),
    }
    return dataclasses.field(default=default, metadata={METADATA_KEY: declared})


@dataclass(frozen=True, slots=True)
class Option:
    """An option as it is declared: the field of a class of options and its annotation."""

    name: str
    type: Any  # the resolved annotation
    is_required: bool
    default: Any  # None if required
    help: str = ""
    doc: str = ""
    low: float | None = None
    above: float | None = None
    high: float | None = None
    old_name: str | None = None
    old_values: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, field: dataclasses.Field[Any], hint: Any) -> Option:
        """Return the option of a field; one without `option` has no range and no help."""
        is_required = field.default is dataclasses.MISSING
        default = None if is_required else field.default
        return cls(field.name, hint, is_required, default, **field.metadata.get(METADATA_KEY, {}))

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of the Literal in the type, if any."""
        literals = [part for part in _alternatives(self.type) if _origin(part) is Literal]
        return tuple(value for part in literals for value in typing.get_args(part))

    @property
    def value_type(self) -> Any:
        """The type without None, as of the value that a user gives."""
        parts = [part for part in _alternatives(self.type) if part is not type(None)]
        return parts[0] if len(parts) == 1 else self.type

    @property
    def item_type(self) -> Any:
        """The type of the items, or None if the values are no tuples."""
        arguments = typing.get_args(self.value_type)
        return arguments[0] if _origin(self.value_type) is tuple else None

    @property
    def is_nested(self) -> bool:
        """Whether values have options themselves, or are tuples of such values."""
        kind = self.item_type or self.value_type
        return all(isinstance(p, type) and issubclass(p, Options) for p in _alternatives(kind))

    @property
    def type_text(self) -> str:
        """The type as docstrings have it, such as `{"max", "mean"}` or `int or None`."""
        return _format_type(self.type)

    @property
    def default_text(self) -> str:
        """The default as docstrings have it, such as `"max"`; of options, what they change."""
        return _format_default(self.default)

    @property
    def limits(self) -> str:
        """The range in words, such as `at least 1`; empty if there is none."""
        limits = [
            f"{words} {limit}"
            for words, limit in (
                ("at least", self.low),
                ("greater than", self.above),
                ("at most", self.high),
            )
            if limit is not None
        ]
        return " and ".join(limits)

    def check_type(self, value: Any) -> None:
        """Raise SpecError for a value of a wrong type, or one that is no choice."""
        if not _is_instance(value, self.type):
            raise SpecError(f"{self.name}={value!r} is not {_describe_type(self.type)}.")
        if self.choices and isinstance(value, str) and value not in self.choices:
            if new := self.old_values.get(value):
                raise SpecError(f"{self.name}={value!r} has been renamed. Use {self.name}={new!r}.")
            raise SpecError(
                f"{self.name}={value!r} is not a choice. {suggest_name(value, self.choices)}"
            )

    def check_range(self, value: Any) -> None:
        """Raise SpecError if a number, or one in a tuple, is out of range or not finite."""
        items = value if isinstance(value, tuple) else (value,)
        if all(self._is_inside(item) for item in items):
            return
        subject = "Each item" if isinstance(value, tuple) else "It"
        limits = self.limits or "finite"
        raise SpecError(f"{self.name}={value!r} is out of range. {subject} must be {limits}.")

    def _is_inside(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (isinstance(value, int) or math.isfinite(value))
        )


class Options:
    """Base class of options: frozen, validated, with conversion to and from dicts.

    Subclasses are dataclasses with `@dataclass(frozen=True, slots=True)`, their fields are declared
    by `option`. Options that must fit each other are checked in `check`. The annotations are
    resolved when the class is created, so that the names in them must exist by then.
    """

    __slots__ = ()
    __options__: ClassVar[dict[str, Option]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Collect the options of a dataclass, for which its fields are complete."""
        super().__init_subclass__(**arguments)
        if "__init__" not in vars(cls):  # it is there the second time, when dataclass adds slots
            return
        cls.__options__ = _collect_options(cls)
        # `__new__` would hide the options.
        parameters = inspect.signature(cls.__init__).parameters.values()
        cls.__signature__ = inspect.Signature(list(parameters)[1:])  # type: ignore[attr-defined]
        cls.__doc__ = _add_attributes(cls)

    def __new__(cls, *_args: Any, **values: Any) -> Self:
        """Raise SpecError for an unknown option, before the dataclass raises a TypeError."""
        if "__options__" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} has no declared options. Put @dataclass(frozen=True, slots=True) "
                "above the class."
            )
        cls._check_names(values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, declared in self.__options__.items():
            value = _convert(getattr(self, name), declared.type)
            object.__setattr__(self, name, value)
            declared.check_type(value)
        for name, declared in self.__options__.items():
            declared.check_range(getattr(self, name))
        self.check()

    def check(self) -> None:
        """Raise SpecError if options do not fit each other; a hook for subclasses.

        It is called when an object is created, after the type and the range of each option have
        been checked.

        Raises
        ------
        SpecError
            If options do not fit each other. The message says what to change.
        """

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some options changed, validated again.

        Parameters
        ----------
        **changes
            New values by option name.

        Returns
        -------
        Options
            An object of the same class.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.

        Examples
        --------
        >>> from rescnet_dist import NetworkSpec
        >>> NetworkSpec().replace(filters=8).filters
        8
        """
        return type(self)(**self.get_params(deep=False) | changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-serializable values.

        Returns
        -------
        dict
            Values by option name. Options that are None are left out; values with options are
            dicts, too.
        """
        values = self.get_params(deep=False).items()
        return {name: _to_plain(value) for name, value in values if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the object with these options; the inverse of `to_dict`.

        Parameters
        ----------
        values : dict
            Values by option name; options that are missing have their default.

        Returns
        -------
        Options
            An object of this class.

        Raises
        ------
        SpecError
            If an option is unknown or missing, or a value is not valid.
        """
        cls._check_names(values)
        for name, declared in cls.__options__.items():
            if declared.is_required and name not in values:
                text = declared.help or _describe_type(declared.type)
                raise SpecError(f"{cls.__name__} has no {name!r}. Add the option: {text}.")
        return cls(**values)

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """Return the object in a run or network store, which an earlier release may have written.

        Parameters
        ----------
        values : dict
            Values by option name; names and values of earlier releases are translated.

        Returns
        -------
        Options
            An object of this class.
        """
        current = dict(values)
        for name, declared in cls.__options__.items():
            if declared.old_name in current:
                current[name] = current.pop(declared.old_name)
            if name in current:
                value = _convert(current[name], declared.type, is_stored=True)
                is_old = isinstance(value, str) and value in declared.old_values
                current[name] = declared.old_values[value] if is_old else value
        return cls.from_dict(current)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name, as scikit-learn asks for the parameters of an estimator.

        Parameters
        ----------
        deep : bool, default True
            Add the options of values that have options: `head__ridge` is option `ridge` of option
            `head`, `bank__0__ridge` that of the first item of `bank`.

        Returns
        -------
        dict
            Values by option name.
        """
        values = {name: getattr(self, name) for name in self.__options__}
        return values | (_nested_params(values) if deep else {})

    def set_params(self, **params: Any) -> Self:
        """Return a copy with some options changed, nested ones included.

        Options are frozen: other than that of scikit-learn's estimators, this method does not
        change the object.

        Parameters
        ----------
        **params
            New values by option name, such as those of `get_params`.

        Returns
        -------
        Options
            An object of the same class.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.
        """
        return self.replace(**_merge_params(self.get_params(deep=False), params))

    def __sklearn_clone__(self) -> Self:
        return self  # frozen, so that estimators can share it

    @classmethod
    def _check_names(cls, values: Mapping[str, Any]) -> None:
        """Raise SpecError for unknown options; the error for a renamed one has the new name."""
        known = cls.__options__
        renamed = {declared.old_name: name for name, declared in known.items()}
        for name in values:
            if name in known:
                continue
            if new := renamed.get(name):
                problem, remedy = "has been renamed", f"Use {new}={values[name]!r}."
                raise SpecError(f"The option {name!r} of {cls.__name__} {problem}. {remedy}")
            raise SpecError(f"{cls.__name__} has no option {name!r}. {suggest_name(name, known)}")

    def rows(self) -> list[tuple[str, Any, bool]]:
        """Return the name and value of each option, and whether it differs from the default.

        Returns
        -------
        list of tuple
            One `(name, value, is_changed)` for each option.
        """
        return [
            (name, value, declared.is_required or value != declared.default)
            for name, declared in self.__options__.items()
            for value in [getattr(self, name)]
        ]

    def _repr_html_(self) -> str:
        return html_table(
            f"{type(self).__name__}, options that are not the default in bold", self.rows()
        )


def declared_options(kind: type[Options]) -> dict[str, Option]:
    """Return the options of a class by name, in the order of their fields.

    >>> from rescnet_dist import RunSpec
    >>> declared_options(RunSpec)["seed"].help
    'seed of the draws, the validation split and the copies'
    """
    return kind.__options__


# declaration --------------------------------------------------------------------------------------


def _collect_options(cls: type[Options]) -> dict[str, Option]:
    """Return the options of a class; raise an error if one of them cannot be used."""
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__name__} is not frozen. Use @dataclass(frozen=True, slots=True).")
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    options = {field.name: Option.of(field, hints[field.name]) for field in fields}
    for name, declared in options.items():
        if hasattr(Options, name) or "__" in name:
            raise TypeError(
                f"{cls.__name__} cannot have an option {name!r}: a method of Options has this "
                "name, or it has two underscores, which separate nested names. Rename it."
            )
        if not declared.is_required:
            default = _convert(declared.default, declared.type)
            declared.check_type(default)
            declared.check_range(default)
    return options


def _add_attributes(cls: type[Options]) -> str:
    """Return the docstring of a class with its options, ahead of the other sections."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    if not doc or doc.startswith(f"{cls.__name__}("):  # the signature, which dataclass writes
        doc = f"Options of {cls.__name__}."
    lines = doc.splitlines()
    titles = (n for n, line in enumerate(lines[1:]) if re.fullmatch(r"-{3,}", line.strip()))
    end = next(titles, len(lines))
    section = ["Attributes", "----------"]
    for declared in cls.__options__.values():
        default = "" if declared.is_required else f", default {declared.default_text}"
        indent = {"initial_indent": "    ", "subsequent_indent": "    "}
        section += [
            f"{declared.name} : {declared.type_text}{default}",
            *textwrap.wrap(
                declared.doc or declared.name,
                DOCSTRING_COLUMNS,
                **indent,  # type: ignore[arg-type]
                break_long_words=False,
                break_on_hyphens=False,
            ),
        ]
    parts = ("\n".join(lines[:end]).rstrip(), "\n".join(section), "\n".join(lines[end:]))
    return "\n\n".join(part for part in parts if part) + "\n"


# types --------------------------------------------------------------------------------------------


def _origin(hint: Any) -> Any:
    """Return the generic type of a hint, such as tuple for `tuple[int, ...]`."""
    return typing.get_origin(hint)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the hint itself."""
    is_union = _origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _is_instance(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an annotation; an int is a float too."""
    if len(parts := _alternatives(hint)) > 1:
        return any(_is_instance(value, part) for part in parts)
    if _origin(hint) is Literal:
        return isinstance(value, str)
    if _origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_is_instance(v, item) for v in value)
    if hint in (int, float):
        allowed: Any = int if hint is int else int | float
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe_type(hint: Any) -> str:
    """Return the type of an annotation in words, for error messages."""
    if len(parts := _alternatives(hint)) > 1:
        return " or ".join(_describe_type(part) for part in parts)
    if _origin(hint) is Literal:
        return "one of " + ", ".join(typing.get_args(hint))
    if _origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return "a list of " + (
            TYPES_IN_WORDS[item][1] if item in TYPES_IN_WORDS else f"{_format_type(item)} objects"
        )
    return TYPES_IN_WORDS[hint][0] if hint in TYPES_IN_WORDS else f"a {hint.__name__}"


def _format_type(hint: Any) -> str:
    """Return a type as docstrings have it."""
    if len(parts := _alternatives(hint)) > 1:
        return " or ".join(_format_type(part) for part in parts)
    if _origin(hint) is Literal:
        return "{" + ", ".join(f'"{value}"' for value in typing.get_args(hint)) + "}"
    if _origin(hint) is tuple:
        return f"tuple of {_format_type(typing.get_args(hint)[0])}"
    return "None" if hint is type(None) else str(hint.__name__)


def _format_default(value: Any) -> str:
    """Return a default as docstrings have it."""
    if isinstance(value, Options):
        changed = (f"{n}={_format_default(v)}" for n, v, is_changed in value.rows() if is_changed)
        return f"{type(value).__name__}({', '.join(changed)})"
    if isinstance(value, tuple) and any(isinstance(item, Options) for item in value):
        return f"({', '.join(_format_default(item) for item in value)},)"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# values -------------------------------------------------------------------------------------------


def _convert(value: Any, hint: Any, *, is_stored: bool = False) -> Any:
    """Return a value as options keep it: tuples for lists, options for dicts, Python numbers.

    A dict for a class of options goes to its `from_dict`, or its `from_stored` if it is from a
    store. A value that does not fit the hint is returned as it is, for the check that follows.
    """
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a NumPy scalar, such as one of a parameter grid
    for part in _alternatives(hint):
        if _origin(part) is tuple and isinstance(value, list | tuple):
            item = typing.get_args(part)[0]
            return tuple(_convert(v, item, is_stored=is_stored) for v in value)
        if isinstance(part, type) and issubclass(part, Options) and isinstance(value, Mapping):
            return part.from_stored(value) if is_stored else part.from_dict(value)
    return value


def _to_plain(value: Any) -> Any:
    """Return a value as JSON and TOML have it."""
    if isinstance(value, Options):
        return value.to_dict()
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


def _nested_values(value: Any) -> dict[str, Any]:
    """Return the parts of a value that nested names lead to: its options, or its items."""
    if isinstance(value, Options):
        return value.get_params(deep=False)
    if isinstance(value, tuple) and any(isinstance(item, Options) for item in value):
        return {str(number): item for number, item in enumerate(value)}
    return {}


def _nested_params(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in values by their nested names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = _nested_values(value)
        found |= {f"{name}__{key}": v for key, v in (inner | _nested_params(inner)).items()}
    return found


def _merge_params(values: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes to some values that nested names ask for, by name of the value."""
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in params.items():
        name, _, rest = key.partition("__")
        if rest:
            nested.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    for name, inner in nested.items():
        value = changes.get(name, values.get(name))
        parts = _nested_values(value)
        if not parts:
            names = ", ".join(f"{name}__{key}" for key in inner)
            raise SpecError(f"{names} cannot be set: {name}={value!r} has no options of its own.")
        if isinstance(value, Options):
            changes[name] = value.set_params(**inner)
        else:
            items = parts | _merge_params(parts, inner)
            if unknown := items.keys() - parts.keys():
                raise SpecError(
                    f"{name} has no item {min(unknown)}. {suggest_name(min(unknown), parts)}"
                )
            changes[name] = tuple(items.values())
    return changes
