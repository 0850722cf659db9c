"""The generated reference: every command, option, field, event and exception is in it."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest

import rescnet_dist
from rescnet_dist import errors
from rescnet_dist.model import (
    FILTERS,
    Component,
    FeatureExtractor,
    FilterGroup,
    FilterLearner,
    Head,
    View,
)
from rescnet_dist.options import declared_options, option

ROOT = Path(__file__).parents[2]
PACKAGE = Path(rescnet_dist.__file__).parent
BOOK = ROOT / "notebooks"
sys.path.insert(0, str(BOOK / "_ext"))

import _reference_text as reference  # noqa: E402
import rescnet_reference as extension  # noqa: E402

PAGES = sorted(
    path for part in ("how-it-works", "reference", "develop") for path in (BOOK / part).glob("*.md")
)
NAMES = [str(path.relative_to(BOOK)) for path in PAGES]
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.py|(?:[\w.-]+/)+)`")


@pytest.fixture(scope="module")
def cli() -> str:
    """The page of the command line."""
    return reference.cli_markdown()


def section(page: str, title: str) -> str:
    """The part of a page from a heading to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def test_every_command_and_option_is_in_the_reference(cli: str) -> None:
    """Walks the commands by click itself, not by the functions that make the page."""
    from rescnet_dist.cli import main

    waiting: list[tuple[str, click.Command]] = [("rescnet", main)]
    seen = 0
    while waiting:
        name, command = waiting.pop()
        context, text = click.Context(command), section(cli, name)
        if isinstance(command, click.Group):
            members = {
                member: command.get_command(context, member)
                for member in command.list_commands(context)
            }
            waiting += [(f"{name} {member}", found) for member, found in members.items() if found]
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                assert parameter.make_metavar(context) in text
            elif not getattr(parameter, "hidden", False):
                missing = [
                    o for o in parameter.opts + parameter.secondary_opts if f"`{o}`" not in text
                ]
                assert not missing, f"{name} has {missing}"
        seen += 1
    assert seen > 15


def test_defaults_and_choices_are_in_the_reference(cli: str) -> None:
    """Of options that show one."""
    assert "Default: `error`" in section(cli, "rescnet data import")
    assert "`float16`" in section(cli, "rescnet train")
    assert "Required" in section(cli, "rescnet estimate")


@pytest.mark.parametrize("spec", reference.spec_classes(), ids=lambda spec: spec.__name__)
def test_every_field_of_a_spec_has_a_help_text(spec: Any) -> None:
    """And is in the page, with its default and its range."""
    options, text = declared_options(spec), section(reference.spec_markdown(), spec.__name__)
    for name, declared in options.items():
        assert declared.help, name
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert str(declared.default) in row
        assert f"| {declared.limits} |" in row
        assert reference.cell(declared.help) in row


def test_every_preset_is_in_the_reference() -> None:
    """With the options in which it differs, those of components included."""
    from rescnet_dist.spec import PRESETS

    text = section(reference.spec_markdown(), "Presets")
    assert all(f"`{name}`" in text for name in PRESETS)
    for preset in PRESETS.values():
        for name, value, is_changed in preset.rows():
            rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
            assert rows or not is_changed, name
            assert all(reference.code(reference._default_text(value)) in row for row in rows)


def list_component_classes() -> list[type[Component]]:
    """Return the component classes in the modules of the four packages, without registries.

    Classes that `dataclass` has replaced by those with slots have no options. Learners that wrap
    another one have no name of their own.
    """
    found = []
    for base in (View, FilterLearner, FeatureExtractor, Head):
        waiting = base.__subclasses__()
        while waiting:
            kind = waiting.pop()
            waiting += kind.__subclasses__()
            is_built_in = kind.__module__.startswith("rescnet_dist.model.")
            has_name = isinstance(vars(kind).get("name"), str)
            if is_built_in and has_name and hasattr(kind, "__options__"):
                found.append(kind)
    return found


