"""The direction of imports, and docstrings of all public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import rescnet_dist

ROOT = Path(rescnet_dist.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]

BELOW_PLANNING = {
    "errors",
    "formatting",
    "options",
    "spec",
    "kernels",
    "reduce",
    "store",
    "data",
    "cluster",
}
BELOW_TRAIN = BELOW_PLANNING | {"planning"}
BELOW_DASHBOARD = BELOW_TRAIN | {"events", "runs", "train", "lifecycle", "network"}
BELOW_CLI = BELOW_DASHBOARD | {"dashboard", "estimator"}
MAY_IMPORT = {
    "errors": set(),
    "formatting": {"errors"},
    "options": {"errors", "formatting"},
    "spec": {"errors", "options"},
    "flags": {"spec"},
    "kernels": {"errors", "spec"},
    "gpu": {"errors", "spec", "kernels"},
    "reduce": {"errors", "spec", "kernels"},
    "store": {"errors", "spec", "kernels"},
    "data": {"errors", "spec", "kernels", "store", "cluster"},
    "cluster": {"errors", "kernels"},
    "planning": BELOW_PLANNING,
    "events": {"errors"},
    "runs": BELOW_TRAIN | {"events"},
    "train": BELOW_TRAIN | {"events", "runs"},
    "lifecycle": BELOW_TRAIN | {"events", "runs", "train"},
    "network": BELOW_TRAIN,
    "dashboard": BELOW_DASHBOARD | {"flags"},
    "estimator": BELOW_DASHBOARD | {"dashboard"},
    "bench": BELOW_CLI,
    "deploy": BELOW_TRAIN | {"flags"},
    "cli": BELOW_CLI | {"__init__", "bench", "deploy", "flags"},
    "__main__": {"cli"},
    "__init__": BELOW_CLI,
}
NOT_IN_KERNELS = {"dask", "distributed", "fsspec", "xarray", "zarr"}


def get_part(path: Path) -> str:
    """Return the part of the package that a file belongs to: its top-level folder or module."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def iter_imports(path: Path) -> Iterator[str]:
    """Yield the full names that a file imports anywhere; relative imports are resolved."""
    folder = ["rescnet_dist", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_run_one_way(path: Path) -> None:
    """A part imports only from the parts below it.

    errors ← formatting ← options ← spec ← kernels ← (reduce | store | data | cluster) ← planning ← runs
    ← train ← lifecycle ← network ← dashboard ← estimator ← cli.
    """
    part = get_part(path)
    assert part in MAY_IMPORT, f"{part} is new. Add to MAY_IMPORT what it may import."
    own = [name.split(".") for name in iter_imports(path) if name.split(".")[0] == "rescnet_dist"]
    # A name of the package itself comes from its __init__, which imports everything.
    parts = {name[1] if name[1:] and name[1] in MAY_IMPORT else "__init__" for name in own}
    assert parts <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda p: p.stem)
def test_kernels_import_no_cluster_and_no_storage(path: Path) -> None:
    """Kernels take and return arrays."""
    assert not {name.split(".")[0] for name in iter_imports(path)} & NOT_IN_KERNELS


def test_relative_imports_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sees `from ..train import x` and imports inside functions."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "store" / "bad.py"
    file.parent.mkdir()
    file.write_text("def f():\n    from ..train import loop\n    import dask.array\n")
    assert list(iter_imports(file)) == ["rescnet_dist.train.loop", "dask.array"]


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_module_has_a_docstring(path: Path) -> None:
    """Its first line is a sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "no docstring"
    first = docstring.splitlines()[0]
    assert first[0].isupper()
    assert first.endswith(".")
    assert len(first.split()) >= 3


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_all_public_definitions_have_a_docstring(path: Path) -> None:
    """Public functions and classes of a module, and public methods of public classes."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    bodies = [("", ast.parse(path.read_text()).body)]
    missing = []
    while bodies:
        owner, body = bodies.pop()
        for node in body:
            if isinstance(node, definitions) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    missing.append(f"{owner}{node.name}")
                if isinstance(node, ast.ClassDef):
                    bodies.append((f"{owner}{node.name}.", node.body))
    assert not missing


def test_commands_do_not_import_scikit_learn() -> None:
    """It takes most of a second, and few commands need it."""
    code = "import sys, rescnet_dist.cli.commands; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_version_is_that_of_the_installed_package() -> None:
    """It comes from one place, `version` in pyproject.toml."""
    assert rescnet_dist.__version__ == version("rescnet-dist")
