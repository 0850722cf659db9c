"""Markdown of the generated reference pages, made from the package's own objects; needs no Sphinx.

Every function returns Markdown. They go through public objects, `rescnet_dist.cli.main`, the spec
classes, `rescnet_dist.events.Event`, `rescnet_dist.errors`, so that the pages follow the code: a
new option, field, event or error appears by itself.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import html
import inspect
import io
import json
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

import click

PROGRAM = "rescnet"


# Markdown ---------------------------------------------------------------------------------------


def code(value: Any) -> str:
    """Return a value as inline code that is safe in a table cell."""
    text = str(value).replace("|", "\\|")
    return f"`{text}`" if text else ""


def line(text: str) -> str:
    """Return text as one line of Markdown: markup is escaped, options are inline code."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)(?![\w`])", r"`\1`", " ".join(text.split()))
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p[:1] == "`" else re.sub(r"([*_<>\[\]])", r"\\\1", p) for p in parts)


def cell(text: str) -> str:
    """Return text as one table cell."""
    return line(text).replace("|", "\\|")


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table; empty columns are left out."""
    kept = [n for n in range(len(header)) if any(row[n] for row in rows)]
    lines = [
        [header[n] for n in kept],
        ["---"] * len(kept),
        *([row[n] for n in kept] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def anchor(*names: str) -> str:
    """Return a MyST target that other pages can link to."""
    return "(" + "-".join(name.replace(" ", "-").replace("_", "-").lower() for name in names) + ")="


def split_docstring(thing: Any) -> tuple[str, dict[str, str]]:
    """Return the prose of a docstring, and what its numpydoc section says of each field, if any.

    The prose ends where the first section, a title over a line of dashes, begins.
    """
    lines = (inspect.getdoc(thing) or "").splitlines()
    titles = [n for n in range(1, len(lines)) if re.fullmatch(r"-{3,}", lines[n])]
    end = titles[0] - 1 if titles else len(lines)
    fields: dict[str, str] = {}
    for first in titles:
        if lines[first - 1].strip() not in ("Parameters", "Attributes"):
            continue
        name = ""
        for line in lines[first + 1 :]:
            if re.fullmatch(r"-{3,}", line):
                fields.pop(name, None)  # the title of the next section
                break
            if line and not line[0].isspace():
                name = line.split(":")[0].strip()
                fields[name] = ""
            elif name and line.strip():
                fields[name] = f"{fields[name]} {line.strip()}".strip()
    return "\n".join(lines[:end]).strip(), fields


def prose(text: str) -> str:
    """Return docstring text as Markdown paragraphs; indented blocks become code blocks."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith((" ", ">>>")):
            paragraphs.append(f"```text\n{paragraph}\n```")
        else:
            paragraphs.append(
                re.sub(r"(?<!`)([*_<])(?!`)", r"\\\1", paragraph)
                if "`" not in paragraph
                else paragraph
            )
    return "\n\n".join(paragraphs)


# the command line -------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Give every command, groups before their members, with its full name and a context."""
    from rescnet_dist.cli import main

    yield from _below(PROGRAM, main, click.Context(main, info_name=PROGRAM))


