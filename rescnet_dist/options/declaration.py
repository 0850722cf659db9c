"""The declaration of one option: `option` for a field, and `Option`, what is known from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from rescnet_dist.errors import SpecError, shorten_repr, suggest_name
from rescnet_dist.options.annotations import alternatives, describe_type, format_type, is_instance

METADATA_KEY = "rescnet_dist.option"  # in the metadata of a dataclass field
MAX_INTEGER = 2**63 - 1  # which kernels can be given


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    doc: str | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    group: str = "",
    old_name: str | None = None,
    old_values: Mapping[str, str] | None = None,
) -> Any:
    """Declare an option of a class that derives from `Options`.

    The annotation of the field is its type: int, float, bool, str, a `Literal` of strings, whose
    values are the choices, another class of options, a tuple of one of these such as
    `tuple[int, ...]`, or one of these or None. A range of a tuple is that of its items. A tuple of
    one item is the item itself where the type allows both, as `int | tuple[int, ...]` does.

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
    group : str, default ""
        Heading of the options among which the command line lists it; "" is that of the class.
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
        "group": group,
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
    group: str = ""
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
        literals = [part for part in alternatives(self.type) if get_origin(part) is Literal]
        return tuple(value for part in literals for value in get_args(part))

    @property
    def value_type(self) -> Any:
        """The type without None, as of the value that a user gives."""
        parts = [part for part in alternatives(self.type) if part is not type(None)]
        return parts[0] if len(parts) == 1 else self.type

    @property
    def item_type(self) -> Any:
        """The type of the items, or None if the values are no tuples."""
        parts = alternatives(self.value_type)
        return next((get_args(part)[0] for part in parts if get_origin(part) is tuple), None)

    @property
    def is_nested(self) -> bool:
        """Whether values have options themselves, or are tuples of such values."""
        kind = self.item_type or self.value_type
        return all(hasattr(part, "from_dict") for part in alternatives(kind))

    @property
    def type_text(self) -> str:
        """The type as docstrings have it, such as `{"max", "mean"}` or `int or None`."""
        return format_type(self.type)

    @property
    def default_text(self) -> str:
        """The default as docstrings have it, such as `"max"`; of options, what they change."""
        return format_default(self.default)

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
        given = f"{self.name}={shorten_repr(value)}"
        if not is_instance(value, self.type):
            raise SpecError(f"{given} is not {describe_type(self.type)}.")
        if self.choices and isinstance(value, str) and value not in self.choices:
            if new := self.old_values.get(value):
                raise SpecError(f"{given} has been renamed. Use {self.name}={new!r}.")
            raise SpecError(f"{given} is not a choice. {suggest_name(value, self.choices)}")

    def check_range(self, value: Any) -> None:
        """Raise SpecError if a number, or one in a tuple, is out of range or not finite."""
        items = value if isinstance(value, tuple) else (value,)
        if all(self._is_inside(item) for item in items):
            return
        subject = "Each item" if isinstance(value, tuple) else "It"
        is_large = any(isinstance(item, int) and abs(item) > MAX_INTEGER for item in items)
        limits = f"at most {MAX_INTEGER}" if is_large else self.limits or "finite"
        given = f"{self.name}={shorten_repr(value)}"
        raise SpecError(f"{given} is out of range. {subject} must be {limits}.")

    def _is_inside(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (abs(value) <= MAX_INTEGER if isinstance(value, int) else math.isfinite(value))
        )


def format_default(value: Any) -> str:
    """Return a default as docstrings have it."""
    if isinstance(value, tuple):
        items = ", ".join(format_default(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if hasattr(value, "rows"):  # it has options itself
        changed = (f"{n}={format_default(v)}" for n, v, is_changed in value.rows() if is_changed)
        return f"{type(value).__name__}({', '.join(changed)})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
