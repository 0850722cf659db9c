"""The direction of imports, by name too, and docstrings of all public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import rescnet_dist
import rescnet_dist.cluster
import rescnet_dist.dashboard
import rescnet_dist.data
import rescnet_dist.errors
import rescnet_dist.network
import rescnet_dist.planning
import rescnet_dist.reduce
import rescnet_dist.train
from rescnet_dist._lazy import attach
from tests.import_graph import (
    UndeclaredImportError,
    build_graph,
    find_cycles,
    iter_imports,
    list_modules,
)

MODULES = list_modules(Path(rescnet_dist.__file__).parent)
PATHS = list(MODULES.values())
# Modules that are imported by a name which only the running program knows
COMPONENTS = (
    "views",
    "filters",
    "features",
    "heads",
)  # scanned packages of rescnet_dist.model
DECLARED = {
    "rescnet_dist": {f"rescnet_dist.{name}" for name in rescnet_dist._NAMES},
    "rescnet_dist._lazy": set(),  # packages that use it import the same names for type checkers
    "rescnet_dist.model.registry": {
        name
        for name in MODULES
        if name.startswith("rescnet_dist.model.") and name.split(".")[2] in COMPONENTS
    },
}

BELOW_PLANNING = {
    "errors",
    "formatting",
    "options",
    "kernels",
    "model",
    "spec",
    "reduce",
    "store",
    "data",
    "cluster",
}
BELOW_TRAIN = BELOW_PLANNING | {"planning"}
BELOW_DASHBOARD = BELOW_TRAIN | {"events", "runs", "train", "lifecycle", "export", "network"}
BELOW_CLI = BELOW_DASHBOARD | {"dashboard", "estimator"}
MAY_IMPORT = {
    "errors": set(),
    "_compat": {"errors"},
    "_lazy": set(),
    "logs": set(),
    "formatting": {"errors"},
    "options": {"errors", "formatting"},
    "kernels": {"errors"},
    "model": {"errors", "options", "kernels"},
    "composition": {"errors", "options", "model"},
    "automatic": {"errors", "formatting"},
    "spec": {"errors", "options", "model", "composition", "automatic"},
    "flags": {"formatting", "errors", "spec"},
    "reduce": {"errors", "kernels"},
    "store": {"errors", "model", "kernels"},
    "data": {"errors", "spec", "kernels", "store", "cluster"},
    "cluster": {"errors", "kernels"},
    "planning": BELOW_PLANNING,
    "events": {"errors", "planning"},
    "runs": BELOW_TRAIN | {"events"},
    "train": BELOW_TRAIN | {"events", "runs"},
    "lifecycle": BELOW_TRAIN | {"events", "runs", "train"},
    "export": {"errors", "model", "kernels"},
    "network": BELOW_TRAIN | {"export"},
    "dashboard": BELOW_DASHBOARD | {"flags"},
    "estimator": BELOW_DASHBOARD | {"dashboard", "automatic"},
    "bench": BELOW_CLI,
    "deploy": BELOW_TRAIN | {"flags", "logs"},
    "cli": BELOW_CLI | {"__init__", "automatic", "bench", "composition", "deploy", "flags", "logs"},
    "__main__": {"cli"},
    "__init__": BELOW_CLI,
}
NOT_IN_KERNELS = {"dask", "distributed", "fsspec", "xarray", "zarr"}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules that each module of the package imports."""
    return build_graph(MODULES, DECLARED)


def get_part(name: str) -> str:
    """Return the part of the package that a module belongs to: its top-level folder or module."""
    return name.split(".")[1] if "." in name else "__init__"


def test_imports_run_one_way(graph: dict[str, set[str]]) -> None:
    """A part imports only from the parts below it.

    errors ← _compat ← formatting ← (options | kernels) ← model ← composition ← spec
    ← (reduce | store | data | cluster) ← planning ← runs ← train ← lifecycle ← export ← network
    ← dashboard ← estimator ← cli.
    """
    wrong = {}
    for name in MODULES:
        part = get_part(name)
        assert part in MAY_IMPORT, f"{part} is new. Add to MAY_IMPORT what it may import."
        allowed = MAY_IMPORT[part] | {part, "_compat", "_lazy"}
        wrong[name] = {get_part(imported) for imported in graph[name]} - allowed
    assert not {name: parts for name, parts in wrong.items() if parts}