def test_every_component_is_in_the_reference() -> None:
    """With what it does, its options and their defaults."""
    text = section(reference.spec_markdown(), "Components")
    components = list_component_classes()
    assert {"pca", "contrast", "second-order", "classify"} <= {kind.name for kind in components}
    for kind in components:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{kind.name}` |"))
        assert reference.cell((kind.__doc__ or "").split("\n")[0]) in row
        for name, declared in kind.__options__.items():
            assert f"`{name} = {declared.default_text}`" in row


def test_new_component_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is registered, in the table of its kind, with the flat names of its options."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Ones(FilterLearner):
        """Filters of ones."""

        name: ClassVar[str] = "ones"
        prefix: ClassVar[str] = "ones_"
        factor: float = option(2.0, help="factor")

        def fit(self, statistics: Any, group: FilterGroup) -> Any:
            raise NotImplementedError

    monkeypatch.setattr(FILTERS, "_members", dict(FILTERS._members))
    FILTERS.register(Ones)
    row = "| `ones` | Filters of ones. | `factor = 2.0` (`ones_factor`) |"
    assert row in reference.components_markdown().splitlines()


@pytest.mark.parametrize("kind", reference.event_classes(), ids=lambda kind: kind.__name__)
def test_every_event_is_described(kind: Any) -> None:
    """In words, with its JSON name, its callback and its fields."""
    page = reference.events_markdown()
    text = section(page, kind.__name__)
    assert len(text.strip().splitlines()[0].split()) >= 3, "no description"
    assert all(f"| `{field.name}`" in text for field in dataclasses.fields(kind))
    (row,) = (line for line in page.splitlines() if line.startswith(f"| [`{kind.__name__}`]"))
    assert reference.event_kind(kind) in row
    assert reference.callback_methods(kind)
    assert all(f"`{method}`" in row for method in reference.callback_methods(kind))


@pytest.mark.parametrize("kind", reference.error_classes(), ids=lambda kind: kind.__name__)
def test_every_exception_is_in_the_page_of_errors(kind: type) -> None:
    """In the generated hierarchy and, with what to do, in the text."""
    assert f"[`{kind.__name__}`]" in reference.errors_markdown()
    text = section((BOOK / "reference" / "errors.md").read_text(), kind.__name__)
    assert len(text.split()) >= 5


def test_exit_codes_are_those_of_the_command_line() -> None:
    """The page has every code that an exception can end a command with."""
    text = (BOOK / "reference" / "exit-codes.md").read_text()
    codes = {reference.exit_code(kind) for kind in reference.error_classes()} | {0, 1, 130}
    assert all(re.search(rf"^\| {code} \|", text, re.MULTILINE) for code in codes)


def test_everything_public_is_in_the_api() -> None:
    """Of the package, its model and its kernels."""
    for module in ("rescnet_dist", "rescnet_dist.model", "rescnet_dist.kernels"):
        text = reference.api_markdown(module)
        names = sys.modules[module].__all__
        missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
        assert not missing


def test_imports_between_parts_have_no_cycle() -> None:
    """So that the diagram has levels; every part is in it."""
    imports = reference.part_imports()
    levels = reference.part_levels(imports)
    assert sorted(part for level in levels for part in level) == sorted(imports)
    diagram = reference.import_diagram()
    assert all(f">{part}</text>" in diagram for part in imports)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_fences_are_expanded(path: Path) -> None:
    """No page asks for something that is not generated."""
    assert "```{rescnet-" not in extension.expand(path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_files_that_are_named_exist(path: Path) -> None:
    """Modules and folders, below the package or the repository."""
    made = {"data/", "image_scale/", "views/", "layers/", "work/", "claims/", "commits/", "import/"}
    named = [name for name in PATH.findall(path.read_text()) if name not in made]
    sources = PACKAGE / "data" / "sources"
    missing = [
        name for name in named if not any((d / name).exists() for d in (PACKAGE, ROOT, sources))
    ]
    assert not missing


def test_errors_page_has_an_anchor_for_each_error() -> None:
    """Tables of the page link to them; the name of an anchor follows the name of the class."""
    text = (BOOK / "reference/errors.md").read_text()
    anchors = set(re.findall(r"^\((error-\w+)\)=$", text, re.MULTILINE))
    names = {name for name in errors.__all__ if name.endswith("Error")}
    assert anchors <= {f"error-{name.lower()}" for name in names}