def _below(
    name: str, command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield name, command, context
    if isinstance(command, click.Group):
        for member in command.list_commands(context):
            found = command.get_command(context, member)
            assert found is not None, f"{name} {member} is listed and does not exist"
            yield from _below(
                f"{name} {member}", found, click.Context(found, context, info_name=member)
            )


def option_names(option: click.Option) -> list[str]:
    """Return all spellings of an option, the long ones first."""
    return sorted(
        [*option.opts, *option.secondary_opts], key=lambda name: not name.startswith("--")
    )


def cli_markdown() -> str:
    """Return the reference of all commands: usage, help, arguments, options, defaults."""
    declared = import_module("rescnet_dist.options").declared_options
    spec_fields = {name for spec in spec_classes() for name in declared(spec)}
    return "\n\n".join(
        part
        for name, command, context in commands()
        for part in _command(name, command, context, spec_fields)
    )


def _command(
    name: str, command: click.Command, context: click.Context, spec_fields: set[str]
) -> Iterator[str]:
    depth = min(2 + max(0, name.count(" ") - 1), 4)
    yield anchor("cli", name)
    yield f"{'#' * depth} {name}"
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    yield _help(command.help or "")
    if isinstance(command, click.Group):
        rows = [
            (
                f"[`{name} {member}`](#{anchor('cli', name, member)[1:-2]})",
                cell(_first(command, member, context)),
            )
            for member in command.list_commands(context)
        ]
        yield table(("command", "description"), rows)
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if "filters" not in {option.name for option in options}:
        spec_fields = set()  # a few commands have a few options of the same names only
    own = [option for option in options if option.name not in spec_fields]
    of_specs = [option for option in options if option.name in spec_fields]
    if own:
        yield _options(own, context)
    if of_specs:
        yield f"Options that set fields of the [specs](spec.md) of `{name}`:"
        yield _options(of_specs, context)


def _first(group: click.Group, member: str, context: click.Context) -> str:
    found = group.get_command(context, member)
    return (found.help or "").replace("\b", "").split("\n\n")[0] if found else ""


def _help(text: str) -> str:
    """Return a command's help; paragraphs marked with \\b, examples mostly, keep their lines."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            title, *lines = paragraph.removeprefix("\b").strip("\n").split("\n")
            if title.rstrip().endswith(":"):
                block = inspect.cleandoc("\n".join(lines))
                paragraphs.append(f"{title.strip()}\n\n```bash\n{block}\n```")
            else:
                block = "\n".join([title, *lines])
                paragraphs.append(f"```text\n{block}\n```")
        else:
            paragraphs.append(line(paragraph))
    return "\n\n".join(paragraphs)


def _options(options: list[click.Option], context: click.Context) -> str:
    rows = []
    for option in options:
        names = ", ".join(code(name) for name in option_names(option))
        text, default = option.help or "", _default(option, context)
        if found := re.search(r"\s*\[default: (.*?)\]\s*", text):  # some help texts name it
            text, default = text.replace(found[0], " ").strip(), default or line(found[1])
        notes = ["Required."] if option.required else [f"Default: {default}."] if default else []
        text = ". ".join([cell(text), *notes]) if text and notes else cell(text) or "".join(notes)
        rows.append((f"{names} {_value(option, context)}".strip(), text))
    return table(("option", "description"), rows)


def _value(option: click.Option, context: click.Context) -> str:
    """Return what an option takes: nothing, one of some words, or a value of a kind."""
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return "<br>" + " \\| ".join(code(choice) for choice in option.type.choices)
    shown = option.make_metavar(context)
    bounds = ""
    if isinstance(option.type, click.IntRange | click.FloatRange):
        low, high = option.type.min, option.type.max
        limits = [f"≥ {low}"] * (low is not None) + [f"≤ {high}"] * (high is not None)
        bounds = f" {', '.join(limits)}"
    return f"*{shown.removesuffix(' RANGE')}*{bounds}"


def _default(option: click.Option, context: click.Context) -> str:
    value = option.get_default(context, call=False)
    known = isinstance(value, str | int | float) and not option.is_flag
    return code(value) if known else ""


# specs ------------------------------------------------------------------------------------------


def spec_classes() -> list[type]:
    """Return the three specs, in the order in which a user meets them."""
    package = import_module("rescnet_dist")
    return [package.NetworkSpec, package.RunSpec, package.AugmentSpec]


def spec_markdown() -> str:
    """Return one table per spec: field, type, default, range, help; then components and presets."""
    specs = [_spec(spec) for spec in spec_classes()]
    return "\n\n".join([*specs, components_markdown(), _presets()])


def _spec(spec: Any) -> str:
    flag = import_module("rescnet_dist.formatting").option_name
    options = import_module("rescnet_dist.options").declared_options(spec)
    rows = [
        (
            f"{code(name)}<br>{code(flag(name))}",
            _type(option.type),
            code(option.default_text),
            option.limits,
            cell(option.help),
        )
        for name, option in options.items()
    ]
    title = f"{anchor('spec', spec.table)}\n## {spec.__name__}"
    text = f"Table `[{spec.table}]` of a TOML file."
    return "\n\n".join(
        [title, text, table(("field and option", "type", "default", "range", "description"), rows)]
    )


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(code(f'"{value}"') for value in arguments)
    if origin is tuple:
        return f"tuple of {_type(arguments[0])}"
    if arguments:
        return " or ".join(_type(argument) for argument in arguments)
    return "`None`" if hint is type(None) else code(hint.__name__)


def component_registries() -> dict[str, Any]:
    """Return the registries of components by the option of `NetworkSpec` that chooses from them."""
    model = import_module("rescnet_dist.model")
    return {
        "bank": model.FILTERS,
        "views": model.VIEWS,
        "features": model.FEATURES,
        "head": model.HEADS,
    }


def components_markdown() -> str:
    """Return one table per registry: the components, what each does, and its options."""
    parts = [
        f"{anchor('spec', 'components')}\n## Components",
        "What a network can be composed of. Options have their names in a table of the component, "
        "and in parentheses the flat name if it is another one.",
    ]
    for option, registry in component_registries().items():
        rows = [
            (code(kind.name), cell(split_docstring(kind)[0].split("\n\n")[0]), _own_options(kind))
            for kind in registry.classes()
        ]
        title = f"{registry.kind[0].upper()}{registry.kind[1:]}s, for `{option}`:"
        parts += [title, table(("name", "what it does", "options and defaults"), rows)]
    return "\n\n".join(parts)


def _own_options(kind: Any) -> str:
    """Return the options of a component as one table cell."""
    return "<br>".join(
        code(f"{name} = {option.default_text}")
        + (f" ({code(kind.prefix + name)})" if kind.prefix else "")
        for name, option in kind.settable_options().items()
    )


def _default_text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _presets() -> str:
    presets = import_module("rescnet_dist.spec").PRESETS
    values = {name: {key: v for key, v, _ in preset.rows()} for name, preset in presets.items()}
    rows = []
    for option, declared in import_module("rescnet_dist").NetworkSpec.settable_options().items():
        found = [values[name].get(option, "") for name in presets]  # "": no component has it
        if any(value not in ("", declared.default) for value in found):
            shown = (code(_default_text(value)) if value != "" else "–" for value in found)
            rows.append((code(option), code(declared.default_text), *shown))
    return "\n\n".join(
        [
            f"{anchor('spec', 'presets')}\n## Presets",
            "Options in which at least one preset differs from the defaults of `NetworkSpec`.",
            table(("option", "default", *(code(name) for name in presets)), rows),
        ]
    )


# events -----------------------------------------------------------------------------------------


def event_classes() -> list[type]:
    """Return all kinds of events."""
    return list(typing.get_args(import_module("rescnet_dist.events").Event))


def example_event(kind: Any) -> Any:
    """Return an event of a kind with empty fields; its phase is that of a layer."""
    values = {field.name: "" for field in dataclasses.fields(kind)}
    return kind(**values | ({"phase": "grow"} if "phase" in values else {}))


def event_kind(kind: Any) -> str:
    """Return what JSON lines call an event, as `event_to_dict` does."""
    return str(import_module("rescnet_dist.events").event_to_dict(example_event(kind))["event"])


def callback_methods(kind: Any) -> list[str]:
    """Return the methods of a `Callback` that an event of this kind is given to."""
    base, called = import_module("rescnet_dist").Callback, list[str]()

    def recorder(name: str) -> Callable[[Any, Any], None]:
        return lambda _self, _event: called.append(name)

    names = [name for name in vars(base) if name.startswith("on_")]
    type("Recorder", (base,), {name: recorder(name) for name in names})()(example_event(kind))
    return called


def events_markdown() -> str:
    """Return one section per kind of event: when, its JSON name, its callback, its fields."""
    events = import_module("rescnet_dist.events")
    parts = [f"The events have version `{events.EVENTS_VERSION}`."]
    rows = [
        (
            f"[`{kind.__name__}`](#{anchor('event', kind.__name__)[1:-2]})",
            code(event_kind(kind)),
            ", ".join(code(name) for name in callback_methods(kind)),
        )
        for kind in event_classes()
    ]
    parts.append(table(("class", "`event` in JSON lines", "method of `Callback`"), rows))
    for kind in event_classes():
        parts += [anchor("event", kind.__name__), f"### {kind.__name__}", *_fields(kind)]
    parts += ["## Values inside events", "Fields of the plain values that events carry."]
    for name in _nested(event_classes()):
        value = getattr(events, name)
        parts += [anchor("event-value", name), f"### {name}", *_fields(value)]
    return "\n\n".join(parts)


def _nested(kinds: list[type]) -> list[str]:
    """Return the names of dataclasses that fields of events hold."""
    found = []
    for kind in kinds:
        for hint in typing.get_type_hints(kind).values():
            for part in (hint, *typing.get_args(hint)):
                if (
                    isinstance(part, type)
                    and dataclasses.is_dataclass(part)
                    and part.__name__ not in found
                ):
                    found.append(part.__name__)
    return found


def _fields(kind: Any) -> list[str]:
    text, described = split_docstring(kind)
    hints = typing.get_type_hints(kind)
    rows = [
        (code(field.name), cell(_hint(hints[field.name])), cell(described.get(field.name, "")))
        for field in dataclasses.fields(kind)
    ]
    return [prose(text), table(("field", "type", "description"), rows)]


def _hint(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    text = re.sub(r"\b(?:rescnet_dist|typing)(?:\.\w+)*\.(\w+)", r"\1", text)
    return "`" + text.replace("NoneType", "None") + "`"


# errors -----------------------------------------------------------------------------------------


def error_classes() -> list[type]:
    """Return the exceptions of `rescnet_dist.errors`, each after its base."""
    module = import_module("rescnet_dist.errors")
    found = [getattr(module, name) for name in module.__all__ if name.endswith("Error")]
    return sorted(found, key=lambda kind: [c.__name__ for c in reversed(_line(kind, found))])


def _line(kind: type, known: list[type]) -> list[type]:
    """Return an exception and its bases among those known, itself first."""
    return [base for base in kind.__mro__ if base in known]


def exit_code(kind: type) -> int:
    """Return the exit code of a command that ends with an exception, as the command line has it."""
    from rescnet_dist.cli.group import exit_codes

    with contextlib.redirect_stderr(io.StringIO()):
        try:
            with exit_codes():
                raise kind("")
        except SystemExit as stop:
            return int(stop.code or 0)
    raise AssertionError(f"{kind.__name__} does not end a command")


def errors_markdown() -> str:
    """Return the hierarchy of exceptions, with the exit code that each ends a command with."""
    known, public = error_classes(), set(import_module("rescnet_dist").__all__)
    rows = []
    for kind in known:
        depth = len(_line(kind, known)) - 1
        bases = [
            f"{b.__module__.removeprefix('builtins')}.{b.__name__}".lstrip(".")
            for b in kind.__bases__
            if b not in known
        ]
        text = cell(split_docstring(kind)[0].split("\n\n")[0])
        text += f" Also a {' and '.join(code(name) for name in bases)}." if bases else ""
        link = f"[`{kind.__name__}`](#{anchor('error', kind.__name__)[1:-2]})"
        rows.append(("&emsp;" * depth + link, code(exit_code(kind)), text))
    exported = ", ".join(code(kind.__name__) for kind in known if kind.__name__ in public)
    return "\n\n".join(
        [
            f"Exported by `rescnet_dist` itself: {exported}.",
            table(("exception", "exit code", "meaning"), rows),
        ]
    )


# the API ----------------------------------------------------------------------------------------


def api_markdown(module: str) -> str:
    """Return a table and the documentation of all that a module's `__all__` names."""
    found = import_module(module)
    names = {name: getattr(found, name) for name in sorted(found.__all__, key=str.lower)}
    kinds: dict[str, list[str]] = {"Classes": [], "Functions": [], "Exceptions": [], "Data": []}
    for name, value in names.items():
        if isinstance(value, type) and issubclass(value, BaseException):
            kinds["Exceptions"].append(name)
        elif isinstance(value, type):
            kinds["Classes"].append(name)
        elif inspect.isroutine(value):
            kinds["Functions"].append(name)
        else:
            kinds["Data"].append(name)
    directive = {"Classes": "autoclass", "Functions": "autofunction", "Exceptions": "autoexception"}
    parts = []
    for title, members in kinds.items():
        if not members:
            continue
        parts.append(f"## {title}")
        if title == "Data":
            rows = [(code(f"{module}.{name}"), _value_text(names[name])) for name in members]
            parts.append(table(("name", "value"), rows))
            continue
        lines = [f".. currentmodule:: {module}", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in members]
        for name in members:
            lines += ["", f".. {directive[title]}:: {name}{_signature(names[name])}"]
            if title == "Classes":
                lines += ["   :members:", "   :exclude-members: __init__, __new__"]
        parts.append("```{eval-rst}\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts)


def _signature(value: Any) -> str:
    """Return the signature of a dataclass by its fields, as a base class may hide it; else none."""
    if not dataclasses.is_dataclass(value):
        return ""
    shown = []
    for field in dataclasses.fields(value):
        if field.init:
            plain = isinstance(field.default, str | int | float | tuple | type(None))
            missing = field.default is dataclasses.MISSING
            factory = field.default_factory is not dataclasses.MISSING
            default = "" if missing and not factory else f"={field.default!r}" if plain else "=..."
            shown.append(field.name + default)
    return f"({', '.join(shown)})"


def _value_text(value: Any) -> str:
    text = repr(value)
    if typing.get_args(value):
        return "type alias"
    has_text = len(text) < 80 and " object at 0x" not in text
    return code(text if has_text else type(value).__name__)


# modules and their imports ----------------------------------------------------------------------


def package_folder() -> Path:
    """Return the folder of the package."""
    return Path(str(import_module("rescnet_dist").__file__)).parent


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to: its top-level folder or module."""
    return path.relative_to(package_folder()).parts[0].removesuffix(".py")


@cache
def part_imports() -> dict[str, set[str]]:
    """Return the parts of the package that each part imports, by its source, wherever in a file."""
    root, found = package_folder(), dict[str, set[str]]()
    parts = {part_of(path) for path in root.rglob("*.py")} - {"__init__", "__main__"}
    for path in sorted(root.rglob("*.py")):
        if (part := part_of(path)) not in parts:
            continue
        names = found.setdefault(part, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {
        part: {
            pieces[1]
            for name in names
            if (pieces := name.split("."))[0] == "rescnet_dist" and len(pieces) > 1
        }
        & parts - {part}
        for part, names in found.items()
    }


def part_levels(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the parts by level, those that import nothing first; a cycle is an error."""
    level: dict[str, int] = {}
    for part in TopologicalSorter(imports).static_order():
        level[part] = 1 + max((level[below] for below in imports[part]), default=-1)
    return [sorted(p for p in level if level[p] == n) for n in range(max(level.values()) + 1)]


def direct_imports(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that no other one implies (the transitive reduction)."""

    def reached(part: str) -> set[str]:
        return {below for one in imports[part] for below in ({one} | reached(one))}

    return {
        part: {one for one in below if not any(one in reached(other) for other in below - {one})}
        for part, below in imports.items()
    }


def import_diagram() -> str:
    """Return an SVG of the parts of the package, importers above what they import."""
    imports = part_imports()
    levels = part_levels(imports)
    box, gap, row = (104, 32), 66, 68
    width = max(map(len, levels)) * (box[0] + gap) + gap
    height = row * len(levels)
    at: dict[str, tuple[float, float]] = {}
    for number, parts in enumerate(levels):
        left = (width - len(parts) * box[0] - (len(parts) - 1) * gap) / 2
        for place, part in enumerate(parts):
            at[part] = left + place * (box[0] + gap), height - row * (number + 1) + 18
    lines, boxes = [], []
    for part, below in sorted(direct_imports(imports).items()):
        for other in sorted(below):
            x1, y1 = at[part][0] + box[0] / 2, at[part][1] + box[1]
            x2, y2 = at[other][0] + box[0] / 2, at[other][1]
            middle = (y1 + y2) / 2
            lines.append(
                f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} '
                f'{x2:.0f} {y2:.0f}" fill="none" stroke="currentColor" stroke-opacity=".45"/>'
            )
    for part, (x, y) in sorted(at.items()):
        boxes.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{box[0]}" height="{box[1]}" rx="5" '
            'fill="var(--pst-color-surface, #f3f4f5)" stroke="currentColor"/>'
            f'<text x="{x + box[0] / 2:.0f}" y="{y + 21:.0f}" text-anchor="middle" '
            f'font-size="15" fill="currentColor">{html.escape(part)}</text>'
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" style="max-width:100%;height:auto" '
        'xmlns="http://www.w3.org/2000/svg"><title>Parts of rescnet_dist and what they import'
        f"</title>{''.join(lines)}{''.join(boxes)}</svg>"
    )


def imports_markdown() -> str:
    """Return the diagram, and a table of all imports between parts."""
    imports = part_imports()
    rows = [
        (code(part), ", ".join(code(one) for one in sorted(imports[part])) or "–")
        for parts in reversed(part_levels(imports))
        for part in parts
    ]
    diagram = "```{raw} html\n" + import_diagram() + "\n```"
    return "\n\n".join([diagram, table(("part", "imports"), rows)])


def modules_markdown() -> str:
    """Return all modules by part, each with the first line of its docstring."""
    root, parts = package_folder(), list[str]()
    order = [part for level in part_levels(part_imports()) for part in level]
    for part in order:
        files = sorted(path for path in root.rglob("*.py") if part_of(path) == part)
        rows = []
        for path in files:
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            rows.append((code(path.relative_to(root)), cell(text.split("\n\n")[0])))
        parts += [f"### {part}", table(("module", "purpose"), rows)]
    return "\n\n".join(parts)


def bench_markdown() -> str:
    """Return the table of benchmarks, from the records of machines in the folder `bench`."""
    from rescnet_dist.bench import machines_markdown

    paths = sorted((Path(__file__).parents[1] / "bench").glob("*.json"))
    return machines_markdown([json.loads(path.read_text()) for path in paths])


GENERATED: dict[str, Callable[..., str]] = {
    "rescnet-api": api_markdown,
    "rescnet-bench": bench_markdown,
    "rescnet-cli": cli_markdown,
    "rescnet-errors": errors_markdown,
    "rescnet-events": events_markdown,
    "rescnet-imports": imports_markdown,
    "rescnet-modules": modules_markdown,
    "rescnet-spec": spec_markdown,
}