def test_no_modules_import_each_other(graph: dict[str, set[str]]) -> None:
    """No cycle, even through imports in functions and by name; see `import_graph`."""
    cycles = [" → ".join(cycle) for cycle in find_cycles(graph)]
    assert not cycles, "Move what both need to a module below them."


def test_kernels_import_no_cluster_and_no_storage() -> None:
    """Kernels take and return arrays."""
    kernels = [name for name in MODULES if name.startswith("rescnet_dist.kernels")]
    assert len(kernels) > 20
    for name in kernels:
        imported = iter_imports(name, MODULES[name], DECLARED)
        assert not {full.split(".")[0] for full in imported} & NOT_IN_KERNELS, name


def test_only_the_backend_imports_the_gpu_package(graph: dict[str, set[str]]) -> None:
    """CuPy may be missing, so it is loaded in one place, on first use."""
    package = {name for name in MODULES if f"{name}.".startswith("rescnet_dist.kernels.gpu.")}
    assert package
    importers = {name for name, imported in graph.items() if imported & package} - package
    assert importers == {"rescnet_dist.kernels.backend"}


# the import graph of small packages ---------------------------------------------------------------


def write_package(folder: Path, sources: dict[str, str]) -> dict[str, Path]:
    """Write the package `p` with some modules, and return all of them."""
    for name, source in {"__init__": "", **sources}.items():
        path = folder / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        if not (init := path.parent / "__init__.py").exists():
            init.write_text("")
    return list_modules(folder / "p")


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import p.b, dask.array", {"p.b"}),
        ("from p import b", {"p.b"}),
        ("from p.b import name", {"p.b"}),
        ("from .. import b", {"p.b"}),
        ("from ..q.c import name", {"p.q", "p.q.c"}),
        ("def f():\n    from p.q import c", {"p.q", "p.q.c"}),
        ("from importlib import import_module\nimport_module('p.q.c')", {"p.q", "p.q.c"}),
        ("import importlib\nimportlib.import_module(f'p.q.{x}')", {"p.q", "p.q.c", "p.q.d"}),
        ("import_module(f'p.q.{x}').name", {"p.q", "p.q.c", "p.q.d"}),
        ("import_module(f'{__package__}.{x}')", {"p.r.s"}),
        ("__import__('p.b')", {"p.b"}),
        ("files('p.q') / 'data.txt'", {"p.q"}),
        ("files('p.r') / 'data.txt'", set()),
        ("files(__package__)", set()),
        ("self.files(part)", set()),
        ("from p.r import name", {"p.r"}),
        ("from p.r import s", {"p.r.s"}),
    ],
)
def test_imports_are_read_from_the_source(tmp_path: Path, source: str, imported: set[str]) -> None:
    """The importing module is p.r.m."""
    sources = dict.fromkeys(("b", "q/c", "q/d", "r/s"), "")
    graph = build_graph(write_package(tmp_path, {**sources, "r/m": source}))
    assert graph["p.r.m"] == imported


@pytest.mark.parametrize(
    "source",
    ["import_module(name)", "import_module('.b', package)", "pkgutil.iter_modules(p.__path__)"],
)
def test_what_cannot_be_read_must_be_declared(tmp_path: Path, source: str) -> None:
    """The declared modules are then the imported ones."""
    modules = write_package(tmp_path, {"a": source, "b": ""})
    with pytest.raises(UndeclaredImportError, match=r"p\.a, line 1"):
        build_graph(modules)
    assert build_graph(modules, {"p.a": {"p.b"}})["p.a"] == {"p.b"}


