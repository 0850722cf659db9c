"""The import graph of a package, read from its source, with imports in functions and by name.

An edge goes from a module to each module that it imports:

- `import a.b`, `from a import b` and relative imports, anywhere in the file, those for type
  checkers included. `from a import b` imports the module `a.b` if there is one, else `a`.
- `import_module("a.b")` and `__import__("a.b")`. If the name is an f-string, such as `f"a.{name}"`,
  all modules are imported whose name has that beginning.
- `importlib.resources.files("a")`, which imports the package `a`.

A package is the module of its `__init__.py`. Importing `a.b` runs `a/__init__.py` first, so it is
an import of `a` too, except for modules inside `a`, for which it has begun to run already. These
may import other modules of `a`, although `a` imports them, but no name that `a/__init__.py` has.

A name in a variable, or a scan with pkgutil, cannot be read from the source. It must be declared.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

IMPORTERS = {"import_module", "__import__"}
ANCHORED = {"files", "resources.files", "importlib.resources.files"}
SCANNERS = {"iter_modules", "walk_packages"}
Declared = Mapping[str, Collection[str]]  # the modules that a module imports, by its full name
NOTHING: Declared = MappingProxyType({})


class UndeclaredImportError(Exception):
    """An import that cannot be read from the source and is not declared."""


def list_modules(root: Path) -> dict[str, Path]:
    """Return the files of all modules of the package in the folder `root`, by their full name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def get_ancestors(name: str) -> list[str]:
    """Return the packages that a module is in, outermost first.

    >>> get_ancestors("a.b.c")
    ['a', 'a.b']
    """
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def iter_imports(name: str, path: Path, declared: Declared = NOTHING) -> Iterator[str]:
    """Yield the full names that a module imports, modules or names in them.

    A name that ends with `*` stands for all modules with that beginning. Where the module is
    `declared`, those modules are yielded instead of what cannot be read from the source.
    """
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    variables = {"__name__": name, "__package__": package}
    yield from declared.get(name, ())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (target := _read_call(node, variables)):
            is_unknown = target == "*" or target.startswith(".")
            if is_unknown and name not in declared:
                raise UndeclaredImportError(
                    f"{name}, line {node.lineno}: {ast.unparse(node)} imports what only the "
                    "running program knows. Declare the modules in DECLARED."
                )
            if not (is_unknown or (target.endswith("*") and name in declared)):
                yield target


def _read_call(node: ast.Call, variables: Mapping[str, str]) -> str | None:
    """Return the name that a call imports, as of `_evaluate`, or None if it imports nothing.

    Package data of a package that the module is in count as no import.
    """
    function = ast.unparse(node.func)
    called = function.rpartition(".")[2]
    if called in SCANNERS:
        return "*"
    if called in IMPORTERS:
        return _evaluate(node.args[0], variables)
    if function not in ANCHORED:
        return None
    anchor = _evaluate(node.args[0], variables) if node.args else variables["__package__"]
    return None if f"{variables['__name__']}.".startswith(f"{anchor}.") else anchor


def _evaluate(node: ast.expr, variables: Mapping[str, str]) -> str:
    """Return the string that an expression gives, as far as it is known, followed by `*`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return variables.get(node.id, "*")
    if isinstance(node, ast.FormattedValue):
        return _evaluate(node.value, variables)
    text = ""
    for part in node.values if isinstance(node, ast.JoinedStr) else ():
        text += _evaluate(part, variables)
        if text.endswith("*"):
            return text
    return text or "*"


def build_graph(modules: Mapping[str, Path], declared: Declared = NOTHING) -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports."""
    graph = {}
    for name, path in modules.items():
        own = {name, *get_ancestors(name)}
        graph[name] = set[str]()
        for imported in iter_imports(name, path, declared):
            for target in _find_modules(imported, modules):
                graph[name] |= {target, *(set(get_ancestors(target)) - own)}
        graph[name].discard(name)
    return graph


def _find_modules(imported: str, modules: Mapping[str, Path]) -> list[str]:
    """Return the modules that a name of `iter_imports` stands for."""
    if imported.endswith("*"):
        return [name for name in modules if name.startswith(imported[:-1])]
    candidates = [imported, *reversed(get_ancestors(imported))]
    return [name for name in candidates if name in modules][:1]


def find_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return a shortest cycle of each set of modules that import each other, sorted.

    >>> find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    [['b', 'c', 'b']]
    """
    cycles, seen = [], set[str]()
    for name in sorted(graph):
        if name in seen or (cycle := _find_path(graph, name, name)) is None:
            continue
        seen |= {other for other in _reach(graph, name) if name in _reach(graph, other)}
        cycles.append(cycle)
    return cycles


def _find_path(graph: Mapping[str, set[str]], start: str, end: str) -> list[str] | None:
    """Return a shortest path of at least one edge, by breadth-first search."""
    paths, seen = [[start]], set[str]()
    for path in paths:
        for other in sorted(graph[path[-1]] - seen):
            if other == end:
                return [*path, end]
            seen.add(other)
            paths.append([*path, other])
    return None


def _reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return all modules that a module imports, directly or through others."""
    found, todo = set[str](), [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found
