"""Declared dependencies: every imported package is one, and those of extras are optional."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rescnet_dist

PACKAGE = Path(rescnet_dist.__file__).parent
ROOT = PACKAGE.parent
OTHER_MODULES = sys.stdlib_module_names | {"rescnet_dist", "__future__"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distributions of modules that the tests need not have installed.
OTHER_DISTRIBUTIONS = {
    "cupy": "cupy-cuda13x",
    "cupy_backends": "cupy-cuda13x",
    "cupyx": "cupy-cuda13x",
    "dask_ml": "dask-ml",
    "prometheus_client": "prometheus-client",
    "torch": "torch",
}
UNDECLARED = {"dask_cuda"}  # requires some releases of Dask (see cluster/connect.py)
DEVELOPER_EXTRAS = {"docs", "test"}  # for users, an import needs another one
# Modules that need an extra as a whole; others import its packages where they need them.
MODULES_OF_EXTRAS = {
    "dashboard": (
        *("rescnet_dist.dashboard.page", "rescnet_dist.dashboard.plots"),
        "rescnet_dist.dashboard.server",
    ),
    "gpu": ("rescnet_dist.kernels.gpu",),
}


def normalize(name: str) -> str:
    """Return the name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def list_names(requirements: list[str]) -> set[str]:
    """Return the normalized names of requirements."""
    return {normalize(Requirement(line).name) for line in requirements}


CORE = list_names(PROJECT["dependencies"])
EXTRAS = {
    extra: list_names(lines)
    for extra, lines in PROJECT["optional-dependencies"].items()
    if extra not in DEVELOPER_EXTRAS
}


def iter_imported_modules(path: Path) -> Iterator[str]:
    """Yield the top-level modules that a file imports anywhere, without our own and Python's."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            if top not in OTHER_MODULES:
                yield top


@cache
def list_imported() -> list[str]:
    """Return the top-level modules that the package imports anywhere."""
    return sorted({top for path in PACKAGE.rglob("*.py") for top in iter_imported_modules(path)})


@cache
def list_installed() -> dict[str, list[str]]:
    """Return the installed distributions by the top-level modules that they have."""
    return dict(packages_distributions())


def find_distributions(module: str) -> set[str]:
    """Return the distributions that may have installed a module."""
    names = list_installed().get(module) or [OTHER_DISTRIBUTIONS.get(module, "")]
    return {normalize(name) for name in names}


def close(names: set[str]) -> set[str]:
    """Return distributions with all that they depend on, without their extras."""
    found, new = set[str](), {*names}
    while new:
        found.add(name := new.pop())
        for requirement in map(Requirement, requires(name) or ()):
            if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
                new |= {normalize(requirement.name)} - found
    return found


def list_optional() -> list[str]:
    """Return the imported modules that an installation without extras does not have."""
    core = close(CORE)
    return [module for module in list_imported() if not find_distributions(module) & core]


def test_imported_packages_are_declared() -> None:
    """As a dependency or in an extra for users, not only as a dependency of a dependency."""
    declared = CORE.union(*EXTRAS.values())
    missing = {module for module in list_imported() if not find_distributions(module) & declared}
    assert missing == UNDECLARED


@pytest.mark.parametrize("name", sorted(CORE))
def test_dependencies_are_imported(name: str) -> None:
    """A dependency that nothing imports is gone."""
    assert any(name in find_distributions(module) for module in list_imported())


def test_imports_inside_functions_are_found(tmp_path: Path) -> None:
    """Else the tests above would show less."""
    file = tmp_path / "a.py"
    file.write_text(
        "import os, numpy.linalg\ndef f():\n    from PIL import Image\nfrom . import b\n"
    )
    assert list(iter_imported_modules(file)) == ["numpy", "PIL"]


def test_core_runs_without_the_extras() -> None:
    """All modules can be imported without them, except those that need an extra as a whole."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__main__.py"
    ]
    code = f"""
import importlib, json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {list_optional()!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
failed = {{}}
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout)
    allowed = tuple(name for names in MODULES_OF_EXTRAS.values() for name in names)
    assert {name: failed[name] for name in failed if not name.startswith(allowed)} == {}
    for name in allowed:
        assert name in failed


def test_extras_that_messages_name_exist() -> None:
    """Messages say which extra to install."""
    named = set[str]()
    for path in [*PACKAGE.rglob("*.py"), ROOT / "README.md", *(ROOT / "notebooks").glob("*.md")]:
        for found in re.findall(r"(?:rescnet-dist|\s\"|')\.?\[([a-z0-9,-]+)\]", path.read_text()):
            named |= set(found.split(","))
    assert {"gpu", "k8s", "parquet", "plot"} <= named
    assert named <= {*PROJECT["optional-dependencies"]}