@pytest.mark.parametrize(
    ("sources", "cycles"),
    [
        ({"a": "from p import b", "b": "from p import c", "c": ""}, []),
        (
            {"a": "from p import b", "b": "def f():\n    import_module('p.a')"},
            [["p.a", "p.b", "p.a"]],
        ),
        ({"q/__init__": "from p.q import c", "q/c": "from p.q import d", "q/d": ""}, []),
        (
            {"q/__init__": "from p.q import c", "q/c": "from p.q import name"},
            [["p.q", "p.q.c", "p.q"]],
        ),
        (
            {"q/__init__": "import p.a", "q/c": "", "a": "import p.q.c"},
            [["p.a", "p.q", "p.a"]],
        ),
    ],
    ids=["none", "in a function, by name", "re-exports", "name of the package", "its __init__"],
)
def test_cycles_are_found(tmp_path: Path, sources: dict[str, str], cycles: list[list[str]]) -> None:
    """A package that re-exports its modules is no cycle."""
    assert find_cycles(build_graph(write_package(tmp_path, sources))) == cycles


# docstrings and start-up --------------------------------------------------------------------------


def test_every_module_has_a_docstring() -> None:
    """Its first line is a sentence."""
    for path in PATHS:
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{path} has no docstring"
        first = docstring.splitlines()[0]
        assert first[0].isupper(), path
        assert first.endswith("."), path
        assert len(first.split()) >= 3, path


def test_all_public_definitions_have_a_docstring() -> None:
    """Public functions and classes of a module, and public methods of public classes."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    bodies = [(f"{path}: ", ast.parse(path.read_text()).body) for path in PATHS]
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


@pytest.mark.parametrize(
    ("actions", "slow"),
    [
        pytest.param(  # each takes most of a second: for lazy images, and in estimators
            "check data deploy estimate evaluate export predict report training",
            {"dask.array", "pandas", "sklearn", "xarray"},
            id="dask.array and scikit-learn",
        ),
        pytest.param(  # it takes 0.3 s: for commands with a cluster
            "check data_names evaluate export info predict report",
            {"distributed"},
            id="distributed",
        ),
    ],
)
def test_commands_do_not_import_slow_modules(actions: str, slow: set[str]) -> None:
    """A new process imports one after the other, and names the first that imports any of them."""
    code = f"""
import importlib, sys

for action in {actions.split()}:
    importlib.import_module(f"rescnet_dist.cli.actions.{{action}}")
    if found := {slow} & sys.modules.keys():
        sys.exit(f"{{action}} imports {{found}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_s3_policy_does_not_import_dask() -> None:
    """Nor what needs it, which takes seconds."""
    code = (
        "import sys, rescnet_dist.cli.deploy, rescnet_dist.cli.actions.s3_policy; "
        "sys.exit(not {'dask', 'distributed', 'zarr'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_tasks_of_a_pass_do_not_import_xarray() -> None:
    """With dask.array and pandas, it takes 80 MiB of each worker, and seconds."""
    code = (
        "import sys, rescnet_dist.train.passes, rescnet_dist.train.cg_tasks; "
        "sys.exit(str({'dask.array', 'pandas', 'PIL', 'xarray'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize(
    "package",
    [
        rescnet_dist,
        rescnet_dist.cluster,
        rescnet_dist.dashboard,
        rescnet_dist.data,
        rescnet_dist.errors,
        rescnet_dist.network,
        rescnet_dist.planning,
        rescnet_dist.reduce,
        rescnet_dist.train,
    ],
)
def test_names_that_are_imported_on_first_use_exist(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = package.no_such_name


def test_module_that_would_hide_a_name_is_rejected() -> None:
    """Importing p.find sets the attribute `find` of the package p to the module."""
    with pytest.raises(ValueError, match=r"p has modules named as \['find'\]"):
        attach("p", {"find": ("find", "search")})


def test_version_is_that_of_the_installed_package() -> None:
    """It comes from one place, `version` in pyproject.toml."""
    assert rescnet_dist.__version__ == version("rescnet-dist")
