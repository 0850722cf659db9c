"""One vocabulary: identifiers, constants and error messages in the language of the field.

The words below belong to an earlier private dialect. Each has a name that readers of dask, zarr and
scikit-learn know at once; CONTRIBUTING.md has the table.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import rescnet_dist
from rescnet_dist import errors

PACKAGE = Path(rescnet_dist.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(
    path
    for folder in ("rescnet_dist", "tests", "deploy", "notebooks")
    for path in (ROOT / folder).rglob("*.py")
)
MODULES = sorted(PACKAGE.rglob("*.py"))

DIALECT = {
    *("tell", "tells", "told", "teller", "telling", "announcer"),
    *("endure", "endures", "endured", "patient", "patiently"),
    *("shelf", "shelves", "mend", "mended", "rightly", "judge", "judged", "judgement"),
    *("beside", "behind", "alike", "learnt"),
    *("colour", "colours", "coloured", "grey", "centre", "centred", "normalise", "normalised"),
    *("standardise", "standardised", "factorise", "factorisation", "neighbour", "licence"),
}
ALLOWED = {"write_behind", "WriteBehind", "tell"}  # as caches, and files, call it
UNITS = {"seconds": "SECONDS", "bytes": "BYTES"}
RAISED = {
    *(name for name in dir(errors) if name.endswith("Error")),
    *("ClickException", "UsageError", "BadParameter"),
}


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def short(path: Path) -> str:
    """Return a path relative to the repository."""
    return str(path.relative_to(ROOT))


@cache
def words(identifier: str) -> set[str]:
    """Return the lowercase words of an identifier.

    >>> sorted(words("_ChunkCache")), sorted(words("MAX_BYTES"))
    (['cache', 'chunk'], ['bytes', 'max'])
    """
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    return {part.lower() for part in parts}


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that a module defines or binds."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name():
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.end_lineno or node.lineno, node.attr


def uses_dialect(text: str) -> bool:
    """Return whether any name in a text, also in its prose, has a word of the dialect."""
    return any(words(name) & DIALECT for name in set(re.findall(r"\w+", text)))


def test_identifiers_use_the_vocabulary() -> None:
    found = {
        f"{short(path)}:{line} {name}"
        for path in SOURCES
        if uses_dialect(path.read_text())  # most files need not be parsed
        for line, name in identifiers(parse(path))
        if words(name) & DIALECT and name not in ALLOWED
    }
    found |= {short(path) for path in SOURCES if words(path.stem) & DIALECT}
    assert not found


def constants(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield name, line number and source line of each constant of a module."""
    lines = path.read_text().splitlines()
    for node in parse(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for name in (name for target in targets for name in ast.walk(target)):
            if isinstance(name, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name.id):
                yield name.id, node.lineno, lines[node.lineno - 1]


def test_no_constant_stands_for_two_things() -> None:
    modules = defaultdict(set)
    for path in MODULES:
        for name, _, _ in constants(path):
            modules[name].add(short(path))
    repeated = {name: sorted(where) for name, where in modules.items() if len(where) > 1}
    assert not repeated


def test_constants_carry_their_unit() -> None:
    missing = []
    for path in MODULES:
        for name, line, source in constants(path):
            _, _, comment = source.partition("#")
            for word, unit in UNITS.items():
                if re.match(rf"\s*{word}\b", comment) and unit not in name:
                    missing.append(f"{short(path)}:{line} {name}")
    assert not missing


@dataclass(frozen=True)
class Message:
    """The text of an error as the source has it, with {} for each value."""

    where: str
    error: str
    text: str


def literal(node: ast.expr) -> str | None:
    """Return the text of a string expression, or None where it is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            parts = [literal(v) if isinstance(v, ast.Constant) else "{}" for v in values]
            return "".join(part or "" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (literal(left) or "{}") + (literal(right) or "{}")
        case ast.IfExp(body=body):
            return literal(body)
    return None


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    """All error messages of the package and its command line."""
    found = []
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in RAISED and (text := literal(node.args[0])) and text != "{}":
                found.append(Message(f"{short(path)}:{node.lineno}", name, text))
    return found


def test_messages_are_collected(messages: list[Message]) -> None:
    assert len(messages) > 250


def test_messages_follow_one_form(messages: list[Message]) -> None:
    """Sentences, without words of the dialect."""
    for message in messages:
        assert re.search(r"(\.|\?|\{\}|`)$", message.text), message
        assert not words(re.sub(r"\{\}", "", message.text)) & DIALECT, message
