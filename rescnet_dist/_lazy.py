"""Public names of a package, imported from its modules on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attach(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    `names` has the names that each module of the package defines. A module is imported when one of
    its names is used. No name may be that of a module, which hides it once it is imported.
    """
    modules = {name: module for module, found in names.items() for name in found}
    if hidden := modules.keys() & names.keys():
        raise ValueError(f"{package} has modules named as {sorted(hidden)}. Rename the modules.")

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, list_names
