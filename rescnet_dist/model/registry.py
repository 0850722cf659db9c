"""Registries of components by name: built-in modules, entry points, and classes of the user."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.model.components import Component, FeatureExtractor, FilterLearner
from rescnet_dist.model.head import Head
from rescnet_dist.model.view import View

# Keys next to the options of a component in TOML
RESERVED_OPTIONS = {"name", "share", "view", "channels", "center", "whiten"}

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]*")

AnyComponent = TypeVar("AnyComponent", bound=Component)


class Registry:
    """The components of one kind, such as all filter learners.

    Components come from the modules of `package`, which are scanned for subclasses of `base` with
    a `name`; from the entry points of `group` in installed packages; and from calls of `register`.

    Parameters
    ----------
    kind : str
        What a member is called in messages, such as "filter learner".
    base : type
        The base class of all members.
    package : str
        The package whose modules define the built-in members.
    group : str
        The entry point group, by which other packages add members.
    """

    def __init__(self, kind: str, base: type, package: str, group: str) -> None:
        self.kind = kind
        self.base = base
        self.package = package
        self.group = group
        self._members: dict[str, type[Any]] = {}
        self._is_scanned = False
        self._found_entry_points: dict[str, EntryPoint] | None = None

    def register(self, component: type[AnyComponent]) -> type[AnyComponent]:
        """Add a component class under its `name`; usable as a decorator.

        The class is known to this process only. Workers in other processes read specs by name, so
        they must import the module that registers it too; an entry point does it by itself.

        Parameters
        ----------
        component : type
            The class, with a `name`.

        Returns
        -------
        type
            The class itself.

        Raises
        ------
        SpecError
            If another class has this name, or an option has a reserved name.
        """
        if not issubclass(component, self.base):
            raise SpecError(
                f"{_describe_class(component)} is not a {self.kind}. Derive it from "
                f"rescnet_dist.model.{self.base.__name__}."
            )
        name = getattr(component, "name", None)
        if not isinstance(name, str) or not name:
            raise SpecError(
                f"{component.__qualname__} has no name. Give the {self.kind} a class attribute "
                'name, as in name: ClassVar[str] = "my-component".'
            )
        if "__options__" not in vars(component):
            raise SpecError(
                f"{_describe_class(component)} has no declared options. Put "
                "@dataclass(frozen=True, slots=True) above the class."
            )
        if not NAME_PATTERN.fullmatch(name):
            raise SpecError(
                f"{name!r} cannot be the name of a {self.kind}, as it could not be given in text. "
                "Use lower-case letters, digits and hyphens."
            )
        known = self._members.get(name)
        if known is not None and not _is_same_class(known, component):
            raise SpecError(
                f"The {self.kind} {name!r} is defined twice, by {_describe_class(known)} and "
                f"{_describe_class(component)}. Rename one of them."
            )
        reserved = RESERVED_OPTIONS & set(component.__options__)
        if reserved:
            raise SpecError(
                f"The {self.kind} {name!r} has an option {min(reserved)!r}, which has another "
                "meaning in a spec. Rename the option."
            )
        component.check_class()
        self._members[name] = component
        return component

    def names(self) -> list[str]:
        """Return the names of all members, those of entry points included.

        Returns
        -------
        list of str
            Names in alphabetical order.
        """
        self._scan()
        return sorted({*self._members, *self._entry_points()})

    def get(self, name: str) -> type[Any]:
        """Return the class of a name.

        Parameters
        ----------
        name : str
            The name of a member.

        Returns
        -------
        type
            The component class.

        Raises
        ------
        SpecError
            If there is no member of this name, or the package that has it cannot be imported.
        """
        self._scan()
        if name not in self._members:
            found = self._entry_points().get(name)
            if found is None:
                raise SpecError(
                    f"Unknown {self.kind} {name!r}. {suggest_name(name, self.names())} If it is of "
                    "another package, install it here and on all workers; if it is a class of your "
                    "own, import its module in each process."
                )
            self._load(found)
        return self._members[name]

    def classes(self, *, load: bool = True) -> list[type[Any]]:
        """Return the classes of all members that can be imported.

        Parameters
        ----------
        load : bool, default True
            Whether to import the members of entry points that were not used so far.

        Returns
        -------
        list of type
            Built-in members first, each kind in alphabetical order.
        """
        self._scan()
        for entry_point in self._entry_points().values() if load else ():
            if entry_point.name not in self._members:
                try:
                    self._load(entry_point)
                except SpecError:
                    continue  # `get` raises it to those who ask for this member
        return sorted(self._members.values(), key=lambda c: (not self._is_built_in(c), c.name))

    def _is_built_in(self, component: type) -> bool:
        """Return whether a class is defined in the package itself."""
        return component.__module__.startswith(f"{self.package}.")

    def _scan(self) -> None:
        """Import every module of the package once and register the components it defines."""
        if self._is_scanned:
            return
        for info in pkgutil.iter_modules(import_module(self.package).__path__):
            module = import_module(f"{self.package}.{info.name}")
            for value in vars(module).values():
                if self._is_defined_in(module.__name__, value):
                    self.register(value)
        self._is_scanned = True

    def _is_defined_in(self, module: str, value: Any) -> bool:
        """Return whether a value is a component class that a module defines itself."""
        return (
            isinstance(value, type)
            and issubclass(value, self.base)
            and value.__module__ == module
            and "name" in vars(value)
        )

    def _entry_points(self) -> dict[str, EntryPoint]:
        """Return the entry points of the group by name, which are looked up once."""
        if self._found_entry_points is None:
            found: dict[str, EntryPoint] = {}
            for entry_point in scan_entry_points().select(group=self.group):
                if entry_point.name in found or entry_point.name in self._members:
                    raise SpecError(
                        f"The {self.kind} {entry_point.name!r} of {_describe_owner(entry_point)} "
                        "has the name of another one. Rename it, or remove one of the packages."
                    )
                found[entry_point.name] = entry_point
            self._found_entry_points = found
        return self._found_entry_points

    def _load(self, entry_point: EntryPoint) -> None:
        """Import and register the class of an entry point."""
        try:
            component = entry_point.load()
        except Exception as error:
            raise SpecError(
                f"The {self.kind} {entry_point.name!r} of {_describe_owner(entry_point)} cannot be "
                f"imported "
                f"({type(error).__name__}: {error}). Update or remove that package."
            ) from error
        if getattr(component, "name", None) != entry_point.name:
            raise SpecError(
                f"The entry point {entry_point.name!r} of {self.group} gives "
                f"{_describe_class(component)}, whose name is "
                f"{getattr(component, 'name', None)!r}. Give both the same name."
            )
        self.register(component)


@cache
def scan_entry_points() -> Any:
    """Return the entry points of all installed packages, whose metadata is read once.

    Python 3.11 and 3.12 have different types for them, both with `select`.
    """
    return entry_points()


def _is_same_class(one: type, other: type) -> bool:
    """Return whether two classes are the same definition, as after a module was reloaded."""
    return _describe_class(one) == _describe_class(other)


def _describe_owner(entry_point: EntryPoint) -> str:
    """Return the package of an entry point."""
    return f"the package {entry_point.dist.name if entry_point.dist else entry_point.module}"


def _describe_class(component: type) -> str:
    """Return the full name of a class."""
    return f"{component.__module__}.{component.__qualname__}"


FILTERS = Registry(
    "filter learner", FilterLearner, "rescnet_dist.model.filters", "rescnet_dist.filters"
)
FEATURES = Registry(
    "feature extractor", FeatureExtractor, "rescnet_dist.model.features", "rescnet_dist.features"
)
HEADS = Registry("head", Head, "rescnet_dist.model.heads", "rescnet_dist.heads")
VIEWS = Registry("view", View, "rescnet_dist.model.views", "rescnet_dist.views")
