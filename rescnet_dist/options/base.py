"""The base class of options, with its validation, dicts and nested parameters."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_args, get_origin

from rescnet_dist.errors import SpecError, shorten_repr, suggest_name
from rescnet_dist.formatting import html_table
from rescnet_dist.options.annotations import alternatives, describe_type
from rescnet_dist.options.declaration import Option

DOCSTRING_COLUMNS = 96


class Options:
    """Base class of options: frozen, validated, with conversion to and from dicts.

    Subclasses are dataclasses with `@dataclass(frozen=True, slots=True)`, their fields are declared
    by `option`. Options that must fit each other are checked in `check`. The annotations are
    resolved when the class is created, so that the names in them must exist by then.
    """

    __slots__ = ()
    __options__: ClassVar[dict[str, Option]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Collect the options once dataclass has made the fields and creates the class again."""
        super().__init_subclass__(**arguments)
        if "__dataclass_fields__" not in vars(cls):
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
                text = declared.help or describe_type(declared.type)
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

        Options are frozen: unlike `set_params` of a scikit-learn estimator, this method leaves the
        object as it is.

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
        self._check_names({key.partition("__")[0]: value for key, value in params.items()})
        return self.replace(**_merge_params(self.get_params(deep=False), params))

    def __sklearn_clone__(self) -> Self:
        return self  # frozen, so that estimators can share it

    @classmethod
    def _check_names(cls, values: Mapping[str, Any]) -> None:
        """Raise SpecError for unknown options; the error for a renamed one has the new name."""
        if all(name in cls.__options__ for name in values):
            return
        known = cls.settable_options()
        renamed = {declared.old_name: name for name, declared in known.items()}
        for name in values:
            if name in known:
                continue
            if new := renamed.get(name):
                problem, remedy = "has been renamed", f"Use {new}={values[name]!r}."
                raise SpecError(f"The option {name!r} of {cls.__name__} {problem}. {remedy}")
            raise SpecError(f"{cls.__name__} has no option {name!r}. {suggest_name(name, known)}")

    @classmethod
    def settable_options(cls) -> dict[str, Option]:
        """Return the options that users can set, by name; a hook for subclasses.

        Returns
        -------
        dict of str to Option
            All options of the class; subclasses may add those of the values that they hold.
        """
        return cls.__options__

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


def validate_option(declared: Option, value: Any) -> Any:
    """Return a value as options keep it; raise SpecError if it is not valid."""
    value = _convert(value, declared.type)
    declared.check_type(value)
    declared.check_range(value)
    return value


def declared_options(kind: type[Options]) -> dict[str, Option]:
    """Return the options of a class by name, in the order of their fields.

    >>> from rescnet_dist import RunSpec
    >>> declared_options(RunSpec)["seed"].help
    'seed of the draws, the validation split and the copies'
    """
    return kind.settable_options()


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
        text = textwrap.fill(declared.doc, DOCSTRING_COLUMNS - 4, break_on_hyphens=False)
        section += [
            f"{declared.name} : {declared.type_text}{default}",
            *([textwrap.indent(text, "    ")] if text else []),
        ]
    parts = ("\n".join(lines[:end]).rstrip(), "\n".join(section), "\n".join(lines[end:]))
    return "\n\n".join(part for part in parts if part) + "\n"


# values -------------------------------------------------------------------------------------------


def _convert(value: Any, hint: Any, *, is_stored: bool = False) -> Any:
    """Return a value as options keep it: tuples for lists, options for dicts, Python numbers.

    A dict for a class of options goes to its `from_dict`, or its `from_stored` if it is from a
    store. A value that does not fit the hint is returned as it is, for the check that follows.
    """
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a NumPy scalar, such as one of a parameter grid
    for part in alternatives(hint):
        if get_origin(part) is tuple and isinstance(value, list | tuple):
            item = get_args(part)[0]
            items = tuple(_convert(v, item, is_stored=is_stored) for v in value)
            return items[0] if len(items) == 1 and item in alternatives(hint) else items
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
        changes[name] = _change_nested(name, changes.get(name, values[name]), inner)
    return changes


def _change_nested(name: str, value: Any, params: Mapping[str, Any]) -> Any:
    """Return a value, options or a tuple of options, with changes by nested name."""
    if isinstance(value, Options):
        return value.set_params(**params)
    parts = _nested_values(value)
    if not parts:
        names = ", ".join(f"{name}__{key}" for key in params)
        given = f"{name}={shorten_repr(value)}"
        raise SpecError(f"{names} cannot be set: {given} has no options of its own.")
    if unknown := {key.partition("__")[0] for key in params} - parts.keys():
        first = min(unknown)
        raise SpecError(f"{name} has no item {first!r}. {suggest_name(first, parts)}")
    return tuple((parts | _merge_params(parts, params)).values())
